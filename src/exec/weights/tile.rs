//! What a kernel is given: stored bytes, and what they mean.

use crate::checkpoint::Decoder;
use crate::ops::Float;
use std::ops::Range;

/// Some rows of a stored matrix.
#[derive(Debug, Clone, Copy)]
pub struct Tile<'a> {
    pub decoder: Decoder,
    pub rows: usize,
    pub cols: usize,
    /// `rows` rows of equal length.
    pub bytes: &'a [u8],
}

impl Tile<'_> {
    /// Stored bytes of row `r`.
    #[inline(always)]
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

/// Some inputs of a matrix that is stored as `[in, out]`: each row of `tile` holds one input's weights, those of the
/// outputs in the columns that `columns` names.
#[derive(Debug, Clone, Copy)]
pub struct Transposed<'a> {
    pub tile: Tile<'a>,
    /// The input that the tile's first row belongs to.
    pub input: usize,
    pub columns: Steps,
}

impl Transposed<'_> {
    /// Decodes the weights of `outputs` for row `r` into `out`.
    #[inline(always)]
    pub fn decode<F: Float>(&self, r: usize, outputs: Range<usize>, scratch: &mut Scratch<F>, out: &mut [F]) {
        let Some(last) = outputs.clone().last() else { return };
        let block = self.tile.decoder.block_elements();
        let (first, end) = (self.columns.at(outputs.start), self.columns.at(last) + 1);
        let span = first / block * block..end.next_multiple_of(block).min(self.tile.cols);
        if span.len() == outputs.len() {
            return self.tile.decode(r, span.start, &mut scratch.narrow, out);
        }
        scratch.span.resize(span.len(), F::ZERO);
        self.tile.decode(r, span.start, &mut scratch.narrow, &mut scratch.span);
        for (value, o) in out.iter_mut().zip(outputs) {
            *value = scratch.span[self.columns.at(o) - span.start];
        }
    }
}

/// For [`Transposed::decode`].
#[derive(Debug)]
pub struct Scratch<F> {
    narrow: Vec<f32>,
    span: Vec<F>,
}

impl<F> Default for Scratch<F> {
    fn default() -> Self {
        Self { narrow: Vec::new(), span: Vec::new() }
    }
}

/// Places at regular steps: number i is `first + i / block * stride + i % block`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    pub first: usize,
    pub block: usize,
    pub stride: usize,
    /// How many there are.
    pub count: usize,
}

impl Steps {
    /// `count` places in a row.
    pub fn contiguous(first: usize, count: usize) -> Self {
        Self { first, block: count.max(1), stride: count.max(1), count }
    }

    #[inline(always)]
    pub fn at(&self, i: usize) -> usize {
        self.first + i / self.block * self.stride + i % self.block
    }

    /// How many places lie before `end`. Places ascend.
    pub fn before(&self, end: usize) -> usize {
        let Some(distance) = end.checked_sub(self.first) else { return 0 };
        (distance / self.stride * self.block + (distance % self.stride).min(self.block)).min(self.count)
    }

    /// The runs of neighbouring places.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let steps = *self;
        let block = if steps.block == steps.stride { steps.count.max(1) } else { steps.block };
        (0..steps.count).step_by(block).map(move |i| {
            let first = steps.at(i);
            first..first + block.min(steps.count - i)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Dtype;

    #[test]
    fn steps_are_blocks_apart() {
        // Blocks of two, five apart: 3 4, 8 9, 13.
        let steps = Steps { first: 3, block: 2, stride: 5, count: 5 };
        assert_eq!((0..5).map(|i| steps.at(i)).collect::<Vec<_>>(), [3, 4, 8, 9, 13]);
        assert_eq!(steps.runs().collect::<Vec<_>>(), [3..5, 8..10, 13..14]);
        for end in 0..20 {
            assert_eq!(steps.before(end), (0..5).filter(|&i| steps.at(i) < end).count(), "before {end}");
        }
        let steps = Steps { first: 3, block: 2, stride: 2, count: 5 };
        assert!(steps.runs().eq(std::iter::once(3..8)), "neighbouring blocks are one run");
        assert!(Steps::contiguous(1, 4).runs().eq(std::iter::once(1..5)));
    }

    #[test]
    fn a_transposed_row_gives_the_outputs_of_its_columns() {
        let bytes: Vec<u8> = (0..12u8).flat_map(|v| f32::from(v).to_le_bytes()).collect();
        let tile = Tile { decoder: Dtype::F32.decoder().unwrap(), rows: 2, cols: 6, bytes: &bytes };
        let mut out = [0.0f64; 3];
        let odd = Transposed { tile, input: 0, columns: Steps { first: 1, block: 1, stride: 2, count: 3 } };
        odd.decode(1, 0..3, &mut Scratch::default(), &mut out);
        assert_eq!(out, [7.0, 9.0, 11.0]);
        let half = Transposed { tile, input: 0, columns: Steps::contiguous(3, 3) };
        half.decode(0, 1..3, &mut Scratch::default(), &mut out[..2]);
        assert_eq!(out[..2], [4.0, 5.0]);
    }
}
