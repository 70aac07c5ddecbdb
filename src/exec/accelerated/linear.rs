//! `linear`: each thread decodes some rows of the weights at a time and multiplies them.

use super::backend::{Backend, Order, View, ViewMut};
use crate::exec::reference::DecodeColumns;
use crate::exec::weights::Tile;
use crate::ops::level::elementwise;
use crate::ops::{Level, Matrix};
use rayon::prelude::*;

/// See [`Kernels::linear`](crate::exec::Kernels::linear).
pub fn linear(backend: &dyn Backend, level: Level, x: &Matrix<f32>, w: &Tile<'_>, out: &mut Matrix<f32>, first: usize) {
    let tokens = x.rows();
    let blocking = backend.blocking();
    // As many tasks for each thread, of nearly equal size, and sizes that the kernels like.
    let tasks = w.rows.div_ceil(blocking.rows).next_multiple_of(rayon::current_num_threads());
    let rows = w.rows.div_ceil(tasks).next_multiple_of(MULTIPLE);
    let depth = blocking.depth.min(w.cols);
    let mut sums = vec![0.0; w.rows.div_ceil(rows) * tokens * rows];
    sums.par_chunks_mut(tokens * rows).enumerate().for_each_init(Vec::new, |weights, (task, sums)| {
        weights.resize(rows * depth, 0.0);
        let range = task * rows..w.rows.min((task + 1) * rows);
        for column in (0..w.cols).step_by(depth) {
            let columns = column..w.cols.min(column + depth);
            let a = View::of_rows(&x.data()[column..], tokens, columns.len(), x.cols());
            let b = match blocking.order {
                Order::Rows => {
                    elementwise(
                        #[inline(always)]
                        || {
                            for (r, row) in range.clone().zip(weights.chunks_exact_mut(depth)) {
                                w.decoder.decode(w.bytes_of(r, column, columns.len()), &mut row[..columns.len()]);
                            }
                        },
                    );
                    View::of_rows(weights, range.len(), columns.len(), depth)
                }
                Order::Columns => {
                    DecodeColumns { w, rows: range.clone(), columns: columns.clone() }.run(level, weights, rows);
                    View::of_columns(weights, range.len(), columns.len(), rows)
                }
            };
            backend.sgemm(a, b, ViewMut::new(sums, tokens, range.len(), rows), column > 0);
        }
    });
    out.par_iter_rows_mut().enumerate().for_each(|(t, out)| {
        let tasks = out[first..first + w.rows].chunks_mut(rows).zip(sums.chunks_exact(tokens * rows));
        for (out, sums) in tasks {
            out.copy_from_slice(&sums[t * rows..][..out.len()]);
        }
    });
}

/// Rows of a task are a multiple of it: that of AVX-512's kernel, and of the widest vectors by which rows are decoded.
pub(super) const MULTIPLE: usize = 96;
