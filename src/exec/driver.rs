//! The one driver: embedding, layer after layer, head. Streamed and resident execution differ only in the source.

use super::kernels::Kernels;
use super::observer::{Observer, Stage};
use super::recurrent;
use super::state::{LayerState, Session};
use super::weights::Weights;
use crate::checkpoint::Source;
use crate::model::plan::{Attention, FeedForward, Linear, Mixer, Mlp, Norm, Plan, QkNorm};
use crate::ops::level::elementwise;
use crate::ops::rope::RopeTable;
use crate::ops::{Float, Matrix, norm::rms_norm};
use anyhow::{Context, Result, bail};
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of weights that are read at once: enough for a disk, few enough to stay in a processor's last cache.
pub const PIECE_BYTES: usize = 4 << 20;

const LATER: &str = "not yet";

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
    /// The source can't be read, or an input doesn't fit its session ([`StateError`](super::state::StateError)).
    pub fn begin<'s>(self, inputs: Vec<Input<'s, F>>, observer: &mut dyn Observer<F>) -> Result<Pass<'a, 's, F>> {
        for Input { session, tokens, positions } in &inputs {
            session.accept(tokens, positions, self.plan.vocab_size)?;
        }
        let mut tokens = Vec::new();
        let segments = inputs.into_iter().map(|Input { session, tokens: new, positions }| {
            let rows = tokens.len()..tokens.len() + new.len();
            tokens.extend(new);
            let ropes = self.plan.ropes.iter().map(|r| r.table(&positions, session.length())).collect();
            Segment { rows, session, ropes }
        });
        let segments = segments.collect();
        let mut weights = Weights::of_pass(Arc::clone(self.source), self.plan, self.piece_bytes);
        let hidden = weights.gather(&self.plan.embed, &tokens)?;
        observer.see(Stage { layer: None, name: "embed" }, &hidden);
        let compute = Compute { kernels: self.kernels, weights };
        Ok(Pass { plan: self.plan, compute, segments, hidden, layer: 0 })
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

/// A pass under way: between two steps all it holds is one row per token and the sessions.
pub struct Pass<'a, 's, F: Float> {
    plan: &'a Plan,
    compute: Compute<'a, F>,
    segments: Vec<Segment<'s, F>>,
    /// `[tokens of all inputs, hidden_size]`.
    hidden: Matrix<F>,
    layer: usize,
}

/// One input's rows in the pass.
pub(super) struct Segment<'s, F> {
    pub(super) rows: Range<usize>,
    pub(super) session: &'s mut Session<F>,
    /// One per entry of the plan's `ropes`.
    ropes: Vec<RopeTable<F>>,
}

/// An observer, told which layer it looks at.
pub(super) struct Seer<'o, F> {
    observer: &'o mut dyn Observer<F>,
    pub(super) layer: usize,
}

impl<F: Float> Seer<'_, F> {
    pub(super) fn at(&mut self, name: &'static str, rows: &Matrix<F>) {
        self.observer.see(Stage { layer: Some(self.layer), name }, rows);
    }
}

impl<F: Float> Pass<'_, '_, F> {
    /// The hidden states after the last step, `[tokens of all inputs, hidden_size]`.
    pub fn hidden(&self) -> &Matrix<F> {
        &self.hidden
    }

    /// Computes the next layer.
    ///
    /// # Errors
    /// The source can't be read; the pass is then of no further use.
    pub fn step(&mut self, observer: &mut dyn Observer<F>) -> Result<()> {
        let layer = &self.plan.layers[self.layer];
        let mut see = Seer { observer, layer: self.layer };

        let x = self.compute.norm(&self.hidden, layer.mixer_norm.as_ref().context(LATER)?)?;
        see.at("mixer.in", &x);
        let mixed = match &layer.mixer {
            Mixer::Attention(attention) => self.attention(&x, attention, &mut see)?,
            Mixer::LatentAttention(_) => bail!(LATER),
            Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) => {
                recurrent::mix(&mut self.compute, &mut self.segments, &x, &layer.mixer, &mut see)?
            }
        };
        see.at("mixer.out", &mixed);
        add(&mut self.hidden, &mixed);

        let x = self.compute.norm(&self.hidden, layer.mlp_norm.as_ref().context(LATER)?)?;
        see.at("mlp.in", &x);
        let Some(FeedForward::Dense(mlp)) = &layer.mlp else { bail!(LATER) };
        let mlp = self.compute.mlp(&x, mlp, &mut see)?;
        add(&mut self.hidden, &mlp);
        see.at("out", &self.hidden);
        self.layer += 1;
        Ok(())
    }

    fn attention(&mut self, x: &Matrix<F>, attention: &Attention, see: &mut Seer<'_, F>) -> Result<Matrix<F>> {
        let Self { compute, segments, layer, .. } = self;
        let mut q = compute.linear(x, &attention.q)?;
        let mut k = compute.linear(x, attention.k.as_ref().context(LATER)?)?;
        let v = compute.linear(x, attention.v.as_ref().context(LATER)?)?;
        see.at("mixer.q", &q);
        see.at("mixer.k", &k);
        see.at("mixer.v", &v);
        let spec = &attention.spec;
        let norms = attention.qk_norm.as_ref();
        if let Some(norms) = norms.filter(|norms| !norms.after_rope) {
            compute.qk_norm(&mut q, &mut k, norms, see)?;
        }
        for segment in segments.iter() {
            let rope = &segment.ropes[attention.rope.context(LATER)?];
            for rows in [&mut q, &mut k] {
                let rows = rows.par_iter_rows_mut().skip(segment.rows.start).take(segment.rows.len());
                rows.enumerate().for_each(|(t, row)| {
                    row.chunks_exact_mut(spec.head_dim).for_each(|head| rope.rotate(t, head));
                });
            }
        }
        if let Some(norms) = norms.filter(|norms| norms.after_rope) {
            compute.qk_norm(&mut q, &mut k, norms, see)?;
        }
        let mut attended = Matrix::filled(0, q.cols(), F::ZERO);
        for segment in segments {
            let rows = || segment.rows.clone();
            let LayerState::Kv(kv) = &mut segment.session.layers[*layer] else {
                bail!("layer {layer} keeps no keys and values");
            };
            kv.append(&k.slice_rows(rows()), &v.slice_rows(rows()));
            let q = q.slice_rows(rows());
            attended.extend_rows(compute.kernels.attend(spec, &q, segment.session.len, kv.kv()).data());
            kv.settle();
        }
        see.at("mixer.attend", &attended);
        compute.linear(&attended, &attention.o)
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
        let Self { plan, mut compute, segments, hidden, layer } = self;
        assert_eq!(layer, plan.layers.len(), "every layer comes before the head");
        let mut wanted = Matrix::filled(0, hidden.cols(), F::ZERO);
        let mut counts = Vec::new();
        for segment in segments {
            segment.session.len += segment.rows.len();
            let range = match rows {
                Rows::Last => segment.rows.end - 1..segment.rows.end,
                Rows::All => segment.rows,
            };
            counts.push(range.len());
            wanted.extend_rows(hidden.slice_rows(range).data());
        }
        let x = compute.norm(&wanted, &plan.norm)?;
        observer.see(Stage { layer: None, name: "norm" }, &x);
        let logits = compute.linear(&x, &plan.head.linear)?;
        observer.see(Stage { layer: None, name: "head" }, &logits);
        let mut first = 0;
        let split = counts.into_iter().map(|n| {
            first += n;
            logits.slice_rows(first - n..first)
        });
        Ok(split.collect())
    }
}

/// The operations that need weights.
pub(super) struct Compute<'a, F: Float> {
    kernels: &'a dyn Kernels<F>,
    pub(super) weights: Weights,
}

impl<F: Float> Compute<'_, F> {
    pub(super) fn linear(&mut self, x: &Matrix<F>, linear: &Linear) -> Result<Matrix<F>> {
        let (rows, _) = linear.weight.rows_and_cols();
        let mut out = Matrix::filled(x.rows(), rows, F::ZERO);
        let kernels = self.kernels;
        self.weights.each_tile(&linear.weight, |first, tile| kernels.linear(x, tile, &mut out, first))?;
        if let Some(bias) = &linear.bias {
            let bias = self.weights.vector::<F>(bias)?;
            for row in out.iter_rows_mut() {
                for (y, &b) in row.iter_mut().zip(&bias) {
                    *y += b;
                }
            }
        }
        Ok(out)
    }

    fn norm(&mut self, x: &Matrix<F>, norm: &Norm) -> Result<Matrix<F>> {
        let mut out = x.clone();
        self.norm_heads(&mut out, norm)?;
        Ok(out)
    }

    /// Normalises each group of `size` columns: a whole row, or each head of it.
    pub(super) fn norm_heads(&mut self, x: &mut Matrix<F>, norm: &Norm) -> Result<()> {
        let weights = self.weights.vector::<F>(norm.weight.as_ref().context(LATER)?)?;
        let eps = F::from_f64(norm.eps);
        x.par_iter_rows_mut().for_each(|row| {
            for (i, group) in row.chunks_exact_mut(norm.size).enumerate() {
                rms_norm(group, &weights[i * norm.size % weights.len()..], eps);
            }
        });
        Ok(())
    }

    /// Normalises queries and keys, each head by itself.
    fn qk_norm(&mut self, q: &mut Matrix<F>, k: &mut Matrix<F>, norms: &QkNorm, see: &mut Seer<'_, F>) -> Result<()> {
        self.norm_heads(q, &norms.q)?;
        self.norm_heads(k, norms.k.as_ref().context(LATER)?)?;
        see.at("mixer.q_norm", q);
        see.at("mixer.k_norm", k);
        Ok(())
    }

    fn mlp(&mut self, x: &Matrix<F>, mlp: &Mlp, see: &mut Seer<'_, F>) -> Result<Matrix<F>> {
        let mut gate = self.linear(x, mlp.gate.as_ref().context(LATER)?)?;
        see.at("mlp.gate", &gate);
        let up = self.linear(x, &mlp.up)?;
        see.at("mlp.up", &up);
        gate.par_iter_rows_mut().zip(up.par_iter_rows()).for_each(|(gate, up)| {
            elementwise(
                #[inline(always)]
                || mlp.activation.gate(gate, up),
            );
        });
        see.at("mlp.act", &gate);
        let out = self.linear(&gate, &mlp.down)?;
        see.at("mlp.out", &out);
        Ok(out)
    }
}

fn add<F: Float>(x: &mut Matrix<F>, y: &Matrix<F>) {
    for (x, &y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}
