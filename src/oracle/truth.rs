//! How far both sides are from a truth: a row of the same model and tokens in a wider arithmetic.

use super::comparison::Input;
use super::metrics::{Pair, finite};
use serde::Serialize;

/// The distance of one side from the truth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Distance {
    /// Largest `|side - truth|`; `None` where a value is not finite.
    pub max_abs: Option<f64>,
    /// `sqrt(mean((side - truth)^2))`; `None` where a value is not finite.
    pub rms: Option<f64>,
}

impl Distance {
    /// Measures one side against the truth; both of the same length.
    pub(super) fn between(side: &[f64], truth: &[f64]) -> Self {
        if !side.iter().chain(truth).all(|value| value.is_finite()) {
            return Self { max_abs: None, rms: None };
        }
        let differences = || side.iter().zip(truth).map(|(value, truth)| (value - truth).abs());
        let squares: f64 = differences().map(|difference| difference * difference).sum();
        Self { max_abs: finite(differences().fold(0.0, f64::max)), rms: finite((squares / truth.len() as f64).sqrt()) }
    }

    /// This distance as a multiple of another; `None` where that is 0.
    fn over(&self, other: &Self) -> Self {
        let ratio = |a: Option<f64>, b: Option<f64>| finite(a? / b?);
        Self { max_abs: ratio(self.max_abs, other.max_abs), rms: ratio(self.rms, other.rms) }
    }
}

/// The distances of both sides from the truth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TruthReport {
    /// The truth's file.
    pub file: String,
    pub engine: String,
    pub numeric_class: String,
    /// How many of the truth's values are NaN or infinite.
    pub nonfinite: usize,
    pub reference: Distance,
    pub candidate: Distance,
    /// The candidate's distances over the reference's; `None` where the reference is at the truth itself.
    pub ratio: Distance,
}

impl TruthReport {
    /// Measures both sides against the truth, whose row is `values`, `[vocab]`.
    pub(super) fn measure(truth: &Input, values: &[f64], pair: &Pair) -> Self {
        let (reference, candidate) = (Distance::between(&pair.r, values), Distance::between(&pair.c, values));
        Self {
            file: truth.name.to_string(),
            engine: truth.file.engine.clone(),
            numeric_class: truth.file.numeric_class.to_string(),
            nonfinite: values.iter().filter(|value| !value.is_finite()).count(),
            ratio: candidate.over(&reference),
            reference,
            candidate,
        }
    }
}
