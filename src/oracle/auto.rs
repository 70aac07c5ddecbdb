//! The tolerance that is not guessed: a candidate may be a stated number of times as far from the truth as the
//! reference is.

use super::comparison::Input;
use super::file::{Logits, NumericClass};
use super::metrics::Pair;
use super::printable::{exact, short};
use super::truth::Distance;
use crate::Problem;
use serde::Serialize;

/// The receipts in which a reference carries its own distance from the truth: the largest and the RMS of
/// `|f32 - f64|` over its row, as decimal numbers.
pub const RECEIPTS: [&str; 2] = ["truth_max_abs", "truth_rms"];

/// A reference whose RMS distance is a larger share of its row's RMS is not a rounding of the truth. Times a factor,
/// its distance would let anything pass.
const LARGEST_SHARE: f64 = 0.01;

/// Where the reference's own distance is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// A truth was given: the candidate's distance from it is judged.
    Truth,
    /// From the reference's receipts: the candidate's distance from the reference is judged, against the sum of what
    /// the two may be from the truth. Weaker: who passes with the truth passes here, not the other way round.
    Receipts,
}

/// The two sizes of a distance. Infinite (`null` in JSON) where it is beyond f64.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Sizes {
    pub max_abs: f64,
    pub rms: f64,
}

impl Sizes {
    fn of(distance: &Distance) -> Self {
        let size = |value: Option<f64>| value.unwrap_or(f64::INFINITY);
        Self { max_abs: size(distance.max_abs), rms: size(distance.rms) }
    }

    fn map(self, apply: impl Fn(f64) -> f64) -> Self {
        Self { max_abs: apply(self.max_abs), rms: apply(self.rms) }
    }
}

/// What the tolerance was made of, and whether it holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AutoReport {
    pub basis: Basis,
    /// K.
    pub factor: f64,
    /// Half a unit in the last place of the row's largest |logit|, in the width of the candidate's logits: what
    /// rounding the result alone may cost, so the least that counts as the reference's distance.
    pub floor: f64,
    /// The reference's own distance from the truth.
    pub reference: Sizes,
    /// The candidate's distance: from the truth, or with `receipts` from the reference.
    pub candidate: Sizes,
    /// The largest that passes: K (with `receipts` K + 1) times the reference's distance or the floor.
    pub bound: Sizes,
    /// The candidate's distance over the reference's or the floor.
    pub ratio: Sizes,
    /// Whether both sizes are within their bounds.
    pub passes: bool,
    /// All of this in a sentence.
    pub message: String,
}

/// What the tolerance is made from, known before anything is measured.
pub(super) enum Source {
    Truth,
    Receipts(Sizes),
}

impl Source {
    /// Finds it. Fails where there is neither a truth nor the receipts, or they cannot serve.
    pub(super) fn find(reference: &Input, truth: Option<&Input>) -> Result<Self, Problem> {
        if let Some(truth) = truth {
            let class = &truth.file.numeric_class;
            return match class {
                NumericClass::Float64 => Ok(Self::Truth),
                _ => Err(Problem::new(
                    "truth-class",
                    truth.name,
                    format!(
                        "a tolerance can only be taken from a truth of numeric class {}; this one has {class}",
                        NumericClass::Float64
                    ),
                )),
            };
        }
        let [max_abs, rms] = RECEIPTS.map(|key| receipt(reference, key));
        Ok(Self::Receipts(Sizes { max_abs: max_abs?, rms: rms? }))
    }
}

fn receipt(reference: &Input, key: &str) -> Result<f64, Problem> {
    let Some(text) = reference.file.receipt(key) else {
        let [max_abs, rms] = RECEIPTS;
        let message = format!(
            "needs --truth FILE, or a reference whose receipts {max_abs} and {rms} say how far it is from the truth; \
             {} has no {key}",
            reference.name
        );
        return Err(Problem::new("truth-missing", "--tolerance auto", message));
    };
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| {
        let message = format!("receipt {key}: expected a finite number that is not negative, found {text}");
        Problem::new("truth-receipt", reference.name, message)
    })
}

impl AutoReport {
    /// Measures a pair of finite rows; `truth` is the truth's row, where the source is one.
    ///
    /// Fails where the reference is too far from the truth to be a rounding of it.
    pub(super) fn measure(
        factor: f64,
        source: &Source,
        reference: &Input,
        pair: &Pair,
        truth: Option<&[f64]>,
    ) -> Result<Self, Problem> {
        let (basis, times) = match source {
            Source::Truth => (Basis::Truth, factor),
            Source::Receipts(_) => (Basis::Receipts, factor + 1.0),
        };
        // The row that both are held against. Not the candidate's: a wrong one would widen its own bound.
        let row = truth.unwrap_or(&pair.r);
        let own = match source {
            Source::Truth => Sizes::of(&Distance::between(&pair.r, row)),
            Source::Receipts(own) => *own,
        };
        let candidate = Sizes::of(&Distance::between(&pair.c, row));
        let size = rms(row);
        if own.rms > LARGEST_SHARE * size {
            let message = format!(
                "is {} (RMS) from the truth, more than {} of its logits' own RMS, {}: that is no rounding, and no \
                 tolerance can be taken from it; the two may be of different models",
                short(own.rms),
                exact(LARGEST_SHARE),
                short(size)
            );
            return Err(Problem::new("reference-far-from-truth", reference.name, message));
        }
        let floor = half_ulp(row.iter().fold(0.0, |most, value| most.max(value.abs())), pair.candidate);
        let least = own.map(|size| size.max(floor));
        let bound = least.map(|size| times * size);
        let within = |distance: f64, bound: f64| distance.is_finite() && distance <= bound;
        let mut report = Self {
            basis,
            factor,
            floor,
            reference: own,
            candidate,
            bound,
            ratio: Sizes { max_abs: candidate.max_abs / least.max_abs, rms: candidate.rms / least.rms },
            passes: within(candidate.max_abs, bound.max_abs) && within(candidate.rms, bound.rms),
            message: String::new(),
        };
        report.message = report.sentence(times);
        Ok(report)
    }

    /// The reason where it does not pass.
    pub(super) fn reason(&self) -> Option<Problem> {
        (!self.passes).then(|| Problem::new("beyond-tolerance", self.place(), self.message.clone()))
    }

    /// What is judged.
    pub(super) fn place(&self) -> &'static str {
        match self.basis {
            Basis::Truth => "distance from the truth",
            Basis::Receipts => "distance from the reference",
        }
    }

    fn sentence(&self, times: f64) -> String {
        let part = |name: &str, candidate: f64, ratio: f64, own: f64, bound: f64| {
            let counted = if own < self.floor { " (counted as the floor)" } else { "" };
            let judged = if candidate.is_finite() && candidate <= bound { "within" } else { "beyond" };
            format!(
                "{name} of the candidate {}, {} times the reference's {}{counted}, {judged} the bound {}",
                short(candidate),
                short(ratio),
                short(own),
                short(bound)
            )
        };
        let (candidate, own, bound, ratio) = (self.candidate, self.reference, self.bound, self.ratio);
        let floor = match own.max_abs < self.floor || own.rms < self.floor {
            true => format!("; the floor is {}, half a unit in the last place of the largest logit", short(self.floor)),
            false => String::new(),
        };
        let passes = match self.basis {
            Basis::Truth => format!("up to {} times passes", exact(times)),
            Basis::Receipts => {
                format!("up to {} + 1 times the reference's own distance from the truth passes", exact(self.factor))
            }
        };
        format!(
            "{}; {}; {passes}{floor}",
            part("max", candidate.max_abs, ratio.max_abs, own.max_abs, bound.max_abs),
            part("RMS", candidate.rms, ratio.rms, own.rms, bound.rms)
        )
    }
}

fn rms(row: &[f64]) -> f64 {
    (row.iter().map(|value| value * value).sum::<f64>() / row.len() as f64).sqrt()
}

/// Half the distance from `size` to the next larger number of the format that `logits` are in.
fn half_ulp(size: f64, logits: &Logits) -> f64 {
    match logits {
        Logits::F32(_) => {
            let narrow = (size as f32).min(f32::MAX.next_down());
            0.5 * (f64::from(narrow.next_up()) - f64::from(narrow))
        }
        Logits::F64(_) => {
            let size = size.min(f64::MAX.next_down());
            // The smallest step has no half.
            (0.5 * (size.next_up() - size)).max(f64::from_bits(1))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_unit_in_the_last_place_by_hand() {
        let (narrow, wide) = (Logits::F32(vec![]), Logits::F64(vec![]));
        let power = |n: i32| 2f64.powi(n);
        assert_eq!([half_ulp(1.0, &narrow), half_ulp(7.9, &narrow)], [power(-24), power(-22)]);
        assert_eq!([half_ulp(1.0, &wide), half_ulp(7.9, &wide)], [power(-53), power(-51)]);
        assert_eq!([half_ulp(0.0, &narrow), half_ulp(0.0, &wide)], [power(-150), f64::from_bits(1)]);
        assert_eq!([half_ulp(1e300, &narrow), half_ulp(f64::MAX, &wide)], [power(103), power(970)]);
    }
}
