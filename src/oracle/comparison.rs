//! One comparison from beginning to end: comparable at all, measured, judged, explained.

use super::auto::{AutoReport, Source};
use super::comparable::refusals;
use super::file::{NumericClass, OracleFile};
use super::hints::{self, Hint};
use super::metrics::{Metrics, Pair};
use super::truth::TruthReport;
use super::verdict::{Gate, Rules, Verdict};
use crate::Problem;
use serde::Serialize;

/// A file and what reports call it.
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    pub name: &'a str,
    pub file: &'a OracleFile,
}

/// What a report says of one side. All but the name is `None` where the file could not be read.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    pub file: String,
    pub engine: Option<String>,
    pub numeric_class: Option<String>,
    /// How many tokens were run.
    pub tokens: Option<usize>,
    /// How many logits there are.
    pub vocab: Option<usize>,
}

impl Side {
    /// A side of which only the name is known.
    pub fn unread(file: &str) -> Self {
        Self { file: file.to_string(), engine: None, numeric_class: None, tokens: None, vocab: None }
    }
}

impl From<&Input<'_>> for Side {
    fn from(input: &Input) -> Self {
        Self {
            file: input.name.to_string(),
            engine: Some(input.file.engine.clone()),
            numeric_class: Some(input.file.numeric_class.to_string()),
            tokens: Some(input.file.tokens.len()),
            vocab: Some(input.file.vocab()),
        }
    }
}

/// A comparison's outcome. Its serialized form is the JSON report; keys are added, never renamed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub verdict: Verdict,
    /// `{"name": "bits"}`, `{"name": "tolerance", "atol": .., "rtol": ..}`, `{"name": "memra"}` or
    /// `{"name": "auto", "factor": ..}`.
    pub gate: Gate,
    pub ignore_argmax: bool,
    pub reference: Side,
    pub candidate: Side,
    /// Why the verdict is `different` or `refused`; empty otherwise.
    pub reasons: Vec<Problem>,
    /// `None` where the comparison was refused.
    pub metrics: Option<Metrics>,
    /// `None` where no truth was given, or the comparison was refused.
    pub truth: Option<TruthReport>,
    /// How the tolerance was taken from the truth; `None` with another gate, where the comparison was refused, and
    /// where a value is not finite.
    pub auto: Option<AutoReport>,
    pub hints: Vec<Hint>,
}

impl Comparison {
    /// A comparison that could not begin, for the given reasons.
    pub fn refused(reference: Side, candidate: Side, rules: &Rules, reasons: Vec<Problem>, hints: Vec<Hint>) -> Self {
        Self {
            verdict: Verdict::Refused,
            gate: rules.gate,
            ignore_argmax: rules.ignore_argmax,
            reference,
            candidate,
            reasons,
            metrics: None,
            truth: None,
            auto: None,
            hints,
        }
    }
}

/// Compares a candidate with a reference under `rules`; `worst` is how many of the largest differences to list.
///
/// A truth is held to the same tokens, vocabulary and positions; its numeric class is expected to be another one, and
/// must be that of float64 where the gate takes its tolerance from it.
pub fn compare(reference: Input, candidate: Input, truth: Option<Input>, rules: &Rules, worst: usize) -> Comparison {
    let (reference_side, candidate_side) = (Side::from(&reference), Side::from(&candidate));
    let mut problems = refusals(&reference, &candidate, rules.allow_class_mismatch);
    if let Some(truth) = &truth {
        problems.extend(refusals(&reference, truth, true));
    }
    let source = match rules.gate {
        Gate::Auto { factor } => match Source::find(&reference, truth.as_ref()) {
            Ok(source) => Some((factor, source)),
            Err(problem) => {
                problems.push(problem);
                None
            }
        },
        _ => None,
    };
    if !problems.is_empty() {
        let hints = hints::padded_vocabulary(&reference, &candidate).into_iter().collect();
        return Comparison::refused(reference_side, candidate_side, rules, problems, hints);
    }

    let pair = Pair::new(&reference.file.logits, &candidate.file.logits);
    let metrics = Metrics::measure(&pair, worst);
    let (mut verdict, mut reasons) = rules.judge(&pair, &metrics);
    let truth_row = truth.map(|truth| truth.file.logits.to_f64());
    let truth = truth.zip(truth_row.as_deref()).map(|(truth, row)| TruthReport::measure(&truth, row, &pair));
    if let Some(truth) = truth.as_ref().filter(|truth| truth.nonfinite > 0) {
        verdict = Verdict::Different;
        let message = format!("NaN or infinity never passes: the truth holds {} such logits", truth.nonfinite);
        reasons.push(Problem::new("nonfinite-truth", truth.file.clone(), message));
    }
    let finite = metrics.nonfinite.none() && truth.as_ref().is_none_or(|truth| truth.nonfinite == 0);
    let measured = source
        .filter(|_| finite)
        .map(|(factor, source)| AutoReport::measure(factor, &source, &reference, &pair, truth_row.as_deref()));
    let auto = match measured.transpose() {
        Ok(auto) => auto,
        Err(problem) => {
            return Comparison::refused(reference_side, candidate_side, rules, vec![problem], Vec::new());
        }
    };
    if let Some(reason) = auto.as_ref().and_then(AutoReport::reason) {
        verdict = Verdict::Different;
        reasons.insert(0, reason);
    }
    let mut hints = hints::on_pair(&pair, &metrics);
    if let Some(truth) = truth.as_ref().filter(|truth| truth.numeric_class != NumericClass::Float64.as_str()) {
        hints.push(hints::narrow_truth(truth));
    }
    if reference.name == candidate.name {
        let message = format!("both sides are the same file, {}", reference.name);
        hints.push(Hint { code: "same-file", message });
    }
    Comparison {
        verdict,
        gate: rules.gate,
        ignore_argmax: rules.ignore_argmax,
        reference: reference_side,
        candidate: candidate_side,
        reasons,
        metrics: Some(metrics),
        truth,
        auto,
        hints,
    }
}
