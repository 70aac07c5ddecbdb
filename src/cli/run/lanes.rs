//! Executors that go through one pass side by side, layer by layer.

use super::prompts::Prompt;
use crate::checkpoint::Source;
use crate::exec::observer::NonFinite;
use crate::exec::{Executor, FirstNonFinite, Input, Kernels, Pass, Rows, Session, SessionOptions};
use crate::model::Plan;
use crate::ops::Float;
use crate::oracle::Logits;
use anyhow::Result;
use std::sync::Arc;

/// One executor's way through the pass, whatever its float type.
pub trait Lane {
    /// Computes the next layer.
    fn step(&mut self) -> Result<()>;

    /// The hidden states after the last step, row by row.
    fn hidden(&self) -> Vec<f64>;

    /// The first value so far that was not finite.
    fn nonfinite(&self) -> Option<NonFinite>;

    /// The last position's logits of each prompt, and the first value that was not finite.
    fn finish(self: Box<Self>) -> Result<(Vec<Logits>, Option<NonFinite>)>;
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
    let mut watch = FirstNonFinite::default();
    let pass = Executor::new(plan, source, kernels).begin(inputs.collect(), &mut watch)?;
    Ok(Box::new(Typed { pass, watch }))
}

/// An empty session per prompt.
pub fn sessions<F: Float>(plan: &Plan, prompts: &[Prompt], options: SessionOptions) -> Vec<Session<F>> {
    prompts.iter().map(|prompt| Session::with_options(plan, prompt.length(), options)).collect()
}

struct Typed<'a, F: Float> {
    pass: Pass<'a, 'a, F>,
    watch: FirstNonFinite,
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
        self.watch.found
    }

    fn finish(mut self: Box<Self>) -> Result<(Vec<Logits>, Option<NonFinite>)> {
        let logits = self.pass.finish(Rows::Last, &mut self.watch)?;
        Ok((logits.into_iter().map(|row| row.row(0).to_vec().into()).collect(), self.watch.found))
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
    use super::Distance;

    #[test]
    fn distances_of_three_and_four() {
        let expected = Distance { max: 4.0, rms: 12.5f64.sqrt() };
        assert_eq!(Distance::between(&[1.0, 2.0], &[4.0, -2.0]), expected);
        assert_eq!(Distance::between(&[1.0], &[1.0]), Distance::default());
    }
}
