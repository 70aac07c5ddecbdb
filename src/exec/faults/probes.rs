//! Prompts that are made to show faults.

use super::plan::attentions;
use crate::model::Plan;
use crate::ops::rope::RopeScaling;
use std::fmt;

/// A prompt to try an engine with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What it is for, in a word.
    pub name: String,
    /// At least one.
    pub tokens: Vec<u32>,
    /// One per token.
    pub positions: Vec<u32>,
}

/// Windows that are longer get no probe of their own: it would take too long.
pub const LONGEST: usize = 1024;

impl Probe {
    /// At positions 0, 1, 2, ...
    pub fn new(name: &str, tokens: Vec<u32>) -> Self {
        let positions = (0..tokens.len() as u32).collect();
        Self { name: name.to_owned(), tokens, positions }
    }

    /// One more than the largest position.
    pub fn length(&self) -> usize {
        self.positions.iter().max().map_or(0, |&p| p as usize + 1)
    }

    /// Probes for a plan, which between them should show every fault that applies:
    /// distinct tokens, more than any sliding window holds; and, where RoPE is scaled, a few tokens at sparse positions
    /// beyond the trained length and, where that changes the factors, on both sides of it.
    pub fn recommended(plan: &Plan) -> Vec<Probe> {
        let windows = attentions(plan).filter_map(|(_, a)| a.spec.sliding_window).filter(|&w| w <= LONGEST);
        let n = windows.max().map_or(0, |w| w + 3).max(12);
        let mut probes = vec![Probe::new("plain", distinct(plan, n))];
        let mut sparse = |name: &str, length: usize| {
            let positions = spread(length);
            let tokens = distinct(plan, positions.len());
            probes.push(Probe { name: name.to_owned(), tokens, positions });
        };
        for rope in &plan.ropes {
            match rope.scaling {
                RopeScaling::Default | RopeScaling::NtkAlpha { .. } | RopeScaling::Proportional { .. } => {}
                RopeScaling::Longrope { original_max_position_embeddings: original, .. } => {
                    sparse("short", original);
                    sparse("first-long", original + 1);
                }
                RopeScaling::Linear { .. } => sparse("sparse", plan.max_position_embeddings.saturating_add(1)),
                RopeScaling::Dynamic { max_position_embeddings: trained, .. }
                | RopeScaling::Llama3 { original_max_position_embeddings: trained, .. }
                | RopeScaling::Yarn { original_max_position_embeddings: trained, .. } => {
                    sparse("sparse", trained.saturating_add(trained / 2));
                }
            }
        }
        probes
    }
}

/// `n` tokens of the vocabulary that are text, distinct as long as there are enough.
fn distinct(plan: &Plan, n: usize) -> Vec<u32> {
    let vocab = plan.vocab_size as u64;
    // A step that has no divisor in common with the size goes through all of them.
    let step = (vocab * 5 / 8..).find(|&step| step > 0 && gcd(step, vocab) == 1).unwrap_or(1);
    let text = |token: &u32| !plan.placeholder_tokens.contains_key(token);
    // Of so many in a row one at least is text, if any is.
    let row = plan.placeholder_tokens.len() as u64 + 1;
    (1..=n as u64 * row).map(|i| (i * step % vocab) as u32).filter(text).take(n).collect()
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Up to eight positions below `length`, close together at first and then far apart; the last is `length - 1`.
fn spread(length: usize) -> Vec<u32> {
    let last = length.saturating_sub(1).min(u32::MAX as usize - 1) as u32;
    let mut positions: Vec<u32> = [0, 1, 2].into_iter().filter(|&p| p < last).collect();
    positions.extend([16, 8, 4, 2].map(|part| last / part).into_iter().filter(|&p| p > 2 && p < last));
    positions.push(last);
    positions.dedup();
    positions
}

/// `TOKENS`, or `TOKENS@POSITIONS` where these are not 0, 1, 2, ...
impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        f.write_str(&list(&self.tokens))?;
        if self.positions.iter().enumerate().any(|(i, &p)| i != p as usize) {
            write!(f, "@{}", list(&self.positions))?;
        }
        Ok(())
    }
}
