//! From a plan's weight to stored bytes: piece by piece, in the order of a pass, read ahead while the last piece is
//! computed.

use crate::checkpoint::{Decoder, Source, TensorInfo};
use crate::model::plan::{Plan, Weight};
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

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

/// The weights of one pass. They come fastest in the plan's order, since a thread of its own reads them ahead of time
/// in that order; any other order works as well.
pub struct Weights {
    source: Arc<dyn Source>,
    pieces: Pieces,
    ahead: Option<Ahead>,
    /// For what is not read ahead.
    buffer: Vec<u8>,
}

impl Weights {
    /// Matrices come in pieces of about `piece_bytes`. A source that isn't resident is read ahead, by up to [`AHEAD`]
    /// pieces.
    pub fn of_pass(source: Arc<dyn Source>, plan: &Plan, piece_bytes: usize) -> Self {
        let pieces = Pieces { bytes: piece_bytes, threads: rayon::current_num_threads() };
        let ahead = (!source.is_resident()).then(|| Ahead::start(&source, schedule(&source, plan, pieces)));
        Self { source, pieces, ahead, buffer: Vec::new() }
    }

    /// All rows of a matrix in order, as tiles, each with the index of its first row.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn each_tile(&mut self, weight: &Weight, mut f: impl FnMut(usize, &Tile<'_>)) -> Result<()> {
        let source = Arc::clone(&self.source);
        let info = tensor(source.as_ref(), weight)?;
        let (_, cols) = weight.rows_and_cols();
        for rows in self.pieces.of(info, weight) {
            self.tile(info, rows.clone(), cols, |tile| f(rows.start, tile))?;
        }
        Ok(())
    }

    /// A whole vector, decoded: a norm's weights, a bias.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn vector<F: Float>(&mut self, weight: &Weight) -> Result<Vec<F>> {
        let (_, cols) = weight.rows_and_cols();
        let mut out = vec![F::ZERO; cols];
        self.each_tile(weight, |_, tile| tile.decode(0, 0, &mut Vec::new(), &mut out))?;
        Ok(out)
    }

    /// The rows `indices` of a matrix, decoded: `[indices, cols]`. The caller has checked the indices.
    ///
    /// # Errors
    /// The source can't be read.
    pub fn gather<F: Float>(&mut self, weight: &Weight, indices: &[u32]) -> Result<Matrix<F>> {
        let source = Arc::clone(&self.source);
        let info = tensor(source.as_ref(), weight)?;
        let (_, cols) = weight.rows_and_cols();
        let mut out = Matrix::filled(indices.len(), cols, F::ZERO);
        let mut scratch = Vec::new();
        for (&index, row) in indices.iter().zip(out.iter_rows_mut()) {
            let index = index as usize;
            self.tile(info, index..index + 1, cols, |tile| tile.decode(0, 0, &mut scratch, row))?;
        }
        Ok(out)
    }

    fn tile(&mut self, info: &TensorInfo, rows: Range<usize>, cols: usize, f: impl FnOnce(&Tile<'_>)) -> Result<()> {
        let decoder = info.dtype.decoder();
        let decoder = decoder.with_context(|| format!("tensor {}: no decoder for {}", info.name, info.dtype))?;
        let row_bytes = (cols / decoder.block_elements() * decoder.block_bytes()) as u64;
        let range = rows.start as u64 * row_bytes..rows.end as u64 * row_bytes;
        let use_bytes = |bytes: &[u8]| f(&Tile { decoder, rows: rows.len(), cols, bytes });
        if let Some(ahead) = &mut self.ahead
            && ahead.comes_next(&info.name, &range)
        {
            let buffer = ahead.take()?;
            use_bytes(&buffer);
            ahead.give_back(buffer);
        } else {
            use_bytes(self.source.read_into(info, range, &mut self.buffer)?);
        }
        Ok(())
    }
}

fn tensor<'a>(source: &'a dyn Source, weight: &Weight) -> Result<&'a TensorInfo> {
    source.tensors().get(&weight.name).with_context(|| format!("tensor {}: not in the checkpoint", weight.name))
}

/// How matrices are cut into pieces.
#[derive(Debug, Clone, Copy)]
struct Pieces {
    bytes: usize,
    threads: usize,
}

impl Pieces {
    /// Rows of each piece: about `bytes`, and as many for every thread where that is enough.
    fn of(self, info: &TensorInfo, weight: &Weight) -> impl Iterator<Item = Range<usize>> + use<> {
        let (rows, _) = weight.rows_and_cols();
        let row_bytes = (info.len / rows.max(1) as u64).max(1);
        let step = (self.bytes as u64 / row_bytes).clamp(1, rows.max(1) as u64) as usize;
        // Kernels take this many rows at a time (reference::panel::MAX_ROWS).
        let fair = 32 * self.threads;
        let step = if step >= fair { step / fair * fair } else { step };
        (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
    }
}

/// A tensor's name and a byte range of it.
type Piece = (String, Range<u64>);

/// The pieces of a pass, in the order in which they are used; the embedding's rows are read apart.
fn schedule(source: &Arc<dyn Source>, plan: &Plan, pieces: Pieces) -> VecDeque<Piece> {
    let mut schedule = VecDeque::new();
    let mut add = |weight: &Weight| {
        if let Some(info) = source.tensors().get(&weight.name) {
            let (rows, _) = weight.rows_and_cols();
            let row_bytes = info.len / rows.max(1) as u64;
            for rows in pieces.of(info, weight) {
                schedule.push_back((info.name.clone(), rows.start as u64 * row_bytes..rows.end as u64 * row_bytes));
            }
        }
    };
    for layer in &plan.layers {
        layer.each_weight(&mut add);
    }
    plan.each_weight_after_layers(&mut add);
    plan.head.linear.each_weight(&mut add);
    schedule
}

/// Pieces that are read ahead of time.
pub const AHEAD: usize = 2;

/// A thread that reads pieces in a given order, and the way that buffers take: full ones come from it, empty ones go
/// back.
struct Ahead {
    full: Option<Receiver<Result<Vec<u8>>>>,
    empty: Sender<Vec<u8>>,
    /// What is still to come, the next one first.
    expected: VecDeque<Piece>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    fn start(source: &Arc<dyn Source>, expected: VecDeque<Piece>) -> Self {
        let (give, full) = sync_channel(AHEAD);
        let (empty, get) = channel::<Vec<u8>>();
        for _ in 0..=AHEAD {
            // The receiver lives in the thread that starts below.
            let _ = empty.send(Vec::new());
        }
        let (source, order) = (Arc::clone(source), expected.clone());
        let thread = std::thread::spawn(move || {
            for (name, range) in order {
                let Ok(mut buffer) = get.recv() else { return };
                let read = source.tensors().get(&name).context("a scheduled tensor exists").and_then(|info| {
                    source.read_into(info, range, &mut buffer)?;
                    Ok(buffer)
                });
                if give.send(read).is_err() {
                    return;
                }
            }
        });
        Self { full: Some(full), empty, expected, thread: Some(thread) }
    }

    fn comes_next(&self, name: &str, range: &Range<u64>) -> bool {
        self.expected.front().is_some_and(|(n, r)| n == name && r == range)
    }

    fn take(&mut self) -> Result<Vec<u8>> {
        self.expected.pop_front();
        let full = self.full.as_ref().context("the reading thread is there as long as this")?;
        full.recv().context("the reading thread has ended early")?
    }

    fn give_back(&self, buffer: Vec<u8>) {
        // After its last piece the thread is gone and needs no buffer.
        let _ = self.empty.send(buffer);
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Closing the channel ends the thread, at the latest when it has read its present piece.
        drop(self.full.take());
        let (closed, _) = channel();
        drop(std::mem::replace(&mut self.empty, closed));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
