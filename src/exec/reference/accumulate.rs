//! `accumulate` in exact order: outputs that lie side by side in the stored rows go into the lanes as they are.

use super::lanes::Lanes;
use super::panel::{self, DEPTH, MAX_ROWS, Packed};
use super::vectors::{Vectors, Work};
use crate::exec::weights::{Scratch, Transposed};
use crate::ops::{Float, Level, Matrix};
use rayon::prelude::*;
use std::ops::Range;

/// Outputs of a task: several panels of any level, so that decoding touches long runs of a stored row.
const OUTPUTS: usize = 4 * MAX_ROWS;

/// See [`Kernels::accumulate`](crate::exec::Kernels::accumulate).
pub fn accumulate<F: Vectors>(level: Level, x: &Matrix<F>, w: &Transposed<'_>, out: &mut Matrix<F>) {
    let tokens = x.rows();
    let inputs = w.input..w.input + w.tile.rows;
    let packed = Packed::new((0..tokens).map(|t| &x.row(t)[inputs.clone()]), inputs.len());
    let outputs = w.columns.count;
    // [task][tokens, outputs of the task]
    let mut sums = vec![F::ZERO; outputs.div_ceil(OUTPUTS) * tokens * OUTPUTS];
    sums.par_chunks_mut(tokens * OUTPUTS).enumerate().for_each_init(Buffers::default, |buffers, (task, sums)| {
        let range = task * OUTPUTS..outputs.min((task + 1) * OUTPUTS);
        for (sums, out) in sums.chunks_exact_mut(OUTPUTS).zip(out.iter_rows()) {
            sums[..range.len()].copy_from_slice(&out[range.clone()]);
        }
        F::run(level, Panels { packed: &packed, w, outputs: range, buffers, sums });
    });
    out.par_iter_rows_mut().enumerate().for_each(|(t, out)| {
        let tasks = out.chunks_mut(OUTPUTS).zip(sums.chunks_exact(tokens * OUTPUTS));
        for (out, sums) in tasks {
            out.copy_from_slice(&sums[t * OUTPUTS..][..out.len()]);
        }
    });
}

/// What one thread needs, kept from task to task.
struct Buffers<F> {
    scratch: Scratch<F>,
    /// One decoded row.
    row: Vec<F>,
    /// `[panel][DEPTH, 2 * N]`
    panels: Vec<F>,
    /// `[panel][tokens, 2 * N]`
    sums: Vec<F>,
}

impl<F> Default for Buffers<F> {
    fn default() -> Self {
        Self { scratch: Scratch::default(), row: Vec::new(), panels: Vec::new(), sums: Vec::new() }
    }
}

/// Up to OUTPUTS outputs: `sums` is `[tokens, OUTPUTS]`, and holds what was summed before.
struct Panels<'a, F> {
    packed: &'a Packed<F>,
    w: &'a Transposed<'a>,
    outputs: Range<usize>,
    buffers: &'a mut Buffers<F>,
    sums: &'a mut [F],
}

impl<F: Float> Work<F> for Panels<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Lanes<F>>(self) {
        let Self { packed, w, outputs, buffers: Buffers { scratch, row, panels, sums: waiting }, sums } = self;
        let (width, tokens) = (2 * V::N, packed.tokens());
        let count = outputs.len().div_ceil(width);
        row.clear();
        row.resize(count * width, F::ZERO);
        panels.resize(count * DEPTH * width, F::ZERO);
        waiting.resize(count * tokens * width, F::ZERO);
        for (p, waiting) in waiting.chunks_exact_mut(tokens * width).enumerate() {
            for (to, from) in waiting.chunks_exact_mut(width).zip(sums.chunks_exact(OUTPUTS)) {
                to.copy_from_slice(&from[p * width..][..width]);
            }
        }
        for input in (0..w.tile.rows).step_by(DEPTH) {
            let depth = DEPTH.min(w.tile.rows - input);
            for i in 0..depth {
                w.decode(input + i, outputs.clone(), scratch, &mut row[..outputs.len()]);
                for (panel, row) in panels.chunks_exact_mut(DEPTH * width).zip(row.chunks_exact(width)) {
                    panel[i * width..][..width].copy_from_slice(row);
                }
            }
            let each = panels.chunks_exact(DEPTH * width).zip(waiting.chunks_exact_mut(tokens * width));
            for (panel, waiting) in each {
                // SAFETY: the caller has enabled V's instructions.
                unsafe { panel::accumulate::<F, V>(packed, input, depth, panel, waiting) }
            }
        }
        for (p, waiting) in waiting.chunks_exact(tokens * width).enumerate() {
            for (from, to) in waiting.chunks_exact(width).zip(sums.chunks_exact_mut(OUTPUTS)) {
                to[p * width..][..width].copy_from_slice(from);
            }
        }
    }
}
