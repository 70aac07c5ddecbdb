//! `linear` in exact order: stored rows are decoded and transposed slice by slice, panels are spread over the threads.

use super::lanes::Lanes;
use super::panel::{self, DEPTH, MAX_ROWS, Packed};
use super::stored;
use super::vectors::{Vectors, Work};
use crate::exec::weights::Tile;
use crate::ops::{Float, Level, Matrix};
use rayon::prelude::*;

/// See [`Kernels::linear`](crate::exec::Kernels::linear).
pub fn linear<F: Vectors>(level: Level, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize) {
    let tokens = x.rows();
    let packed = Packed::of(x);
    // One slot of MAX_ROWS rows per task, whatever the level: [task][tokens, rows of the task].
    let mut sums = vec![F::ZERO; w.rows.div_ceil(MAX_ROWS) * tokens * MAX_ROWS];
    sums.par_chunks_mut(tokens * MAX_ROWS).enumerate().for_each_init(Scratch::new, |scratch, (task, sums)| {
        let rows = task * MAX_ROWS..w.rows.min((task + 1) * MAX_ROWS);
        F::run(level, Panels { packed: &packed, w, rows, scratch, sums });
    });
    out.par_iter_rows_mut().enumerate().for_each(|(t, out)| {
        let tasks = out[first..first + w.rows].chunks_mut(MAX_ROWS).zip(sums.chunks_exact(tokens * MAX_ROWS));
        for (out, sums) in tasks {
            out.copy_from_slice(&sums[t * MAX_ROWS..][..out.len()]);
        }
    });
}

/// What one thread needs, kept from task to task.
struct Scratch<F> {
    rows: stored::Rows,
    /// `[DEPTH, rows of a panel]`
    panel: Vec<F>,
    /// `[tokens, rows of a panel]`
    sums: Vec<F>,
}

impl<F: Float> Scratch<F> {
    fn new() -> Self {
        Self { rows: stored::Rows::default(), panel: vec![F::ZERO; MAX_ROWS * DEPTH], sums: Vec::new() }
    }
}

/// The outputs of up to MAX_ROWS rows: `sums` is `[tokens, MAX_ROWS]`.
struct Panels<'a, F> {
    packed: &'a Packed<F>,
    w: &'a Tile<'a>,
    rows: std::ops::Range<usize>,
    scratch: &'a mut Scratch<F>,
    sums: &'a mut [F],
}

impl<F: Float> Work<F> for Panels<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Lanes<F>>(self) {
        let Self { packed, w, rows, scratch, sums } = self;
        let width = 2 * V::N;
        for start in rows.clone().step_by(width) {
            let count = width.min(rows.end - start);
            scratch.sums.clear();
            scratch.sums.resize(packed.tokens() * width, F::ZERO);
            for column in (0..w.cols).step_by(DEPTH) {
                let depth = DEPTH.min(w.cols - column);
                // The next slice of these rows, or the first of the next ones.
                let row_bytes = w.bytes.len() / w.rows;
                let bytes = |columns: usize| columns / w.decoder.block_elements() * w.decoder.block_bytes();
                let next = column + depth < w.cols;
                let ahead = if next { bytes(depth) } else { width * row_bytes - bytes(column) };
                // SAFETY: the caller has enabled V's instructions. Rows beyond `count` hold leftovers, whose sums are
                // not read.
                unsafe {
                    let columns = column..column + depth;
                    let rows = start..start + count;
                    stored::fill::<F, V>(w, rows, columns, &mut scratch.rows, &mut scratch.panel, width, ahead);
                    panel::accumulate::<F, V>(packed, column, depth, &scratch.panel, &mut scratch.sums);
                }
            }
            let at = start - rows.start;
            for (out, sums) in sums.chunks_exact_mut(MAX_ROWS).zip(scratch.sums.chunks_exact(width)) {
                out[at..at + count].copy_from_slice(&sums[..count]);
            }
        }
    }
}
