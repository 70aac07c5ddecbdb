//! Well-known causes that two rows of logits give away by themselves. A hint is given only where it is certain.

use super::comparison::Input;
use super::file::NumericClass;
use super::metrics::{Metrics, Pair};
use super::printable::{exact_logit, short};
use super::truth::TruthReport;
use serde::Serialize;

/// A likely cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// Stable: `scaled`, `offset`, `rows-shifted`, `padded-vocabulary`, `argmax-near-tie`, `argmax-no-near-tie`,
    /// `truth-class` or `same-file`.
    pub code: &'static str,
    pub message: String,
}

/// The hints on a pair that was compared.
pub fn on_pair(pair: &Pair, metrics: &Metrics) -> Vec<Hint> {
    if !metrics.nonfinite.none() || metrics.identical() {
        return Vec::new();
    }
    [linear(pair, metrics), shifted(pair), flipped_argmax(pair, metrics)].into_iter().flatten().collect()
}

/// `c = a * r + b` with a least-squares fit that explains all but noise, where the rows themselves are apart.
fn linear(pair: &Pair, metrics: &Metrics) -> Option<Hint> {
    let n = pair.len() as f64;
    if pair.len() < 4 {
        return None;
    }
    let (mean_r, mean_c) = (mean(&pair.r), mean(&pair.c));
    let (mut rr, mut rc) = (0.0, 0.0);
    for (r, c) in pair.r.iter().zip(&pair.c) {
        rr += (r - mean_r) * (r - mean_r);
        rc += (r - mean_r) * (c - mean_c);
    }
    let a = rc / rr;
    let b = mean_c - a * mean_r;
    let squares: f64 = pair.r.iter().zip(&pair.c).map(|(r, c)| (c - a * r - b).powi(2)).sum();
    let (residual, rmse) = ((squares / n).sqrt(), metrics.rmse?);
    // Comparisons with a NaN (a constant reference) are false, so nothing is said then.
    let explained = residual < 1e-4 * spread(&pair.c) && rmse > 100.0 * residual;
    if !explained {
        return None;
    }
    let message = format!("candidate = {a:.6} * reference + {b:.6}, up to a residual of {residual:.1e} (RMS)");
    if (a - 1.0).abs() > 1e-3 {
        Some(Hint { code: "scaled", message: format!("{message}: a scale is missing or applied twice") })
    } else if b.abs() > 0.9 * rmse {
        let message =
            format!("{message}: a constant offset, which no softmax sees; one side may hold log-probabilities");
        Some(Hint { code: "offset", message })
    } else {
        None
    }
}

/// The rows of one side stand one index later or earlier.
fn shifted(pair: &Pair) -> Option<Hint> {
    let rows = pair.len();
    if rows < 8 {
        return None;
    }
    let near = 1e-3 * spread(&pair.r);
    let close = |r: &[f64], c: &[f64]| r.iter().zip(c).filter(|(r, c)| (*c - *r).abs() <= near).count();
    if near == 0.0 || 2 * close(&pair.r, &pair.c) > rows {
        return None;
    }
    let nearly_all = |count: usize| 100 * count >= 99 * (rows - 1);
    let (later, earlier) = (close(&pair.r[..rows - 1], &pair.c[1..]), close(&pair.r[1..], &pair.c[..rows - 1]));
    let direction = match (nearly_all(later), nearly_all(earlier)) {
        (true, false) => "later",
        (false, true) => "earlier",
        _ => return None,
    };
    let message = format!("the candidate's logits stand one index {direction} than the reference's");
    Some(Hint { code: "rows-shifted", message })
}

/// Whether a near tie explains that the largest logit is another one: the reference's lead is within twice the
/// difference seen at the other indices, and small beside the spread of its logits.
fn flipped_argmax(pair: &Pair, metrics: &Metrics) -> Option<Hint> {
    let (r, c) = (metrics.reference_top1?.index, metrics.candidate_top1?.index);
    if r == c {
        return None;
    }
    let lead = pair.r[r] - pair.r[c];
    let elsewhere =
        (0..pair.len()).filter(|&index| index != r && index != c).map(|index| pair.abs_diff(index)).fold(0.0, f64::max);
    let near_tie = lead <= 2.0 * elsewhere && lead <= 0.05 * spread(&pair.r);
    let (code, judgement) = match near_tie || lead == 0.0 {
        true => ("argmax-near-tie", "a near tie explains it"),
        false => ("argmax-no-near-tie", "no near tie explains it"),
    };
    let message = format!(
        "the argmax went from {r} to {c}; in the reference {r} leads {c} by {}, and the largest difference at the other \
         indices is {}: {judgement}",
        short(lead),
        short(elsewhere)
    );
    Some(Hint { code, message })
}

/// A truth in an arithmetic that rounds as the two sides do.
pub fn narrow_truth(truth: &TruthReport) -> Hint {
    let message = format!(
        "the truth, {}, is of numeric class {}, not {}: distances from it do not measure rounding",
        truth.file,
        truth.numeric_class,
        NumericClass::Float64
    );
    Hint { code: "truth-class", message }
}

/// The longer row is the shorter one and rows that hold nothing: a head padded to a round number.
pub fn padded_vocabulary(a: &Input, b: &Input) -> Option<Hint> {
    let (short, long) = if a.file.vocab() < b.file.vocab() { (a, b) } else { (b, a) };
    let (head, row) = (short.file.logits.to_f64(), long.file.logits.to_f64());
    let (prefix, surplus) = row.split_at_checked(head.len())?;
    let first = *surplus.first()?;
    let constant = surplus.iter().all(|value| value.to_bits() == first.to_bits());
    if !constant || surplus.len() == 1 && first != 0.0 && first != f64::NEG_INFINITY || prefix != head {
        return None;
    }
    let message = format!(
        "{} has the {} logits of {} and {} more that all hold {}: its vocabulary is padded; cut the padding off",
        long.name,
        head.len(),
        short.name,
        surplus.len(),
        exact_logit(first)
    );
    Some(Hint { code: "padded-vocabulary", message })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Standard deviation.
fn spread(values: &[f64]) -> f64 {
    let mean = mean(values);
    (values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
}
