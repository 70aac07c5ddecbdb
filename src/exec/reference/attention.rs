//! `attend` in exact order: scores of many slots advance together, and so do the columns of the values; memory is
//! linear in the number of slots.
//!
//! The queries of all heads that share a key/value head form one list of rows, token by token. They are taken in
//! blocks; each row of a block adds up the same slots in the same order as the definition (`ops::attention`) does.

use super::lanes::Lanes;
use super::panel::{self, Packed, TOKENS};
use super::vectors::{Vectors, Work};
use crate::ops::attention::{AttentionSpec, Kv, softcap};
use crate::ops::softmax::softmax;
use crate::ops::{Float, Level, Matrix};
use rayon::prelude::*;
use std::ops::Range;

/// See [`Kernels::attend`](crate::exec::Kernels::attend).
pub fn attend<F: Vectors>(
    level: Level,
    spec: &AttentionSpec,
    q: &Matrix<F>,
    past: usize,
    kv: &Kv<F>,
    sinks: Option<&[F]>,
) -> Matrix<F> {
    let width = spec.num_attention_heads / spec.num_key_value_heads * spec.v_head_dim();
    let tokens = chunk(q.rows(), spec.num_key_value_heads);
    let chunks = q.rows().div_ceil(tokens);
    let tasks: Vec<(usize, Range<usize>)> = (0..spec.num_key_value_heads)
        .flat_map(|kv_head| (0..chunks).map(move |c| (kv_head, c * tokens..(c + 1) * tokens)))
        .map(|(kv_head, range)| (kv_head, range.start..range.end.min(q.rows())))
        .collect();
    let done: Vec<Vec<F>> = tasks
        .par_iter()
        .map(|(kv_head, range)| {
            let mut out = vec![F::ZERO; range.len() * width];
            F::run(level, Task { spec, q, past, kv, sinks, kv_head: *kv_head, tokens: range.clone(), out: &mut out });
            out
        })
        .collect();
    let mut out = Matrix::filled(q.rows(), spec.num_attention_heads * spec.v_head_dim(), F::ZERO);
    for ((kv_head, range), done) in tasks.iter().zip(&done) {
        for (t, done) in range.clone().zip(done.chunks_exact(width)) {
            out.row_mut(t)[kv_head * width..][..width].copy_from_slice(done);
        }
    }
    out
}

/// Tokens per task: few enough that every thread has some tasks, many enough that copying keys and values into panels
/// costs little.
fn chunk(tokens: usize, kv_heads: usize) -> usize {
    (tokens * kv_heads).div_ceil(4 * rayon::current_num_threads()).clamp(TOKENS, 256)
}

/// Some tokens' queries of the heads that share `kv_head`: `out` is `[tokens, heads of the group * v_head_dim]`.
struct Task<'a, F> {
    spec: &'a AttentionSpec,
    q: &'a Matrix<F>,
    past: usize,
    kv: &'a Kv<F>,
    sinks: Option<&'a [F]>,
    kv_head: usize,
    tokens: Range<usize>,
    out: &'a mut [F],
}

impl<F: Float> Work<F> for Task<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Lanes<F>>(self) {
        let Self { spec, q, past, kv, sinks, kv_head, tokens, out } = self;
        let (dim, v_dim, width) = (spec.head_dim, spec.v_head_dim(), 2 * V::N);
        let group = spec.num_attention_heads / spec.num_key_value_heads;
        let scale = F::from_f64(spec.scale);
        let cap = spec.attn_logit_softcapping.map(F::from_f64);
        let sink = |row: usize| sinks.map(|sinks| sinks[kv_head * group + row % group]);
        let slot_of = |row: usize| past + tokens.start + row / group;
        let query = |row: usize| {
            let head = kv_head * group + row % group;
            &q.row(tokens.start + row / group)[head * dim..][..dim]
        };
        let rows = tokens.len() * group;
        // All slots that any of these tokens sees.
        let slots = spec.visible(slot_of(0)).start..slot_of(rows - 1) + 1;
        let columns = |dim: usize| kv_head * dim..(kv_head + 1) * dim;
        let rows_of = |slots: &Range<usize>| slots.start - kv.first..slots.end - kv.first;
        let keys = Panels::of_rows::<V>(&kv.keys, rows_of(&slots), columns(dim));
        let values = Panels::of_columns::<V>(&kv.values, rows_of(&slots), columns(v_dim));

        let mut scores = vec![F::ZERO; TOKENS * slots.len().next_multiple_of(width)];
        let stride = scores.len() / TOKENS;
        let mut sums = vec![F::ZERO; TOKENS * width];
        for first in (0..rows).step_by(TOKENS) {
            let count = TOKENS.min(rows - first);
            // Slots relative to `slots.start`, for the first and the last row of the block.
            let seen = |row: usize| {
                let visible = spec.visible(slot_of(row));
                visible.start - slots.start..visible.end - slots.start
            };
            let (begin, end) = (seen(first).start, seen(first + count - 1).end);
            let packed = Packed::new((first..first + count).map(query), dim);
            for p in begin / width..end.div_ceil(width) {
                sums.fill(F::ZERO);
                // SAFETY: the caller has enabled V's instructions.
                unsafe { panel::accumulate::<F, V>(&packed, 0, dim, keys.panel(p), &mut sums) }
                for (row, sums) in scores.chunks_exact_mut(stride).zip(sums.chunks_exact(width)).take(count) {
                    for (score, &dot) in row[p * width..][..width].iter_mut().zip(sums) {
                        *score = dot * scale;
                    }
                }
            }
            for (r, row) in scores.chunks_exact_mut(stride).take(count).enumerate() {
                let row = &mut row[seen(first + r)];
                if let Some(cap) = cap {
                    softcap(row, cap);
                }
                softmax(row, sink(first + r));
            }
            // Slots that every row of the block sees; before and after them each row goes by itself.
            let common = seen(first + count - 1).start..seen(first).end;
            let common = if common.start < common.end { common } else { begin..begin };
            let shared: Vec<&[F]> = scores.chunks_exact(stride).take(count).map(|row| &row[common.clone()]).collect();
            let packed = Packed::new(shared.into_iter(), common.len());
            for p in 0..v_dim.div_ceil(width) {
                let panel = values.panel(p);
                let at = |slot: usize| &panel[slot * width..];
                sums.fill(F::ZERO);
                // SAFETY: the caller has enabled V's instructions.
                unsafe {
                    let each = || scores.chunks_exact(stride).take(count).enumerate();
                    if common.is_empty() {
                        for (r, row) in each() {
                            let seen = seen(first + r);
                            panel::accumulate_one::<F, V>(&row[seen.clone()], at(seen.start), &mut sums[r * width..]);
                        }
                    } else {
                        for (r, row) in each() {
                            let before = seen(first + r).start..common.start;
                            panel::accumulate_one::<F, V>(
                                &row[before.clone()],
                                at(before.start),
                                &mut sums[r * width..],
                            );
                        }
                        panel::accumulate::<F, V>(&packed, 0, common.len(), at(common.start), &mut sums);
                        for (r, row) in each() {
                            let after = common.end..seen(first + r).end;
                            panel::accumulate_one::<F, V>(&row[after.clone()], at(after.start), &mut sums[r * width..]);
                        }
                    }
                }
                let columns = p * width..v_dim.min((p + 1) * width);
                for (r, sums) in sums.chunks_exact(width).take(count).enumerate() {
                    out[(first + r) * v_dim..][columns.clone()].copy_from_slice(&sums[..columns.len()]);
                }
            }
        }
    }
}

/// Panels as the kernel wants them, `[panel][depth, 2 * N]`, filled up with zeros.
struct Panels<F> {
    data: Vec<F>,
    /// Values of one panel.
    size: usize,
}

impl<F: Float> Panels<F> {
    fn panel(&self, p: usize) -> &[F] {
        &self.data[p * self.size..][..self.size]
    }

    /// The rows' `columns`, transposed: a lane is a row of `matrix`, the depth its columns.
    #[inline(always)]
    fn of_rows<V: Lanes<F>>(matrix: &Matrix<F>, rows: Range<usize>, columns: Range<usize>) -> Self {
        let width = 2 * V::N;
        let size = columns.len() * width;
        let mut data = vec![F::ZERO; rows.len().div_ceil(width) * size];
        for (panel, first) in data.chunks_exact_mut(size).zip(rows.clone().step_by(width)) {
            if rows.end - first >= width {
                let from = &matrix.data()[first * matrix.cols() + columns.start..];
                // SAFETY: the caller has enabled V's instructions.
                unsafe { panel::transpose::<F, V>(from, matrix.cols(), columns.len(), panel) }
            } else {
                for (lane, row) in (first..rows.end).enumerate() {
                    for (to, &v) in panel[lane..].iter_mut().step_by(width).zip(&matrix.row(row)[columns.clone()]) {
                        *to = v;
                    }
                }
            }
        }
        Self { data, size }
    }

    /// The rows' `columns` as they are: a lane is a column of `matrix`, the depth its rows.
    #[inline(always)]
    fn of_columns<V: Lanes<F>>(matrix: &Matrix<F>, rows: Range<usize>, columns: Range<usize>) -> Self {
        let width = 2 * V::N;
        let size = rows.len() * width;
        let mut data = vec![F::ZERO; columns.len().div_ceil(width) * size];
        for (panel, first) in data.chunks_exact_mut(size).zip(columns.clone().step_by(width)) {
            let count = width.min(columns.end - first);
            for (to, row) in panel.chunks_exact_mut(width).zip(rows.clone()) {
                to[..count].copy_from_slice(&matrix.row(row)[first..first + count]);
            }
        }
        Self { data, size }
    }
}
