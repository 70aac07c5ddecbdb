//! Blocks of several rows at once, their values side by side: what one token needs most, since nothing has to be moved
//! afterwards.
//!
//! Each format's formula is that of its decoder for one block, operation by operation, so that the bits are the same. Codes
//! come in words of four bytes, one of each row, and the loops over rows are for the processor's vectors.

use super::block::{Block, half};
use super::superblocks::scale_and_min;
use std::array::from_fn;

/// One block of each of `L` rows.
type Blocks<'a, const L: usize, const BYTES: usize> = [&'a [u8; BYTES]; L];

/// Values of the same element of each row.
type Line<const L: usize> = [f32; L];

impl Block {
    /// Whether so many rows can be decoded side by side.
    pub fn goes_side_by_side(self, rows: usize) -> bool {
        use Block::*;
        matches!(rows, 4 | 8 | 16 | 32) && matches!(self, Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q4_K | Q5_K | Q6_K | MXFP4)
    }
}

/// Decodes `blocks` consecutive blocks of each of `L` rows, which start `row_bytes` apart. `out` is `[elements, L]`.
///
/// # Panics
/// The format doesn't go side by side, or a slice is too short.
#[inline(always)]
pub fn decode_rows<const L: usize>(format: Block, bytes: &[u8], row_bytes: usize, blocks: usize, out: &mut [f32]) {
    match format {
        Block::Q4_0 => each(bytes, row_bytes, blocks, out, q4_0::<L>),
        Block::Q4_1 => each(bytes, row_bytes, blocks, out, q4_1::<L>),
        Block::Q5_0 => each(bytes, row_bytes, blocks, out, q5_0::<L>),
        Block::Q5_1 => each(bytes, row_bytes, blocks, out, q5_1::<L>),
        Block::Q8_0 => each(bytes, row_bytes, blocks, out, q8_0::<L>),
        Block::Q4_K => each(bytes, row_bytes, blocks, out, q4_k::<L>),
        Block::Q5_K => each(bytes, row_bytes, blocks, out, q5_k::<L>),
        Block::Q6_K => each(bytes, row_bytes, blocks, out, q6_k::<L>),
        Block::MXFP4 => each(bytes, row_bytes, blocks, out, mxfp4::<L>),
        other => panic!("{} doesn't go side by side", other.name()),
    }
}

#[inline(always)]
fn each<const L: usize, const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    row_bytes: usize,
    blocks: usize,
    out: &mut [f32],
    decode: impl Fn(Blocks<'_, L, BYTES>, &mut [Line<L>; ELEMENTS]),
) {
    let (lines, _) = out.as_chunks_mut::<L>();
    let (outs, _) = lines.as_chunks_mut::<ELEMENTS>();
    for (i, out) in outs.iter_mut().take(blocks).enumerate() {
        decode(from_fn(|r| bytes[r * row_bytes + i * BYTES..].first_chunk().expect("a whole block")), out);
    }
}

/// Four bytes of each row, the first one lowest.
#[inline(always)]
fn words<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>, at: usize) -> [u32; L] {
    from_fn(|r| u32::from_le_bytes(*blocks[r][at..].first_chunk().expect("a word of the block")))
}

#[inline(always)]
fn halves<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>, at: usize) -> Line<L> {
    from_fn(|r| half(blocks[r], at))
}

#[inline(always)]
fn line<const L: usize>(out: &mut Line<L>, value: impl Fn(usize) -> f32) {
    for (r, out) in out.iter_mut().enumerate() {
        *out = value(r);
    }
}

/// 16 bytes from `at` on: `value(r, q, j)` of their low halves, elements 0 to 15, and of their high halves.
#[inline(always)]
fn nibbles<const L: usize, const BYTES: usize>(
    blocks: Blocks<'_, L, BYTES>,
    at: usize,
    out: &mut [Line<L>; 32],
    value: impl Fn(usize, u32, usize) -> f32,
) {
    for w in 0..4 {
        let words = words(blocks, at + 4 * w);
        for b in 0..4 {
            let j = 4 * w + b;
            line(&mut out[j], |r| value(r, words[r] >> (8 * b) & 15, j));
            line(&mut out[16 + j], |r| value(r, words[r] >> (8 * b + 4) & 15, 16 + j));
        }
    }
}

#[inline(always)]
fn q4_0<const L: usize>(blocks: Blocks<'_, L, 18>, out: &mut [Line<L>; 32]) {
    let d = halves(blocks, 0);
    nibbles(blocks, 2, out, |r, q, _| d[r] * (q as i32 - 8) as f32);
}

#[inline(always)]
fn q4_1<const L: usize>(blocks: Blocks<'_, L, 20>, out: &mut [Line<L>; 32]) {
    let (d, m) = (halves(blocks, 0), halves(blocks, 2));
    nibbles(blocks, 4, out, |r, q, _| d[r] * q as i32 as f32 + m[r]);
}

#[inline(always)]
fn q5_0<const L: usize>(blocks: Blocks<'_, L, 22>, out: &mut [Line<L>; 32]) {
    let (d, high) = (halves(blocks, 0), words(blocks, 2));
    nibbles(blocks, 6, out, |r, q, j| d[r] * ((q | (high[r] >> j & 1) << 4) as i32 - 16) as f32);
}

#[inline(always)]
fn q5_1<const L: usize>(blocks: Blocks<'_, L, 24>, out: &mut [Line<L>; 32]) {
    let (d, m, high) = (halves(blocks, 0), halves(blocks, 2), words(blocks, 4));
    nibbles(blocks, 8, out, |r, q, j| d[r] * (q | (high[r] >> j & 1) << 4) as i32 as f32 + m[r]);
}

#[inline(always)]
fn q8_0<const L: usize>(blocks: Blocks<'_, L, 34>, out: &mut [Line<L>; 32]) {
    let d = halves(blocks, 0);
    for w in 0..8 {
        let words = words(blocks, 2 + 4 * w);
        for b in 0..4 {
            line(&mut out[4 * w + b], |r| d[r] * ((words[r] << (24 - 8 * b)) as i32 >> 24) as f32);
        }
    }
}

#[inline(always)]
fn mxfp4<const L: usize>(blocks: Blocks<'_, L, 17>, out: &mut [Line<L>; 32]) {
    let d: Line<L> = from_fn(|r| {
        let e = u32::from(blocks[r][0]);
        f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
    });
    nibbles(blocks, 1, out, |r, q, _| {
        // E2M1, doubled: 0, 1, 2, 3, 4, 6, 8, 12.
        let (exponent, mantissa) = (q >> 1 & 3, q & 1);
        let magnitude = if exponent == 0 { mantissa } else { (2 | mantissa) << (exponent - 1) } as i32;
        d[r] * if q & 8 == 0 { magnitude } else { -magnitude } as f32
    });
}

/// The scales and minima of each group of 32.
#[inline(always)]
fn scales_and_mins<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>) -> [(Line<L>, Line<L>); 8] {
    let (d, dmin) = (halves(blocks, 0), halves(blocks, 2));
    from_fn(|group| {
        let mut pair = ([0.0; L], [0.0; L]);
        for r in 0..L {
            let scales = blocks[r][4..].first_chunk().expect("12 bytes of scales");
            let (scale, min) = scale_and_min(scales, group);
            (pair.0[r], pair.1[r]) = (d[r] * scale, dmin[r] * min);
        }
        pair
    })
}

/// 32 bytes from `at` on: the low halves are one group of 32, the high halves the next.
#[inline(always)]
fn two_groups<const L: usize, const BYTES: usize>(
    blocks: Blocks<'_, L, BYTES>,
    at: usize,
    out: &mut [Line<L>],
    value: impl Fn(usize, u32, usize, usize) -> f32,
) {
    for w in 0..8 {
        let words = words(blocks, at + 4 * w);
        for b in 0..4 {
            let j = 4 * w + b;
            line(&mut out[j], |r| value(r, words[r] >> (8 * b) & 15, 0, j));
            line(&mut out[32 + j], |r| value(r, words[r] >> (8 * b + 4) & 15, 1, j));
        }
    }
}

#[inline(always)]
fn q4_k<const L: usize>(blocks: Blocks<'_, L, 144>, out: &mut [Line<L>; 256]) {
    let scales = scales_and_mins(blocks);
    for (i, out) in out.chunks_exact_mut(64).enumerate() {
        two_groups(blocks, 16 + 32 * i, out, |r, q, group, _| {
            let (scale, min) = &scales[2 * i + group];
            scale[r] * q as i32 as f32 - min[r]
        });
    }
}

#[inline(always)]
fn q5_k<const L: usize>(blocks: Blocks<'_, L, 176>, out: &mut [Line<L>; 256]) {
    let scales = scales_and_mins(blocks);
    let high: [[u32; L]; 8] = from_fn(|w| words(blocks, 16 + 4 * w));
    for (i, out) in out.chunks_exact_mut(64).enumerate() {
        two_groups(blocks, 48 + 32 * i, out, |r, q, group, j| {
            let (scale, min) = &scales[2 * i + group];
            let fifth = high[j / 4][r] >> (j % 4 * 8 + 2 * i + group) & 1;
            scale[r] * (q | fifth << 4) as i32 as f32 - min[r]
        });
    }
}

#[inline(always)]
fn q6_k<const L: usize>(blocks: Blocks<'_, L, 210>, out: &mut [Line<L>; 256]) {
    let d = halves(blocks, 208);
    for (i, out) in out.chunks_exact_mut(128).enumerate() {
        let scales: [Line<L>; 8] = from_fn(|group| from_fn(|r| d[r] * f32::from(blocks[r][192 + 8 * i + group] as i8)));
        let high: [[u32; L]; 8] = from_fn(|w| words(blocks, 128 + 32 * i + 4 * w));
        for w in 0..16 {
            let low = words(blocks, 64 * i + 4 * w);
            let high = &high[w % 8];
            for b in 0..4 {
                let j = 4 * w + b;
                let shift = 8 * b + 2 * (w / 8);
                let value = |r: usize, low: u32, upper: u32, scale: &Line<L>| {
                    scale[r] * ((low & 15 | (upper & 3) << 4) as i32 - 32) as f32
                };
                line(&mut out[j], |r| value(r, low[r] >> (8 * b), high[r] >> shift, &scales[j / 16]));
                let upper = &scales[4 + j / 16];
                line(&mut out[64 + j], |r| value(r, low[r] >> (8 * b + 4), high[r] >> (shift + 4), upper));
            }
        }
    }
}
