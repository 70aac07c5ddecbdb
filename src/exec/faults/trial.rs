//! Running a probe with a fault, or without one, through the passes that can show it.

use super::{Injection, Probe, ShownBy};
use crate::checkpoint::Source;
use crate::exec::state::StateError;
use crate::exec::{Executor, Input, Kernels, Rows, Session, SessionOptions, driver::PIECE_BYTES};
use crate::model::Plan;
use crate::ops::Float;
use anyhow::{Context, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How a probe's tokens go through: what comes out of the last one is the same for an engine that is right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// In one pass.
    Whole,
    /// In passes of so many tokens each.
    Chunks(Vec<usize>),
    /// All of them; then the session is trimmed to so many and the others go through again. A recurrent state goes back to
    /// the start, and all of them go through again.
    TrimAndRedo(usize),
    /// So many; then the session is forked, and the others go into the fork.
    Fork(usize),
    /// So many; then a snapshot is restored, and the others go into that session.
    Restore(usize),
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Schedule::Whole => f.write_str("one pass"),
            Schedule::Chunks(sizes) if sizes.iter().all(|&n| n == 1) => f.write_str("token by token"),
            Schedule::Chunks(sizes) => {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                write!(f, "chunks {}", sizes.join(","))
            }
            Schedule::TrimAndRedo(len) => write!(f, "trimmed to {len}"),
            Schedule::Fork(len) => write!(f, "forked at {len}"),
            Schedule::Restore(len) => write!(f, "restored at {len}"),
        }
    }
}

impl ShownBy {
    /// The schedules of `tokens` tokens that can show such a fault; none where there are too few tokens.
    pub fn schedules(self, tokens: usize) -> Vec<Schedule> {
        /// Longer prompts go token by token at their end only.
        const ONES: usize = 32;
        let half = tokens / 2;
        match self {
            ShownBy::Pass => vec![Schedule::Whole],
            _ if tokens < 2 => vec![],
            ShownBy::Chunks => {
                let ones = tokens.min(ONES);
                let mut singly = vec![1; ones];
                if tokens > ones {
                    singly.insert(0, tokens - ones);
                }
                let all = [vec![tokens - 1, 1], vec![half, tokens - half], singly];
                let mut schedules: Vec<Schedule> = Vec::new();
                for schedule in all.map(Schedule::Chunks) {
                    if !schedules.contains(&schedule) {
                        schedules.push(schedule);
                    }
                }
                schedules
            }
            ShownBy::Trim => vec![Schedule::TrimAndRedo(half)],
            ShownBy::Fork => vec![Schedule::Fork(half)],
            ShownBy::Restore => vec![Schedule::Restore(half)],
        }
    }
}

/// An engine to run probes on.
#[derive(Clone, Copy)]
pub struct Trial<'a, F: Float> {
    plan: &'a Plan,
    source: &'a Arc<dyn Source>,
    kernels: &'a dyn Kernels<F>,
    injection: Option<&'a Injection>,
    piece_bytes: usize,
}

impl<'a, F: Float> Trial<'a, F> {
    /// An engine without a fault.
    pub fn new(plan: &'a Plan, source: &'a Arc<dyn Source>, kernels: &'a dyn Kernels<F>) -> Self {
        Self { plan, source, kernels, injection: None, piece_bytes: PIECE_BYTES }
    }

    /// With a fault. `kernels` are those that [`Injection::wrap`] gave.
    pub fn with_fault(injection: &'a Injection, source: &'a Arc<dyn Source>, kernels: &'a dyn Kernels<F>) -> Self {
        Self { injection: Some(injection), ..Self::new(&injection.plan, source, kernels) }
    }

    /// As [`Executor::with_piece_bytes`].
    pub fn with_piece_bytes(self, piece_bytes: usize) -> Self {
        Self { piece_bytes, ..self }
    }

    /// The last token's logits, `[vocab_size]`.
    ///
    /// # Errors
    /// The source can't be read, or the probe doesn't fit the plan.
    pub fn logits(&self, probe: &Probe, schedule: &Schedule) -> Result<Vec<F>> {
        let options = SessionOptions::default();
        let options = self.injection.map_or(options, |injection| injection.options(options));
        let mut session = Session::with_options(self.plan, probe.length(), options);
        let all = probe.tokens.len();
        match schedule {
            Schedule::Whole => self.pass(&mut session, probe, 0..all),
            Schedule::Chunks(sizes) => {
                let mut logits = None;
                for &n in sizes {
                    let first = session.len();
                    logits = Some(self.pass(&mut session, probe, first..first + n)?);
                }
                logits.context("a schedule has at least one chunk")
            }
            Schedule::TrimAndRedo(len) => {
                self.pass(&mut session, probe, 0..all)?;
                match session.trim(*len) {
                    Err(StateError::Recurrent { .. }) => session.trim(0)?,
                    trimmed => trimmed?,
                }
                self.hook(&mut session, Injection::after_trim);
                let kept = session.len();
                self.pass(&mut session, probe, kept..all)
            }
            Schedule::Fork(len) => {
                self.pass(&mut session, probe, 0..*len)?;
                let mut fork = session.fork();
                self.hook(&mut fork, Injection::after_fork);
                self.pass(&mut fork, probe, *len..all)
            }
            Schedule::Restore(len) => {
                self.pass(&mut session, probe, 0..*len)?;
                let mut file = Vec::new();
                session.snapshot(self.plan, &mut file)?;
                let mut restored = Session::restore(self.plan, options, &mut file.as_slice())?;
                self.hook(&mut restored, Injection::after_restore);
                self.pass(&mut restored, probe, *len..all)
            }
        }
    }

    fn hook(&self, session: &mut Session<F>, hook: fn(&Injection, &mut Session<F>)) {
        if let Some(injection) = self.injection {
            hook(injection, session);
        }
    }

    fn pass(&self, session: &mut Session<F>, probe: &Probe, range: Range<usize>) -> Result<Vec<F>> {
        let new = range.len();
        let mut positions = probe.positions[range.clone()].to_vec();
        if let Some(injection) = self.injection {
            positions = injection.positions(session.len(), &positions);
            injection.before_pass(session, new);
        }
        let input = Input { session: &mut *session, tokens: probe.tokens[range].to_vec(), positions };
        let executor = Executor::new(self.plan, self.source, self.kernels).with_piece_bytes(self.piece_bytes);
        let logits = executor.run(vec![input], Rows::Last, &mut ())?;
        if let Some(injection) = self.injection {
            injection.after_pass(session, new);
        }
        Ok(logits[0].row(0).to_vec())
    }
}
