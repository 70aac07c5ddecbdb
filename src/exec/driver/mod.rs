//! The one driver: embedding, layer after layer, head. Streamed and resident execution differ only in the source.

mod attention;
mod compute;
mod ends;
mod feed_forward;
mod latent;
mod layer;
mod moe;
pub(super) mod recurrent;
mod routing;
mod ternary;

use super::kernels::Kernels;
use super::observer::{Observer, Stage};
use super::state::Session;
use super::weights::Weights;
use crate::checkpoint::Source;
use crate::model::plan::Plan;
use crate::ops::rope::RopeTable;
use crate::ops::{Float, Matrix};
use anyhow::Result;
use compute::Compute;
use ends::Embedded;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of weights that are read at once: enough for a disk, few enough to stay in a processor's last cache.
pub const PIECE_BYTES: usize = 4 << 20;

/// Runs a plan on a source's weights.
#[derive(Clone, Copy)]
pub struct Executor<'a, F: Float> {
    plan: &'a Plan,
    source: &'a Arc<dyn Source>,
    kernels: &'a dyn Kernels<F>,
    piece_bytes: usize,
}

/// The next tokens of one sequence.
pub struct Input<'s, F> {
    pub session: &'s mut Session<F>,
    /// Below the plan's `vocab_size`.
    pub tokens: Vec<u32>,
    /// One per token, below the session's length.
    pub positions: Vec<u32>,
}

/// For which tokens of a pass logits are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    Last,
    All,
}

impl<'a, F: Float> Executor<'a, F> {
    pub fn new(plan: &'a Plan, source: &'a Arc<dyn Source>, kernels: &'a dyn Kernels<F>) -> Self {
        Self { plan, source, kernels, piece_bytes: PIECE_BYTES }
    }

    /// Reads weights in pieces of about so many bytes (at least one row each); no bit of a result depends on it.
    pub fn with_piece_bytes(self, piece_bytes: usize) -> Self {
        Self { piece_bytes, ..self }
    }

    /// Embeds the tokens of all inputs. They then go through the layers together, each sequence by itself where tokens
    /// meet: a result doesn't depend on what else is in the pass.
    ///
    /// # Errors
    /// The source can't be read, an input doesn't fit its session ([`StateError`](super::state::StateError)), or a
    /// position is beyond those that the model has learned.
    pub fn begin<'s>(self, inputs: Vec<Input<'s, F>>, observer: &mut dyn Observer<F>) -> Result<Pass<'a, 's, F>> {
        for Input { session, tokens, positions } in &inputs {
            session.accept(tokens, positions, self.plan.vocab_size)?;
            ends::check_positions(self.plan, positions)?;
        }
        let mut tokens = Vec::new();
        let segments = inputs.into_iter().map(|Input { session, tokens: new, positions }| {
            let rows = tokens.len()..tokens.len() + new.len();
            tokens.extend(new);
            let ropes = self.plan.ropes.iter().map(|r| r.table(&positions, session.length())).collect();
            Segment { rows, session, positions, ropes }
        });
        let segments: Vec<Segment<'s, F>> = segments.collect();
        let weights = Weights::of_pass(Arc::clone(self.source), self.plan, self.piece_bytes);
        let mut compute = Compute { plan: self.plan, kernels: self.kernels, weights };
        let positions: Vec<u32> = segments.iter().flat_map(|segment| &segment.positions).copied().collect();
        let Embedded { streams, per_layer } = compute.embed(&tokens, &positions, observer)?;
        Ok(Pass { plan: self.plan, compute, segments, streams, per_layer, layer: 0 })
    }

    /// A whole pass: the logits of each input, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// As [`Executor::begin`].
    pub fn run(self, inputs: Vec<Input<'_, F>>, rows: Rows, observer: &mut dyn Observer<F>) -> Result<Vec<Matrix<F>>> {
        let mut pass = self.begin(inputs, observer)?;
        for _ in &self.plan.layers {
            pass.step(observer)?;
        }
        pass.finish(rows, observer)
    }
}

/// A pass under way: between two steps all it holds is one row per token (or one for each of the model's copies of it)
/// and the sessions.
pub struct Pass<'a, 's, F: Float> {
    plan: &'a Plan,
    compute: Compute<'a, F>,
    segments: Vec<Segment<'s, F>>,
    /// `[tokens of all inputs, hidden_size]`, of each copy of the hidden state: one but for AltUp.
    streams: Vec<Matrix<F>>,
    /// `[tokens of all inputs, layers * dim]`
    per_layer: Option<Matrix<F>>,
    layer: usize,
}

/// One input's rows in the pass.
struct Segment<'s, F> {
    rows: Range<usize>,
    session: &'s mut Session<F>,
    /// One per row.
    positions: Vec<u32>,
    /// One per entry of the plan's `ropes`.
    ropes: Vec<RopeTable<F>>,
}

/// An observer, told which layer it looks at.
struct Seer<'o, F> {
    observer: &'o mut dyn Observer<F>,
    layer: usize,
}

impl<F: Float> Seer<'_, F> {
    fn at(&mut self, name: &'static str, rows: &Matrix<F>) {
        self.observer.see(Stage { layer: Some(self.layer), name }, rows);
    }
}

impl<F: Float> Pass<'_, '_, F> {
    /// The hidden states after the last step, `[tokens of all inputs, hidden_size]`; where there are several copies, the
    /// one that goes through attention.
    pub fn hidden(&self) -> &Matrix<F> {
        &self.streams[self.plan.altup.as_ref().map_or(0, |altup| altup.active)]
    }

    /// Final norm and head: the logits of each input, `[1 or all rows, vocab_size]`. The sessions then stand after
    /// the new tokens.
    ///
    /// # Errors
    /// The source can't be read.
    ///
    /// # Panics
    /// Not all layers have been computed.
    pub fn finish(self, rows: Rows, observer: &mut dyn Observer<F>) -> Result<Vec<Matrix<F>>> {
        let Self { plan, mut compute, segments, streams, layer, .. } = self;
        assert_eq!(layer, plan.layers.len(), "every layer comes before the head");
        let mut wanted: Vec<Matrix<F>> = streams.iter().map(|s| Matrix::filled(0, s.cols(), F::ZERO)).collect();
        let mut counts = Vec::new();
        for segment in segments {
            segment.session.len += segment.rows.len();
            let range = match rows {
                Rows::Last => segment.rows.end - 1..segment.rows.end,
                Rows::All => segment.rows,
            };
            counts.push(range.len());
            for (wanted, stream) in wanted.iter_mut().zip(&streams) {
                wanted.extend_rows(stream.slice_rows(range.clone()).data());
            }
        }
        drop(streams);
        let logits = compute.head(wanted, observer)?;
        let mut first = 0;
        let split = counts.into_iter().map(|n| {
            first += n;
            logits.slice_rows(first - n..first)
        });
        Ok(split.collect())
    }
}
