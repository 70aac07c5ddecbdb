//! Byte-pair encoding: a text is cut by expressions, and the characters of each piece are merged by rank.

use super::pre::Pre;
use crate::problem::quote;
use anyhow::{Context, Result, anyhow, bail, ensure};
use fancy_regex::Regex;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

/// SentencePiece's sign for a space.
pub(super) const SPACE: &str = "\u{2581}";

pub(super) struct Bpe {
    splits: Vec<Regex>,
    /// Of characters instead of GPT-2's characters for bytes.
    characters: bool,
    whole_newlines: bool,
    model: BPE,
}

impl Bpe {
    /// `merges` are two tokens each, the best first.
    ///
    /// # Errors
    /// A merge that is no two tokens, or of tokens that aren't in `ids`.
    pub(super) fn new<'m>(
        pre: &Pre,
        ids: &HashMap<String, u32>,
        merges: impl Iterator<Item = &'m str>,
    ) -> Result<Self> {
        let mut seen = HashSet::new();
        let mut pairs = Vec::new();
        for (number, merge) in merges.enumerate() {
            // A token of one space begins with it.
            let space = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
            let Some((left, right)) = space.map(|at| (&merge[..at], &merge[at + 1..])) else {
                bail!("merge {number}: expected two tokens with a space between them, found {}", quote(merge));
            };
            for token in [left, right, &[left, right].concat()] {
                ensure!(
                    ids.contains_key(token),
                    "merge {number}, {}: expected {} among the tokens, found none like it",
                    quote(merge),
                    quote(token)
                );
            }
            // Of equal merges the first counts.
            if seen.insert((left, right)) {
                pairs.push((left.to_owned(), right.to_owned()));
            }
        }
        let vocabulary: Vocab = ids.iter().map(|(token, &id)| (token.clone(), id)).collect();
        let model = BPE::builder()
            .vocab_and_merges(vocabulary, pairs)
            .ignore_merges(pre.ignore_merges)
            .byte_fallback(pre.characters)
            .build()
            .map_err(|e| anyhow!("{e}"))?;
        let splits: Result<Vec<Regex>, _> = pre.splits.iter().map(|split| Regex::new(split)).collect();
        Ok(Self { splits: splits?, characters: pre.characters, whole_newlines: pre.whole_newlines, model })
    }

    /// Adds the tokens of `text` to `tokens`.
    ///
    /// # Errors
    /// A part of the text has no token, or can't be cut.
    pub(super) fn tokenize(&self, text: &str, ids: &HashMap<String, u32>, tokens: &mut Vec<u32>) -> Result<()> {
        let text = if self.characters { Cow::Owned(text.replace(' ', SPACE)) } else { Cow::Borrowed(text) };
        for piece in self.pieces(&text)? {
            let word =
                if self.characters { Cow::Borrowed(piece) } else { Cow::Owned(piece.bytes().map(sign).collect()) };
            let newlines = self.whole_newlines && word.bytes().all(|byte| byte == b'\n');
            if let Some(&id) = ids.get(&*word).filter(|_| newlines || self.model.ignore_merges) {
                tokens.push(id);
                continue;
            }
            for (at, c) in word.char_indices() {
                let c = &word[at..at + c.len_utf8()];
                // The model would leave it out.
                ensure!(
                    ids.contains_key(c) || (self.characters && c.bytes().all(|byte| ids.contains_key(&of_byte(byte)))),
                    "there is no token for {} in {}",
                    quote(c),
                    quote(piece)
                );
            }
            let found = self.model.tokenize(&word).map_err(|e| anyhow!("{e}"))?;
            tokens.extend(found.iter().map(|token| token.id));
        }
        Ok(())
    }

    /// What the expressions make of a text, nothing left out.
    fn pieces<'t>(&self, text: &'t str) -> Result<Vec<&'t str>> {
        let mut pieces = vec![text];
        for split in &self.splits {
            let mut cut = Vec::new();
            for piece in pieces {
                let mut end = 0;
                for found in split.find_iter(piece) {
                    let found = found.context("the text can't be cut into words")?;
                    cut.push(&piece[end..found.start()]);
                    cut.push(found.as_str());
                    end = found.end();
                }
                cut.push(&piece[end..]);
            }
            cut.retain(|piece| !piece.is_empty());
            pieces = cut;
        }
        Ok(pieces)
    }

    /// The bytes of a token that stands for text.
    pub(super) fn bytes(&self, token: &str) -> Vec<u8> {
        if self.characters {
            return token.replace(SPACE, " ").into_bytes();
        }
        let mut bytes = Vec::new();
        for c in token.chars() {
            match (0..=255).find(|&byte| sign(byte) == c) {
                Some(byte) => bytes.push(byte),
                None => bytes.extend(c.to_string().bytes()),
            }
        }
        bytes
    }
}

/// GPT-2's character for a byte: its own where Latin-1 has one that is seen, else the next from U+0100 on.
fn sign(byte: u8) -> char {
    let seen = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if seen(byte) {
        return byte.into();
    }
    let hidden = (0..byte).filter(|&before| !seen(before)).count();
    char::from_u32(0x100 + hidden as u32).unwrap_or_default()
}

/// SentencePiece's token for a byte.
pub(super) fn of_byte(byte: u8) -> String {
    format!("<0x{byte:02X}>")
}

#[cfg(test)]
mod tests {
    use super::sign;

    #[test]
    fn bytes_have_the_signs_of_gpt2() {
        for (byte, expected) in [(b'a', 'a'), (b' ', '\u{120}'), (b'\n', '\u{10a}'), (0, '\u{100}'), (0x7F, '\u{121}')]
        {
            assert_eq!(sign(byte), expected);
        }
        for (byte, expected) in [(0xA0, '\u{142}'), (0xAD, '\u{143}'), (0xE9, '\u{e9}'), (0xFF, '\u{ff}')] {
            assert_eq!(sign(byte), expected);
        }
    }
}
