//! A row-major matrix: one row per token.

use rayon::prelude::*;

/// Row-major `[rows, cols]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Matrix<F> {
    rows: usize,
    cols: usize,
    data: Vec<F>,
}

impl<F: Copy> Matrix<F> {
    pub fn filled(rows: usize, cols: usize, value: F) -> Self {
        Self { rows, cols, data: vec![value; rows * cols] }
    }

    /// `data` holds `rows * cols` values, row after row.
    pub fn from_vec(rows: usize, cols: usize, data: Vec<F>) -> Self {
        assert_eq!(data.len(), rows * cols, "a matrix of {rows} x {cols} needs {} values", rows * cols);
        Self { rows, cols, data }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    pub fn row(&self, r: usize) -> &[F] {
        &self.data[r * self.cols..][..self.cols]
    }

    pub fn row_mut(&mut self, r: usize) -> &mut [F] {
        &mut self.data[r * self.cols..][..self.cols]
    }

    pub fn iter_rows(&self) -> impl Iterator<Item = &[F]> {
        self.data.chunks_exact(self.cols)
    }

    pub fn iter_rows_mut(&mut self) -> impl Iterator<Item = &mut [F]> {
        self.data.chunks_exact_mut(self.cols)
    }

    /// The rows, to be shared out among threads.
    pub fn par_iter_rows(&self) -> impl IndexedParallelIterator<Item = &[F]>
    where
        F: Sync,
    {
        self.data.par_chunks_exact(self.cols)
    }

    /// The rows, to be shared out among threads.
    pub fn par_iter_rows_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [F]>
    where
        F: Send,
    {
        self.data.par_chunks_exact_mut(self.cols)
    }

    /// All values, row after row.
    pub fn data(&self) -> &[F] {
        &self.data
    }

    pub fn data_mut(&mut self) -> &mut [F] {
        &mut self.data
    }

    /// All values, row after row.
    pub fn into_data(self) -> Vec<F> {
        self.data
    }

    /// A copy of the rows `range`.
    pub fn slice_rows(&self, range: std::ops::Range<usize>) -> Self {
        let data = self.data[range.start * self.cols..range.end * self.cols].to_vec();
        Self { rows: range.len(), cols: self.cols, data }
    }

    /// Adds rows at the end; `rows` holds whole rows.
    pub fn extend_rows(&mut self, rows: &[F]) {
        debug_assert_eq!(rows.len() % self.cols, 0);
        self.data.extend_from_slice(rows);
        self.rows = self.data.len() / self.cols;
    }
}
