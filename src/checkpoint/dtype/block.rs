//! The block formats of GGML: groups of elements that share scales.
//!
//! Each decoder evaluates its format's own formula in float32, in the order of gguf-py's `dequantize_blocks`
//! (gguf/quants.py); the comment of its module or of itself says which. For any bytes the bits are those of gguf-py, and
//! a NaN is a NaN.

use super::plain::f16_to_f32;
use super::side_by_side::decode_rows;
use super::{codebooks, grids, legacy, superblocks, ternary};
use crate::ops::Level;
use crate::ops::level::elementwise_at;

/// Declares the formats: each one's name as gguf spells it, its number in a GGUF file, elements and stored bytes of a
/// block.
macro_rules! formats {
    ($($name:ident $number:literal $elements:literal $bytes:literal)*) => {
        /// A block format, under the name that gguf gives it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(non_camel_case_types, reason = "gguf's spelling")]
        pub enum Block {
            $($name,)*
        }

        impl Block {
            /// Every block format, by its number in a GGUF file.
            pub const ALL: &[Block] = &[$(Block::$name,)*];

            /// The spelling of gguf.
            pub const fn name(self) -> &'static str {
                match self { $(Block::$name => stringify!($name),)* }
            }

            /// Its number in a GGUF file.
            pub const fn number(self) -> u32 {
                match self { $(Block::$name => $number,)* }
            }

            /// Elements of a block. It divides 256.
            pub const fn elements(self) -> usize {
                match self { $(Block::$name => $elements,)* }
            }

            /// Stored bytes of a block.
            pub const fn bytes(self) -> usize {
                match self { $(Block::$name => $bytes,)* }
            }
        }
    };
}

// From gguf-py's GGMLQuantizationType and GGML_QUANT_SIZES, except for Q8_1: gguf-py still has the 40 bytes of its first
// layout (float32 d and s), ggml's block_q8_1 has had 36 (float16) since 2023.
formats! {
    Q4_0     2  32  18
    Q4_1     3  32  20
    Q5_0     6  32  22
    Q5_1     7  32  24
    Q8_0     8  32  34
    Q8_1     9  32  36
    Q2_K    10 256  84
    Q3_K    11 256 110
    Q4_K    12 256 144
    Q5_K    13 256 176
    Q6_K    14 256 210
    Q8_K    15 256 292
    IQ2_XXS 16 256  66
    IQ2_XS  17 256  74
    IQ3_XXS 18 256  98
    IQ1_S   19 256  50
    IQ4_NL  20  32  18
    IQ3_S   21 256 110
    IQ2_S   22 256  82
    IQ4_XS  23 256 136
    IQ1_M   29 256  56
    TQ1_0   34 256  54
    TQ2_0   35 256  66
    MXFP4   39  32  17
    NVFP4   40  64  36
    Q1_0    41 128  18
}

impl Block {
    /// The format with this number in a GGUF file.
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.iter().copied().find(|block| block.number() == number)
    }

    /// Decodes whole blocks: `out.len() / elements` of them. No bytes are invalid.
    ///
    /// Not inlined: one copy for each instruction set serves all kernels.
    #[inline(never)]
    pub(super) fn decode(self, level: Level, bytes: &[u8], out: &mut [f32]) {
        elementwise_at(
            level,
            #[inline(always)]
            || self.decode_here(bytes, out),
        );
    }

    /// Decodes `blocks` consecutive blocks of each of `rows` rows, which start `row_bytes` apart, into `[elements, rows]`:
    /// the bits of [`Decoder::decode`](super::Decoder::decode).
    ///
    /// # Panics
    /// They can't be decoded so ([`Block::goes_side_by_side`]), or a slice is too short.
    #[inline(never)]
    pub fn decode_side_by_side(
        self,
        level: Level,
        rows: usize,
        bytes: &[u8],
        row_bytes: usize,
        blocks: usize,
        out: &mut [f32],
    ) {
        assert!(self.goes_side_by_side(rows), "{rows} rows of {} can't be decoded side by side", self.name());
        elementwise_at(
            level,
            #[inline(always)]
            || match rows {
                4 => decode_rows::<4>(self, bytes, row_bytes, blocks, out),
                8 => decode_rows::<8>(self, bytes, row_bytes, blocks, out),
                16 => decode_rows::<16>(self, bytes, row_bytes, blocks, out),
                _ => decode_rows::<32>(self, bytes, row_bytes, blocks, out),
            },
        );
    }

    #[inline(always)]
    fn decode_here(self, bytes: &[u8], out: &mut [f32]) {
        // Closures of their own: a function handed on by itself is not compiled for the caller's instruction set.
        macro_rules! each_block {
            ($decode:path) => {
                each(
                    bytes,
                    out,
                    #[inline(always)]
                    |block, values| $decode(block, values),
                )
            };
        }
        match self {
            Block::Q4_0 => each_block!(legacy::q4_0),
            Block::Q4_1 => each_block!(legacy::q4_1),
            Block::Q5_0 => each_block!(legacy::q5_0),
            Block::Q5_1 => each_block!(legacy::q5_1),
            Block::Q8_0 => each_block!(legacy::q8_0),
            Block::Q8_1 => each_block!(legacy::q8_1),
            Block::Q2_K => each_block!(superblocks::q2_k),
            Block::Q3_K => each_block!(superblocks::q3_k),
            Block::Q4_K => each_block!(superblocks::q4_k),
            Block::Q5_K => each_block!(superblocks::q5_k),
            Block::Q6_K => each_block!(superblocks::q6_k),
            Block::Q8_K => each_block!(legacy::q8_k),
            Block::IQ2_XXS => each_block!(grids::iq2_xxs),
            Block::IQ2_XS => each_block!(grids::iq2_xs),
            Block::IQ3_XXS => each_block!(grids::iq3_xxs),
            Block::IQ1_S => each_block!(grids::iq1_s),
            Block::IQ4_NL => each_block!(codebooks::iq4_nl),
            Block::IQ3_S => each_block!(grids::iq3_s),
            Block::IQ2_S => each_block!(grids::iq2_s),
            Block::IQ4_XS => each_block!(codebooks::iq4_xs),
            Block::IQ1_M => each_block!(grids::iq1_m),
            Block::TQ1_0 => each_block!(ternary::tq1_0),
            Block::TQ2_0 => each_block!(ternary::tq2_0),
            Block::MXFP4 => each_block!(codebooks::mxfp4),
            Block::NVFP4 => each_block!(codebooks::nvfp4),
            Block::Q1_0 => each_block!(ternary::q1_0),
        }
    }
}

/// Decodes each block by itself.
#[inline(always)]
fn each<const BYTES: usize, const ELEMENTS: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, _) = bytes.as_chunks::<BYTES>();
    let (values, _) = out.as_chunks_mut::<ELEMENTS>();
    for (block, values) in blocks.iter().zip(values) {
        decode(block, values);
    }
}

/// `N` bytes of a block, from `at` on.
#[inline(always)]
pub(super) fn part<const N: usize>(block: &[u8], at: usize) -> &[u8; N] {
    block[at..].first_chunk().expect("a block has all its parts")
}

/// The float16 at `at`.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    f16_to_f32(u16::from_le_bytes(*part(block, at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_side_by_side_have_the_bits_of_each_by_itself() {
        let mut state = 7u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut known = 0;
        for &format in Block::ALL {
            let (elements, bytes, blocks) = (format.elements(), format.bytes(), 3);
            // Rows of another length than the blocks that are decoded.
            let row_bytes = blocks * bytes + 5;
            let stored: Vec<u8> = (0..32 * row_bytes).map(|_| random()).collect();
            for level in Level::ALL.into_iter().filter(|level| level.available()) {
                for rows in [4, 8, 16, 32] {
                    let mut out = vec![0.5; rows * blocks * elements];
                    if !format.goes_side_by_side(rows) {
                        continue;
                    }
                    format.decode_side_by_side(level, rows, &stored, row_bytes, blocks, &mut out);
                    known += 1;
                    for row in 0..rows {
                        let mut alone = vec![0.0; blocks * elements];
                        format.decode(Level::Portable, &stored[row * row_bytes..][..blocks * bytes], &mut alone);
                        for (i, alone) in alone.iter().enumerate() {
                            let beside = out[i * rows + row];
                            let same = beside.to_bits() == alone.to_bits() || beside.is_nan() && alone.is_nan();
                            assert!(
                                same,
                                "{} {level} {rows}: row {row}, element {i}: {beside} for {alone}",
                                format.name()
                            );
                        }
                    }
                }
            }
        }
        assert!(known > 0 && known % (13 * 4) == 0, "{known}");
    }
}
