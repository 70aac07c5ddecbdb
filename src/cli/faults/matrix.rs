//! Every fault of the catalogue tried with every probe, and what each check makes of it.

use super::subject::Subject;
use crate::exec::faults::{Fault, Injection, NotInjected, Probe, Schedule, Trial, catalogue, inject};
use crate::exec::reference::Reference;
use crate::oracle::power::{Baseline, Check, Measured};
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use rayon::prelude::*;

/// What was found on one checkpoint.
pub struct Matrix {
    /// The checkpoint.
    pub subject: String,
    pub probes: Vec<Tried>,
    /// The faults that apply, in the catalogue's order.
    pub rows: Vec<Row>,
    /// The others, with the reason.
    pub not_applicable: Vec<(&'static str, String)>,
}

/// A probe and what an engine that is right makes of it.
pub struct Tried {
    pub probe: Probe,
    pub baseline: Baseline,
}

/// One fault.
pub struct Row {
    pub fault: &'static Fault,
    /// One per probe: the worst of all schedules that can show the fault.
    pub cells: Vec<Measured>,
}

impl Row {
    /// Whether a check notices the fault with at least one of the probes.
    pub fn killed_by(&self, check: Check) -> bool {
        self.cells.iter().any(|cell| cell.rejected_by(check))
    }
}

impl Matrix {
    /// Faults, without what is honest.
    pub fn faults(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| !row.fault.honest())
    }

    /// Faults that a check doesn't notice with any of the probes.
    pub fn survivors(&self, check: Check) -> Vec<&'static str> {
        self.faults().filter(|row| !row.killed_by(check)).map(|row| row.fault.name).collect()
    }
}

/// Tries every fault that applies to the subject.
///
/// # Errors
/// A probe doesn't fit the checkpoint, or a weight can't be read.
pub fn measure(subject: &Subject, probes: Vec<Probe>, bar: &ProgressBar) -> Result<Matrix> {
    let probes = probes.into_iter().map(|probe| baseline(subject, probe)).collect::<Result<Vec<Tried>>>()?;
    let mut not_applicable = Vec::new();
    let mut injections = Vec::new();
    for fault in catalogue() {
        match fault.inject(&subject.plan) {
            Ok(injection) => injections.push(injection),
            Err(NotInjected::NotApplicable { reason, .. }) => not_applicable.push((fault.name, reason)),
            Err(error @ NotInjected::Unknown { .. }) => return Err(error.into()),
        }
    }
    bar.set_length(injections.len() as u64);
    let row = |injection: &Injection| {
        bar.set_message(injection.fault().name);
        let row = row(subject, &probes, injection).with_context(|| injection.to_string());
        bar.inc(1);
        row
    };
    // Weights that come from a disk are read by one fault at a time.
    let rows = match subject.source.is_resident() {
        true => injections.par_iter().map(row).collect::<Result<Vec<Row>>>()?,
        false => injections.iter().map(row).collect::<Result<Vec<Row>>>()?,
    };
    Ok(Matrix { subject: subject.name.clone(), probes, rows, not_applicable })
}

/// Runs a probe as it should be run.
///
/// # Errors
/// As [`measure`].
pub fn baseline(subject: &Subject, probe: Probe) -> Result<Tried> {
    let Subject { name, plan, source, .. } = subject;
    let vocab = plan.vocab_size;
    if let Some(token) = probe.tokens.iter().find(|&&t| t as usize >= vocab) {
        let last = vocab - 1;
        ensure!(false, "{name}: {}: token {token} is beyond the vocabulary of {vocab} (0 to {last})", probe.name);
    }
    if let Some(problem) = plan.placeholder(&probe.tokens) {
        bail!("{name}: {}: {problem}", probe.name);
    }
    let kernels = Reference::default();
    let reference = Trial::<f32>::new(plan, source, &kernels).logits(&probe, &Schedule::Whole)?;
    let truth = Trial::<f64>::new(plan, source, &kernels).logits(&probe, &Schedule::Whole)?;
    let rounding = inject("bf16-activations", plan)?;
    let rounded = rounding.wrap::<f32>(&kernels);
    let bf16 = Trial::with_fault(&rounding, source, rounded.as_ref()).logits(&probe, &Schedule::Whole)?;
    Ok(Tried { baseline: Baseline::new(&reference, &truth, &bf16), probe })
}

/// Tries one fault with every probe.
///
/// # Errors
/// A weight can't be read.
pub fn row(subject: &Subject, probes: &[Tried], injection: &Injection) -> Result<Row> {
    let fault = injection.fault();
    let reference = Reference::default();
    let kernels = injection.wrap::<f32>(&reference);
    let trial = Trial::with_fault(injection, &subject.source, kernels.as_ref());
    let cell = |Tried { probe, baseline }: &Tried| {
        let mut measured = Measured::NOTHING;
        for schedule in fault.shown_by().schedules(probe.tokens.len()) {
            measured = measured.or(&baseline.measure(&trial.logits(probe, &schedule)?));
        }
        Ok(measured)
    };
    Ok(Row { fault, cells: probes.iter().map(cell).collect::<Result<_>>()? })
}
