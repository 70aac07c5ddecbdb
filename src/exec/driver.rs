//! The one driver: embedding, layer after layer, head. Streamed and resident execution differ only in the source.

use super::kernels::Kernels;
use super::observer::{Observer, Stage};
use super::session::{LayerState, Session};
use super::weights::Reader;
use crate::checkpoint::Source;
use crate::model::plan::{Attention, Linear, Mixer, Mlp, Plan, RmsNorm};
use crate::ops::rope::{RopeTable, rotate_halves};
use crate::ops::{Float, Matrix, norm::rms_norm};
use anyhow::Result;
use std::ops::Range;

/// Bytes of weights that are read at once.
pub const TILE_BYTES: usize = 8 << 20;

/// Runs a plan on a source's weights.
#[derive(Clone, Copy)]
pub struct Executor<'a, F: Float> {
    plan: &'a Plan,
    kernels: &'a dyn Kernels<F>,
    reader: Reader<'a>,
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
    pub fn new(plan: &'a Plan, source: &'a dyn Source, kernels: &'a dyn Kernels<F>) -> Self {
        Self::with_tile_bytes(plan, source, kernels, TILE_BYTES)
    }

    /// As [`Executor::new`], with another reading granularity; no bit of a result depends on it.
    pub fn with_tile_bytes(plan: &'a Plan, source: &'a dyn Source, kernels: &'a dyn Kernels<F>, bytes: usize) -> Self {
        Self { plan, kernels, reader: Reader::new(source, bytes) }
    }

    /// Embeds the tokens of all inputs. They then go through the layers together, each sequence by itself where tokens
    /// meet: a result doesn't depend on what else is in the pass.
    ///
    /// # Errors
    /// The source can't be read.
    ///
    /// # Panics
    /// Tokens and positions of an input differ in number, or there is none.
    pub fn begin<'s>(self, inputs: Vec<Input<'s, F>>, observer: &mut dyn Observer<F>) -> Result<Pass<'a, 's, F>> {
        let mut tokens = Vec::new();
        let segments = inputs.into_iter().map(|Input { session, tokens: new, positions }| {
            assert!(!new.is_empty() && new.len() == positions.len(), "one position per token, and at least one token");
            let rows = tokens.len()..tokens.len() + new.len();
            tokens.extend(new);
            let ropes = self.plan.ropes.iter().map(|r| r.table(&positions, session.length())).collect();
            Segment { rows, session, ropes }
        });
        let segments = segments.collect();
        let hidden = self.reader.gather(&self.plan.embed, tokens.into_iter().map(|t| t as usize))?;
        observer.see(Stage { layer: None, name: "embed" }, &hidden);
        Ok(Pass { executor: self, segments, hidden, layer: 0 })
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

    fn linear(&self, x: &Matrix<F>, linear: &Linear) -> Result<Matrix<F>> {
        let (rows, _) = linear.weight.rows_and_cols();
        let mut out = Matrix::filled(x.rows(), rows, F::ZERO);
        for tile in self.reader.tiles(&linear.weight)? {
            let (first, tile) = tile?;
            self.kernels.linear(x, &tile, &mut out, first);
        }
        if let Some(bias) = &linear.bias {
            let bias = self.reader.vector::<F>(bias)?;
            for row in out.iter_rows_mut() {
                for (y, &b) in row.iter_mut().zip(&bias) {
                    *y += b;
                }
            }
        }
        Ok(out)
    }

    fn norm(&self, x: &Matrix<F>, norm: &RmsNorm) -> Result<Matrix<F>> {
        let mut out = x.clone();
        self.norm_heads(&mut out, norm)?;
        Ok(out)
    }

    /// Normalises each group of as many columns as the norm has weights: a whole row, or each head of it.
    fn norm_heads(&self, x: &mut Matrix<F>, norm: &RmsNorm) -> Result<()> {
        let weights = self.reader.vector::<F>(&norm.weight)?;
        let eps = F::from_f64(norm.eps);
        for group in x.data_mut().chunks_exact_mut(weights.len()) {
            rms_norm(group, &weights, eps);
        }
        Ok(())
    }

    fn mlp(&self, x: &Matrix<F>, mlp: &Mlp, see: &mut Seer<'_, F>) -> Result<Matrix<F>> {
        let mut gate = self.linear(x, &mlp.gate)?;
        see.at("mlp.gate", &gate);
        let up = self.linear(x, &mlp.up)?;
        see.at("mlp.up", &up);
        for (g, &u) in gate.data_mut().iter_mut().zip(up.data()) {
            *g = mlp.activation.apply(*g) * u;
        }
        see.at("mlp.act", &gate);
        let out = self.linear(&gate, &mlp.down)?;
        see.at("mlp.out", &out);
        Ok(out)
    }
}

/// A pass under way: between two steps all it holds is one row per token and the sessions.
pub struct Pass<'a, 's, F: Float> {
    executor: Executor<'a, F>,
    segments: Vec<Segment<'s, F>>,
    /// `[tokens of all inputs, hidden_size]`.
    hidden: Matrix<F>,
    layer: usize,
}

/// One input's rows in the pass.
struct Segment<'s, F> {
    rows: Range<usize>,
    session: &'s mut Session<F>,
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
    /// Computes the next layer.
    ///
    /// # Errors
    /// The source can't be read; the pass is then of no further use.
    pub fn step(&mut self, observer: &mut dyn Observer<F>) -> Result<()> {
        let executor = self.executor;
        let layer = &executor.plan.layers[self.layer];
        let mut see = Seer { observer, layer: self.layer };

        let x = executor.norm(&self.hidden, &layer.mixer_norm)?;
        see.at("mixer.in", &x);
        let mixed = match &layer.mixer {
            Mixer::Attention(attention) => self.attention(&x, attention, &mut see)?,
        };
        see.at("mixer.out", &mixed);
        add(&mut self.hidden, &mixed);

        let x = executor.norm(&self.hidden, &layer.mlp_norm)?;
        see.at("mlp.in", &x);
        let mlp = executor.mlp(&x, &layer.mlp, &mut see)?;
        add(&mut self.hidden, &mlp);
        see.at("out", &self.hidden);
        self.layer += 1;
        Ok(())
    }

    fn attention(&mut self, x: &Matrix<F>, attention: &Attention, see: &mut Seer<'_, F>) -> Result<Matrix<F>> {
        let executor = self.executor;
        let mut q = executor.linear(x, &attention.q)?;
        let mut k = executor.linear(x, &attention.k)?;
        let v = executor.linear(x, &attention.v)?;
        see.at("mixer.q", &q);
        see.at("mixer.k", &k);
        see.at("mixer.v", &v);
        if let Some(norms) = &attention.qk_norm {
            executor.norm_heads(&mut q, &norms.q)?;
            executor.norm_heads(&mut k, &norms.k)?;
            see.at("mixer.q_norm", &q);
            see.at("mixer.k_norm", &k);
        }
        let spec = &attention.spec;
        let mut attended = Matrix::filled(0, q.cols(), F::ZERO);
        for segment in &mut self.segments {
            let rope = &segment.ropes[attention.rope];
            let (mut q, mut k) = (q.slice_rows(segment.rows.clone()), k.slice_rows(segment.rows.clone()));
            for rows in [&mut q, &mut k] {
                for (t, row) in rows.iter_rows_mut().enumerate() {
                    for head in row.chunks_exact_mut(spec.head_dim) {
                        rotate_halves(head, rope.cos.row(t), rope.sin.row(t));
                    }
                }
            }
            let LayerState::Kv(kv) = &mut segment.session.layers[self.layer];
            kv.keys.extend_rows(k.data());
            kv.values.extend_rows(v.slice_rows(segment.rows.clone()).data());
            attended.extend_rows(executor.kernels.attend(spec, &q, segment.session.len, kv).data());
        }
        see.at("mixer.attend", &attended);
        executor.linear(&attended, &attention.o)
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
        let Self { executor, segments, hidden, layer } = self;
        assert_eq!(layer, executor.plan.layers.len(), "every layer comes before the head");
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
        let x = executor.norm(&wanted, &executor.plan.norm)?;
        observer.see(Stage { layer: None, name: "norm" }, &x);
        let logits = executor.linear(&x, &executor.plan.head.linear)?;
        observer.see(Stage { layer: None, name: "head" }, &logits);
        let mut first = 0;
        let split = counts.into_iter().map(|n| {
            first += n;
            logits.slice_rows(first - n..first)
        });
        Ok(split.collect())
    }
}

fn add<F: Float>(x: &mut Matrix<F>, y: &Matrix<F>) {
    for (x, &y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}
