//! `oracle self-test --mutants`: the checks notice every fault, and no engine that is right is rejected.

use super::on_disk;
use crate::cli::faults::honest::{Variant, same_bits, same_class};
use crate::cli::faults::matrix::{Matrix, Tried, baseline, row};
use crate::cli::faults::subject::{Subject, of_pack};
use crate::exec::faults::{Injection, catalogue};
use crate::model::{Pack, synthetic};
use crate::oracle::power::Check;
use anyhow::Result;
use rayon::prelude::*;

/// The checks that have to tell faults from engines that are right.
const CHECKS: [Check; 2] = [Check::Bits, Check::F32];

/// What was found on a family's checkpoints, or on all.
#[derive(Debug, Default, PartialEq)]
pub struct Rates {
    /// Per check, the faults that were tried and those that went unnoticed, with the checkpoint.
    faults: [Rate; 2],
    /// Per check, the engines that are right and those that were rejected, with the checkpoint.
    honest: [Rate; 2],
}

#[derive(Debug, Default, PartialEq)]
struct Rate {
    of: usize,
    wrong: Vec<String>,
}

impl Rate {
    fn add(&mut self, right: bool, what: impl FnOnce() -> String) {
        self.of += 1;
        if !right {
            self.wrong.push(what());
        }
    }
}

impl Rates {
    /// The rates of both checks, in a line.
    pub fn summary(&self) -> String {
        let parts = CHECKS.iter().zip(&self.faults).zip(&self.honest).map(|((check, faults), honest)| {
            let (killed, of) = (faults.of - faults.wrong.len(), faults.of);
            let (alarms, engines) = (honest.wrong.len(), honest.of);
            format!("{} killed {killed} of {of} mutants and {alarms} of {engines} honest engines", check.name())
        });
        format!("mutants: {}", parts.collect::<Vec<_>>().join("; "))
    }

    /// A sentence for each fault that went unnoticed and each engine that is right and was rejected.
    pub fn failures(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for ((check, faults), honest) in CHECKS.iter().zip(&self.faults).zip(&self.honest) {
            let name = check.name();
            lines.extend(faults.wrong.iter().map(|what| format!("{what} goes unnoticed by {name}")));
            lines.extend(honest.wrong.iter().map(|what| format!("{what} is rejected by {name}, and is right")));
        }
        lines
    }

    /// Counts both.
    pub fn add(&mut self, other: Rates) {
        let pairs = self.faults.iter_mut().zip(other.faults).chain(self.honest.iter_mut().zip(other.honest));
        for (mine, theirs) in pairs {
            mine.of += theirs.of;
            mine.wrong.extend(theirs.wrong);
        }
    }
}

/// Tries everything on a family's checkpoints.
///
/// # Errors
/// A checkpoint can't be made or read.
pub fn test(pack: &Pack) -> Result<Rates> {
    let mut rates = Rates::default();
    for (subject, (_, _, tensors)) in of_pack(pack)?.iter().zip(synthetic::checkpoints(pack)?) {
        let probes = subject.probes().into_iter().map(|probe| baseline(subject, probe)).collect::<Result<Vec<_>>>()?;
        let injections: Vec<Injection> =
            catalogue().iter().filter_map(|fault| fault.inject(&subject.plan).ok()).collect();
        rates.add(faults(subject, &probes, &injections)?);
        let (_folder, streamed) = on_disk(&tensors)?;
        let (bits, class) = (same_bits(subject, &streamed, &probes)?, same_class(subject, &probes)?);
        rates.add(honest(subject, &probes, &bits, &class));
    }
    Ok(rates)
}

fn faults(subject: &Subject, probes: &[Tried], injections: &[Injection]) -> Result<Rates> {
    let rows = injections.par_iter().map(|injection| row(subject, probes, injection)).collect::<Result<Vec<_>>>()?;
    let subject = subject.name.clone();
    let matrix = Matrix { subject, probes: vec![], rows, not_applicable: vec![] };
    let mut rates = Rates::default();
    for row in matrix.faults() {
        for (rate, check) in rates.faults.iter_mut().zip(CHECKS) {
            rate.add(row.killed_by(check), || format!("{}: {}", matrix.subject, row.fault.name));
        }
    }
    Ok(rates)
}

/// `bits` have to pass both checks, `class` the second one.
fn honest(subject: &Subject, probes: &[Tried], bits: &[Variant], class: &[Variant]) -> Rates {
    let mut rates = Rates::default();
    let [by_bits, by_f32] = &mut rates.honest;
    for (rate, check, variants) in [(by_bits, Check::Bits, bits), (by_f32, Check::F32, class)] {
        for Variant { name, logits } in variants {
            let rejected = |(tried, row): (&Tried, &Vec<f32>)| tried.baseline.measure(row).rejected_by(check);
            let passes = !probes.iter().zip(logits).any(rejected);
            rate.add(passes, || format!("{}: {name}", subject.name));
        }
    }
    rates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> (Subject, Vec<Tried>) {
        let subject = of_pack(Pack::named("llama").unwrap()).unwrap().remove(0);
        let probes = subject.probes().into_iter().map(|probe| baseline(&subject, probe).unwrap()).collect();
        (subject, probes)
    }

    #[test]
    fn a_fault_that_does_nothing_is_reported_as_unnoticed() {
        let (subject, probes) = subject();
        let rates = faults(&subject, &probes, &[Injection::without_effect(&subject.plan)]).unwrap();
        let expected = ["llama: rope-pairing goes unnoticed by bits", "llama: rope-pairing goes unnoticed by f32"];
        assert_eq!(rates.failures(), expected);
        assert!(rates.summary().contains("bits killed 0 of 1 mutants and"), "{}", rates.summary());
    }

    #[test]
    fn an_engine_that_is_right_and_gets_rejected_is_reported() {
        let (subject, probes) = subject();
        let mut sound = same_class(&subject, &probes).unwrap();
        assert!(honest(&subject, &probes, &[], &sound).failures().is_empty());
        sound[0].logits[0][3] += 1.0;
        let rates = honest(&subject, &probes, &sound[..1], &sound[..1]);
        let name = &sound[0].name;
        let expected = [
            format!("llama: {name} is rejected by bits, and is right"),
            format!("llama: {name} is rejected by f32, and is right"),
        ];
        assert_eq!(rates.failures(), expected);
        assert!(rates.summary().ends_with("and 1 of 1 honest engines"), "{}", rates.summary());
    }
}
