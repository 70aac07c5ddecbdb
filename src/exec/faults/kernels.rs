//! Faults in the kernels' operations: other arguments for kernels that are right.

use super::ShownBy;
use super::plan::attentions;
use crate::exec::kernels::Kernels;
use crate::exec::weights::{Tile, Transposed};
use crate::model::Plan;
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::{Float, Matrix};
use half::bf16;

/// An operation that is done wrongly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelFault {
    CausalMaskMissing,
    ChunkMaskLocal,
    WindowRollsEarly,
    GqaTile,
    KvSwapped,
    KvHeadOrder,
    Bf16Activations,
}

impl KernelFault {
    pub fn applies(self, plan: &Plan) -> Result<(), String> {
        let any = |holds: fn(&AttentionSpec) -> bool| attentions(plan).any(|(_, a)| holds(&a.spec));
        let needed = |holds: bool, reason: &str| if holds { Ok(()) } else { Err(reason.to_owned()) };
        match self {
            KernelFault::WindowRollsEarly => needed(
                any(|s| s.sliding_window.is_some_and(|w| w > 1)),
                "no layer has a sliding window of several tokens",
            ),
            KernelFault::GqaTile => needed(
                any(|s| (2..s.num_attention_heads).contains(&s.num_key_value_heads)),
                "there are no groups: one key/value head, or one for each query head",
            ),
            KernelFault::KvSwapped => needed(any(|s| s.v_head_dim() == s.head_dim), "values are not as wide as keys"),
            KernelFault::KvHeadOrder => needed(any(|s| s.num_key_value_heads > 1), "there is one key/value head"),
            _ => Ok(()),
        }
    }

    pub fn shown_by(self) -> ShownBy {
        match self {
            KernelFault::CausalMaskMissing | KernelFault::GqaTile | KernelFault::Bf16Activations => ShownBy::Pass,
            _ => ShownBy::Chunks,
        }
    }
}

/// Kernels with a fault, or without one.
pub struct Faulty<'a, F: Float> {
    pub inner: &'a dyn Kernels<F>,
    pub fault: Option<KernelFault>,
}

impl<F: Float> Kernels<F> for Faulty<'_, F> {
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize) {
        if self.fault != Some(KernelFault::Bf16Activations) {
            return self.inner.linear(x, w, out, first);
        }
        self.inner.linear(&rounded(x), w, out, first);
        for row in out.iter_rows_mut() {
            row[first..first + w.rows].iter_mut().for_each(round);
        }
    }

    fn accumulate(&self, x: &Matrix<F>, w: &Transposed<'_>, out: &mut Matrix<F>) {
        if self.fault != Some(KernelFault::Bf16Activations) {
            return self.inner.accumulate(x, w, out);
        }
        // Sums are rounded when they are complete.
        self.inner.accumulate(&rounded(x), w, out);
        if w.input + w.tile.rows == x.cols() {
            out.data_mut().iter_mut().for_each(round);
        }
    }

    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>, sinks: Option<&[F]>) -> Matrix<F> {
        let right = |spec: &AttentionSpec, q: &Matrix<F>, past: usize| self.inner.attend(spec, q, past, kv, sinks);
        match self.fault {
            None => right(spec, q, past),
            // A query that stands at the last slot sees as far back as its own window reaches.
            Some(KernelFault::CausalMaskMissing) => {
                let last = past + q.rows() - 1;
                by_token(q, |t, q| {
                    let window = last + 1 - spec.visible(past + t).start;
                    let spec = AttentionSpec { attention_chunk_size: None, ..windowed(spec, Some(window)) };
                    right(&spec, q, last)
                })
            }
            Some(KernelFault::ChunkMaskLocal) if past > 0 => by_token(q, |t, q| {
                let window = Some(spec.sliding_window.map_or(t + 1, |w| w.min(t + 1)));
                right(&windowed(spec, window), q, past + t)
            }),
            // Of what the last pass left, the oldest entry that the first query still sees is gone.
            Some(KernelFault::WindowRollsEarly) if past > 0 => match spec.sliding_window {
                Some(w) if w > 1 => by_token(q, |t, q| {
                    let window = if t == 0 { w - 1 } else { w };
                    right(&windowed(spec, Some(window)), q, past + t)
                }),
                _ => right(spec, q, past),
            },
            Some(KernelFault::GqaTile) => {
                let (heads, kv_heads) = (spec.num_attention_heads, spec.num_key_value_heads);
                // Where head h has to stand so that it reads key/value head h % kv_heads.
                let place = |h: usize| h % kv_heads * (heads / kv_heads) + h / kv_heads;
                let mut back = vec![0; heads];
                (0..heads).for_each(|h| back[place(h)] = h);
                let moved = blocks(q, spec.head_dim, |h, row, out| out[place(h)].copy_from_slice(row));
                let sinks: Option<Vec<F>> = sinks.map(|sinks| back.iter().map(|&h| sinks[h]).collect());
                let out = self.inner.attend(spec, &moved, past, kv, sinks.as_deref());
                blocks(&out, spec.v_head_dim(), |h, row, out| out[back[h]].copy_from_slice(row))
            }
            // Where values are as wide as keys.
            Some(KernelFault::KvSwapped) if past > 0 && spec.v_head_dim() == spec.head_dim => {
                let mut wrong = kv.clone();
                for row in 0..past - kv.first {
                    wrong.keys.row_mut(row).copy_from_slice(kv.values.row(row));
                    wrong.values.row_mut(row).copy_from_slice(kv.keys.row(row));
                }
                self.inner.attend(spec, q, past, &wrong, sinks)
            }
            Some(KernelFault::KvHeadOrder) if past > 0 => {
                let mut wrong = kv.clone();
                for (matrix, dim) in [(&mut wrong.keys, spec.head_dim), (&mut wrong.values, spec.v_head_dim())] {
                    (0..past - kv.first).for_each(|row| matrix.row_mut(row).rotate_left(dim));
                }
                self.inner.attend(spec, q, past, &wrong, sinks)
            }
            Some(KernelFault::Bf16Activations) => {
                let kv = Kv { first: kv.first, keys: rounded(&kv.keys), values: rounded(&kv.values) };
                rounded(&self.inner.attend(spec, &rounded(q), past, &kv, sinks))
            }
            Some(
                KernelFault::ChunkMaskLocal
                | KernelFault::WindowRollsEarly
                | KernelFault::KvSwapped
                | KernelFault::KvHeadOrder,
            ) => right(spec, q, past),
        }
    }
}

/// Attention of each token by itself.
fn by_token<F: Float>(q: &Matrix<F>, attend: impl Fn(usize, &Matrix<F>) -> Matrix<F>) -> Matrix<F> {
    let mut rows = (0..q.rows()).map(|t| attend(t, &q.slice_rows(t..t + 1)));
    let mut out = rows.next().expect("a pass has at least one token");
    rows.for_each(|row| out.extend_rows(row.data()));
    out
}

fn windowed(spec: &AttentionSpec, sliding_window: Option<usize>) -> AttentionSpec {
    AttentionSpec { sliding_window, ..spec.clone() }
}

/// A matrix whose rows are made of the blocks of another one's rows: `put(h, block, blocks of the new row)`.
fn blocks<F: Float>(x: &Matrix<F>, width: usize, put: impl Fn(usize, &[F], &mut [&mut [F]])) -> Matrix<F> {
    let mut out = x.clone();
    for (row, new) in x.iter_rows().zip(out.iter_rows_mut()) {
        let mut new: Vec<&mut [F]> = new.chunks_exact_mut(width).collect();
        for (h, block) in row.chunks_exact(width).enumerate() {
            put(h, block, &mut new);
        }
    }
    out
}

fn rounded<F: Float>(x: &Matrix<F>) -> Matrix<F> {
    let mut out = x.clone();
    out.data_mut().iter_mut().for_each(round);
    out
}

/// To bf16, ties to even.
fn round<F: Float>(x: &mut F) {
    *x = F::from_f32(bf16::from_f64(x.to_f64()).to_f32());
}
