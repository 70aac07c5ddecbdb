//! The report on one comparison.

use super::{Case, Outcome, Page, Report, Suite, Table};
use crate::oracle::auto::{AutoReport, Basis};
use crate::oracle::comparison::{Comparison, Side};
use crate::oracle::file::STANDARD_INPUT;
use crate::oracle::metrics::{Extreme, Metrics, Ranked, UlpBin, Worst};
use crate::oracle::printable::{exact, exact_logit, short};
use crate::oracle::truth::{Distance, TruthReport};
use crate::oracle::verdict::{Gate, Verdict};
use serde_json::{Value, json};

impl Report for Comparison {
    fn text(&self) -> Page {
        let mut page = Page::new(&headline(self));
        page.pairs("compared", &compared(self));
        page.lines("why", self.reasons.iter().map(|reason| reason.to_string()));
        page.lines("hints", self.hints.iter().map(|hint| &hint.message));
        if let Some(auto) = self.passed_auto() {
            page.lines(auto.place(), [&auto.message]);
        }
        if let Some(metrics) = self.metrics.as_ref().filter(|_| self.verdict == Verdict::Identical) {
            page.pairs("largest logits", &largest(metrics)[..3]);
        } else if let Some(metrics) = &self.metrics {
            page.pairs("differences", &differences(metrics));
            page.pairs("largest logits", &largest(metrics));
            page.pairs("smallest tolerance that would pass (argmax aside)", &tolerances(metrics));
            page.columns(&format!("distance in {} ULP", metrics.ulp_format), &histogram(metrics), 1);
            let title = format!("worst {}", metrics.worst.len());
            page.columns(&title, &worst(&metrics.worst), 0);
        }
        if let Some(truth) = &self.truth {
            page.columns(&format!("distance from the truth, {} ({})", truth.file, truth.engine), &distances(truth), 1);
        }
        page
    }

    /// `{"report": "oracle-diff-v1", "exit_code": .., ..}`, then the keys of [`Comparison`]. A number that does not
    /// exist is `null`.
    fn json(&self) -> Value {
        let mut report = json!({ "report": "oracle-diff-v1", "exit_code": self.verdict.exit_code() });
        // Serializing plain data into a value cannot fail: every map has text keys.
        if let (Value::Object(report), Ok(Value::Object(fields))) = (&mut report, serde_json::to_value(self)) {
            report.extend(fields);
        }
        report
    }

    fn table(&self) -> Table {
        let (header, row) = cells(self).into_iter().unzip();
        Table { header, rows: vec![row] }
    }

    fn suite(&self) -> Suite {
        let reasons = self.reasons.iter().map(|reason| reason.to_string());
        let hints = self.hints.iter().map(|hint| format!("hint: {}", hint.message));
        let auto = self.passed_auto().map(|auto| format!("{}: {}", auto.place(), auto.message));
        let case = Case {
            name: format!("{} agrees with {}", self.candidate.file, self.reference.file),
            file: Some(self.candidate.file.clone()).filter(|file| file != STANDARD_INPUT),
            outcome: match self.verdict {
                Verdict::Identical | Verdict::WithinTolerance => Outcome::Passed,
                Verdict::Different => Outcome::Failed,
                Verdict::Refused => Outcome::Trouble,
            },
            summary: headline(self),
            details: reasons.chain(auto).chain(hints).collect(),
        };
        Suite { name: "oracle diff".to_string(), cases: vec![case] }
    }
}

impl Comparison {
    /// The tolerance from the truth where it holds; where it does not, it is among the reasons.
    fn passed_auto(&self) -> Option<&AutoReport> {
        self.auto.as_ref().filter(|auto| auto.passes)
    }
}

fn headline(comparison: &Comparison) -> String {
    let verdict = comparison.verdict;
    match &comparison.metrics {
        None => {
            let (reference, candidate) = (&comparison.reference.file, &comparison.candidate.file);
            format!("{verdict}: {reference} and {candidate} cannot be compared")
        }
        Some(metrics) => {
            let max = metrics.max_abs.map_or("does not exist".to_string(), |max| format!("is {}", short(max.value)));
            format!(
                "{verdict}: {} of {} logits have the same bits, the largest difference {max}",
                metrics.equal_bits, metrics.vocab
            )
        }
    }
}

fn compared(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let argmax = if comparison.ignore_argmax { ", whatever the argmax" } else { ", and the same argmax" };
    let argmax = if comparison.gate == Gate::Bits { "" } else { argmax };
    vec![
        ("reference", side(&comparison.reference)),
        ("candidate", side(&comparison.candidate)),
        ("gate", format!("{}{argmax}", comparison.gate)),
    ]
}

fn side(side: &Side) -> String {
    match (&side.engine, &side.numeric_class, side.tokens, side.vocab) {
        (Some(engine), Some(class), Some(tokens), Some(vocab)) => {
            format!("{} ({engine}, {class}, tokens: {tokens}, vocab: {vocab})", side.file)
        }
        _ => side.file.clone(),
    }
}

fn differences(metrics: &Metrics) -> Vec<(&'static str, String)> {
    let mut pairs = vec![
        ("equal bits", format!("{} of {}", metrics.equal_bits, metrics.vocab)),
        ("max |c - r|", metrics.max_abs.map_or(none(), |max| at(max, short))),
        ("mean |c - r|", optional(metrics.mean_abs)),
        ("max |c - r| / |r|", metrics.max_relative.map_or(none(), |max| at(max, short))),
        ("RMSE", optional(metrics.rmse)),
        ("NMSE", optional(metrics.nmse)),
        ("cosine", metrics.cosine.map_or(none(), |cosine| format!("{cosine:.12}"))),
        ("KL(r || c)", metrics.kl_divergence.map_or(none(), |value| format!("{} nats", short(value)))),
        ("max ULP", metrics.max_ulp.map_or(none(), |max| at(max, |value| value.to_string()))),
    ];
    if metrics.zero_reference > 0 {
        pairs.push(("r = 0, c not 0", format!("{} (no relative difference there)", metrics.zero_reference)));
    }
    if !metrics.nonfinite.none() {
        let found = &metrics.nonfinite;
        let counts = format!("{} in the reference, {} in the candidate", found.reference, found.candidate);
        pairs.push(("NaN or infinite", format!("{counts}; the differences leave them out")));
    }
    pairs
}

fn largest(metrics: &Metrics) -> Vec<(&'static str, String)> {
    let top = |ranked: Option<Ranked>| {
        ranked.map_or(none(), |top| format!("{} at index {}", exact_logit(top.value), top.index))
    };
    let margin = match (metrics.reference_margin, metrics.max_abs) {
        (Some(margin), Some(max)) => format!("{} (max |c - r|: {})", short(margin), short(max.value)),
        (margin, _) => optional(margin),
    };
    let mut pairs = vec![
        ("reference", top(metrics.reference_top1)),
        ("candidate", top(metrics.candidate_top1)),
        ("reference's margin", margin),
    ];
    for agreement in &metrics.top {
        let name = match agreement.k {
            1 => "top 1",
            5 => "top 5",
            _ => "top 10",
        };
        let order = match (agreement.same_order, agreement.overlap == agreement.of) {
            (true, _) => ", in the same order",
            (false, true) if agreement.of > 1 => ", in another order",
            _ => "",
        };
        pairs.push((name, format!("{} of {} agree{order}", agreement.overlap, agreement.of)));
    }
    pairs
}

fn tolerances(metrics: &Metrics) -> Vec<(&'static str, String)> {
    let found = &metrics.smallest_tolerance;
    let show = |value: Option<f64>, text: &dyn Fn(String) -> String| {
        value.map_or("none does".to_string(), |value| text(exact(value)))
    };
    vec![
        ("absolute", show(found.atol, &|value| format!("--atol {value}"))),
        ("relative", show(found.rtol, &|value| format!("--rtol {value}"))),
        ("both alike", show(found.both, &|value| format!("--atol {value} --rtol {value}"))),
    ]
}

fn histogram(metrics: &Metrics) -> Vec<Vec<String>> {
    let range =
        |bin: &UlpBin| if bin.from == bin.to { bin.from.to_string() } else { format!("{}-{}", bin.from, bin.to) };
    let share = |count: usize| format!("{:.2} %", 100.0 * count as f64 / metrics.vocab as f64);
    metrics.ulp_histogram.iter().map(|bin| vec![range(bin), bin.count.to_string(), share(bin.count)]).collect()
}

fn worst(list: &[Worst]) -> Vec<Vec<String>> {
    if list.is_empty() {
        return Vec::new();
    }
    let header = ["index", "reference", "bits", "candidate", "bits", "|c - r|", "ULP"].map(str::to_string).to_vec();
    let row = |worst: &Worst| {
        vec![
            worst.index.to_string(),
            exact_logit(worst.reference),
            worst.reference_bits.clone(),
            exact_logit(worst.candidate),
            worst.candidate_bits.clone(),
            optional(worst.abs),
            worst.ulp.map_or(none(), |ulp| ulp.to_string()),
        ]
    };
    std::iter::once(header).chain(list.iter().map(row)).collect()
}

fn distances(truth: &TruthReport) -> Vec<Vec<String>> {
    let row =
        |name: &str, distance: &Distance| vec![name.to_string(), optional(distance.max_abs), optional(distance.rms)];
    vec![
        vec![String::new(), "max".to_string(), "RMS".to_string()],
        row("reference", &truth.reference),
        row("candidate", &truth.candidate),
        row("candidate / reference", &truth.ratio),
    ]
}

/// The CSV columns in order; a value that does not exist is an empty cell.
fn cells(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let (atol, rtol) = match comparison.gate {
        Gate::Tolerance { atol, rtol } => (Some(atol), Some(rtol)),
        Gate::Bits | Gate::Memra | Gate::Auto { .. } => (None, None),
    };
    let gate = match comparison.gate {
        Gate::Bits => "bits",
        Gate::Tolerance { .. } => "tolerance",
        Gate::Memra => "memra",
        Gate::Auto { .. } => "auto",
    };
    let reasons: Vec<String> = comparison.reasons.iter().map(|reason| reason.to_string()).collect();
    let mut row = vec![
        ("verdict", comparison.verdict.to_string()),
        ("exit_code", comparison.verdict.exit_code().to_string()),
        ("gate", gate.to_string()),
        ("atol", cell(atol)),
        ("rtol", cell(rtol)),
        ("ignore_argmax", comparison.ignore_argmax.to_string()),
        ("reference", comparison.reference.file.clone()),
        ("candidate", comparison.candidate.file.clone()),
        ("reference_engine", comparison.reference.engine.clone().unwrap_or_default()),
        ("candidate_engine", comparison.candidate.engine.clone().unwrap_or_default()),
        ("reasons", reasons.join("; ")),
    ];
    row.extend(metric_cells(comparison.metrics.as_ref()));
    let truth = comparison.truth.as_ref();
    row.extend([
        ("truth", truth.map_or(String::new(), |truth| truth.file.clone())),
        ("truth_reference_max_abs", cell(truth.and_then(|truth| truth.reference.max_abs))),
        ("truth_reference_rms", cell(truth.and_then(|truth| truth.reference.rms))),
        ("truth_candidate_max_abs", cell(truth.and_then(|truth| truth.candidate.max_abs))),
        ("truth_candidate_rms", cell(truth.and_then(|truth| truth.candidate.rms))),
        ("truth_ratio_max_abs", cell(truth.and_then(|truth| truth.ratio.max_abs))),
        ("truth_ratio_rms", cell(truth.and_then(|truth| truth.ratio.rms))),
    ]);
    row.extend(auto_cells(comparison));
    row
}

fn auto_cells(comparison: &Comparison) -> Vec<(&'static str, String)> {
    let auto = comparison.auto.as_ref();
    let number = |get: fn(&AutoReport) -> f64| cell(auto.map(get).filter(|value| value.is_finite()));
    let basis = auto.map_or("", |auto| match auto.basis {
        Basis::Truth => "truth",
        Basis::Receipts => "receipts",
    });
    let factor = match comparison.gate {
        Gate::Auto { factor } => Some(factor),
        Gate::Bits | Gate::Tolerance { .. } | Gate::Memra => None,
    };
    vec![
        ("auto_factor", cell(factor)),
        ("auto_basis", basis.to_string()),
        ("auto_floor", number(|auto| auto.floor)),
        ("auto_reference_max_abs", number(|auto| auto.reference.max_abs)),
        ("auto_reference_rms", number(|auto| auto.reference.rms)),
        ("auto_candidate_max_abs", number(|auto| auto.candidate.max_abs)),
        ("auto_candidate_rms", number(|auto| auto.candidate.rms)),
        ("auto_bound_max_abs", number(|auto| auto.bound.max_abs)),
        ("auto_bound_rms", number(|auto| auto.bound.rms)),
        ("auto_ratio_max_abs", number(|auto| auto.ratio.max_abs)),
        ("auto_ratio_rms", number(|auto| auto.ratio.rms)),
    ]
}

fn metric_cells(metrics: Option<&Metrics>) -> Vec<(&'static str, String)> {
    let number = |get: fn(&Metrics) -> Option<f64>| cell(metrics.and_then(get));
    let count =
        |get: fn(&Metrics) -> Option<usize>| metrics.and_then(get).map_or(String::new(), |count| count.to_string());
    vec![
        ("vocab", count(|m| Some(m.vocab))),
        ("equal_bits", count(|m| Some(m.equal_bits))),
        ("nonfinite_reference", count(|m| Some(m.nonfinite.reference))),
        ("nonfinite_candidate", count(|m| Some(m.nonfinite.candidate))),
        ("max_abs", number(|m| m.max_abs.map(|max| max.value))),
        ("max_abs_index", count(|m| m.max_abs.map(|max| max.index))),
        ("mean_abs", number(|m| m.mean_abs)),
        ("max_relative", number(|m| m.max_relative.map(|max| max.value))),
        ("max_relative_index", count(|m| m.max_relative.map(|max| max.index))),
        ("rmse", number(|m| m.rmse)),
        ("nmse", number(|m| m.nmse)),
        ("cosine", number(|m| m.cosine)),
        ("kl_divergence", number(|m| m.kl_divergence)),
        ("ulp_format", metrics.map_or(String::new(), |m| m.ulp_format.to_string())),
        ("max_ulp", metrics.and_then(|m| m.max_ulp).map_or(String::new(), |max| max.value.to_string())),
        ("max_ulp_index", count(|m| m.max_ulp.map(|max| max.index))),
        ("reference_argmax", count(|m| m.reference_top1.map(|top| top.index))),
        ("candidate_argmax", count(|m| m.candidate_top1.map(|top| top.index))),
        ("reference_margin", number(|m| m.reference_margin)),
        ("top1_overlap", count(|m| m.top.first().map(|top| top.overlap))),
        ("top5_overlap", count(|m| m.top.get(1).map(|top| top.overlap))),
        ("top10_overlap", count(|m| m.top.get(2).map(|top| top.overlap))),
        ("smallest_atol", number(|m| m.smallest_tolerance.atol)),
        ("smallest_rtol", number(|m| m.smallest_tolerance.rtol)),
        ("smallest_both", number(|m| m.smallest_tolerance.both)),
    ]
}

fn cell(value: Option<f64>) -> String {
    value.map_or(String::new(), exact)
}

fn optional(value: Option<f64>) -> String {
    value.map_or(none(), short)
}

fn none() -> String {
    "none".to_string()
}

fn at<T: Copy>(extreme: Extreme<T>, show: impl Fn(T) -> String) -> String {
    format!("{} at index {}", show(extreme.value), extreme.index)
}
