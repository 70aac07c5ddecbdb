//! The gates a comparison can be held to, and the word that comes out.

use super::file::Logits;
use super::metrics::{Metrics, Pair, argmax, tolerance_passes};
use super::printable::{exact, exact_logit};
use crate::Problem;
use serde::Serialize;
use std::cmp::Ordering;
use std::fmt;

/// The outcome of a comparison, in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Every logit has the same bits.
    Identical,
    /// The bits differ, and the gate's tolerance allows it.
    WithinTolerance,
    /// The gate does not allow what was found, or a value is NaN or infinite.
    Different,
    /// The two cannot be compared; nothing was judged.
    Refused,
}

impl Verdict {
    /// The word as users and reports see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Identical => "identical",
            Self::WithinTolerance => "within-tolerance",
            Self::Different => "different",
            Self::Refused => "refused",
        }
    }

    /// The exit code: 0 passed, 1 compared and different, 2 not comparable.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Identical | Self::WithinTolerance => 0,
            Self::Different => 1,
            Self::Refused => 2,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a candidate must satisfy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Gate {
    /// The same bits everywhere.
    Bits,
    /// `|c - r| <= atol + rtol * |r|` everywhere, in f64, and the same argmax.
    Tolerance { atol: f64, rtol: f64 },
    /// The fixed gate of another tool, as that tool computes it: atol = rtol = 0.005 with every operation rounded
    /// to f32, and the same argmax, where 0.0 counts as larger than -0.0.
    Memra,
    /// At most `factor` times as far from the truth as the reference, in the largest and in the RMS difference (see
    /// [`super::auto`]), and the same argmax.
    Auto { factor: f64 },
}

impl Gate {
    const MEMRA: f32 = 0.005;

    /// Whether the gate lets the values at `index` pass; both must be finite. `Auto` judges whole rows, elsewhere.
    fn holds(self, pair: &Pair, index: usize) -> bool {
        let difference = || pair.abs_diff(index);
        match (self, pair.reference, pair.candidate) {
            (Self::Auto { .. }, ..) => true,
            (Self::Bits, ..) => pair.same_bits(index),
            (Self::Tolerance { atol, rtol }, ..) => tolerance_passes(difference(), pair.r[index], atol, rtol),
            (Self::Memra, Logits::F32(r), Logits::F32(c)) => {
                (r[index] - c[index]).abs() <= Self::MEMRA + Self::MEMRA * r[index].abs()
            }
            (Self::Memra, ..) => {
                let tolerance = f64::from(Self::MEMRA);
                tolerance_passes(difference(), pair.r[index], tolerance, tolerance)
            }
        }
    }

    /// The argmax of finite values in the order this gate uses; equal values go to the lowest index.
    fn argmax(self, values: &[f64]) -> Option<usize> {
        match self {
            Self::Memra => argmax(values, f64::total_cmp),
            _ => argmax(values, |a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal)),
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits => f.write_str("bit for bit"),
            Self::Tolerance { atol, rtol } => write!(f, "|c - r| <= {} + {} * |r|", exact(*atol), exact(*rtol)),
            Self::Memra => write!(f, "memra: |c - r| <= {0} + {0} * |r| in float32", Self::MEMRA),
            Self::Auto { factor } => {
                write!(f, "auto: at most {} times the reference's own distance from the truth", exact(*factor))
            }
        }
    }
}

/// How a comparison is to be judged.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    pub gate: Gate,
    /// Let a tolerance pass although the largest logit is another one.
    pub ignore_argmax: bool,
    /// Compare files whose numeric classes differ.
    pub allow_class_mismatch: bool,
}

impl Rules {
    /// The verdict on a pair, and the reasons where it is `different`.
    pub(super) fn judge(&self, pair: &Pair, metrics: &Metrics) -> (Verdict, Vec<Problem>) {
        let mut reasons = Vec::new();
        if let Some(index) = metrics.nonfinite.first_index {
            let found = &metrics.nonfinite;
            reasons.push(Problem::new(
                "nonfinite",
                format!("logit {index}"),
                format!(
                    "the first NaN or infinity, which never passes; {} in the reference, {} in the candidate",
                    found.reference, found.candidate
                ),
            ));
        }
        let mut failing = (0..pair.len()).filter(|&index| pair.finite(index) && !self.gate.holds(pair, index));
        if let Some(first) = failing.next() {
            reasons.push(self.failure(pair, first, 1 + failing.count()));
        }
        if self.gate != Gate::Bits && !self.ignore_argmax && metrics.nonfinite.none() {
            let (r, c) = (self.gate.argmax(&pair.r), self.gate.argmax(&pair.c));
            if let (Some(r), Some(c)) = (r, c)
                && r != c
            {
                let message = format!("the reference's largest logit is {r}, the candidate's is {c}");
                reasons.push(Problem::new("argmax-differs", "argmax", message));
            }
        }
        let verdict = match reasons.is_empty() {
            false => Verdict::Different,
            true if metrics.identical() => Verdict::Identical,
            true => Verdict::WithinTolerance,
        };
        (verdict, reasons)
    }

    fn failure(&self, pair: &Pair, first: usize, count: usize) -> Problem {
        let all = pair.len();
        let (code, what) = match self.gate {
            Gate::Bits => ("bits-differ", "hold other bits"),
            Gate::Tolerance { .. } | Gate::Memra | Gate::Auto { .. } => {
                ("beyond-tolerance", "are beyond the tolerance")
            }
        };
        let message = format!(
            "the first of {count} (of {all}) that {what}: reference {} ({}), candidate {} ({})",
            exact_logit(pair.r[first]),
            pair.reference.hex(first),
            exact_logit(pair.c[first]),
            pair.candidate.hex(first),
        );
        Problem::new(code, format!("logit {first}"), message)
    }
}
