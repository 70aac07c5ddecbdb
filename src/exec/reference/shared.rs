//! What the accelerated executor takes from the reference: moving numbers, which is the same in any order.

use super::lanes::Lanes;
use super::panel::{self, DEPTH};
use super::stored;
use super::vectors::{Vectors, Work};
use crate::exec::weights::Tile;
use crate::ops::{Float, Level};
use std::ops::Range;

/// Decodes `columns` of `rows` of a tile so that the elements of a column lie together.
pub struct DecodeColumns<'a> {
    pub w: &'a Tile<'a>,
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl DecodeColumns<'_> {
    /// Into `to`, `[columns, stride]`: one column is `stride` floats after the one before it. `stride` is a multiple of
    /// 32 that has room for the rows; what is beyond them is anything.
    pub fn run(self, level: Level, to: &mut [f32], stride: usize) {
        assert!(stride.is_multiple_of(panel::MAX_ROWS) && self.rows.len() <= stride, "whole panels side by side");
        f32::run(level, Columns { task: self, to, stride });
    }
}

struct Columns<'a> {
    task: DecodeColumns<'a>,
    to: &'a mut [f32],
    stride: usize,
}

impl Work<f32> for Columns<'_> {
    #[inline(always)]
    unsafe fn run<V: Lanes<f32>>(self) {
        let Self { task: DecodeColumns { w, rows, columns }, to, stride } = self;
        let mut scratch = stored::Rows::default();
        // The next slice of these rows, in the same or the next call.
        let ahead = DEPTH / w.decoder.block_elements() * w.decoder.block_bytes();
        for first in rows.clone().step_by(2 * V::N) {
            let some = first..rows.end.min(first + 2 * V::N);
            for column in columns.clone().step_by(DEPTH) {
                let slice = column..columns.end.min(column + DEPTH);
                let to = &mut to[(column - columns.start) * stride + first - rows.start..];
                // SAFETY: the caller has enabled V's instructions.
                unsafe { stored::fill::<f32, V>(w, some.clone(), slice, &mut scratch, to, stride, ahead) }
            }
        }
    }
}

/// Exchanges rows and columns: `from` holds `rows` rows of `cols` floats, `stride` apart, `to` takes `[cols, rows]`.
pub fn transpose(level: Level, from: &[f32], stride: usize, rows: usize, cols: usize, to: &mut [f32]) {
    assert!(cols <= stride && (rows == 0 || from.len() >= (rows - 1) * stride + cols) && to.len() >= rows * cols);
    f32::run(level, Transpose { from, stride, rows, cols, to });
}

struct Transpose<'a, F> {
    from: &'a [F],
    stride: usize,
    rows: usize,
    cols: usize,
    to: &'a mut [F],
}

impl<F: Float> Work<F> for Transpose<'_, F> {
    #[inline(always)]
    unsafe fn run<V: Lanes<F>>(self) {
        let Self { from, stride, rows, cols, to } = self;
        let (whole_rows, whole_cols) = (rows / V::N * V::N, cols / V::N * V::N);
        for r in (0..whole_rows).step_by(V::N) {
            for c in (0..whole_cols).step_by(V::N) {
                // SAFETY: a square of N by N lies inside both, and the caller has enabled V's instructions.
                unsafe { V::transpose(from[r * stride + c..].as_ptr(), stride, to[c * rows + r..].as_mut_ptr(), rows) }
            }
        }
        for r in 0..rows {
            let start = if r < whole_rows { whole_cols } else { 0 };
            for c in start..cols {
                to[c * rows + r] = from[r * stride + c];
            }
        }
    }
}
