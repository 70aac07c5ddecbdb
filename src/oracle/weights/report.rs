//! The report on two checkpoints' weights.

use super::{CheckpointSide, Counts, Finding, PlanDifference, WeightComparison, WeightMetrics, WeightsComparison};
use crate::oracle::printable::{exact, ranges, short};
use crate::oracle::report::{Case, Outcome, Page, Report, Suite, Table};
use crate::oracle::verdict::Verdict;
use serde_json::{Value, json};

impl Report for WeightsComparison {
    fn text(&self) -> Page {
        let mut page = Page::new(&self.headline());
        let mut compared = vec![
            ("reference", side(&self.reference)),
            ("candidate", side(&self.candidate)),
            ("gate", self.gate.to_string()),
        ];
        if self.verdict != Verdict::Refused {
            compared.push(("plan", self.plan_line()));
        }
        page.pairs("compared", &compared);
        page.lines("why", self.reasons.iter().map(ToString::to_string));
        page.lines("hints", self.hints.iter().map(|hint| &hint.message));
        page.columns("the plans differ apart from weights", &plan_rows(&self.plan), usize::MAX);
        let other = self.not_identical();
        let listed = other.len().min(self.listed);
        let title = match listed == other.len() {
            true => "weights that are not identical, the worst first".to_owned(),
            false => format!("the worst {listed} of {} weights that are not identical", other.len()),
        };
        page.columns(&title, &weight_rows(&other[..listed]), 2);
        page
    }

    /// `{"report": "oracle-weights-v1", "exit_code": .., ..}`, then the keys of [`WeightsComparison`]. A number that does
    /// not exist is `null`.
    fn json(&self) -> Value {
        let mut report = json!({ "report": "oracle-weights-v1", "exit_code": self.verdict.exit_code() });
        // Serializing plain data into a value cannot fail: every map has text keys.
        if let (Value::Object(report), Ok(Value::Object(fields))) = (&mut report, serde_json::to_value(self)) {
            report.extend(fields);
        }
        report
    }

    /// A row for each weight, the worst first; none where the comparison was refused.
    fn table(&self) -> Table {
        Table { header: HEADER.to_vec(), rows: self.weights.iter().map(cells).collect() }
    }

    fn suite(&self) -> Suite {
        let reasons = self.reasons.iter().map(ToString::to_string);
        let plan = (!self.plan.is_empty()).then(|| format!("plan: {}", self.plan_line()));
        let hints = self.hints.iter().map(|hint| format!("hint: {}", hint.message));
        let case = Case {
            name: format!("{} holds the weights of {}", self.candidate.checkpoint, self.reference.checkpoint),
            file: Some(self.candidate.checkpoint.clone()),
            outcome: match self.verdict {
                Verdict::Identical | Verdict::WithinTolerance => Outcome::Passed,
                Verdict::Different => Outcome::Failed,
                Verdict::Refused => Outcome::Trouble,
            },
            summary: self.headline(),
            details: reasons.chain(plan).chain(hints).collect(),
        };
        Suite { name: "oracle weights".to_owned(), cases: vec![case] }
    }
}

impl WeightsComparison {
    fn headline(&self) -> String {
        let verdict = self.verdict;
        if verdict == Verdict::Refused {
            let (reference, candidate) = (&self.reference.checkpoint, &self.candidate.checkpoint);
            return format!("{verdict}: {reference} and {candidate} cannot be compared");
        }
        let Counts { weights, identical, .. } = self.counts;
        let worst = match self.not_identical().first() {
            None => String::new(),
            Some(WeightComparison { name, finding, metrics: None, .. }) => match finding {
                Finding::ShapeDiffers => format!(", {name} has another shape"),
                other => format!(", {name} is {}", other.as_str()),
            },
            Some(WeightComparison { name, metrics: Some(metrics), .. }) => {
                let snr = match (metrics.nonfinite.none(), metrics.snr_db) {
                    (false, _) => " (not finite)".to_owned(),
                    (true, Some(snr)) => format!(" ({snr:.2} dB signal to noise)"),
                    (true, None) => String::new(),
                };
                format!(", the worst is {name}{snr}")
            }
        };
        format!("{verdict}: {identical} of {weights} weights have the same bits{worst}")
    }

    fn not_identical(&self) -> &[WeightComparison] {
        let identical = self.weights.iter().rev().take_while(|weight| weight.finding == Finding::Identical).count();
        &self.weights[..self.weights.len() - identical]
    }

    fn plan_line(&self) -> String {
        const SHOWN: usize = 3;
        if self.plan.is_empty() {
            return "the same apart from weights".to_owned();
        }
        let places: Vec<String> = self.plan.iter().take(SHOWN).map(place).collect();
        let more = self.plan.len().saturating_sub(SHOWN);
        let more = if more > 0 { format!(" and {more} more places") } else { String::new() };
        format!("differs in {}{more}", places.join(", "))
    }
}

fn side(side: &CheckpointSide) -> String {
    match (&side.pack, side.parameters) {
        (Some(pack), Some(parameters)) => format!("{} ({pack}, {parameters} parameters)", side.checkpoint),
        _ => side.checkpoint.clone(),
    }
}

/// "ropes.0.rope_theta", "mixer.attention.scale of layers 0-3"
fn place(difference: &PlanDifference) -> String {
    let PlanDifference { key, layers, .. } = difference;
    match layers.len() {
        0 => key.clone(),
        1 => format!("{key} of layer {}", ranges(layers)),
        _ => format!("{key} of layers {}", ranges(layers)),
    }
}

fn plan_rows(differences: &[PlanDifference]) -> Vec<Vec<String>> {
    let row = |difference: &PlanDifference| {
        vec![place(difference), shown(&difference.reference), shown(&difference.candidate)]
    };
    header(&["", "reference", "candidate"], differences.iter().map(row).collect())
}

/// A value of a plan, cut where it gets long.
fn shown(value: &Value) -> String {
    const LIMIT: usize = 48;
    let text = match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(LIMIT) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Rows under their header; none without rows.
fn header(names: &[&str], rows: Vec<Vec<String>>) -> Vec<Vec<String>> {
    let header = names.iter().map(|name| (*name).to_owned()).collect();
    if rows.is_empty() { rows } else { std::iter::once(header).chain(rows).collect() }
}

fn weight_rows(weights: &[WeightComparison]) -> Vec<Vec<String>> {
    let names = [
        "weight",
        "finding",
        "max |c - r|",
        "max |c - r| / |r|",
        "cosine",
        "SNR",
        "equal bits",
        "not finite",
        "stored as",
    ];
    header(&names, weights.iter().map(weight_row).collect())
}

fn weight_row(weight: &WeightComparison) -> Vec<String> {
    let metrics = weight.metrics.as_ref();
    let figure = |get: fn(&WeightMetrics) -> Option<String>| match metrics {
        Some(metrics) => get(metrics).unwrap_or_else(|| "none".to_owned()),
        None => "-".to_owned(),
    };
    vec![
        weight.name.clone(),
        weight.finding.as_str().to_owned(),
        figure(|m| m.max_abs.map(|max| short(max.value))),
        figure(|m| m.max_relative.map(|max| short(max.value))),
        figure(|m| m.cosine.map(|cosine| format!("{cosine:.9}"))),
        figure(|m| m.snr_db.map(|snr| format!("{snr:.2} dB"))),
        figure(|m| Some(format!("{} of {}", m.equal_bits, m.elements))),
        figure(|m| Some(format!("{} | {}", m.nonfinite.reference, m.nonfinite.candidate))),
        stored_as(weight),
    ]
}

/// "BF16 | Q4_K"; with the shapes where they differ.
fn stored_as(weight: &WeightComparison) -> String {
    let shapes = weight.finding == Finding::ShapeDiffers;
    let sides = [&weight.reference, &weight.candidate].map(|side| match side {
        None => "none".to_owned(),
        Some(stored) if shapes => format!("{} {}", stored.dtype, crate::model::contract::shown(&stored.shape)),
        Some(stored) => stored.dtype.clone(),
    });
    sides.join(" | ")
}

const HEADER: [&str; 24] = [
    "weight",
    "finding",
    "reference_tensor",
    "candidate_tensor",
    "reference_dtype",
    "candidate_dtype",
    "reference_shape",
    "candidate_shape",
    "elements",
    "equal_bits",
    "nonfinite_reference",
    "nonfinite_candidate",
    "max_abs",
    "max_abs_index",
    "max_relative",
    "max_relative_index",
    "zero_reference",
    "rmse",
    "nmse",
    "cosine",
    "snr_db",
    "beyond",
    "first_beyond_index",
    "worst_index",
];

/// The CSV row of a weight; a value that does not exist is an empty cell.
fn cells(weight: &WeightComparison) -> Vec<String> {
    let metrics = weight.metrics.as_ref();
    let number = |get: fn(&WeightMetrics) -> Option<f64>| metrics.and_then(get).map_or(String::new(), exact);
    let count =
        |get: fn(&WeightMetrics) -> Option<usize>| metrics.and_then(get).map_or(String::new(), |n| n.to_string());
    let sides = [&weight.reference, &weight.candidate];
    let [reference_tensor, candidate_tensor] = sides.map(|side| side.as_ref().map_or("", |s| &s.tensor).to_owned());
    let [reference_dtype, candidate_dtype] = sides.map(|side| side.as_ref().map_or("", |s| &s.dtype).to_owned());
    let shape = |shape: &[usize]| shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x");
    let [reference_shape, candidate_shape] = sides.map(|side| side.as_ref().map_or(String::new(), |s| shape(&s.shape)));
    vec![
        weight.name.clone(),
        weight.finding.as_str().to_owned(),
        reference_tensor,
        candidate_tensor,
        reference_dtype,
        candidate_dtype,
        reference_shape,
        candidate_shape,
        count(|m| Some(m.elements)),
        count(|m| Some(m.equal_bits)),
        count(|m| Some(m.nonfinite.reference)),
        count(|m| Some(m.nonfinite.candidate)),
        number(|m| m.max_abs.map(|max| max.value)),
        count(|m| m.max_abs.map(|max| max.index)),
        number(|m| m.max_relative.map(|max| max.value)),
        count(|m| m.max_relative.map(|max| max.index)),
        count(|m| Some(m.zero_reference)),
        number(|m| m.rmse),
        number(|m| m.nmse),
        number(|m| m.cosine),
        number(|m| m.snr_db),
        count(|m| Some(m.beyond)),
        count(|m| m.first_beyond.as_ref().map(|element| element.index)),
        count(|m| m.worst.as_ref().map(|element| element.index)),
    ]
}
