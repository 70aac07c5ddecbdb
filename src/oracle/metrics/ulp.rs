//! Distances in units in the last place: how many representable values lie between two.

use super::{Extreme, Pair};
use crate::oracle::file::Logits;
use serde::Serialize;

/// How many logits are `from` to `to` representable values apart, both included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UlpBin {
    pub from: u64,
    pub to: u64,
    pub count: usize,
}

/// The name of the format that [`distances`] counts in.
pub(super) fn format_name(pair: &Pair) -> &'static str {
    match (pair.reference, pair.candidate) {
        (Logits::F32(_), Logits::F32(_)) => "float32",
        _ => "float64",
    }
}

/// One distance per index; `None` where either side is not finite.
pub(super) fn distances(pair: &Pair) -> Vec<Option<u64>> {
    let distance = |index: usize| match (pair.reference, pair.candidate) {
        (Logits::F32(r), Logits::F32(c)) => ordinal_f32(r[index]).abs_diff(ordinal_f32(c[index])),
        _ => ordinal_f64(pair.r[index]).abs_diff(ordinal_f64(pair.c[index])),
    };
    (0..pair.len()).map(|index| pair.finite(index).then(|| distance(index))).collect()
}

/// The integers in the order of the floats: -0.0 and 0.0 are both 0, the next float up is one more.
fn ordinal_f32(value: f32) -> i64 {
    let magnitude = i64::from(value.to_bits() & 0x7fff_ffff);
    if value.is_sign_negative() { -magnitude } else { magnitude }
}

/// As [`ordinal_f32`].
fn ordinal_f64(value: f64) -> i64 {
    let magnitude = (value.to_bits() & (u64::MAX >> 1)) as i64;
    if value.is_sign_negative() { -magnitude } else { magnitude }
}

pub(super) fn largest(distances: &[Option<u64>]) -> Option<Extreme<u64>> {
    let known = distances.iter().enumerate().filter_map(|(index, &distance)| Some((index, distance?)));
    known.fold(None, |max, (index, value)| match max {
        Some(Extreme { value: most, .. }) if most >= value => max,
        _ => Some(Extreme { index, value }),
    })
}

/// Counts by powers of two, the empty bins left out.
pub(super) fn histogram(distances: &[Option<u64>]) -> Vec<UlpBin> {
    let mut counts = [0; 66];
    for distance in distances.iter().flatten() {
        counts[bin(*distance)] += 1;
    }
    let bounds = |bin: usize| match bin {
        0 => (0, 0),
        1 => (1, 1),
        _ => ((1 << (bin - 2)) + 1, 1u64.checked_shl(bin as u32 - 1).unwrap_or(u64::MAX)),
    };
    let filled = counts.iter().enumerate().filter(|&(_, &count)| count > 0);
    filled
        .map(|(bin, &count)| {
            let (from, to) = bounds(bin);
            UlpBin { from, to, count }
        })
        .collect()
}

/// 0, 1, 2, 3-4, 5-8, ... are bins 0, 1, 2, 3, 4, ...
fn bin(distance: u64) -> usize {
    match distance {
        0 => 0,
        _ => 1 + (u64::BITS - (distance - 1).leading_zeros()) as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_floats_are_one_apart_across_zero_too() {
        assert_eq!(ordinal_f32(1.0) + 1, ordinal_f32(f32::from_bits(0x3f80_0001)));
        assert_eq!(ordinal_f32(0.0), ordinal_f32(-0.0));
        assert_eq!(ordinal_f32(f32::from_bits(1)).abs_diff(ordinal_f32(-f32::from_bits(1))), 2);
        assert_eq!(ordinal_f64(-1.0) - 1, ordinal_f64(f64::from_bits(0xbff0_0000_0000_0001)));
    }

    #[test]
    fn bins_are_powers_of_two_and_hold_the_extremes() {
        let distances = [0, 1, 2, 3, 4, 5, 8, 9, u64::MAX, 1 << 63].map(Some);
        let bins: Vec<_> = histogram(&distances).into_iter().map(|bin| (bin.from, bin.to, bin.count)).collect();
        let top = (1 << 63) + 1;
        let expected = [
            (0, 0, 1),
            (1, 1, 1),
            (2, 2, 1),
            (3, 4, 2),
            (5, 8, 2),
            (9, 16, 1),
            ((1 << 62) + 1, 1 << 63, 1),
            (top, u64::MAX, 1),
        ];
        assert_eq!(bins, expected);
        assert_eq!(histogram(&[None]), []);
    }
}
