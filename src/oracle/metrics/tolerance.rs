//! Tolerances: what passes one, and the smallest that would pass.

use super::Pair;
use serde::Serialize;

/// Whether `difference <= atol + rtol * |reference|`; a difference beyond f64 never passes.
pub(crate) fn passes(difference: f64, reference: f64, atol: f64, rtol: f64) -> bool {
    difference.is_finite() && difference <= atol + rtol * reference.abs()
}

/// The smallest tolerances under which every logit passes, exact to the bit. `None` where no tolerance does: a
/// value is not finite, or (for `rtol` alone) the reference is 0 where the candidate is not.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SmallestTolerance {
    /// With rtol = 0.
    pub atol: Option<f64>,
    /// With atol = 0.
    pub rtol: Option<f64>,
    /// As both at once.
    pub both: Option<f64>,
}

impl SmallestTolerance {
    pub(super) fn find(pair: &Pair, all_finite: bool) -> Self {
        if !all_finite {
            return Self::default();
        }
        Self {
            atol: smallest(pair, |d, r, t| passes(d, r, t, 0.0)),
            rtol: smallest(pair, |d, r, t| passes(d, r, 0.0, t)),
            both: smallest(pair, |d, r, t| passes(d, r, t, t)),
        }
    }
}

/// The smallest `t` for which `passes(difference, reference, t)` holds at every index; it must hold for every larger
/// `t` once it holds for one.
fn smallest(pair: &Pair, passes: impl Fn(f64, f64, f64) -> bool) -> Option<f64> {
    let mut best = 0.0f64;
    for index in 0..pair.len() {
        let (d, r) = (pair.abs_diff(index), pair.r[index]);
        if passes(d, r, best) {
            continue;
        }
        // Positive floats are ordered as their bits are, so the bits can be bisected.
        let (mut low, mut high) = (best.to_bits(), f64::MAX.to_bits());
        if !passes(d, r, f64::MAX) {
            return None;
        }
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if passes(d, r, f64::from_bits(middle)) { high = middle } else { low = middle }
        }
        best = f64::from_bits(high);
    }
    Some(best)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::file::Logits;

    /// Differences 0.5 and 0.25 at references 4 and 1: atol 0.5; rtol max(0.125, 0.25); both max(0.5/5, 0.25/2).
    #[test]
    fn the_smallest_tolerances_by_hand() {
        let (r, c) = (Logits::F32(vec![4.0, -1.0]), Logits::F32(vec![4.5, -0.75]));
        let found = SmallestTolerance::find(&Pair::new(&r, &c), true);
        assert_eq!(found, SmallestTolerance { atol: Some(0.5), rtol: Some(0.25), both: Some(0.125) });
    }

    #[test]
    fn one_bit_less_does_not_pass() {
        let (r, c) = (Logits::F64(vec![3.0, 0.7, -1e-310]), Logits::F64(vec![3.1, 0.9, 1e-310]));
        let pair = Pair::new(&r, &c);
        let found = SmallestTolerance::find(&pair, true);
        let all = |atol: f64, rtol: f64| (0..3).all(|index| passes(pair.abs_diff(index), pair.r[index], atol, rtol));
        for (tolerance, both) in [(found.rtol.unwrap(), false), (found.both.unwrap(), true)] {
            let less = tolerance.next_down();
            assert!(all(if both { tolerance } else { 0.0 }, tolerance));
            assert!(!all(if both { less } else { 0.0 }, less));
        }
    }

    #[test]
    fn no_relative_tolerance_reaches_a_zero() {
        let (r, c) = (Logits::F32(vec![0.0]), Logits::F32(vec![1.0]));
        let found = SmallestTolerance::find(&Pair::new(&r, &c), true);
        assert_eq!((found.atol, found.rtol, found.both), (Some(1.0), None, Some(1.0)));
    }
}
