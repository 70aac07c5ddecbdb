//! From a plan's weight to stored bytes: piece by piece, in the order of a pass, read ahead while the last piece is
//! computed.

mod ahead;
mod rows;
mod schedule;
mod sweep;
mod tile;

pub use ahead::AHEAD;
pub use rows::{Block, RowReader};
pub(super) use schedule::{of_mlp, of_plan};
pub use tile::{Scratch, Steps, Tile, Transposed};

use crate::checkpoint::{Decoder, Source};
use crate::model::plan::{Mlp, Plan, Weight};
use crate::ops::{Float, Matrix};
use ahead::Ahead;
use anyhow::{Context, Result, ensure};
use std::ops::Range;
use std::sync::Arc;
use sweep::{PLANES, Pieces, Sweep, View, sweeps};

/// A piece of a weight, as a kernel takes it.
#[derive(Debug, Clone, Copy)]
pub enum Stored<'a> {
    /// Outputs from `first` on, one in each row.
    Rows { first: usize, tile: Tile<'a> },
    /// Some inputs of all outputs. Those of a weight come in ascending order.
    Columns(Transposed<'a>),
}

/// The weights of one pass. They come fastest in the order of the schedule, since a thread of its own reads them ahead
/// of time in that order; any other order works as well.
pub struct Weights {
    source: Arc<dyn Source>,
    pieces: Pieces,
    ahead: Option<Ahead>,
    /// Those that were chosen on the way.
    experts: Option<Ahead>,
    /// For what is not read ahead.
    buffer: Vec<u8>,
    /// Rows that were picked from a piece.
    picked: Vec<u8>,
}

impl Weights {
    /// Matrices come in pieces of about `piece_bytes`. A source that isn't resident is read ahead, by up to [`AHEAD`]
    /// pieces.
    pub fn of_pass(source: Arc<dyn Source>, plan: &Plan, piece_bytes: usize) -> Self {
        let pieces = Pieces { bytes: piece_bytes, threads: rayon::current_num_threads() };
        let ahead = (!source.is_resident()).then(|| {
            let reads = schedule::of_plan(plan).into_iter().flat_map(|group| reads(source.as_ref(), pieces, &group));
            Ahead::start(&source, reads.collect())
        });
        Self { source, pieces, ahead, experts: None, buffer: Vec::new(), picked: Vec::new() }
    }

    /// Reads these experts ahead as well, in this order. They replace those of the last call.
    pub fn expect_experts<'a>(&mut self, experts: impl Iterator<Item = &'a Mlp>) {
        if self.ahead.is_some() {
            let groups: Vec<Vec<&Weight>> = experts.flat_map(schedule::of_mlp).collect();
            let reads = groups.iter().flat_map(|group| reads(self.source.as_ref(), self.pieces, group));
            self.experts = Some(Ahead::start(&self.source, reads.collect()));
        }
    }

    /// All of some matrices that are used together, piece by piece; `f` is told which one a piece belongs to.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn each_piece(&mut self, weights: &[&Weight], mut f: impl FnMut(usize, Stored<'_>)) -> Result<()> {
        let source = Arc::clone(&self.source);
        for sweep in sweeps(source.as_ref(), weights)? {
            for rows in sweep.pieces(self.pieces) {
                self.piece(&sweep, rows, &mut f)?;
            }
        }
        Ok(())
    }

    /// Small matrices that are used together, decoded, in the plan's shapes: convolutions, norms, biases.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn matrices<F: Float>(&mut self, weights: &[&Weight]) -> Result<Vec<Matrix<F>>> {
        let empty = |weight: &&Weight| {
            let (rows, cols) = weight.rows_and_cols();
            Matrix::filled(rows, cols, F::ZERO)
        };
        let mut all: Vec<Matrix<F>> = weights.iter().map(empty).collect();
        let (mut narrow, mut scratch, mut column) = (Vec::new(), Scratch::default(), Vec::new());
        self.each_piece(weights, |which, stored| match stored {
            Stored::Rows { first, tile } => {
                let out = &mut all[which].data_mut()[first * tile.cols..];
                for (r, row) in out.chunks_exact_mut(tile.cols).take(tile.rows).enumerate() {
                    tile.decode(r, 0, &mut narrow, row);
                }
            }
            Stored::Columns(part) => {
                let outputs = part.columns.count;
                let out = all[which].data_mut();
                let inputs = out.len() / outputs;
                column.resize(outputs, F::ZERO);
                for r in 0..part.tile.rows {
                    part.decode(r, 0..outputs, &mut scratch, &mut column);
                    for (o, &value) in column.iter().enumerate() {
                        out[o * inputs + part.input + r] = value;
                    }
                }
            }
        })?;
        Ok(all)
    }

    /// As [`Weights::matrices`], of one.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn matrix<F: Float>(&mut self, weight: &Weight) -> Result<Matrix<F>> {
        self.matrices(&[weight])?.pop().context("as many matrices as weights")
    }

    /// All elements of a small weight, decoded, row after row: a norm's weights, a bias.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn vector<F: Float>(&mut self, weight: &Weight) -> Result<Vec<F>> {
        Ok(self.matrix(weight)?.into_data())
    }

    /// The rows `indices` of a matrix, decoded: `[indices, cols]`. The caller has checked the indices.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn gather<F: Float>(&mut self, weight: &Weight, indices: &[u32]) -> Result<Matrix<F>> {
        let source = Arc::clone(&self.source);
        let (_, cols) = weight.rows_and_cols();
        let mut out = Matrix::filled(indices.len(), cols, F::ZERO);
        let mut scratch = Vec::new();
        let sweeps = sweeps(source.as_ref(), &[weight])?;
        let [Sweep { views, .. }] = &sweeps[..] else { return Ok(out) };
        let [(_, View::Rows { rows })] = &views[..] else {
            anyhow::bail!("tensor {}: rows can't be taken from a transposed embedding", weight.name)
        };
        for (&index, row) in indices.iter().zip(out.iter_rows_mut()) {
            ensure!((index as usize) < rows.count, "tensor {}: there is no row {index}", weight.name);
            let at = rows.at(index as usize);
            self.piece(&sweeps[0], at..at + 1, &mut |_, stored| {
                if let Stored::Rows { tile, .. } = stored {
                    tile.decode(0, 0, &mut scratch, row);
                }
            })?;
        }
        Ok(out)
    }

    /// Reads some stored rows and hands out what they hold of each weight.
    fn piece(&mut self, sweep: &Sweep<'_>, rows: Range<usize>, f: &mut impl FnMut(usize, Stored<'_>)) -> Result<()> {
        let range = sweep.bytes(&rows);
        let name = &sweep.info.name;
        let picked = &mut self.picked;
        let mut ahead = self.experts.iter_mut().chain(&mut self.ahead);
        if let Some(ahead) = ahead.find(|ahead| ahead.comes_next(name, &range)) {
            let buffer = ahead.take()?;
            hand_out(sweep, rows, &buffer, picked, f);
            ahead.give_back(buffer);
        } else {
            let bytes = self.source.read_into(sweep.info, range, &mut self.buffer)?;
            hand_out(sweep, rows, bytes, picked, f);
        }
        Ok(())
    }
}

/// Tells `f` what `bytes`, the stored rows `rows`, hold of each weight of a sweep.
fn hand_out(
    sweep: &Sweep<'_>,
    rows: Range<usize>,
    bytes: &[u8],
    picked: &mut Vec<u8>,
    f: &mut impl FnMut(usize, Stored<'_>),
) {
    let row_bytes = bytes.len() / rows.len();
    fn tile<'b>(sweep: &Sweep<'_>, rows: usize, bytes: &'b [u8]) -> Tile<'b> {
        Tile { decoder: sweep.decoder, rows, cols: sweep.cols, bytes }
    }
    for (which, view) in &sweep.views {
        match view {
            View::Rows { rows: steps } => {
                let outputs = steps.before(rows.start)..steps.before(rows.end);
                let Some(last) = outputs.clone().last() else { continue };
                let at = |o: usize| steps.at(o) - rows.start;
                let together = at(last) - at(outputs.start) == last - outputs.start;
                let bytes = if together {
                    &bytes[at(outputs.start) * row_bytes..(at(last) + 1) * row_bytes]
                } else {
                    picked.clear();
                    outputs.clone().for_each(|o| picked.extend_from_slice(&bytes[at(o) * row_bytes..][..row_bytes]));
                    picked.as_slice()
                };
                f(*which, Stored::Rows { first: outputs.start, tile: tile(sweep, outputs.len(), bytes) });
            }
            View::Packed { rows: stored } => {
                for plane in 0..PLANES {
                    let tile = Tile { decoder: Decoder::Ternary { plane }, ..tile(sweep, rows.len(), bytes) };
                    f(*which, Stored::Rows { first: usize::from(plane) * stored + rows.start, tile });
                }
            }
            View::Columns { base, inputs, columns } => {
                let (start, end) = (rows.start.max(*base), rows.end.min(base + inputs));
                if start < end {
                    let bytes = &bytes[(start - rows.start) * row_bytes..(end - rows.start) * row_bytes];
                    let part =
                        Transposed { tile: tile(sweep, end - start, bytes), input: start - base, columns: *columns };
                    f(*which, Stored::Columns(part));
                }
            }
        }
    }
}

/// The pieces of some weights that are used together. A tensor that can't be read is met again, and told, where it is
/// used.
fn reads(source: &dyn Source, pieces: Pieces, weights: &[&Weight]) -> Vec<ahead::Piece> {
    let sweeps = sweeps(source, weights).unwrap_or_default();
    sweeps.iter().flat_map(|sweep| sweep.reads(pieces)).collect()
}

/// Bytes of the largest piece of some weights that are used together: a piece holds at least one row.
pub fn largest_piece(source: &dyn Source, piece_bytes: usize, weights: &[&Weight]) -> u64 {
    let pieces = Pieces { bytes: piece_bytes, threads: 1 };
    reads(source, pieces, weights).iter().map(|(_, range)| range.end - range.start).max().unwrap_or(0)
}
