//! Two checkpoints, weight by weight: whether they hold the same values, whatever their containers, names, layouts and
//! formats are.
//!
//! Weights are told apart by what they mean in the plan, and read through it, so that fused, transposed, reordered and
//! quantised tensors meet what they stand for. Both sides are walked in step, piece by piece.

mod measure;
mod plans;
mod report;

pub use measure::{Element, WeightMetrics};
pub use plans::PlanDifference;

use super::hints::Hint;
use super::metrics::NonFinite;
use super::printable::exact_logit;
use super::verdict::{Gate, Verdict};
use crate::Problem;
use crate::checkpoint::Source;
use crate::exec::weights::RowReader;
use crate::model::Plan;
use crate::model::contract::shown;
use crate::model::plan::Weight;
use crate::problem::quote_list;
use anyhow::{Context, Result};
use measure::measure;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// A checkpoint whose books close, and what reports call it.
#[derive(Clone, Copy)]
pub struct Checkpoint<'a> {
    pub name: &'a str,
    /// The pack that answers for it.
    pub pack: &'a str,
    pub plan: &'a Plan,
    pub source: &'a dyn Source,
}

/// What a report says of one side. All but the name is `None` where its books don't close.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CheckpointSide {
    pub checkpoint: String,
    pub pack: Option<String>,
    /// Stored elements that the plan uses.
    pub parameters: Option<u64>,
    pub plan_sha256: Option<String>,
}

impl CheckpointSide {
    /// A side of which only the name is known.
    pub fn unread(checkpoint: &str) -> Self {
        Self { checkpoint: checkpoint.to_owned(), pack: None, parameters: None, plan_sha256: None }
    }
}

impl From<&Checkpoint<'_>> for CheckpointSide {
    fn from(checkpoint: &Checkpoint<'_>) -> Self {
        Self {
            checkpoint: checkpoint.name.to_owned(),
            pack: Some(checkpoint.pack.to_owned()),
            parameters: Some(checkpoint.plan.parameters()),
            plan_sha256: Some(checkpoint.plan.sha256()),
        }
    }
}

/// How a weight is stored on one side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StoredWeight {
    /// The tensor that holds it.
    pub tensor: String,
    pub dtype: String,
    /// As the plan uses it.
    pub shape: Vec<usize>,
}

/// What was found of a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// The reference alone has it.
    Missing,
    /// The candidate alone has it.
    Surplus,
    ShapeDiffers,
    /// The gate doesn't let it pass, or a value is NaN or infinite.
    Different,
    WithinTolerance,
    Identical,
}

impl Finding {
    /// The word as users and reports see it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Surplus => "surplus",
            Self::ShapeDiffers => "shape-differs",
            Self::Different => "different",
            Self::WithinTolerance => "within-tolerance",
            Self::Identical => "identical",
        }
    }
}

/// One weight of both checkpoints.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightComparison {
    /// What it is: `embed`, `layer.3.q`, `layer.3.expert.5.down`, `head`.
    pub name: String,
    pub finding: Finding,
    /// `None` where it is surplus.
    pub reference: Option<StoredWeight>,
    /// `None` where it is missing.
    pub candidate: Option<StoredWeight>,
    /// `None` where there is nothing to compare.
    pub metrics: Option<WeightMetrics>,
}

impl WeightComparison {
    /// What cannot be measured comes first, what is identical last.
    fn rank(&self) -> (u8, f64) {
        match (&self.metrics, self.finding) {
            (None, _) => (0, 0.0),
            (Some(_), Finding::Identical) => (2, 0.0),
            (Some(metrics), _) => (1, metrics.damage()),
        }
    }
}

/// How many weights there are of each finding.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Counts {
    /// Of both sides together.
    pub weights: usize,
    pub identical: usize,
    pub within_tolerance: usize,
    pub different: usize,
    pub shape_differs: usize,
    pub missing: usize,
    pub surplus: usize,
}

/// A comparison's outcome. Its serialized form is the JSON report; keys are added, never renamed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WeightsComparison {
    pub verdict: Verdict,
    /// `{"name": "bits"}` or `{"name": "tolerance", "atol": .., "rtol": ..}`.
    pub gate: Gate,
    pub reference: CheckpointSide,
    pub candidate: CheckpointSide,
    /// Why the verdict is `different` or `refused`; empty otherwise.
    pub reasons: Vec<Problem>,
    /// Where the plans differ apart from their weights. They inform: the verdict is one on weights.
    pub plan: Vec<PlanDifference>,
    pub counts: Counts,
    /// The worst first.
    pub weights: Vec<WeightComparison>,
    pub hints: Vec<Hint>,
    /// How many of the weights that are not identical a page for people lists.
    #[serde(skip)]
    pub listed: usize,
}

impl WeightsComparison {
    /// A comparison that could not be made, for the given reasons.
    pub fn refused(names: [&str; 2], gate: Gate, reasons: Vec<Problem>) -> Self {
        let [reference, candidate] = names.map(CheckpointSide::unread);
        Self {
            verdict: Verdict::Refused,
            gate,
            reference,
            candidate,
            reasons,
            plan: Vec::new(),
            counts: Counts::default(),
            weights: Vec::new(),
            hints: Vec::new(),
            listed: 0,
        }
    }
}

/// What a comparison is held to, and how it goes about it.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// `Bits` or `Tolerance`; there is no truth for weights.
    pub gate: Gate,
    /// About how many bytes of each side are read at once, a row at least.
    pub piece_bytes: usize,
    /// How many of the weights that are not identical a page for people lists.
    pub listed: usize,
}

/// Compares a candidate's weights with a reference's. No more of either than a piece is held at a time, and no number
/// depends on the pieces or on threads.
///
/// # Errors
/// A weight can't be read.
pub fn compare(reference: Checkpoint<'_>, candidate: Checkpoint<'_>, options: Options) -> Result<WeightsComparison> {
    let [left, right] = both_parts(reference.plan, candidate.plan);
    let of_candidate: BTreeMap<&str, &Weight> = right.iter().map(|(name, weight)| (name.as_str(), *weight)).collect();
    let of_reference: BTreeSet<&str> = left.iter().map(|(name, _)| name.as_str()).collect();
    let mut weights = Vec::new();
    for (name, weight) in &left {
        let other = of_candidate.get(name.as_str()).copied();
        weights.push(compare_weight(name, [Some(weight), other], [&reference, &candidate], options)?);
    }
    for (name, weight) in right.iter().filter(|(name, _)| !of_reference.contains(name.as_str())) {
        weights.push(compare_weight(name, [None, Some(weight)], [&reference, &candidate], options)?);
    }
    weights.sort_by(|a, b| {
        let ((a, damage_a), (b, damage_b)) = (a.rank(), b.rank());
        a.cmp(&b).then(damage_b.total_cmp(&damage_a))
    });
    let reasons = reasons(&weights, options.gate, [reference.name, candidate.name]);
    let verdict = match (reasons.is_empty(), weights.iter().all(|weight| weight.finding == Finding::Identical)) {
        (false, _) => Verdict::Different,
        (true, true) => Verdict::Identical,
        (true, false) => Verdict::WithinTolerance,
    };
    let message = format!("both sides are the same checkpoint, {}", reference.name);
    let same = Hint { code: "same-file", message };
    let hints = Some(same).filter(|_| reference.name == candidate.name).into_iter().collect();
    Ok(WeightsComparison {
        verdict,
        gate: options.gate,
        reference: (&reference).into(),
        candidate: (&candidate).into(),
        reasons,
        plan: plans::differences(reference.plan, candidate.plan),
        counts: counts(&weights),
        weights,
        hints,
        listed: options.listed,
    })
}

/// The weights of both plans, by name. A tied head is named where the other plan's is not tied: it is the embedding.
fn both_parts<'a>(reference: &'a Plan, candidate: &'a Plan) -> [Vec<(String, &'a Weight)>; 2] {
    let one_tied = reference.head.tied != candidate.head.tied;
    [reference, candidate].map(|plan| {
        let mut parts = Vec::new();
        plan.each_part(&mut |name, weight| parts.push((name.to_string(), weight)));
        if plan.head.tied && one_tied {
            parts.push(("head".to_owned(), &plan.head.linear.weight));
        }
        parts
    })
}

fn compare_weight(
    name: &str,
    weights: [Option<&Weight>; 2],
    checkpoints: [&Checkpoint<'_>; 2],
    options: Options,
) -> Result<WeightComparison> {
    let open = |i: usize| {
        let (Some(weight), checkpoint) = (weights[i], checkpoints[i]) else { return Ok(None) };
        let reader = RowReader::new(checkpoint.source, weight).with_context(|| checkpoint.name.to_owned())?;
        let stored = StoredWeight {
            tensor: weight.name.clone(),
            dtype: reader.dtype().name().to_owned(),
            shape: weight.shape.clone(),
        };
        Ok::<_, anyhow::Error>(Some((reader, stored)))
    };
    let (reference, candidate) = (open(0)?, open(1)?);
    let (finding, metrics) = match (&reference, &candidate) {
        (_, None) => (Finding::Missing, None),
        (None, _) => (Finding::Surplus, None),
        (Some((_, r)), Some((_, c))) if r.shape != c.shape => (Finding::ShapeDiffers, None),
        (Some((r, _)), Some((c, _))) => {
            let metrics = measure(r, c, options.gate, options.piece_bytes)?;
            let finding = match (metrics.passes(), metrics.identical()) {
                (false, _) => Finding::Different,
                (true, false) => Finding::WithinTolerance,
                (true, true) => Finding::Identical,
            };
            (finding, Some(metrics))
        }
    };
    let [reference, candidate] = [reference, candidate].map(|side| side.map(|(_, stored)| stored));
    Ok(WeightComparison { name: name.to_owned(), finding, reference, candidate, metrics })
}

fn counts(weights: &[WeightComparison]) -> Counts {
    let count = |finding| weights.iter().filter(|weight| weight.finding == finding).count();
    Counts {
        weights: weights.len(),
        identical: count(Finding::Identical),
        within_tolerance: count(Finding::WithinTolerance),
        different: count(Finding::Different),
        shape_differs: count(Finding::ShapeDiffers),
        missing: count(Finding::Missing),
        surplus: count(Finding::Surplus),
    }
}

/// A reason for each kind of finding that doesn't pass, with the worst of them.
fn reasons(weights: &[WeightComparison], gate: Gate, [reference, candidate]: [&str; 2]) -> Vec<Problem> {
    let all = weights.len();
    let mut reasons = Vec::new();
    let mut add = |code, found: Vec<&WeightComparison>, message: &dyn Fn(&WeightComparison) -> String| {
        if let Some(first) = found.first() {
            let others = match found.len() {
                1 => String::new(),
                n => format!("; {n} of {all} such weights: {}", quote_list(found.iter().map(|w| w.name.as_str()))),
            };
            reasons.push(Problem::new(code, format!("weight {}", first.name), message(first) + &others));
        }
    };
    let of = |finding| weights.iter().filter(|weight| weight.finding == finding).collect();
    add("weight-missing", of(Finding::Missing), &|_| format!("{reference} has it, {candidate} does not"));
    add("weight-surplus", of(Finding::Surplus), &|_| format!("{candidate} has it, {reference} does not"));
    add("weight-shape", of(Finding::ShapeDiffers), &|weight| {
        let [r, c] = [&weight.reference, &weight.candidate]
            .map(|side| side.as_ref().map_or(String::new(), |stored| shown(&stored.shape)));
        format!("{reference} has shape {r}, {candidate} has {c}")
    });
    let measured = || weights.iter().filter_map(|weight| Some((weight, weight.metrics.as_ref()?)));
    let found = measured().filter(|(_, metrics)| !metrics.nonfinite.none()).map(|(weight, _)| weight).collect();
    add("nonfinite", found, &|weight| {
        let metrics = weight.metrics.as_ref();
        let NonFinite { reference, candidate, .. } = metrics.map(|m| m.nonfinite.clone()).unwrap_or_default();
        let first = element(weight, metrics.and_then(|metrics| metrics.worst.as_ref()));
        format!(
            "a NaN or an infinity never passes: {reference} in the reference, {candidate} in the candidate, the first {first}"
        )
    });
    let found = measured().filter(|(_, metrics)| metrics.beyond > 0).map(|(weight, _)| weight).collect();
    let (code, what) = match gate {
        Gate::Bits => ("bits-differ", "hold other bits"),
        _ => ("beyond-tolerance", "are beyond the tolerance"),
    };
    add(code, found, &|weight| {
        let metrics = weight.metrics.as_ref();
        let (beyond, elements) = metrics.map_or((0, 0), |metrics| (metrics.beyond, metrics.elements));
        let first = element(weight, metrics.and_then(|metrics| metrics.first_beyond.as_ref()));
        format!("{beyond} of {elements} elements {what}, the first {first}")
    });
    reasons
}

/// "at [3, 17]: reference 1 (3f800000), candidate 2 (40000000)"
fn element(weight: &WeightComparison, element: Option<&Element>) -> String {
    let (Some(stored), Some(element)) = (&weight.reference, element) else { return String::new() };
    let Element { index, reference, candidate, reference_bits, candidate_bits } = element;
    let (r, c) = (exact_logit(*reference), exact_logit(*candidate));
    let at = shown(&place(*index, &stored.shape));
    format!("at {at}: reference {r} ({reference_bits}), candidate {c} ({candidate_bits})")
}

/// Where element `index` stands in each dimension of `shape`.
fn place(mut index: usize, shape: &[usize]) -> Vec<usize> {
    let mut place = vec![0; shape.len()];
    for (at, &n) in place.iter_mut().zip(shape).rev() {
        (*at, index) = (index % n.max(1), index / n.max(1));
    }
    place
}
