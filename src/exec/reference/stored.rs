//! From stored rows to a transposed panel.
//!
//! Elements of two or four bytes are transposed as they are stored, several of them in one 32-bit word, and decoded on
//! the way into the panel: half the moves for a half, and nothing is written in between. Blocks are decoded row by row
//! first; slices of columns are whole blocks, since [`DEPTH`] is a multiple of each.

use super::lanes::{Lanes, prefetch};
use super::panel::DEPTH;
use crate::checkpoint::{Block, Decoder};
use crate::exec::weights::Tile;
use crate::ops::{Float, Level};
use std::ops::Range;

/// No level has more lanes.
const MAX_LANES: usize = 16;

/// Bytes that a processor reads at once.
const CACHE_LINE: usize = 64;

/// Scratch: decoded rows, where they can't be transposed as they are stored.
#[derive(Debug, Default)]
pub struct Rows(Vec<f32>);

/// Decodes `columns` (at most [`DEPTH`]) of `rows` (at most `2 * N`) into `panel`: column after column, `stride` floats
/// apart, the rows side by side. Where there are fewer than `2 * N` rows, the other lanes hold anything.
///
/// Each byte that is read asks for the one `ahead` bytes after it: rows lie far apart in memory, and without a hint each
/// slice of columns would be waited for.
///
/// # Safety
/// As [`Work::run`](super::vectors::Work::run).
#[inline(always)]
pub unsafe fn fill<F: Float, V: Lanes<F>>(
    w: &Tile<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: &mut Rows,
    panel: &mut [F],
    stride: usize,
    ahead: usize,
) {
    let row_bytes = w.bytes.len() / w.rows;
    let all = rows.len() == 2 * V::N && row_bytes.is_multiple_of(4) && cfg!(target_endian = "little");
    let whole =
        |bytes: usize| all && (columns.start * bytes).is_multiple_of(4) && (columns.len() * bytes).is_multiple_of(4);
    // SAFETY: the caller has enabled V's instructions, and the slices hold all rows to the end of `columns`.
    unsafe {
        let stored = || w.bytes[rows.start * row_bytes + columns.start * w.decoder.block_bytes()..].as_ptr().cast();
        match w.decoder {
            Decoder::F32 if whole(4) => {
                words::<F, V, 1>(Decoder::F32, stored(), row_bytes / 4, columns.len(), panel, stride, ahead);
            }
            Decoder::F16 if whole(2) => {
                words::<F, V, 2>(Decoder::F16, stored(), row_bytes / 4, columns.len() / 2, panel, stride, ahead);
            }
            Decoder::BF16 if whole(2) => {
                words::<F, V, 2>(Decoder::BF16, stored(), row_bytes / 4, columns.len() / 2, panel, stride, ahead);
            }
            Decoder::Block(block)
                if rows.len() == 2 * V::N && stride == 2 * V::N && block.goes_side_by_side(2 * V::N) =>
            {
                side_by_side::<F, V>(block, w, rows.start, columns, scratch, panel, ahead);
            }
            _ => {
                scratch.0.resize(2 * V::N * DEPTH, 0.0);
                for (r, row) in rows.zip(scratch.0.chunks_exact_mut(DEPTH)) {
                    let bytes = w.bytes_of(r, columns.start, columns.len());
                    if ahead > 0 {
                        for line in bytes.chunks(CACHE_LINE) {
                            prefetch(line.as_ptr().wrapping_add(ahead));
                        }
                    }
                    w.decoder.decode(bytes, &mut row[..columns.len()]);
                }
                words::<F, V, 1>(Decoder::F32, scratch.0.as_ptr().cast(), DEPTH, columns.len(), panel, stride, 0);
            }
        }
    }
}

/// Decodes `2 * N` rows of blocks, from row `first` on, straight into the panel.
#[inline(always)]
fn side_by_side<F: Float, V: Lanes<F>>(
    block: Block,
    w: &Tile<'_>,
    first: usize,
    columns: Range<usize>,
    scratch: &mut Rows,
    panel: &mut [F],
    ahead: usize,
) {
    let row_bytes = w.bytes.len() / w.rows;
    let bytes = &w.bytes[first * row_bytes + columns.start / block.elements() * block.bytes()..];
    let blocks = columns.len() / block.elements();
    if ahead > 0 {
        for r in 0..2 * V::N {
            for line in (0..blocks * block.bytes()).step_by(CACHE_LINE) {
                prefetch(bytes.as_ptr().wrapping_add(r * row_bytes + line + ahead));
            }
        }
    }
    let level = Level::selected().unwrap_or(Level::Portable);
    F::fill_from_f32(&mut panel[..2 * V::N * columns.len()], &mut scratch.0, |values| {
        block.decode_side_by_side(level, 2 * V::N, bytes, row_bytes, blocks, values);
    });
}

/// `2 * N` rows of `count` words, `from_stride` words apart, each word holding `PER_WORD` elements in ascending order
/// from its low end.
#[inline(always)]
unsafe fn words<F: Float, V: Lanes<F>, const PER_WORD: usize>(
    decoder: Decoder,
    from: *const u32,
    from_stride: usize,
    count: usize,
    panel: &mut [F],
    stride: usize,
    ahead: usize,
) {
    assert!(count == 0 || panel.len() >= (count * PER_WORD - 1) * stride + 2 * V::N);
    let mut square = [0; MAX_LANES * MAX_LANES];
    let whole = count / V::N * V::N;
    for half in 0..2 {
        // SAFETY: the caller vouches for the rows.
        let from = unsafe { from.add(half * V::N * from_stride) };
        for word in (0..whole).step_by(V::N) {
            if ahead > 0 {
                for r in 0..V::N {
                    prefetch(from.wrapping_add(r * from_stride + word).cast::<u8>().wrapping_add(ahead));
                }
            }
            // SAFETY: the words `word .. word + N` of N rows, into a square that has room for them.
            unsafe { V::transpose_words(from.add(word), from_stride, square.as_mut_ptr(), V::N) }
            for (i, line) in square.chunks_exact(V::N).take(V::N).enumerate() {
                for part in 0..PER_WORD {
                    let to = &mut panel[((word + i) * PER_WORD + part) * stride + half * V::N..][..V::N];
                    decode::<F, PER_WORD>(decoder, line, part, to);
                }
            }
        }
        for word in whole..count {
            for r in 0..V::N {
                // SAFETY: word `word` of row `r`.
                let line = [unsafe { from.add(r * from_stride + word).read_unaligned() }];
                for part in 0..PER_WORD {
                    let at = (word * PER_WORD + part) * stride + half * V::N + r;
                    decode::<F, PER_WORD>(decoder, &line, part, &mut panel[at..=at]);
                }
            }
        }
    }
}

/// Decodes element `part` of each word.
#[inline(always)]
fn decode<F: Float, const PER_WORD: usize>(decoder: Decoder, words: &[u32], part: usize, to: &mut [F]) {
    for (to, &word) in to.iter_mut().zip(words) {
        let mut value = [0.0];
        match PER_WORD {
            1 => decoder.decode(&word.to_le_bytes(), &mut value),
            _ => decoder.decode(&((word >> (16 * part)) as u16).to_le_bytes(), &mut value),
        }
        *to = F::from_f32(value[0]);
    }
}
