//! `attend`: scores and values of a block of queries are one matrix product each; memory is linear in the number of
//! slots.

use super::backend::{Backend, View, ViewMut};
use crate::exec::reference::transpose;
use crate::ops::attention::{AttentionSpec, Kv, softcap};
use crate::ops::level::elementwise;
use crate::ops::softmax::softmax;
use crate::ops::{Level, Matrix};
use rayon::prelude::*;
use std::ops::Range;

/// Rows of a block: one row is one head of one token. Few enough that the scores of 2,000 slots stay in a second-level
/// cache.
const ROWS: usize = 48;

/// Tokens of a task: enough of them to make up for the transposition of the keys.
const TOKENS: usize = 256;

/// See [`Kernels::attend`](crate::exec::Kernels::attend). All values are finite.
pub fn attend(
    backend: &dyn Backend,
    level: Level,
    spec: &AttentionSpec,
    q: &Matrix<f32>,
    past: usize,
    kv: &Kv<f32>,
    sinks: Option<&[f32]>,
) -> Matrix<f32> {
    let width = spec.num_attention_heads / spec.num_key_value_heads * spec.v_head_dim();
    let tokens = (q.rows() * spec.num_key_value_heads).div_ceil(4 * rayon::current_num_threads()).clamp(16, TOKENS);
    let chunks = q.rows().div_ceil(tokens);
    // [chunk of tokens][key/value head]
    let done: Vec<Vec<f32>> = (0..chunks * spec.num_key_value_heads)
        .into_par_iter()
        .map(|task| {
            let first = task / spec.num_key_value_heads * tokens;
            let range = first..q.rows().min(first + tokens);
            chunk(backend, level, spec, q, past, kv, sinks, task % spec.num_key_value_heads, range)
        })
        .collect();
    let mut out = Matrix::filled(q.rows(), spec.num_attention_heads * spec.v_head_dim(), 0.0);
    out.par_iter_rows_mut().enumerate().for_each(|(t, out)| {
        let done = &done[t / tokens * spec.num_key_value_heads..];
        for (out, done) in out.chunks_exact_mut(width).zip(done) {
            out.copy_from_slice(&done[t % tokens * width..][..width]);
        }
    });
    out
}

/// The queries of some tokens, of the heads that share one key/value head: `[tokens, heads of the group * v_head_dim]`.
#[expect(clippy::too_many_arguments, reason = "it is one operation, called once")]
fn chunk(
    backend: &dyn Backend,
    level: Level,
    spec: &AttentionSpec,
    q: &Matrix<f32>,
    past: usize,
    kv: &Kv<f32>,
    sinks: Option<&[f32]>,
    kv_head: usize,
    tokens: Range<usize>,
) -> Vec<f32> {
    let (dim, v_dim) = (spec.head_dim, spec.v_head_dim());
    let group = spec.num_attention_heads / spec.num_key_value_heads;
    let scale = spec.scale as f32;
    // All slots that any of these tokens sees.
    let slots = spec.visible(past + tokens.start).start..past + tokens.end;
    let at = |matrix: &Matrix<f32>, dim: usize| (slots.start - kv.first) * matrix.cols() + kv_head * dim;
    let mut keys = vec![0.0; dim * slots.len()];
    transpose(level, &kv.keys.data()[at(&kv.keys, dim)..], kv.keys.cols(), slots.len(), dim, &mut keys);

    let block = (ROWS / group).max(1);
    let mut scores = vec![0.0; block.min(tokens.len()) * group * slots.len()];
    let mut out = vec![0.0; tokens.len() * group * v_dim];
    for first in (0..tokens.len()).step_by(block) {
        let count = block.min(tokens.len() - first);
        let queries: Vec<f32> = (first..first + count)
            .flat_map(|t| &q.row(tokens.start + t)[kv_head * group * dim..][..group * dim])
            .copied()
            .collect();
        let slot_of = |t: usize| past + tokens.start + t;
        // Relative to `slots.start`.
        let seen = spec.visible(slot_of(first)).start - slots.start..slot_of(first + count) - slots.start;
        let (rows, width) = (count * group, seen.len());
        let scores = &mut scores[..rows * width];
        backend.sgemm(
            View::of_rows(&queries, rows, dim, dim),
            View::of_columns(&keys[seen.start..], width, dim, slots.len()),
            ViewMut::new(scores, rows, width, width),
            false,
        );
        elementwise(
            #[inline(always)]
            || {
                for (r, row) in scores.chunks_exact_mut(width).enumerate() {
                    let visible = spec.visible(slot_of(first + r / group));
                    let start = visible.start - slots.start - seen.start;
                    let end = visible.end - slots.start - seen.start;
                    row[..start].fill(0.0);
                    row[end..].fill(0.0);
                    for score in &mut row[start..end] {
                        *score *= scale;
                    }
                    if let Some(cap) = spec.attn_logit_softcapping {
                        softcap(&mut row[start..end], cap as f32);
                    }
                    let sink = sinks.map(|sinks| sinks[kv_head * group + r % group]);
                    softmax(&mut row[start..end], sink);
                }
            },
        );
        let values = &kv.values.data()[at(&kv.values, v_dim) + seen.start * kv.values.cols()..];
        backend.sgemm(
            View::of_rows(scores, rows, width, width),
            View::of_columns(values, v_dim, width, kv.values.cols()),
            ViewMut::new(&mut out[first * group * v_dim..][..rows * v_dim], rows, v_dim, v_dim),
            false,
        );
    }
    out
}
