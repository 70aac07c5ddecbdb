//! From a plan's weight to stored bytes, a few rows at a time.

use crate::checkpoint::{Decoder, Source, TensorInfo};
use crate::model::plan::Weight;
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result};
use std::borrow::Cow;

/// Some rows of a stored matrix.
pub struct Tile<'a> {
    pub decoder: Decoder,
    pub rows: usize,
    pub cols: usize,
    /// `rows` rows of equal length.
    pub bytes: Cow<'a, [u8]>,
}

impl Tile<'_> {
    /// Stored bytes of row `r`.
    pub fn row(&self, r: usize) -> &[u8] {
        let len = self.bytes.len() / self.rows;
        &self.bytes[r * len..][..len]
    }

    /// Decodes the columns of row `r` from `first` on, as many as `out` takes; both ends lie on the format's blocks
    /// or at the row's end. `scratch` holds the float32 values on the way to a wider float.
    #[inline(always)]
    pub fn decode<F: Float>(&self, r: usize, first: usize, scratch: &mut Vec<f32>, out: &mut [F]) {
        let bytes = self.bytes_of(r, first, out.len());
        F::fill_from_f32(out, scratch, |values| self.decoder.decode(bytes, values));
    }

    /// Stored bytes of `count` columns of row `r` from `first` on.
    #[inline(always)]
    pub fn bytes_of(&self, r: usize, first: usize, count: usize) -> &[u8] {
        let at = |column: usize| column / self.decoder.block_elements() * self.decoder.block_bytes();
        &self.row(r)[at(first)..at(first + count)]
    }
}

/// Reads a plan's weights from a source.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    source: &'a dyn Source,
    /// Rows are read in tiles of about so many bytes (at least one row each).
    tile_bytes: usize,
}

impl<'a> Reader<'a> {
    pub fn new(source: &'a dyn Source, tile_bytes: usize) -> Self {
        Self { source, tile_bytes }
    }

    fn info(&self, weight: &Weight) -> Result<&'a TensorInfo> {
        self.source
            .tensors()
            .get(&weight.name)
            .with_context(|| format!("tensor {}: not in the checkpoint", weight.name))
    }

    /// All rows of a matrix in order, as tiles, each with the index of its first row.
    pub fn tiles(&self, weight: &Weight) -> Result<impl Iterator<Item = Result<(usize, Tile<'a>)>> + use<'a>> {
        let info = self.info(weight)?;
        let (rows, cols) = weight.rows_and_cols();
        let row_bytes = (info.len / rows as u64).max(1);
        let step = (self.tile_bytes as u64 / row_bytes).clamp(1, rows as u64) as usize;
        let reader = *self;
        Ok((0..rows).step_by(step).map(move |first| {
            let rows = step.min(rows - first);
            Ok((first, reader.tile(info, first, rows, cols)?))
        }))
    }

    fn tile(&self, info: &'a TensorInfo, first: usize, rows: usize, cols: usize) -> Result<Tile<'a>> {
        let decoder = info.dtype.decoder();
        let decoder = decoder.with_context(|| format!("tensor {}: no decoder for {}", info.name, info.dtype))?;
        let row_bytes = (cols / decoder.block_elements() * decoder.block_bytes()) as u64;
        let bytes = self.source.read(info, first as u64 * row_bytes..(first + rows) as u64 * row_bytes)?;
        Ok(Tile { decoder, rows, cols, bytes })
    }

    /// A whole vector, decoded: a norm's weights, a bias.
    pub fn vector<F: Float>(&self, weight: &Weight) -> Result<Vec<F>> {
        let (_, cols) = weight.rows_and_cols();
        let tile = self.tile(self.info(weight)?, 0, 1, cols)?;
        let mut out = vec![F::ZERO; cols];
        tile.decode(0, 0, &mut Vec::new(), &mut out);
        Ok(out)
    }

    /// The rows `indices` of a matrix, decoded: `[indices, cols]`. The caller has checked the indices.
    pub fn gather<F: Float>(
        &self,
        weight: &Weight,
        indices: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Matrix<F>> {
        let info = self.info(weight)?;
        let (_, cols) = weight.rows_and_cols();
        let mut out = Matrix::filled(indices.len(), cols, F::ZERO);
        let mut scratch = Vec::new();
        for (index, row) in indices.zip(out.iter_rows_mut()) {
            self.tile(info, index, 1, cols)?.decode(0, 0, &mut scratch, row);
        }
        Ok(out)
    }
}
