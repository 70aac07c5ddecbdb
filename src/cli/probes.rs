//! `oracle probes CKPT | --pack P`: the fewest prompts that show every fault.

use super::Exit;
use super::faults::matrix::{Matrix, measure};
use super::faults::subject::{Subject, SubjectArgs, subjects};
use super::faults::{progress, report::shortened};
use crate::exec::faults::Probe;
use crate::oracle::output::to_standard_output;
use crate::oracle::power::Check;
use crate::oracle::report::{Case, Format, Outcome, Page, Report, Suite, Table};
use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeSet;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle probes fixtures/mistral-window
  oracle probes --pack llama --format json")]
pub struct ProbesArgs {
    #[command(flatten)]
    subject: SubjectArgs,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// The checks that a set of prompts is chosen for.
const WANTED: [Check; 2] = [Check::Bits, Check::F32];

/// Proposes prompts and says what each of them shows. Exit code 1 where a fault goes unnoticed with all of them.
///
/// # Errors
/// Bad arguments, a checkpoint with problems, an unreadable weight.
pub fn run(args: &ProbesArgs) -> Result<Exit> {
    let mut proposals = Vec::new();
    for subject in subjects(&args.subject)? {
        let bar = progress(&subject);
        let matrix = measure(&subject, candidates(&subject), &bar)?;
        bar.finish_and_clear();
        proposals.push(Proposal { chosen: smallest(&matrix), matrix });
    }
    let report = Proposals(proposals);
    to_standard_output(|out| args.format.write(&report, out)).context("cannot write the report to standard output")?;
    let complete = report.0.iter().all(|proposal| proposal.unnoticed().is_empty());
    Ok(if complete { Exit::Done } else { Exit::Different })
}

/// The recommended probes, and beginnings of the first in case less is enough.
fn candidates(subject: &Subject) -> Vec<Probe> {
    let mut probes = Probe::recommended(&subject.plan);
    let plain = probes[0].tokens.clone();
    for n in [2, 4, 8] {
        probes.push(Probe::new(&format!("first-{n}"), plain[..n.min(plain.len())].to_vec()));
    }
    probes
}

/// One checkpoint's probes.
struct Proposal {
    matrix: Matrix,
    /// Indices of the probes to use, the one that shows most first.
    chosen: Vec<usize>,
}

impl Proposal {
    /// Faults that a check notices with one probe.
    fn noticed(&self, probe: usize, check: Check) -> Vec<&'static str> {
        let noticed = self.matrix.faults().filter(|row| row.cells[probe].rejected_by(check));
        noticed.map(|row| row.fault.name).collect()
    }

    /// Faults that one of the wanted checks notices with no probe at all.
    fn unnoticed(&self) -> BTreeSet<&'static str> {
        WANTED.into_iter().flat_map(|check| self.matrix.survivors(check)).collect()
    }

    fn probe(&self, index: usize) -> &Probe {
        &self.matrix.probes[index].probe
    }
}

/// Takes the probe that shows most of what is not shown yet, of several the shortest, until nothing is gained.
fn smallest(matrix: &Matrix) -> Vec<usize> {
    let shows = |probe: usize| -> BTreeSet<(&str, Check)> {
        let pairs = matrix.faults().flat_map(|row| WANTED.map(|check| (row, check)));
        let shown = pairs.filter(|(row, check)| row.cells[probe].rejected_by(*check));
        shown.map(|(row, check)| (row.fault.name, check)).collect()
    };
    let all: Vec<BTreeSet<(&str, Check)>> = (0..matrix.probes.len()).map(shows).collect();
    let (mut chosen, mut shown) = (Vec::new(), BTreeSet::new());
    loop {
        let gain = |probe: usize| all[probe].difference(&shown).count();
        let shortness = |probe: usize| std::cmp::Reverse(matrix.probes[probe].probe.tokens.len());
        let best = (0..all.len()).max_by_key(|&probe| (gain(probe), shortness(probe)));
        match best.filter(|&probe| gain(probe) > 0) {
            Some(probe) => {
                shown.extend(all[probe].iter().copied());
                chosen.push(probe);
            }
            None => return chosen,
        }
    }
}

struct Proposals(Vec<Proposal>);

impl Report for Proposals {
    fn text(&self) -> Page {
        let counts = self.0.iter().map(|p| {
            let (n, faults, left) = (p.chosen.len(), p.matrix.faults().count(), p.unnoticed().len());
            let plural = if n == 1 { "" } else { "s" };
            let rest = if left == 0 { "every one of".to_owned() } else { format!("all but {left} of") };
            format!("{}: {n} prompt{plural} for {rest} {faults} faults", p.matrix.subject)
        });
        let mut page = Page::new(&counts.collect::<Vec<_>>().join("; "));
        for proposal in &self.0 {
            let subject = &proposal.matrix.subject;
            let mut seen = BTreeSet::new();
            for &index in &proposal.chosen {
                let probe = proposal.probe(index);
                let new: Vec<&str> =
                    proposal.noticed(index, Check::Bits).into_iter().filter(|name| seen.insert(*name)).collect();
                let all = proposal.matrix.faults().count();
                let kills =
                    WANTED.map(|check| format!("{} {} of {all}", check.name(), proposal.noticed(index, check).len()));
                let mut pairs = vec![("--prompt", probe.to_string()), ("notices", kills.join(", "))];
                if !new.is_empty() {
                    pairs.push(("first to show", new.join(", ")));
                }
                page.pairs(&format!("{subject}: {}", probe.name), &pairs);
            }
            page.lines(&format!("{subject}: unnoticed with every prompt"), proposal.unnoticed());
            page.pairs(&format!("{subject}: not applicable"), &proposal.matrix.not_applicable);
        }
        page
    }

    /// `{"report": "oracle-probes-v1", "subjects": [..]}`.
    fn json(&self) -> Value {
        let subjects = self.0.iter().map(|proposal| {
            let probes = proposal.chosen.iter().map(|&index| {
                let Probe { name, tokens, positions } = proposal.probe(index);
                let [bits, f32] = WANTED.map(|check| proposal.noticed(index, check));
                json!({ "name": name, "tokens": tokens, "positions": positions, "bits": bits, "f32": f32 })
            });
            json!({
                "name": proposal.matrix.subject,
                "faults": proposal.matrix.faults().count(),
                "probes": probes.collect::<Vec<_>>(),
                "unnoticed": proposal.unnoticed(),
            })
        });
        json!({ "report": "oracle-probes-v1", "subjects": subjects.collect::<Vec<_>>() })
    }

    fn table(&self) -> Table {
        let mut rows = Vec::new();
        for proposal in &self.0 {
            for &index in &proposal.chosen {
                let probe = proposal.probe(index);
                let kills = WANTED.map(|check| proposal.noticed(index, check).len().to_string());
                let mut row = vec![proposal.matrix.subject.clone(), probe.name.clone(), probe.to_string()];
                row.push(proposal.matrix.faults().count().to_string());
                row.extend(kills);
                rows.push(row);
            }
        }
        Table { header: vec!["subject", "probe", "prompt", "faults", "by_bits", "by_f32"], rows }
    }

    fn suite(&self) -> Suite {
        let cases = self.0.iter().map(|proposal| {
            let unnoticed: Vec<&str> = proposal.unnoticed().into_iter().collect();
            let prompts = proposal.chosen.iter().map(|&index| shortened(&proposal.probe(index).to_string()));
            Case {
                name: format!("{}: the prompts show every fault", proposal.matrix.subject),
                file: None,
                outcome: if unnoticed.is_empty() { Outcome::Passed } else { Outcome::Failed },
                summary: match unnoticed.is_empty() {
                    true => format!("{} prompts show every fault", proposal.chosen.len()),
                    false => format!("unnoticed: {}", unnoticed.join(", ")),
                },
                details: prompts.collect(),
            }
        });
        Suite { name: "oracle probes".to_owned(), cases: cases.collect() }
    }
}
