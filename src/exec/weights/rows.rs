//! Some rows of a weight at a time, on demand: whatever its container, layout and format, they come decoded, in the order
//! of the plan. So two weights of different checkpoints can be walked in step.

use super::sweep::{Sweep, View, sweeps};
use super::tile::Tile;
use crate::checkpoint::{Decoder, Dtype, Source};
use crate::model::plan::Weight;
use anyhow::{Context, Result};
use std::ops::Range;

/// Reads a weight's rows: `[rows, cols]`, a vector being one row.
pub struct RowReader<'s> {
    source: &'s dyn Source,
    sweep: Sweep<'s>,
    rows: usize,
    cols: usize,
}

impl<'s> RowReader<'s> {
    /// # Errors
    /// The tensor is not there, or can't be one that holds this weight.
    pub fn new(source: &'s dyn Source, weight: &Weight) -> Result<Self> {
        let (rows, cols) = weight.rows_and_cols();
        let sweep = sweeps(source, &[weight])?.pop().context("as many sweeps as weights")?;
        Ok(Self { source, sweep, rows, cols })
    }

    /// The format that the weight is stored in.
    pub fn dtype(&self) -> &'s Dtype {
        &self.sweep.info.dtype
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of a row while it is held.
    pub fn row_bytes(&self) -> u64 {
        match self.view() {
            View::Rows { .. } if self.as_stored() => self.sweep.bytes(&(0..1)).end,
            _ => self.cols as u64 * size_of::<f32>() as u64,
        }
    }

    /// A sweep over one weight has one view.
    fn view(&self) -> View {
        self.sweep.views[0].1
    }

    /// Whether a stored row is a row.
    fn as_stored(&self) -> bool {
        self.sweep.cols == self.cols
    }

    /// Reads the rows `range` into `block`. Of a block format's columns in a tensor stored as `[in, out]` those that share
    /// a block with them are read besides.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn read(&self, range: Range<usize>, block: &mut Block) -> Result<()> {
        (block.cols, block.decoder) = (self.cols, None);
        block.bytes.clear();
        block.values.clear();
        match self.view() {
            View::Rows { rows } if self.as_stored() => {
                block.decoder = Some(self.sweep.decoder);
                let mut next = range.start;
                while next < range.end {
                    // Rows that lie together.
                    let first = rows.at(next);
                    let together = (next..range.end).take_while(|&o| rows.at(o) - first == o - next).count();
                    self.append(self.sweep.bytes(&(first..first + together)), block)?;
                    next += together;
                }
                block.rows = range.len();
                Ok(())
            }
            // A vector whose elements are rows of one.
            View::Rows { rows } => {
                let outputs = range.start * self.cols..range.end * self.cols;
                for run in rows.runs() {
                    self.append(self.sweep.bytes(&run), block)?;
                }
                let tile = Tile {
                    decoder: self.sweep.decoder,
                    rows: outputs.len(),
                    cols: self.sweep.cols,
                    bytes: &block.bytes,
                };
                block.values.resize(outputs.len(), 0.0);
                for (r, value) in block.values.chunks_exact_mut(1).enumerate() {
                    tile.decode(r, 0, &mut Vec::new(), value);
                }
                Ok(())
            }
            View::Packed { rows } => {
                for o in range {
                    let (plane, row) = ((o / rows) as u8, o % rows);
                    block.bytes.clear();
                    self.append(self.sweep.bytes(&(row..row + 1)), block)?;
                    let at = block.values.len();
                    block.values.resize(at + self.cols, 0.0);
                    Decoder::Ternary { plane }.decode(&block.bytes, &mut block.values[at..]);
                }
                Ok(())
            }
            View::Columns { .. } => self.columns(range, block),
        }
    }

    /// Rows that are columns of the stored tensor.
    fn columns(&self, range: Range<usize>, block: &mut Block) -> Result<()> {
        let View::Columns { base, inputs, columns } = self.view() else { return Ok(()) };
        // A vector lies along the only stored row.
        let outputs = if inputs == 1 { range.start * self.cols..range.end * self.cols } else { range };
        let Some(last) = outputs.clone().last() else { return Ok(()) };
        let decoder = self.sweep.decoder;
        let (elements, size) = (decoder.block_elements(), decoder.block_bytes());
        let first = columns.at(outputs.start) / elements;
        let end = (columns.at(last) + 1).div_ceil(elements);
        let span = first * elements..(end * elements).min(self.sweep.cols);
        if span.len() == self.sweep.cols {
            self.append(self.sweep.bytes(&(base..base + inputs)), block)?;
        } else {
            for row in base..base + inputs {
                let start = self.sweep.bytes(&(row..row + 1)).start;
                self.append(start + (first * size) as u64..start + (end * size) as u64, block)?;
            }
        }
        let tile = Tile { decoder, rows: inputs, cols: span.len(), bytes: &block.bytes };
        let mut values = vec![0.0; span.len()];
        block.values.resize(outputs.len() * inputs, 0.0);
        for input in 0..inputs {
            tile.decode(input, 0, &mut Vec::new(), &mut values);
            for (row, o) in outputs.clone().enumerate() {
                block.values[row * inputs + input] = values[columns.at(o) - span.start];
            }
        }
        Ok(())
    }

    fn append(&self, range: Range<u64>, block: &mut Block) -> Result<()> {
        let bytes = self.source.read_into(self.sweep.info, range, &mut block.read)?;
        block.bytes.extend_from_slice(bytes);
        Ok(())
    }
}

/// Rows that were read. It keeps its allocations from one read to the next.
#[derive(Debug, Default)]
pub struct Block {
    rows: usize,
    cols: usize,
    /// Where the bytes are rows as they stand; else the values are.
    decoder: Option<Decoder>,
    bytes: Vec<u8>,
    values: Vec<f32>,
    read: Vec<u8>,
}

impl Block {
    /// Decodes row `r`, counted from the first that was read, into `out`: `[cols]`.
    pub fn row(&self, r: usize, out: &mut [f32]) {
        match self.decoder {
            Some(decoder) => {
                let tile = Tile { decoder, rows: self.rows, cols: self.cols, bytes: &self.bytes };
                tile.decode(r, 0, &mut Vec::new(), out);
            }
            None => out.copy_from_slice(&self.values[r * self.cols..][..self.cols]),
        }
    }
}
