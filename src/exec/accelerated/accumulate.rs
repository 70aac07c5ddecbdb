//! `accumulate`: each thread decodes the weights of some outputs at a time and multiplies them.

use super::backend::{Backend, View, ViewMut};
use super::linear::MULTIPLE;
use crate::exec::weights::{Scratch, Transposed};
use crate::ops::Matrix;
use crate::ops::level::elementwise;
use rayon::prelude::*;

/// See [`Kernels::accumulate`](crate::exec::Kernels::accumulate).
pub fn accumulate(backend: &dyn Backend, x: &Matrix<f32>, w: &Transposed<'_>, out: &mut Matrix<f32>) {
    let tokens = x.rows();
    let blocking = backend.blocking();
    let all = w.columns.count;
    let tasks = all.div_ceil(blocking.rows).next_multiple_of(rayon::current_num_threads());
    let outputs = all.div_ceil(tasks).next_multiple_of(MULTIPLE);
    let depth = blocking.depth.min(w.tile.rows);
    // [task][tokens, outputs of the task]
    let mut sums = vec![0.0; all.div_ceil(outputs) * tokens * outputs];
    sums.par_chunks_mut(tokens * outputs).enumerate().for_each_init(Vec::new, |weights, (task, sums)| {
        weights.resize(depth * outputs, 0.0);
        let mut scratch = Scratch::default();
        let range = task * outputs..all.min((task + 1) * outputs);
        for (sums, out) in sums.chunks_exact_mut(outputs).zip(out.iter_rows()) {
            sums[..range.len()].copy_from_slice(&out[range.clone()]);
        }
        for input in (0..w.tile.rows).step_by(depth) {
            let inputs = input..w.tile.rows.min(input + depth);
            elementwise(
                #[inline(always)]
                || {
                    for (r, row) in inputs.clone().zip(weights.chunks_exact_mut(outputs)) {
                        w.decode(r, range.clone(), &mut scratch, &mut row[..range.len()]);
                    }
                },
            );
            let a = View::of_rows(&x.data()[w.input + input..], tokens, inputs.len(), x.cols());
            let b = View::of_columns(weights, range.len(), inputs.len(), outputs);
            backend.sgemm(a, b, ViewMut::new(sums, tokens, range.len(), outputs), true);
        }
    });
    out.par_iter_rows_mut().enumerate().for_each(|(t, out)| {
        let tasks = out.chunks_mut(outputs).zip(sums.chunks_exact(tokens * outputs));
        for (out, sums) in tasks {
            out.copy_from_slice(&sums[t * outputs..][..out.len()]);
        }
    });
}
