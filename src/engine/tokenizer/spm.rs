//! SentencePiece's BPE: of all neighbours that are a token together, those of the highest score are joined first.

use super::bpe::{SPACE, of_byte};
use crate::problem::quote;
use anyhow::{Context, Result};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, HashMap};

pub(super) struct Spm {
    /// Of each token, finite.
    pub scores: Vec<f32>,
    /// Whether a space comes before a text at the beginning and after a special token.
    pub space_prefix: bool,
}

/// Part of a text; an empty one has been joined to another.
struct Symbol {
    start: usize,
    len: usize,
    previous: Option<usize>,
    next: Option<usize>,
}

/// Two symbols that can be joined.
struct Pair {
    left: usize,
    right: usize,
    /// Bytes of both.
    len: usize,
    score: f32,
}

impl Ord for Pair {
    /// The highest score comes first, of equals the leftmost.
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left)).then(self.len.cmp(&other.len))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Adds the tokens of `text` to `tokens`; `first` says that nothing or a special token comes before it.
    ///
    /// # Errors
    /// A character is no token, and one of its bytes neither.
    pub(super) fn tokenize(
        &self,
        text: &str,
        first: bool,
        ids: &HashMap<String, u32>,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        let prefix = if first && self.space_prefix { SPACE } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', SPACE));
        for part in self.joined(&text, ids) {
            if let Some(&id) = ids.get(part) {
                tokens.push(id);
                continue;
            }
            for byte in part.bytes() {
                let id = ids.get(&of_byte(byte));
                tokens.push(*id.with_context(|| {
                    format!("there is no token for {}, and none for its byte {}", quote(part), quote(&of_byte(byte)))
                })?);
            }
        }
        Ok(())
    }

    /// The parts of a text: tokens, and characters that are none.
    fn joined<'t>(&self, text: &'t str, ids: &HashMap<String, u32>) -> Vec<&'t str> {
        let characters = text.chars().count();
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(i, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                previous: i.checked_sub(1),
                next: Some(i + 1).filter(|&next| next < characters),
            })
            .collect();
        let mut pairs = BinaryHeap::new();
        let pair = |symbols: &[Symbol], left: Option<usize>, right: Option<usize>| {
            let (left, right) = (left?, right?);
            let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
            let &id = ids.get(&text[start..start + len])?;
            // Zero has two signs, which are equal.
            Some(Pair { left, right, len, score: self.scores[id as usize] + 0.0 })
        };
        for right in 1..symbols.len() {
            pairs.extend(pair(&symbols, Some(right - 1), Some(right)));
        }
        while let Some(Pair { left, right, len, .. }) = pairs.pop() {
            let (left_len, right_len) = (symbols[left].len, symbols[right].len);
            // One of them has been joined to another since.
            if left_len == 0 || right_len == 0 || left_len + right_len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[right].len = 0;
            let next = symbols[right].next;
            symbols[left].next = next;
            if let Some(next) = next {
                symbols[next].previous = Some(left);
            }
            pairs.extend(pair(&symbols, symbols[left].previous, Some(left)));
            pairs.extend(pair(&symbols, Some(left), next));
        }
        let kept = symbols.iter().filter(|symbol| symbol.len > 0);
        kept.map(|symbol| &text[symbol.start..symbol.start + symbol.len]).collect()
    }
}
