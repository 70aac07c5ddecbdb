//! The kill matrix in every format.

use super::matrix::{Matrix, Row, Tried};
use crate::oracle::power::{Check, HONEST_MULTIPLE, Measured};
use crate::oracle::report::{Case, Outcome, Page, Report, Suite, Table};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// The matrices of all checkpoints that were tried.
pub struct KillMatrix {
    pub matrices: Vec<Matrix>,
    /// Checks that have to notice every fault.
    pub required: Vec<Check>,
}

/// How many faults a check notices: on every checkpoint that they apply to.
pub struct Score {
    pub killed: usize,
    pub of: usize,
    /// Each with the checkpoints on which it goes unnoticed.
    pub survivors: BTreeMap<&'static str, Vec<String>>,
}

impl KillMatrix {
    /// Whether the required checks notice every fault.
    pub fn holds(&self) -> bool {
        self.required.iter().all(|&check| self.score(check).survivors.is_empty())
    }

    pub fn score(&self, check: Check) -> Score {
        let all: BTreeSet<&str> = self.matrices.iter().flat_map(Matrix::faults).map(|row| row.fault.name).collect();
        let mut survivors: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for matrix in &self.matrices {
            for name in matrix.survivors(check) {
                survivors.entry(name).or_default().push(matrix.subject.clone());
            }
        }
        Score { killed: all.len() - survivors.len(), of: all.len(), survivors }
    }

    /// Survivors of a check; with several checkpoints, and where.
    fn survivors(&self, check: Check) -> String {
        let survivors = self.score(check).survivors;
        let named = survivors.iter().map(|(name, subjects)| match self.matrices.len() {
            1 => name.to_string(),
            _ => format!("{name} ({})", subjects.join(", ")),
        });
        named.collect::<Vec<_>>().join(", ")
    }
}

impl Score {
    /// "killed 41 of 41"
    pub fn sentence(&self) -> String {
        format!("killed {} of {}", self.killed, self.of)
    }
}

impl Report for KillMatrix {
    fn text(&self) -> Page {
        let scores = Check::ALL.map(|check| format!("{} {}", check.name(), self.score(check).sentence()));
        let mut page = Page::new(&scores.join(", "));
        let multiple = format!("{HONEST_MULTIPLE} times the distance of");
        page.pairs(
            "checks",
            &[
                ("b bits", "the same bits".to_owned()),
                ("f f32", format!("within {multiple} the float32 reference from the truth")),
                ("h bf16", format!("within {multiple} an engine with bf16 activations from the truth")),
                ("n nmse", "NMSE below 1e-2".to_owned()),
                ("a argmax", "the same largest logit".to_owned()),
            ],
        );
        let survivors = Check::ALL.into_iter().filter(|&check| !self.score(check).survivors.is_empty());
        let survivors: Vec<(&str, String)> = survivors.map(|check| (check.name(), self.survivors(check))).collect();
        page.pairs("unnoticed", &survivors);
        for matrix in &self.matrices {
            let subject = &matrix.subject;
            page.columns(&format!("{subject}: prompts"), &probes(&matrix.probes), 2);
            let rows: Vec<Vec<String>> = std::iter::once(header(matrix)).chain(matrix.faults().map(letters)).collect();
            page.columns(&format!("{subject}: which checks notice which fault"), &rows, usize::MAX);
            let honest: Vec<Vec<String>> = matrix.rows.iter().filter(|row| row.fault.honest()).map(letters).collect();
            page.columns(&format!("{subject}: an honest engine, which is not counted"), &honest, usize::MAX);
            let not: Vec<(&str, String)> = matrix.not_applicable.clone();
            page.pairs(&format!("{subject}: not applicable"), &not);
        }
        page
    }

    /// `{"report": "oracle-faults-v1", "checks": [..], "subjects": [..]}`.
    fn json(&self) -> Value {
        let checks = Check::ALL.map(|check| {
            let Score { killed, of, survivors } = self.score(check);
            let required = self.required.contains(&check);
            json!({ "check": check, "killed": killed, "of": of, "survivors": survivors, "required": required })
        });
        let subjects: Vec<Value> = self.matrices.iter().map(subject).collect();
        json!({ "report": "oracle-faults-v1", "ok": self.holds(), "checks": checks, "subjects": subjects })
    }

    fn table(&self) -> Table {
        let header = [
            "subject",
            "fault",
            "place",
            "shown_by",
            "honest",
            "probe",
            "max_abs",
            "nmse",
            "by_bits",
            "by_f32",
            "by_bf16",
            "by_nmse",
            "by_argmax",
        ];
        let mut rows = Vec::new();
        for matrix in &self.matrices {
            for row in &matrix.rows {
                for (tried, cell) in matrix.probes.iter().zip(&row.cells) {
                    let fault = row.fault;
                    let mut cells =
                        vec![matrix.subject.clone(), fault.name.to_owned(), fault.place().name().to_owned()];
                    cells.extend([fault.shown_by().name().to_owned(), fault.honest().to_string()]);
                    cells.extend([tried.probe.name.clone(), cell.max_abs.to_string(), cell.nmse.to_string()]);
                    cells.extend(Check::ALL.map(|check| cell.rejected_by(check).to_string()));
                    rows.push(cells);
                }
            }
        }
        Table { header: header.to_vec(), rows }
    }

    /// One case per check; it fails where the check is required and a fault goes unnoticed.
    fn suite(&self) -> Suite {
        let cases = Check::ALL.map(|check| {
            let score = self.score(check);
            let failed = self.required.contains(&check) && !score.survivors.is_empty();
            let unnoticed = match score.survivors.is_empty() {
                true => String::new(),
                false => format!("; unnoticed: {}", self.survivors(check)),
            };
            Case {
                name: format!("{} notices every fault", check.name()),
                file: None,
                outcome: if failed { Outcome::Failed } else { Outcome::Passed },
                summary: format!("{} {}{unnoticed}", check.name(), score.sentence()),
                details: vec![],
            }
        });
        Suite { name: "oracle faults".to_owned(), cases: cases.to_vec() }
    }
}

/// Name, prompt, and what the tolerances are for it.
fn probes(probes: &[Tried]) -> Vec<Vec<String>> {
    let row = |Tried { probe, baseline }: &Tried| {
        let tolerances = [baseline.f32_tolerance, baseline.bf16_tolerance].map(|t| format!("{t:.2e}"));
        vec![probe.name.clone(), shortened(&probe.to_string()), tolerances[0].clone(), tolerances[1].clone()]
    };
    let header = ["", "", "f32 within", "bf16 within"].map(str::to_owned).to_vec();
    std::iter::once(header).chain(probes.iter().map(row)).collect()
}

/// A prompt that fits a line.
pub fn shortened(prompt: &str) -> String {
    const SHOWN: usize = 72;
    if prompt.len() <= SHOWN { prompt.to_owned() } else { format!("{}...", &prompt[..SHOWN]) }
}

fn header(matrix: &Matrix) -> Vec<String> {
    std::iter::once(String::new()).chain(matrix.probes.iter().map(|tried| tried.probe.name.clone())).collect()
}

/// A fault and, for each probe, the letters of the checks that notice it.
fn letters(row: &Row) -> Vec<String> {
    let cell = |cell: &Measured| {
        Check::ALL.map(|check| if cell.rejected_by(check) { check.letter() } else { '.' }).iter().collect::<String>()
    };
    std::iter::once(row.fault.name.to_owned()).chain(row.cells.iter().map(cell)).collect()
}

fn subject(matrix: &Matrix) -> Value {
    let probes = matrix.probes.iter().map(|Tried { probe, baseline }| {
        json!({
            "name": probe.name, "tokens": probe.tokens, "positions": probe.positions,
            "f32_tolerance": baseline.f32_tolerance, "bf16_tolerance": baseline.bf16_tolerance,
        })
    });
    let faults = matrix.rows.iter().map(|row| {
        let cells = matrix.probes.iter().zip(&row.cells).map(|(tried, cell)| {
            let noticed: Vec<Check> = Check::ALL.into_iter().filter(|&check| cell.rejected_by(check)).collect();
            json!({ "probe": tried.probe.name, "max_abs": cell.max_abs, "nmse": cell.nmse, "noticed_by": noticed })
        });
        let fault = row.fault;
        json!({
            "name": fault.name, "what": fault.what, "seen_in": fault.seen_in, "place": fault.place(),
            "shown_by": fault.shown_by().name(), "honest": fault.honest(), "probes": cells.collect::<Vec<_>>(),
        })
    });
    let not_applicable = matrix.not_applicable.iter().map(|(name, reason)| json!({ "name": name, "reason": reason }));
    json!({
        "name": matrix.subject,
        "probes": probes.collect::<Vec<_>>(),
        "faults": faults.collect::<Vec<_>>(),
        "not_applicable": not_applicable.collect::<Vec<_>>(),
    })
}
