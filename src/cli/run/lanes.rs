//! Executors that go through one pass side by side, layer by layer.

use super::prompts::Prompt;
use crate::checkpoint::Source;
use crate::exec::observer::{NonFinite, Observer, Stage};
use crate::exec::{Executor, FirstNonFinite, Input, Kernels, Pass, Rows, Session, SessionOptions};
use crate::model::Plan;
use crate::ops::{Float, Matrix};
use crate::oracle::Logits;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// One executor's way through the pass, whatever its float type.
pub trait Lane {
    /// Computes the next layer.
    fn step(&mut self) -> Result<()>;

    /// The hidden states after the last step, row by row.
    fn hidden(&self) -> Vec<f64>;

    /// The first value so far that was not finite.
    fn nonfinite(&self) -> Option<NonFinite>;

    /// The last position's logits of each prompt, and what was seen on the way.
    fn finish(self: Box<Self>) -> Result<(Vec<Logits>, Watch)>;
}

/// Starts a lane: `sessions` are those of [`sessions`].
pub fn lane<'a, F: Float>(
    plan: &'a Plan,
    source: &'a Arc<dyn Source>,
    kernels: &'a dyn Kernels<F>,
    prompts: &[Prompt],
    sessions: &'a mut [Session<F>],
) -> Result<Box<dyn Lane + 'a>>
where
    Vec<F>: Into<Logits>,
{
    let inputs = prompts.iter().zip(sessions).map(|(prompt, session)| Input {
        session,
        tokens: prompt.tokens.clone(),
        positions: prompt.positions.clone(),
    });
    let mut watch = Watch::default();
    let pass = Executor::new(plan, source, kernels).begin(inputs.collect(), &mut watch)?;
    Ok(Box::new(Typed { pass, watch }))
}

/// An empty session per prompt.
pub fn sessions<F: Float>(plan: &Plan, prompts: &[Prompt], options: SessionOptions) -> Vec<Session<F>> {
    prompts.iter().map(|prompt| Session::with_options(plan, prompt.length(), options)).collect()
}

struct Typed<'a, F: Float> {
    pass: Pass<'a, 'a, F>,
    watch: Watch,
}

impl<F: Float> Lane for Typed<'_, F>
where
    Vec<F>: Into<Logits>,
{
    fn step(&mut self) -> Result<()> {
        self.pass.step(&mut self.watch)
    }

    fn hidden(&self) -> Vec<f64> {
        self.pass.hidden().data().iter().map(|v| v.to_f64()).collect()
    }

    fn nonfinite(&self) -> Option<NonFinite> {
        self.watch.nonfinite.found
    }

    fn finish(mut self: Box<Self>) -> Result<(Vec<Logits>, Watch)> {
        let logits = self.pass.finish(Rows::Last, &mut self.watch)?;
        Ok((logits.into_iter().map(|row| row.row(0).to_vec().into()).collect(), self.watch))
    }
}

/// What a lane looks for.
#[derive(Debug, Default)]
pub struct Watch {
    /// The first value that was not finite.
    pub nonfinite: FirstNonFinite,
    pub experts: Experts,
}

impl<F: Float> Observer<F> for Watch {
    fn see(&mut self, stage: Stage, rows: &Matrix<F>) {
        self.nonfinite.see(stage, rows);
    }

    fn experts(&mut self, layer: usize, chosen: &[Vec<(usize, F)>], count: usize) {
        self.experts.all.insert(layer, count);
        self.experts.chosen.extend(chosen.iter().flatten().map(|&(expert, _)| (layer, expert)));
    }
}

/// Which experts some token was sent to: the others are not read.
#[derive(Debug, Default)]
pub struct Experts {
    /// Layer and expert.
    chosen: BTreeSet<(usize, usize)>,
    /// How many a layer has.
    all: BTreeMap<usize, usize>,
}

impl Experts {
    /// Adds those of another lane.
    pub fn extend(&mut self, other: Experts) {
        self.chosen.extend(other.chosen);
        self.all.extend(other.all);
    }
}

impl fmt::Display for Experts {
    /// ", 5 of 12 experts (42 %)"; nothing where there are none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chosen, all) = (self.chosen.len(), self.all.values().sum::<usize>());
        match all {
            0 => Ok(()),
            _ => write!(f, ", {chosen} of {all} experts ({:.0} %)", 100.0 * chosen as f64 / all as f64),
        }
    }
}

/// How far two rows of numbers are apart.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distance {
    /// Largest absolute difference.
    pub max: f64,
    /// Root of the mean squared difference.
    pub rms: f64,
}

impl Distance {
    pub fn between(a: &[f64], b: &[f64]) -> Self {
        let differences = || a.iter().zip(b).map(|(x, y)| (x - y).abs());
        let squares: f64 = differences().map(|d| d * d).sum();
        Self { max: differences().fold(0.0, f64::max), rms: (squares / a.len().max(1) as f64).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Distance, Experts};

    #[test]
    fn experts_are_counted_once() {
        let mut experts = Experts::default();
        assert_eq!(experts.to_string(), "");
        experts.all = [(1, 4), (3, 8)].into();
        experts.chosen = [(1, 0), (3, 0), (3, 7)].into();
        experts.extend(Experts { chosen: [(3, 7)].into(), all: [(3, 8)].into() });
        assert_eq!(experts.to_string(), ", 3 of 12 experts (25 %)");
    }

    #[test]
    fn distances_of_three_and_four() {
        let expected = Distance { max: 4.0, rms: 12.5f64.sqrt() };
        assert_eq!(Distance::between(&[1.0, 2.0], &[4.0, -2.0]), expected);
        assert_eq!(Distance::between(&[1.0], &[1.0]), Distance::default());
    }
}
