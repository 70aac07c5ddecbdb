//! Engines that are right: what no check may reject.

use super::matrix::Tried;
use super::subject::Subject;
use crate::checkpoint::Source;
use crate::exec::accelerated::{self, Accelerated};
use crate::exec::faults::{Schedule, ShownBy, Trial};
use crate::exec::reference::Reference;
use crate::exec::weights::{Tile, Transposed};
use crate::exec::{Executor, Input, Kernels, Rows, Session};
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::{Level, Matrix};
use anyhow::Result;
use std::sync::Arc;

/// An engine and what it makes of each probe.
pub struct Variant {
    pub name: String,
    /// Per probe, the logits of the last token.
    pub logits: Vec<Vec<f32>>,
}

/// Thread counts that must agree.
const THREADS: [usize; 3] = [1, 2, 7];

/// Ways of running the reference, none of which may change a bit. `streamed` holds what the subject's source does, in a
/// file.
///
/// # Errors
/// A weight can't be read.
pub fn same_bits(subject: &Subject, streamed: &Arc<dyn Source>, probes: &[Tried]) -> Result<Vec<Variant>> {
    let Subject { plan, source, .. } = subject;
    let kernels = Reference::default();
    let trial = Trial::<f32>::new(plan, source, &kernels);
    let mut variants = Vec::new();
    let mut add = |name: String, logits: Vec<Vec<f32>>| variants.push(Variant { name, logits });
    for threads in THREADS {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        add(format!("{threads} threads"), pool.install(|| whole(&trial, probes))?);
    }
    for level in Level::ALL.into_iter().filter(|level| level.available()) {
        let kernels = Reference::at(level);
        add(format!("{level} vectors"), whole(&Trial::new(plan, source, &kernels), probes)?);
    }
    for bytes in [1, 4096, usize::MAX] {
        let pieces = if bytes == usize::MAX { "whole".to_owned() } else { format!("in pieces of {bytes} bytes") };
        add(format!("resident, read {pieces}"), whole(&trial.with_piece_bytes(bytes), probes)?);
        let streaming = Trial::<f32>::new(plan, streamed, &kernels).with_piece_bytes(bytes);
        add(format!("streamed, read {pieces}"), whole(&streaming, probes)?);
    }
    for shown_by in [ShownBy::Chunks, ShownBy::Trim, ShownBy::Fork, ShownBy::Restore] {
        // The probes differ in their lengths, and so in how many schedules they have.
        let schedules = |tried: &Tried| shown_by.schedules(tried.probe.tokens.len());
        let most = probes.iter().map(|tried| schedules(tried).len()).max().unwrap_or(0);
        for i in 0..most {
            let logits = probes.iter().map(|tried| {
                let schedule = schedules(tried).get(i).cloned().unwrap_or(Schedule::Whole);
                trial.logits(&tried.probe, &schedule)
            });
            add(format!("{}, way {}", shown_by.name(), i + 1), logits.collect::<Result<_>>()?);
        }
    }
    add("all prompts in one pass".to_owned(), together(subject, &kernels, probes)?);
    Ok(variants)
}

/// Engines of the float32 class whose sums are ordered or rounded otherwise.
///
/// # Errors
/// A weight can't be read.
pub fn same_class(subject: &Subject, probes: &[Tried]) -> Result<Vec<Variant>> {
    let mut engines: Vec<(String, Box<dyn Kernels<f32>>)> =
        vec![("sums in float64, rounded to float32".to_owned(), Box::new(WideSums(Reference::default())))];
    for &backend in accelerated::BACKENDS {
        let kernels = Accelerated::new(accelerated::by_name(backend)?);
        engines.push((kernels.engine(), Box::new(kernels)));
    }
    let run = |(name, kernels): (String, Box<dyn Kernels<f32>>)| {
        let trial = Trial::new(&subject.plan, &subject.source, kernels.as_ref());
        Ok(Variant { name, logits: whole(&trial, probes)? })
    };
    engines.into_iter().map(run).collect()
}

fn whole(trial: &Trial<'_, f32>, probes: &[Tried]) -> Result<Vec<Vec<f32>>> {
    probes.iter().map(|tried| trial.logits(&tried.probe, &Schedule::Whole)).collect()
}

fn together(subject: &Subject, kernels: &Reference, probes: &[Tried]) -> Result<Vec<Vec<f32>>> {
    let mut sessions: Vec<Session<f32>> =
        probes.iter().map(|tried| Session::new(&subject.plan, tried.probe.length())).collect();
    let inputs = sessions.iter_mut().zip(probes).map(|(session, Tried { probe, .. })| Input {
        session,
        tokens: probe.tokens.clone(),
        positions: probe.positions.clone(),
    });
    let executor = Executor::<f32>::new(&subject.plan, &subject.source, kernels);
    let logits = executor.run(inputs.collect(), Rows::Last, &mut ())?;
    Ok(logits.iter().map(|rows| rows.row(0).to_vec()).collect())
}

/// All kernels in float64, their results rounded to float32.
struct WideSums(Reference);

impl Kernels<f32> for WideSums {
    fn linear(&self, x: &Matrix<f32>, w: &Tile<'_>, out: &mut Matrix<f32>, first: usize) {
        let mut sums = wide(out);
        self.0.linear(&wide(x), w, &mut sums, first);
        *out = narrow(&sums);
    }

    fn accumulate(&self, x: &Matrix<f32>, w: &Transposed<'_>, out: &mut Matrix<f32>) {
        let mut sums = wide(out);
        self.0.accumulate(&wide(x), w, &mut sums);
        *out = narrow(&sums);
    }

    fn attend(
        &self,
        spec: &AttentionSpec,
        q: &Matrix<f32>,
        past: usize,
        kv: &Kv<f32>,
        sinks: Option<&[f32]>,
    ) -> Matrix<f32> {
        let kv = Kv { first: kv.first, keys: wide(&kv.keys), values: wide(&kv.values) };
        let sinks: Option<Vec<f64>> = sinks.map(|sinks| sinks.iter().map(|&v| f64::from(v)).collect());
        narrow(&self.0.attend(spec, &wide(q), past, &kv, sinks.as_deref()))
    }
}

fn wide(x: &Matrix<f32>) -> Matrix<f64> {
    Matrix::from_vec(x.rows(), x.cols(), x.data().iter().map(|&v| f64::from(v)).collect())
}

fn narrow(x: &Matrix<f64>) -> Matrix<f32> {
    Matrix::from_vec(x.rows(), x.cols(), x.data().iter().map(|&v| v as f32).collect())
}
