//! Blocks of several rows at once, their values side by side: what one token needs most, since nothing has to be moved
//! afterwards.
//!
//! Each format's formula is that of its decoder for one block, operation by operation, so that the bits are the same. Codes
//! come in words of four bytes, one of each row, and the loops over rows are for the processor's vectors.

use super::block::{Block, half};
use super::superblocks::{scale_and_min, third_scale};

/// One block of each of `L` rows.
type Blocks<'a, const L: usize, const BYTES: usize> = [&'a [u8; BYTES]; L];

/// Values of the same element of each row.
type Line<const L: usize> = [f32; L];

impl Block {
    /// Whether so many rows can be decoded side by side.
    pub fn goes_side_by_side(self, rows: usize) -> bool {
        use Block::*;
        matches!(rows, 4 | 8 | 16 | 32)
            && matches!(
                self,
                Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 | Q8_1 | Q2_K | Q3_K | Q4_K | Q5_K | Q6_K | MXFP4 | IQ4_NL
            )
    }
}

/// Decodes `blocks` consecutive blocks of each of `L` rows, which start `row_bytes` apart. `out` is `[elements, L]`.
///
/// # Panics
/// The format doesn't go side by side, or a slice is too short.
#[inline(always)]
pub fn decode_rows<const L: usize>(format: Block, bytes: &[u8], row_bytes: usize, blocks: usize, out: &mut [f32]) {
    // Closures of their own: a function handed on by itself is not compiled for the caller's instruction set.
    macro_rules! side_by_side {
        ($decode:ident) => {
            each(
                bytes,
                row_bytes,
                blocks,
                out,
                #[inline(always)]
                |blocks, out| $decode::<L>(blocks, out),
            )
        };
    }
    match format {
        Block::Q4_0 => side_by_side!(q4_0),
        Block::Q4_1 => side_by_side!(q4_1),
        Block::Q5_0 => side_by_side!(q5_0),
        Block::Q5_1 => side_by_side!(q5_1),
        Block::Q8_0 => side_by_side!(q8_0),
        Block::Q8_1 => side_by_side!(q8_1),
        Block::Q2_K => side_by_side!(q2_k),
        Block::Q3_K => side_by_side!(q3_k),
        Block::Q4_K => side_by_side!(q4_k),
        Block::Q5_K => side_by_side!(q5_k),
        Block::Q6_K => side_by_side!(q6_k),
        Block::MXFP4 => side_by_side!(mxfp4),
        Block::IQ4_NL => side_by_side!(iq4_nl),
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
        let block = |r: usize| bytes[r * row_bytes + i * BYTES..].first_chunk().expect("a whole block");
        let mut blocks = [block(0); L];
        for (r, other) in blocks.iter_mut().enumerate().skip(1) {
            *other = block(r);
        }
        decode(blocks, out);
    }
}

/// As `std::array::from_fn`, which is not always inlined.
#[inline(always)]
fn lanes<T: Copy + Default, const L: usize>(value: impl Fn(usize) -> T) -> [T; L] {
    let mut all = [T::default(); L];
    for (r, one) in all.iter_mut().enumerate() {
        *one = value(r);
    }
    all
}

/// Four bytes of each row, the first one lowest.
#[inline(always)]
fn words<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>, at: usize) -> [u32; L] {
    lanes(|r| u32::from_le_bytes(*blocks[r][at..].first_chunk().expect("a word of the block")))
}

#[inline(always)]
fn halves<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>, at: usize) -> Line<L> {
    lanes(|r| half(blocks[r], at))
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
    nibbles(
        blocks,
        2,
        out,
        #[inline(always)]
        |r, q, _| d[r] * (q as i32 - 8) as f32,
    );
}

#[inline(always)]
fn q4_1<const L: usize>(blocks: Blocks<'_, L, 20>, out: &mut [Line<L>; 32]) {
    let (d, m) = (halves(blocks, 0), halves(blocks, 2));
    nibbles(
        blocks,
        4,
        out,
        #[inline(always)]
        |r, q, _| d[r] * q as i32 as f32 + m[r],
    );
}

#[inline(always)]
fn q5_0<const L: usize>(blocks: Blocks<'_, L, 22>, out: &mut [Line<L>; 32]) {
    let (d, high) = (halves(blocks, 0), words(blocks, 2));
    nibbles(
        blocks,
        6,
        out,
        #[inline(always)]
        |r, q, j| d[r] * ((q | (high[r] >> j & 1) << 4) as i32 - 16) as f32,
    );
}

#[inline(always)]
fn q5_1<const L: usize>(blocks: Blocks<'_, L, 24>, out: &mut [Line<L>; 32]) {
    let (d, m, high) = (halves(blocks, 0), halves(blocks, 2), words(blocks, 4));
    nibbles(
        blocks,
        8,
        out,
        #[inline(always)]
        |r, q, j| d[r] * (q | (high[r] >> j & 1) << 4) as i32 as f32 + m[r],
    );
}

#[inline(always)]
fn q8_0<const L: usize>(blocks: Blocks<'_, L, 34>, out: &mut [Line<L>; 32]) {
    signed(blocks, 2, out);
}

#[inline(always)]
fn q8_1<const L: usize>(blocks: Blocks<'_, L, 36>, out: &mut [Line<L>; 32]) {
    signed(blocks, 4, out);
}

/// `d`, and 32 signed bytes from `at` on.
#[inline(always)]
fn signed<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>, at: usize, out: &mut [Line<L>; 32]) {
    let d = halves(blocks, 0);
    for w in 0..8 {
        let words = words(blocks, at + 4 * w);
        for b in 0..4 {
            line(&mut out[4 * w + b], |r| d[r] * ((words[r] << (24 - 8 * b)) as i32 >> 24) as f32);
        }
    }
}

#[inline(always)]
fn mxfp4<const L: usize>(blocks: Blocks<'_, L, 17>, out: &mut [Line<L>; 32]) {
    /// E2M1, doubled, without its sign: 0, 1, 2, 3, 4, 6, 8, 12, four bits each.
    const MAGNITUDES: u32 = 0xc864_3210;
    let d: Line<L> = lanes(|r| {
        let e = u32::from(blocks[r][0]);
        f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
    });
    nibbles(
        blocks,
        1,
        out,
        #[inline(always)]
        |r, q, _| {
            let (magnitude, negative) = ((MAGNITUDES >> (4 * (q & 7)) & 15) as i32, (q >> 3) as i32);
            d[r] * ((magnitude ^ -negative) + negative) as f32
        },
    );
}

#[inline(always)]
fn iq4_nl<const L: usize>(blocks: Blocks<'_, L, 18>, out: &mut [Line<L>; 32]) {
    /// Its values, four in a word.
    const WORDS: [u32; 4] = [0xbfad_9881, 0xf6ea_ddcf, 0x2619_0d01, 0x7159_4535];
    let d = halves(blocks, 0);
    nibbles(
        blocks,
        2,
        out,
        #[inline(always)]
        |r, q, _| {
            let low = if q & 4 == 0 { WORDS[0] } else { WORDS[1] };
            let high = if q & 4 == 0 { WORDS[2] } else { WORDS[3] };
            let word = if q & 8 == 0 { low } else { high };
            d[r] * ((word >> (8 * (q & 3)) << 24) as i32 >> 24) as f32
        },
    );
}

/// The scales and minima of each group of 32.
#[inline(always)]
fn scales_and_mins<const L: usize, const BYTES: usize>(blocks: Blocks<'_, L, BYTES>) -> [(Line<L>, Line<L>); 8] {
    let (d, dmin) = (halves(blocks, 0), halves(blocks, 2));
    let mut pairs = [([0.0; L], [0.0; L]); 8];
    for (group, (scales, mins)) in pairs.iter_mut().enumerate() {
        for r in 0..L {
            let (scale, min) = scale_and_min(blocks[r][4..].first_chunk().expect("12 bytes of scales"), group);
            (scales[r], mins[r]) = (d[r] * scale, dmin[r] * min);
        }
    }
    pairs
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
    let mut high = [[0; L]; 8];
    for (w, high) in high.iter_mut().enumerate() {
        *high = words(blocks, 16 + 4 * w);
    }
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
        let (mut scales, mut high) = ([[0.0; L]; 8], [[0; L]; 8]);
        for k in 0..8 {
            scales[k] = lanes(|r| d[r] * f32::from(blocks[r][192 + 8 * i + k] as i8));
            high[k] = words(blocks, 128 + 32 * i + 4 * k);
        }
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

/// 64 bytes from `at` on: byte j of each 32 holds the elements j, 32 + j, 64 + j and 96 + j of 128, two bits each.
/// `value(r, q, group, i, j)` of each, i being the eighth of the block that it lies in, and j its byte.
#[inline(always)]
fn quarters<const L: usize, const BYTES: usize>(
    blocks: Blocks<'_, L, BYTES>,
    at: usize,
    out: &mut [Line<L>; 256],
    value: impl Fn(usize, u32, usize, usize, usize) -> f32,
) {
    for half in 0..2 {
        for w in 0..8 {
            let words = words(blocks, at + 32 * half + 4 * w);
            for b in 0..4 {
                let j = 4 * w + b;
                for quarter in 0..4 {
                    let i = 4 * half + quarter;
                    let shift = 8 * b + 2 * quarter;
                    line(&mut out[32 * i + j], |r| value(r, words[r] >> shift & 3, 2 * i + j / 16, i, j));
                }
            }
        }
    }
}

#[inline(always)]
fn q2_k<const L: usize>(blocks: Blocks<'_, L, 84>, out: &mut [Line<L>; 256]) {
    let (d, dmin) = (halves(blocks, 80), halves(blocks, 82));
    let (mut scales, mut mins) = ([[0.0; L]; 16], [[0.0; L]; 16]);
    for group in 0..16 {
        scales[group] = lanes(|r| d[r] * f32::from(blocks[r][group] & 15));
        mins[group] = lanes(|r| dmin[r] * f32::from(blocks[r][group] >> 4));
    }
    quarters(
        blocks,
        16,
        out,
        #[inline(always)]
        |r, q, group, _, _| scales[group][r] * q as i32 as f32 - mins[group][r],
    );
}

#[inline(always)]
fn q3_k<const L: usize>(blocks: Blocks<'_, L, 110>, out: &mut [Line<L>; 256]) {
    let d = halves(blocks, 108);
    let (mut scales, mut high) = ([[0.0; L]; 16], [[0; L]; 8]);
    for (group, scales) in scales.iter_mut().enumerate() {
        *scales = lanes(|r| d[r] * third_scale(blocks[r][96..].first_chunk().expect("12 bytes of scales"), group));
    }
    for (w, high) in high.iter_mut().enumerate() {
        *high = words(blocks, 4 * w);
    }
    quarters(
        blocks,
        32,
        out,
        #[inline(always)]
        |r, q, group, i, j| {
            let third = high[j / 4][r] >> (j % 4 * 8 + i) & 1;
            scales[group][r] * ((q | third << 2) as i32 - 4) as f32
        },
    );
}
