//! How weights lie in stored tensors, and in which pieces they are read.
//!
//! Weights that are used together and lie in one tensor (fused q, k and v; gate and up; those of one expert) are read
//! in one sweep over the rows that any of them needs, so that each stored byte is read about once.

use super::ahead::Piece;
use super::tile::Steps;
use crate::checkpoint::{Decoder, Source, TensorInfo};
use crate::model::plan::Weight;
use anyhow::{Context, Result, ensure};
use std::ops::Range;

/// Where a weight lies in its stored matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// Output o is the whole stored row `rows.at(o)`.
    Rows { rows: Steps },
    /// Input i is stored row `base + i`, output o its column `columns.at(o)`.
    Columns { base: usize, inputs: usize, columns: Steps },
    /// Output o is the bits `2 * (o / rows)` and the next of the stored row `o % rows`.
    Packed { rows: usize },
}

/// Outputs in a row of packed ones.
pub const PLANES: u8 = 4;

impl View {
    /// The view, and the stored matrix's columns.
    pub fn of(weight: &Weight) -> (Self, usize) {
        let (rows, cols) = weight.rows_and_cols();
        let Some(part) = &weight.part else { return (Self::Rows { rows: Steps::contiguous(0, rows) }, cols) };
        if part.packed {
            return (Self::Packed { rows: rows / usize::from(PLANES) }, cols);
        }
        // A vector has an output for each of its elements; its stored tensor is a column of them, unless the vector lies
        // along a row of it.
        let vector = weight.shape.len() == 1;
        let (outputs, inputs) = if vector { (cols, 1) } else { (rows, cols) };
        let column = vector && !part.transposed;
        let stored_cols = if column { 1 } else { part.stored.last().copied().unwrap_or(1) };
        let steps = |first| Steps { first, block: part.block, stride: part.stride, count: outputs };
        if part.transposed {
            (Self::Columns { base: part.base, inputs, columns: steps(part.first) }, stored_cols)
        } else {
            (Self::Rows { rows: steps(part.base + part.first) }, stored_cols)
        }
    }

    /// The stored rows that it needs, as runs of neighbours.
    fn runs(&self) -> Vec<Range<usize>> {
        match self {
            View::Rows { rows } => rows.runs().collect(),
            View::Columns { base, inputs, .. } => std::iter::once(*base..base + inputs).collect(),
            View::Packed { rows } => std::iter::once(0..*rows).collect(),
        }
    }
}

/// Weights of one stored tensor that are read together.
pub struct Sweep<'s> {
    pub info: &'s TensorInfo,
    pub decoder: Decoder,
    pub cols: usize,
    /// Stored bytes of a row.
    row_bytes: u64,
    /// Which of the weights, and where it lies.
    pub views: Vec<(usize, View)>,
}

/// Unneeded bytes up to this many are read along with what lies around them.
const GAP: u64 = 64 << 10;

/// The sweeps over `weights`, in the order in which their tensors come first.
///
/// # Errors
/// A tensor is not there, has no decoder, has rows that are not whole blocks, or is too short.
pub fn sweeps<'s>(source: &'s dyn Source, weights: &[&Weight]) -> Result<Vec<Sweep<'s>>> {
    let mut sweeps: Vec<Sweep<'s>> = Vec::new();
    for (index, weight) in weights.iter().enumerate() {
        let (view, cols) = View::of(weight);
        let together = |s: &&mut Sweep<'_>| s.info.name == weight.name && s.cols == cols;
        if let Some(sweep) = sweeps.iter_mut().find(together) {
            sweep.views.push((index, view));
            continue;
        }
        let info = source.tensors().get(&weight.name);
        let info = info.with_context(|| format!("tensor {}: not in the checkpoint", weight.name))?;
        let decoder = match view {
            View::Packed { .. } => Some(Decoder::Ternary { plane: 0 }),
            _ => info.dtype.decoder(),
        };
        let decoder = decoder.with_context(|| format!("tensor {}: no decoder for {}", info.name, info.dtype))?;
        info.dtype.check_row(cols).map_err(|problem| anyhow::anyhow!("tensor {}: {problem}", info.name))?;
        let row_bytes = (cols / decoder.block_elements() * decoder.block_bytes()) as u64;
        sweeps.push(Sweep { info, decoder, cols, row_bytes, views: vec![(index, view)] });
    }
    for sweep in &sweeps {
        let end = sweep.views.iter().flat_map(|(_, view)| view.runs()).map(|run| run.end).max().unwrap_or(0);
        let (needed, found) = (end as u64 * sweep.row_bytes, sweep.info.len);
        ensure!(needed <= found, "tensor {}: expected at least {needed} bytes, found {found}", sweep.info.name);
    }
    Ok(sweeps)
}

impl Sweep<'_> {
    /// The stored rows of each piece, in order.
    pub fn pieces(&self, pieces: Pieces) -> Vec<Range<usize>> {
        let mut runs: Vec<Range<usize>> = self.views.iter().flat_map(|(_, view)| view.runs()).collect();
        runs.sort_by_key(|run| run.start);
        let mut merged: Vec<Range<usize>> = Vec::new();
        for run in runs.into_iter().filter(|run| !run.is_empty()) {
            match merged.last_mut() {
                Some(last) if run.start.saturating_sub(last.end) as u64 * self.row_bytes <= GAP => {
                    last.end = last.end.max(run.end);
                }
                _ => merged.push(run),
            }
        }
        merged.into_iter().flat_map(|run| pieces.of(run, self.row_bytes)).collect()
    }

    /// The bytes of some stored rows.
    pub fn bytes(&self, rows: &Range<usize>) -> Range<u64> {
        rows.start as u64 * self.row_bytes..rows.end as u64 * self.row_bytes
    }

    /// What is read, in order.
    pub fn reads(&self, pieces: Pieces) -> impl Iterator<Item = Piece> {
        self.pieces(pieces).into_iter().map(|rows| (self.info.name.clone(), self.bytes(&rows)))
    }
}

/// How matrices are cut into pieces.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    pub bytes: usize,
    pub threads: usize,
}

impl Pieces {
    /// Rows of each piece: about `bytes`, and as many for every thread where that is enough.
    fn of(self, rows: Range<usize>, row_bytes: u64) -> impl Iterator<Item = Range<usize>> + use<> {
        let step = (self.bytes as u64 / row_bytes.max(1)).clamp(1, rows.len().max(1) as u64) as usize;
        // Kernels take this many rows at a time (reference::panel::MAX_ROWS).
        let fair = 32 * self.threads;
        let step = if step >= fair { step / fair * fair } else { step };
        let end = rows.end;
        rows.step_by(step).map(move |first| first..end.min(first + step))
    }
}
