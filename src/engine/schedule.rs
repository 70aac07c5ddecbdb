//! Ways to cut a prompt into chunks.

use anyhow::{Result, ensure};
use std::collections::BTreeSet;

/// A list of chunk lengths that add up to the prompt's.
pub type Schedule = Vec<usize>;

/// All `2^(n-1)` ways to cut `n` tokens, the whole prompt first.
///
/// # Panics
/// `n` is 0 or more than 32: nobody wants so many.
pub fn compositions(n: usize) -> impl Iterator<Item = Schedule> {
    assert!((1..=32).contains(&n), "between 1 and 32 tokens can be cut in every way, not {n}");
    // Bit i says whether there is a border before token i + 1.
    (0u64..1 << (n - 1)).map(move |borders| {
        let mut chunks = vec![1];
        for i in 0..n - 1 {
            match borders >> i & 1 {
                1 => chunks.push(1),
                _ => *chunks.last_mut().expect("it starts with one") += 1,
            }
        }
        chunks
    })
}

/// The schedules for prompts that are too long for all compositions: all but the last token and then that one, every
/// token by itself, chunks of 2, of 3 and of each window less one, the window, and the window plus one, the first token
/// and then the rest, powers of two; the last chunk of each may be shorter. Each stands once, and none of them is the
/// whole prompt.
pub fn listed(n: usize, windows: &BTreeSet<usize>) -> Vec<Schedule> {
    let mut all = vec![vec![n - 1, 1], vec![1; n]];
    let around = windows.iter().flat_map(|&w| [w.saturating_sub(1), w, w + 1]);
    all.extend([2, 3].into_iter().chain(around).filter(|&size| size > 0).map(|size| repeated(n, size)));
    all.push(vec![1, n - 1]);
    all.push(powers(n));
    let mut seen = BTreeSet::new();
    all.retain(|chunks| chunks.len() > 1 && seen.insert(chunks.clone()));
    all
}

/// Chunks of `size`, and what is left.
fn repeated(n: usize, size: usize) -> Schedule {
    let mut chunks = vec![size; n / size];
    chunks.extend(Some(n % size).filter(|&rest| rest > 0));
    chunks
}

/// Chunks of 1, 2, 4, ..., and what is left.
fn powers(n: usize) -> Schedule {
    let (mut chunks, mut left, mut size) = (Vec::new(), n, 1);
    while left > 0 {
        chunks.push(size.min(left));
        left -= size.min(left);
        size *= 2;
    }
    chunks
}

/// Checks a schedule that somebody gave.
///
/// # Errors
/// It isn't one of `n` tokens.
pub fn check(chunks: &[usize], n: usize) -> Result<()> {
    ensure!(chunks.iter().all(|&c| c > 0), "expected chunks of at least one token, found one of 0");
    let sum = chunks.iter().fold(0usize, |sum, &c| sum.saturating_add(c));
    ensure!(sum == n, "expected chunks that add up to the {n} tokens of the prompt, found {sum}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compositions_of_four() {
        let mut all: Vec<Schedule> = compositions(4).collect();
        assert_eq!(all[0], [4]);
        all.sort();
        let expected: [&[usize]; 8] =
            [&[1, 1, 1, 1], &[1, 1, 2], &[1, 2, 1], &[1, 3], &[2, 1, 1], &[2, 2], &[3, 1], &[4]];
        assert_eq!(all, expected);
        assert_eq!(compositions(1).collect::<Vec<_>>(), [[1]]);
        assert_eq!(compositions(12).count(), 2048);
    }

    #[test]
    fn listed_schedules_by_hand() {
        let expected: [&[usize]; 8] =
            [&[6, 1], &[1; 7], &[2, 2, 2, 1], &[3, 3, 1], &[4, 3], &[5, 2], &[1, 6], &[1, 2, 4]];
        assert_eq!(listed(7, &BTreeSet::from([4])), expected);
        assert_eq!(listed(2, &BTreeSet::from([1, 4096])), [[1, 1]]);
        for n in 2..40 {
            assert!(listed(n, &BTreeSet::from([5, 7])).iter().all(|chunks| check(chunks, n).is_ok()));
        }
    }

    #[test]
    fn a_schedule_must_add_up() {
        assert!(check(&[3, 1, 1], 5).is_ok());
        for (chunks, wanted) in [(&[3, 1][..], "found 4"), (&[5, 0], "one of 0"), (&[usize::MAX, 6], "found 18446")] {
            assert!(check(chunks, 5).unwrap_err().to_string().contains(wanted));
        }
    }
}
