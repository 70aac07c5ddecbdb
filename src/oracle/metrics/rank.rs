//! Which logits are the largest.

use serde::Serialize;
use std::cmp::Ordering;

/// A logit in a ranking.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ranked {
    pub index: usize,
    pub value: f64,
}

/// How far two rankings agree on their first `k`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TopAgreement {
    /// 1, 5 or 10.
    pub k: usize,
    /// How many the reference's ranking has: `k`, or the vocabulary where that is smaller.
    pub of: usize,
    /// How many of those the candidate's first `k` hold as well.
    pub overlap: usize,
    /// Whether both hold the same indices in the same order.
    pub same_order: bool,
}

impl TopAgreement {
    /// Compares the first `k` of two rankings of at least that length (or of the whole vocabulary).
    pub(super) fn of(reference: &[Ranked], candidate: &[Ranked], k: usize) -> Self {
        let indices = |ranking: &[Ranked]| ranking.iter().take(k).map(|ranked| ranked.index).collect::<Vec<_>>();
        let (reference, candidate) = (indices(reference), indices(candidate));
        Self {
            k,
            of: reference.len(),
            overlap: reference.iter().filter(|index| candidate.contains(index)).count(),
            same_order: reference == candidate,
        }
    }
}

/// The `count` largest values, largest first; equal values in the order of their indices; NaN never ranks.
pub fn top(values: &[f64], count: usize) -> Vec<Ranked> {
    let mut ranking: Vec<Ranked> = Vec::with_capacity(count.min(values.len()) + 1);
    for (index, &value) in values.iter().enumerate() {
        let full = ranking.len() == count;
        if value.is_nan() || count == 0 || full && ranking.last().is_some_and(|last| last.value >= value) {
            continue;
        }
        let place = ranking.partition_point(|ranked| ranked.value >= value);
        ranking.insert(place, Ranked { index, value });
        ranking.truncate(count);
    }
    ranking
}

/// The index of the largest value under `order`, the lowest where several are equal.
pub fn argmax<T>(values: &[T], order: impl Fn(&T, &T) -> Ordering) -> Option<usize> {
    (0..values.len()).reduce(|best, index| match order(&values[index], &values[best]) {
        Ordering::Greater => index,
        _ => best,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indices(values: &[f64], count: usize) -> Vec<usize> {
        top(values, count).into_iter().map(|ranked| ranked.index).collect()
    }

    #[test]
    fn ties_go_to_the_lowest_index_and_nan_never_ranks() {
        assert_eq!(indices(&[1.0, 3.0, f64::NAN, 3.0, 2.0], 3), [1, 3, 4]);
        assert_eq!(indices(&[0.0, -0.0, 0.0], 2), [0, 1]);
        assert_eq!(indices(&[-0.0, 0.0], 1), [0]);
        assert_eq!(indices(&[1.0, 2.0], 10), [1, 0]);
    }

    #[test]
    fn agreement_counts_members_and_sees_order() {
        let of = |a: &[f64], b: &[f64], k| TopAgreement::of(&top(a, 10), &top(b, 10), k);
        let swapped = of(&[3.0, 2.0, 1.0], &[2.0, 3.0, 1.0], 5);
        assert_eq!(swapped, TopAgreement { k: 5, of: 3, overlap: 3, same_order: false });
        assert_eq!(of(&[3.0, 2.0], &[2.0, 3.0], 1), TopAgreement { k: 1, of: 1, overlap: 0, same_order: false });
    }
}
