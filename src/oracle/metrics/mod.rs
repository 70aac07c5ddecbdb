//! Everything that is measured about two rows of logits, in f64.

mod divergence;
mod rank;
mod tolerance;
mod ulp;

pub use divergence::kl_divergence;
pub use rank::{Ranked, TopAgreement, argmax, top};
pub use tolerance::SmallestTolerance;
pub(crate) use tolerance::passes as tolerance_passes;
pub use ulp::UlpBin;

use crate::oracle::file::Logits;
use serde::Serialize;

/// Two rows of logits of the same length, beside their values as f64.
pub struct Pair<'a> {
    pub reference: &'a Logits,
    pub candidate: &'a Logits,
    /// The reference as f64, `[vocab]`.
    pub r: Vec<f64>,
    /// The candidate as f64, `[vocab]`.
    pub c: Vec<f64>,
}

impl<'a> Pair<'a> {
    /// Takes two rows of the same length; panics where the lengths differ, which `comparable` has refused before.
    pub fn new(reference: &'a Logits, candidate: &'a Logits) -> Self {
        assert_eq!(reference.len(), candidate.len(), "rows of different lengths are not comparable");
        Self { reference, candidate, r: reference.to_f64(), c: candidate.to_f64() }
    }

    /// Number of logits.
    pub fn len(&self) -> usize {
        self.r.len()
    }

    /// Whether there is no logit at all.
    pub fn is_empty(&self) -> bool {
        self.r.is_empty()
    }

    /// Whether both hold the same bits at `index`. Rows of different widths are compared as f64.
    pub fn same_bits(&self, index: usize) -> bool {
        self.r[index].to_bits() == self.c[index].to_bits()
    }

    /// Whether both values at `index` are numbers that can be subtracted.
    pub fn finite(&self, index: usize) -> bool {
        self.r[index].is_finite() && self.c[index].is_finite()
    }

    /// `|candidate - reference|` at `index`.
    pub fn abs_diff(&self, index: usize) -> f64 {
        (self.c[index] - self.r[index]).abs()
    }
}

/// A measured value and the lowest index where it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Extreme<T> {
    pub index: usize,
    pub value: T,
}

/// Values that are NaN or infinite.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct NonFinite {
    /// How many in the reference.
    pub reference: usize,
    /// How many in the candidate.
    pub candidate: usize,
    /// The lowest index where either has one.
    pub first_index: Option<usize>,
}

impl NonFinite {
    /// Whether every value of both sides is finite.
    pub fn none(&self) -> bool {
        self.first_index.is_none()
    }
}

/// One of the indices with the largest difference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Worst {
    pub index: usize,
    /// `null` in JSON where it is NaN or infinite; the bits tell which.
    pub reference: f64,
    pub candidate: f64,
    /// Hex digits as in the file.
    pub reference_bits: String,
    pub candidate_bits: String,
    /// `|candidate - reference|`; absent where either is not finite.
    pub abs: Option<f64>,
    /// Representable values between the two; absent where either is not finite.
    pub ulp: Option<u64>,
}

/// The measurements. Differences are over the indices where both sides are finite; what has no value (a ratio to
/// zero, a softmax of a NaN, a sum beyond f64) is `None`, never NaN.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Metrics {
    /// Number of logits.
    pub vocab: usize,
    /// How many of them hold the same bits on both sides.
    pub equal_bits: usize,
    /// The lowest index where the bits differ.
    pub first_difference: Option<usize>,
    pub nonfinite: NonFinite,
    /// Largest `|c - r|`.
    pub max_abs: Option<Extreme<f64>>,
    /// Mean of `|c - r|`.
    pub mean_abs: Option<f64>,
    /// Largest `|c - r| / |r|` over the indices where r is not 0.
    pub max_relative: Option<Extreme<f64>>,
    /// How many indices have r = 0 and c not 0: no relative difference exists there.
    pub zero_reference: usize,
    /// `sqrt(mean((c - r)^2))`.
    pub rmse: Option<f64>,
    /// `sum((c - r)^2) / sum(r^2)`; `None` where the reference is all zero and the candidate is not.
    pub nmse: Option<f64>,
    /// Cosine of the angle between the two; `None` where either is all zero.
    pub cosine: Option<f64>,
    /// `KL(softmax(r) || softmax(c))` in nats; `None` where any value is not finite.
    pub kl_divergence: Option<f64>,
    /// The format whose units in the last place are counted: `float32` where both files hold 32-bit logits, else
    /// `float64`.
    pub ulp_format: &'static str,
    /// Largest distance in representable values; -0.0 and 0.0 are at distance 0.
    pub max_ulp: Option<Extreme<u64>>,
    /// Bins that are not empty: 0, 1, 2, 3-4, 5-8, 9-16, ...
    pub ulp_histogram: Vec<UlpBin>,
    /// The largest logit of each side; the lowest index where several are equal. NaN never ranks.
    pub reference_top1: Option<Ranked>,
    pub candidate_top1: Option<Ranked>,
    /// The reference's largest logit minus its second largest; `None` for a single logit.
    pub reference_margin: Option<f64>,
    /// Agreement of the 1, 5 and 10 largest.
    pub top: Vec<TopAgreement>,
    /// What would have passed, argmax aside.
    pub smallest_tolerance: SmallestTolerance,
    /// The indices with the largest differences, largest first.
    pub worst: Vec<Worst>,
}

impl Metrics {
    /// Measures a pair; `worst` is how many of the largest differences to list.
    pub fn measure(pair: &Pair, worst: usize) -> Self {
        let nonfinite = count_nonfinite(pair);
        let sums = Sums::over(pair);
        let differing = || (0..pair.len()).filter(|&index| !pair.same_bits(index));
        let distances = ulp::distances(pair);
        let (reference_top, candidate_top) = (top(&pair.r, 10), top(&pair.c, 10));
        let margin = match reference_top[..] {
            [first, second, ..] => finite(first.value - second.value),
            _ => None,
        };
        Self {
            vocab: pair.len(),
            equal_bits: pair.len() - differing().count(),
            first_difference: differing().next(),
            max_abs: sums.max_abs.filter(|max| max.value.is_finite()),
            mean_abs: finite(sums.abs / sums.count),
            max_relative: sums.max_relative.filter(|max| max.value.is_finite()),
            zero_reference: sums.zero_reference,
            rmse: finite((sums.squares / sums.count).sqrt()),
            nmse: sums.nmse(),
            cosine: finite(sums.product / (sums.reference * sums.candidate).sqrt()).map(|cos| cos.clamp(-1.0, 1.0)),
            kl_divergence: kl_divergence(&pair.r, &pair.c),
            ulp_format: ulp::format_name(pair),
            max_ulp: ulp::largest(&distances),
            ulp_histogram: ulp::histogram(&distances),
            reference_top1: reference_top.first().copied(),
            candidate_top1: candidate_top.first().copied(),
            reference_margin: margin,
            top: [1, 5, 10].map(|k| TopAgreement::of(&reference_top, &candidate_top, k)).to_vec(),
            smallest_tolerance: SmallestTolerance::find(pair, nonfinite.none()),
            worst: list_worst(pair, &distances, worst),
            nonfinite,
        }
    }

    /// Whether every value is finite and every logit has the same bits on both sides.
    pub fn identical(&self) -> bool {
        self.nonfinite.none() && self.equal_bits == self.vocab
    }
}

/// The value, unless it is NaN or infinite.
pub(crate) fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

fn count_nonfinite(pair: &Pair) -> NonFinite {
    let count = |values: &[f64]| values.iter().filter(|value| !value.is_finite()).count();
    NonFinite {
        reference: count(&pair.r),
        candidate: count(&pair.c),
        first_index: (0..pair.len()).find(|&index| !pair.finite(index)),
    }
}

/// What one walk over the finite pairs adds up.
#[derive(Default)]
struct Sums {
    count: f64,
    abs: f64,
    /// Of `(c - r)^2`, `r^2`, `c^2` and `r * c`.
    squares: f64,
    reference: f64,
    candidate: f64,
    product: f64,
    zero_reference: usize,
    max_abs: Option<Extreme<f64>>,
    max_relative: Option<Extreme<f64>>,
}

impl Sums {
    fn over(pair: &Pair) -> Self {
        let mut sums = Self::default();
        for index in (0..pair.len()).filter(|&index| pair.finite(index)) {
            let (r, c, abs) = (pair.r[index], pair.c[index], pair.abs_diff(index));
            sums.count += 1.0;
            sums.abs += abs;
            sums.squares += abs * abs;
            sums.reference += r * r;
            sums.candidate += c * c;
            sums.product += r * c;
            raise(&mut sums.max_abs, index, abs);
            if r != 0.0 {
                raise(&mut sums.max_relative, index, abs / r.abs());
            } else if c != 0.0 {
                sums.zero_reference += 1;
            }
        }
        sums
    }

    fn nmse(&self) -> Option<f64> {
        let differs = self.max_abs.is_some_and(|max| max.value > 0.0);
        match (self.count > 0.0, differs) {
            (false, _) => None,
            (true, false) => Some(0.0),
            (true, true) => finite(self.squares / self.reference),
        }
    }
}

/// Keeps the larger of the two; of equal ones the one that came first.
pub(crate) fn raise(max: &mut Option<Extreme<f64>>, index: usize, value: f64) {
    if max.is_none_or(|max| value > max.value) {
        *max = Some(Extreme { index, value });
    }
}

/// The `count` indices whose bits differ most: first those where a side is not finite, then by falling difference,
/// then by rising index.
fn list_worst(pair: &Pair, distances: &[Option<u64>], count: usize) -> Vec<Worst> {
    let size = |index: usize| if pair.finite(index) { pair.abs_diff(index) } else { f64::INFINITY };
    let mut indices: Vec<usize> =
        (0..pair.len()).filter(|&index| !pair.same_bits(index) || !pair.finite(index)).collect();
    indices.sort_by(|&a, &b| size(b).total_cmp(&size(a)));
    indices.truncate(count);
    let entry = |index: usize| Worst {
        index,
        reference: pair.r[index],
        candidate: pair.c[index],
        reference_bits: pair.reference.hex(index),
        candidate_bits: pair.candidate.hex(index),
        abs: finite(pair.abs_diff(index)),
        ulp: distances[index],
    };
    indices.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measure(r: &[f32], c: &[f32]) -> Metrics {
        Metrics::measure(&Pair::new(&Logits::F32(r.to_vec()), &Logits::F32(c.to_vec())), 5)
    }

    #[test]
    fn a_zero_reference_has_no_nmse_and_no_cosine() {
        let metrics = measure(&[0.0, 0.0], &[0.0, 2.0]);
        assert_eq!((metrics.nmse, metrics.cosine, metrics.zero_reference), (None, None, 1));
        assert_eq!(metrics.max_relative, None);
        assert_eq!(metrics.smallest_tolerance.rtol, None);
        assert_eq!(measure(&[0.0, 0.0], &[0.0, 0.0]).nmse, Some(0.0));
    }

    #[test]
    fn minus_zero_differs_in_bits_and_in_nothing_else() {
        let metrics = measure(&[0.0, 1.0], &[-0.0, 1.0]);
        assert_eq!(metrics.equal_bits, 1);
        assert_eq!(metrics.max_abs, Some(Extreme { index: 0, value: 0.0 }));
        assert_eq!(metrics.max_ulp, Some(Extreme { index: 0, value: 0 }));
        assert_eq!(metrics.worst.len(), 1);
        assert!(!metrics.identical());
    }

    #[test]
    fn one_logit_has_no_margin_and_no_divergence() {
        let metrics = measure(&[3.0], &[4.0]);
        assert_eq!((metrics.reference_margin, metrics.kl_divergence, metrics.cosine), (None, Some(0.0), Some(1.0)));
    }

    #[test]
    fn infinities_leave_the_finite_rest_measured_and_nothing_nan() {
        let metrics = measure(&[f32::NEG_INFINITY, 2.0], &[f32::NEG_INFINITY, 2.5]);
        assert_eq!(metrics.nonfinite, NonFinite { reference: 1, candidate: 1, first_index: Some(0) });
        assert_eq!(metrics.max_abs, Some(Extreme { index: 1, value: 0.5 }));
        assert_eq!(metrics.kl_divergence, None);
        assert_eq!(metrics.smallest_tolerance.atol, None);
        assert_eq!(metrics.worst[0].index, 0);
        assert!(!serde_json::to_string(&metrics).unwrap().contains("NaN"));
    }

    #[test]
    fn nothing_but_nan_measures_nothing() {
        let metrics = measure(&[f32::NAN], &[f32::NAN]);
        assert_eq!((metrics.mean_abs, metrics.rmse, metrics.nmse, metrics.max_ulp), (None, None, None, None));
        assert_eq!((metrics.equal_bits, metrics.identical(), metrics.reference_top1), (1, false, None));
    }

    #[test]
    fn sums_beyond_f64_have_no_value() {
        let (r, c) = (Logits::F64(vec![1e308, 1.0]), Logits::F64(vec![-1e308, 1.0]));
        let metrics = Metrics::measure(&Pair::new(&r, &c), 5);
        assert_eq!((metrics.max_abs, metrics.rmse, metrics.cosine), (None, None, None));
        assert!(metrics.kl_divergence.is_none_or(f64::is_finite));
    }
}
