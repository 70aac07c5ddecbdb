//! Damaged checkpoints in every storage format: whatever the input, no panic, no memory out of proportion to it, and a
//! sentence that says in which file what is wrong.
//!
//! A few cases each by default; `PROPTEST_CASES=40000 cargo test --test fuzz` for many.

#[path = "../common/mod.rs"]
mod common;

mod blocks;
mod bounded;
mod checkpoint;
mod container;
mod folder;
mod folders;
mod gguf;
mod packings;
mod tokenizers;

use proptest::prelude::*;
use proptest::sample::Index;

/// So many cases, or as many as `PROPTEST_CASES` says.
fn cases(few: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { default.cases } else { few };
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 500, ..default }
}

/// One change to an input: which, where, and what for.
#[derive(Debug, Clone)]
struct Edit {
    kind: u8,
    at: Index,
    other: Index,
    number: u64,
}

impl Edit {
    /// A number of no sense as often as a small or a random one.
    fn extreme(&self) -> u64 {
        const EXTREME: [u64; 16] = [
            0,
            1,
            u8::MAX as u64,
            1 << 15,
            u16::MAX as u64,
            i32::MAX as u64,
            1 << 31,
            u32::MAX as u64,
            1 << 32,
            1 << 40,
            1 << 62,
            i64::MAX as u64,
            1 << 63,
            u64::MAX - 31,
            u64::MAX - 1,
            u64::MAX,
        ];
        match self.number % 4 {
            0 => self.number >> 2,
            1 => self.number >> 2 & 0x7f,
            _ => EXTREME[(self.number >> 2) as usize % EXTREME.len()],
        }
    }

    /// Damages single bytes, or where the bytes end. Three of four times it is in the first `head` of them.
    fn damage(&self, bytes: &mut Vec<u8>, head: usize) {
        if bytes.is_empty() {
            return;
        }
        let end = if self.number.is_multiple_of(4) { bytes.len() } else { head.clamp(1, bytes.len()) };
        let (at, other) = (self.at.index(end), self.other.index(end));
        let number = self.extreme();
        match self.kind % 8 {
            0 => bytes[at] ^= 1 << (number % 8),
            1 => bytes[at] = number as u8,
            2 => bytes.truncate(at),
            3 => bytes.extend(std::iter::repeat_n(number as u8, other % 100 + 1)),
            4 => {
                for (byte, new) in bytes[at..].iter_mut().zip(number.to_le_bytes()) {
                    *byte = new;
                }
            }
            5 => {
                for (byte, new) in bytes[at..].iter_mut().zip((number as u32).to_le_bytes()) {
                    *byte = new;
                }
            }
            // A section that is there twice, or no longer.
            6 => {
                let section = bytes[at.min(other)..at.max(other)].to_vec();
                bytes.splice(at..at, section);
            }
            _ => drop(bytes.drain(at.min(other)..at.max(other))),
        }
    }
}

/// Some changes of one of so many kinds.
fn edits(kinds: u8) -> impl Strategy<Value = Vec<Edit>> {
    let edit = (0..kinds, any::<Index>(), any::<Index>(), any::<u64>());
    proptest::collection::vec(edit.prop_map(|(kind, at, other, number)| Edit { kind, at, other, number }), 1..4)
}
