//! The report on a check of equivalence.

use super::equivalence::{Equivalence, Gate, Kind, Run, RunOutcome};
use crate::exec::state::PartShape;
use crate::oracle::printable::{exact, short};
use crate::oracle::report::{Case, Outcome, Page, Report, Suite, Table};
use crate::oracle::verdict::Verdict;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bits => f.write_str("bit for bit"),
            Self::Tolerance { atol, rtol } => {
                write!(f, "logits: |piecewise - whole| <= {} + {} * |whole|", exact(*atol), exact(*rtol))
            }
            Self::Truth { factor, logits, .. } => write!(
                f,
                "up to {factor} times as far as float32 is from the float64 truth: {} for logits, by layer for hidden states",
                short(factor * logits)
            ),
        }
    }
}

impl Report for Equivalence {
    fn text(&self) -> Page {
        let mut page = Page::new(&self.headline());
        let mut compared = vec![
            ("checkpoint", self.checkpoint.clone()),
            ("engine", self.engine.clone()),
            ("tokens", listed(&self.tokens)),
        ];
        if self.positions.iter().enumerate().any(|(i, &p)| i != p as usize) {
            compared.push(("positions", listed(&self.positions)));
        }
        compared.push(("gate", self.gate.to_string()));
        compared.push(("max |piecewise - whole|", short(self.max_abs)));
        page.pairs("compared", &compared);
        if let Some((run, difference)) = self.first_difference() {
            let chunks = difference.chunks.iter().map(usize::to_string).collect::<Vec<_>>().join(" + ");
            page.pairs(
                "first difference",
                &[("run", named(run)), ("chunks so far", chunks), ("where", difference.message.clone())],
            );
        }
        page.lines("ways to cut the prompt", &self.coverage);
        page.columns("runs", &self.groups_as_rows(), 1);
        page.lines("not checked", self.not_checked());
        page.columns("state after the prompt", &self.state_rows(), 3);
        if !self.cannot_see.is_empty() {
            let spots: Vec<String> = self.cannot_see.iter().map(ToString::to_string).collect();
            page.lines("blind spots", [format!("this prompt cannot see: {}", spots.join(", "))]);
        }
        page.lines("notes", &self.notes);
        page
    }

    /// `{"report": "oracle-kv-equivalence-v1", "exit_code": .., ..}`, then the keys of [`Equivalence`].
    fn json(&self) -> Value {
        let mut report = json!({ "report": "oracle-kv-equivalence-v1", "exit_code": self.verdict.exit_code() });
        // Serializing plain data into a value cannot fail: every map has text keys.
        if let (Value::Object(report), Ok(Value::Object(fields))) = (&mut report, serde_json::to_value(self)) {
            report.extend(fields);
        }
        report
    }

    /// One row per run.
    fn table(&self) -> Table {
        let header = vec![
            "kind",
            "state",
            "what",
            "outcome",
            "passes",
            "rows_compared",
            "max_abs",
            "chunks",
            "token",
            "layer",
            "message",
        ];
        let row = |run: &Run| {
            let difference = run.difference.as_ref();
            let number = |n: Option<usize>| n.map_or(String::new(), |n| n.to_string());
            let outcome = match run.outcome {
                RunOutcome::Same => "same",
                RunOutcome::Different => "different",
                RunOutcome::NotChecked => "not-checked",
            };
            vec![
                run.kind.to_string(),
                run.state.clone(),
                run.what.clone(),
                outcome.to_owned(),
                run.passes.to_string(),
                run.rows_compared.to_string(),
                exact(run.max_abs),
                difference.map_or(String::new(), |d| listed(&d.chunks)),
                number(difference.and_then(|d| d.token)),
                number(difference.and_then(|d| d.layer)),
                difference.map(|d| &d.message).or(run.reason.as_ref()).cloned().unwrap_or_default(),
            ]
        };
        Table { header, rows: self.runs.iter().map(row).collect() }
    }

    /// One check per kind of run; what could not be made is in the details of each.
    fn suite(&self) -> Suite {
        let name = "oracle kv-equivalence".to_owned();
        let not_checked: Vec<String> = self.not_checked().into_iter().map(|l| format!("not checked: {l}")).collect();
        if self.verdict == Verdict::Refused {
            let case = Case {
                name: format!("{} in pieces", self.checkpoint),
                file: Some(self.checkpoint.clone()),
                outcome: Outcome::Trouble,
                summary: self.headline(),
                details: not_checked,
            };
            return Suite { name, cases: vec![case] };
        }
        let cases = self.groups().into_iter().filter(|(_, group)| group.checked() > 0).map(|((kind, state), group)| {
            let state = if state.is_empty() { String::new() } else { format!(" ({state})") };
            let first = group.first.map(|run| (run, run.difference.as_ref()));
            let details = match first {
                Some((run, Some(difference))) => vec![named(run), difference.message.clone()],
                _ => Vec::new(),
            };
            Case {
                name: format!("{}: {kind}{state}", self.checkpoint),
                file: Some(self.checkpoint.clone()),
                outcome: if group.different > 0 { Outcome::Failed } else { Outcome::Passed },
                summary: format!("{} of {} runs give what one pass gives", group.same, group.checked()),
                details: details.into_iter().chain(not_checked.iter().cloned()).collect(),
            }
        });
        Suite { name, cases: cases.collect() }
    }
}

/// The runs of one kind, with one way of keeping the state.
#[derive(Default)]
struct Group<'a> {
    same: usize,
    different: usize,
    not_checked: usize,
    passes: usize,
    first: Option<&'a Run>,
}

impl Group<'_> {
    fn checked(&self) -> usize {
        self.same + self.different
    }
}

impl Equivalence {
    fn headline(&self) -> String {
        let checked = self.runs.iter().filter(|run| run.outcome != RunOutcome::NotChecked).count();
        match (self.first_difference(), self.verdict) {
            (_, Verdict::Refused) => "refused: no way to cut the prompt could be checked".to_owned(),
            (Some((run, difference)), verdict) => {
                let different = self.runs.iter().filter(|run| run.outcome == RunOutcome::Different).count();
                format!("{verdict}: {different} of {checked} runs, first {}: {}", named(run), difference.message)
            }
            (None, verdict) => {
                let rest = match self.runs.len() - checked {
                    0 => String::new(),
                    1 => "; 1 run could not be checked".to_owned(),
                    n => format!("; {n} runs could not be checked"),
                };
                format!("{verdict}: {checked} runs give what one pass over the prompt gives{rest}")
            }
        }
    }

    fn groups(&self) -> BTreeMap<(Kind, &str), Group<'_>> {
        let mut groups: BTreeMap<(Kind, &str), Group<'_>> = BTreeMap::new();
        for run in &self.runs {
            let group = groups.entry((run.kind, &run.state)).or_default();
            group.passes += run.passes;
            match run.outcome {
                RunOutcome::Same => group.same += 1,
                RunOutcome::NotChecked => group.not_checked += 1,
                RunOutcome::Different => {
                    group.different += 1;
                    group.first.get_or_insert(run);
                }
            }
        }
        groups
    }

    fn groups_as_rows(&self) -> Vec<Vec<String>> {
        let header = ["", "same", "different", "not checked", "passes"].map(str::to_owned).to_vec();
        let rows = self.groups().into_iter().map(|((kind, state), group)| {
            let name = if state.is_empty() { kind.to_string() } else { format!("{kind}, {state}") };
            let counts = [group.same, group.different, group.not_checked, group.passes];
            std::iter::once(name).chain(counts.map(|n| n.to_string())).collect()
        });
        std::iter::once(header).chain(rows).collect()
    }

    /// The reasons why something was not checked, each once, with the kinds that it concerns.
    fn not_checked(&self) -> Vec<String> {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for run in &self.runs {
            let Some(reason) = &run.reason else { continue };
            let kind = if run.state.is_empty() { run.kind.to_string() } else { format!("{}, {}", run.kind, run.state) };
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, kinds)) if kinds.contains(&kind) => {}
                Some((_, kinds)) => kinds.push(kind),
                None => reasons.push((reason, vec![kind])),
            }
        }
        reasons.into_iter().map(|(reason, kinds)| format!("{}: {reason}", kinds.join("; "))).collect()
    }

    /// The parts of the state, neighbouring layers with the same ones together.
    fn state_rows(&self) -> Vec<Vec<String>> {
        let Some(last) = self.state.iter().map(|part| part.layer).max() else { return Vec::new() };
        let kind = |layer: usize| self.layer_kinds.get(layer).map_or("", String::as_str);
        let parts = |layer: usize| -> Vec<&PartShape> { self.state.iter().filter(|p| p.layer == layer).collect() };
        let alike = |a: usize, b: usize| {
            let plain = |layer| parts(layer).into_iter().map(|p| (p.name, p.first, p.rows, p.cols)).collect::<Vec<_>>();
            kind(a) == kind(b) && plain(a) == plain(b)
        };
        let header = ["layers", "kind", "part", "from token", "shape", "bytes"].map(str::to_owned).to_vec();
        let mut rows = vec![header];
        let mut first = 0;
        for layer in 0..=last {
            if layer < last && alike(layer, layer + 1) {
                continue;
            }
            let layers = if first == layer { layer.to_string() } else { format!("{first}-{layer}") };
            for part in parts(layer) {
                let bytes = part.bytes * (layer - first + 1);
                let shape = format!("{} x {}", part.rows, part.cols);
                let from = part.first.map_or(String::new(), |first| first.to_string());
                let bytes = bytes.to_string();
                rows.push(vec![layers.clone(), kind(layer).to_owned(), part.name.to_owned(), from, shape, bytes]);
            }
            first = layer + 1;
        }
        let total: usize = self.state.iter().map(|part| part.bytes).sum();
        let empty = String::new;
        rows.push(vec!["all".to_owned(), empty(), empty(), empty(), empty(), total.to_string()]);
        rows
    }
}

/// "trim and redo (rolling windows): all tokens, trimmed to 3, ...".
fn named(run: &Run) -> String {
    let state = if run.state.is_empty() { String::new() } else { format!(" ({})", run.state) };
    format!("{}{state} {}", run.kind, run.what)
}

fn listed<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}
