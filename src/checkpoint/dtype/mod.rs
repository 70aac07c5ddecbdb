//! Storage formats of a tensor's elements, and how each becomes float32.

mod block;
mod codebooks;
mod grids;
mod legacy;
pub mod minifloat;
mod plain;
mod side_by_side;
mod superblocks;
mod tables;
mod ternary;

pub use block::Block;

use crate::ops::Level;
use crate::ops::level::elementwise_at;
use serde::{Serialize, Serializer};
use std::fmt;

/// How a tensor's elements are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    F64,
    I8,
    I16,
    I32,
    I64,
    /// Groups of elements that share scales.
    Block(Block),
    /// A format that a header may name and that no decoder exists for, with the header's own spelling (`BOOL`, `C64`
    /// ...).
    Other(String),
}

/// The formats of which each element is a number by itself, with their numbers in a GGUF file.
const PLAIN: [(Dtype, u32); 8] = [
    (Dtype::F32, 0),
    (Dtype::F16, 1),
    (Dtype::BF16, 30),
    (Dtype::F64, 28),
    (Dtype::I8, 24),
    (Dtype::I16, 25),
    (Dtype::I32, 26),
    (Dtype::I64, 27),
];

/// The smallest part of a tensor that is stored by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    pub elements: usize,
    pub bytes: usize,
}

impl Dtype {
    /// The format that a safetensors header spells `name`. Every spelling is accepted: an unknown one has neither a
    /// size nor a decoder.
    pub fn parse(name: &str) -> Self {
        let known = PLAIN.into_iter().map(|(dtype, _)| dtype).find(|dtype| dtype.name() == name);
        known.unwrap_or_else(|| Self::Other(name.to_owned()))
    }

    /// The format that has this number in a GGUF file.
    pub fn of_ggml(number: u32) -> Option<Self> {
        let plain = PLAIN.into_iter().find(|(_, n)| *n == number).map(|(dtype, _)| dtype);
        plain.or_else(|| Block::of_number(number).map(Self::Block))
    }

    /// The spelling of a safetensors header, that of gguf for a block format.
    pub fn name(&self) -> &str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::F64 => "F64",
            Self::I8 => "I8",
            Self::I16 => "I16",
            Self::I32 => "I32",
            Self::I64 => "I64",
            Self::Block(block) => block.name(),
            Self::Other(name) => name,
        }
    }

    /// What is stored by itself, for every format of the safetensors specification and every block format; `None` for
    /// an unknown spelling.
    pub fn unit(&self) -> Option<Unit> {
        let (elements, bytes) = match self {
            Self::Block(block) => (block.elements(), block.bytes()),
            _ => match self.name() {
                "F4" => (2, 1),
                "F6_E2M3" | "F6_E3M2" => (4, 3),
                "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => (1, 1),
                "U16" | "I16" | "F16" | "BF16" => (1, 2),
                "U32" | "I32" | "F32" => (1, 4),
                "U64" | "I64" | "F64" | "C64" => (1, 8),
                _ => return None,
            },
        };
        Some(Unit { elements, bytes })
    }

    /// Bytes that `elements` consecutive elements take; `None` for an unknown spelling, a number that is not whole
    /// units, or one beyond 64 bits.
    pub fn bytes(&self, elements: u64) -> Option<u64> {
        let unit = self.unit()?;
        let each = unit.elements as u64;
        if elements.is_multiple_of(each) { (elements / each).checked_mul(unit.bytes as u64) } else { None }
    }

    /// Bytes that a tensor of this `shape` takes (an empty shape is a scalar); `None` as for [`Dtype::bytes`], and where
    /// the rows of a block format are not whole blocks.
    pub fn shape_bytes(&self, shape: &[usize]) -> Option<u64> {
        self.check_row(shape.last().copied().unwrap_or(1)).ok()?;
        if shape.contains(&0) {
            return self.bytes(0);
        }
        let elements = shape.iter().try_fold(1u64, |product, &n| product.checked_mul(u64::try_from(n).ok()?))?;
        self.bytes(elements)
    }

    /// Whether rows of `cols` elements are whole blocks; a format without blocks takes any.
    ///
    /// # Errors
    /// The sentence to say where they are not.
    pub fn check_row(&self, cols: usize) -> Result<(), String> {
        match self {
            Self::Block(block) if !cols.is_multiple_of(block.elements()) => {
                Err(format!("expected a row of a multiple of {} elements for {self}, found {cols}", block.elements()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes that one row of `cols` elements takes: [`Dtype::bytes`] of the innermost dimension.
    pub fn row_bytes(&self, cols: usize) -> Option<u64> {
        self.bytes(u64::try_from(cols).ok()?)
    }

    /// How to turn stored elements into float32; `None` when no decoder exists for this format.
    pub fn decoder(&self) -> Option<Decoder> {
        Some(match self {
            Self::F32 => Decoder::F32,
            Self::F16 => Decoder::F16,
            Self::BF16 => Decoder::BF16,
            Self::F64 => Decoder::F64,
            Self::I8 => Decoder::I8,
            Self::I16 => Decoder::I16,
            Self::I32 => Decoder::I32,
            Self::I64 => Decoder::I64,
            Self::Block(block) => Decoder::Block(*block),
            Self::Other(_) => return None,
        })
    }
}

impl Serialize for Dtype {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Turns stored elements into float32, a run of whole blocks of one row at a time.
///
/// A block is the smallest unit that can be decoded by itself: one element of a plain format, a group of elements
/// with a shared scale of a block format. A row always starts a new block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decoder {
    F32,
    F16,
    BF16,
    /// Two bits of each byte, from the `2 * plane`th on, less one. No [`Dtype`] says so: it takes a plan to know that a
    /// tensor of U8 holds four planes of them.
    Ternary {
        plane: u8,
    },
    /// A whole number from 0 to 255. As the floats of one byte, it is a part of a quantised matrix: its tensor can't be
    /// decoded by itself, for want of a scale.
    U8,
    E4M3,
    E5M2,
    E8M0,
    /// Rounded to the nearest float32, as are integers that no float32 holds.
    F64,
    I8,
    I16,
    I32,
    I64,
    Block(Block),
}

impl Decoder {
    /// Elements of one block: runs start and end at multiples of it.
    pub fn block_elements(&self) -> usize {
        match self {
            Self::Block(block) => block.elements(),
            _ => 1,
        }
    }

    /// Stored bytes of one block.
    pub fn block_bytes(&self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::E4M3 | Self::E5M2 | Self::E8M0 | Self::Ternary { .. } => 1,
            Self::F16 | Self::BF16 | Self::I16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::Block(block) => block.bytes(),
        }
    }

    /// Decodes the consecutive little-endian elements in `bytes` into `out`. Those of up to four bytes become what they
    /// are: every finite value, infinity and zero keeps its sign and value, and a NaN stays a NaN. Block formats follow
    /// their own formulas.
    ///
    /// Always inlined, so that it is compiled for the instruction set of the kernel that calls it; block formats run on
    /// the selected one.
    ///
    /// # Panics
    /// When `out` is not a whole number of blocks, or `bytes` not as many.
    #[inline(always)]
    pub fn decode(&self, bytes: &[u8], out: &mut [f32]) {
        self.check(bytes, out);
        match self {
            Self::Block(block) => {
                block.decode(Level::selected().unwrap_or(Level::Portable), bytes, out);
            }
            _ => plain::decode(*self, bytes, out),
        }
    }

    /// As [`Decoder::decode`], on the instruction set of `level`.
    ///
    /// # Panics
    /// As [`Decoder::decode`], and where the processor doesn't have it.
    pub fn decode_at(&self, level: Level, bytes: &[u8], out: &mut [f32]) {
        self.check(bytes, out);
        assert!(level.available(), "this processor has no {level}");
        match self {
            Self::Block(block) => block.decode(level, bytes, out),
            _ => elementwise_at(
                level,
                #[inline(always)]
                || plain::decode(*self, bytes, out),
            ),
        }
    }

    #[inline(always)]
    fn check(&self, bytes: &[u8], out: &[f32]) {
        let blocks = out.len() / self.block_elements();
        assert_eq!(out.len(), blocks * self.block_elements(), "a run of elements is a whole number of blocks");
        assert_eq!(bytes.len(), blocks * self.block_bytes(), "a run of elements has its format's number of bytes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(dtype: Dtype, bytes: &[u8], n: usize) -> Vec<f32> {
        let mut out = vec![f32::NAN; n];
        dtype.decoder().expect("decodable").decode(bytes, &mut out);
        out
    }

    /// The value of a binary16-like pattern from its fields, as IEEE 754 defines it (table 3.1 and section 3.4).
    fn from_fields(bits: u16, exponent_bits: u32, mantissa_bits: u32) -> f64 {
        let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
        let top = (1i32 << exponent_bits) - 1;
        let bias = top / 2;
        let exponent = i32::from(bits >> mantissa_bits) & top;
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
        match exponent {
            0 => sign * mantissa * 2f64.powi(1 - bias),
            e if e == top && mantissa == 0.0 => sign * f64::INFINITY,
            e if e == top => f64::NAN,
            e => sign * (1.0 + mantissa) * 2f64.powi(e - bias),
        }
    }

    fn check_every_pattern(dtype: Dtype, exponent_bits: u32, mantissa_bits: u32) {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let decoded = decode(dtype.clone(), &bytes, 1 << 16);
        for (bits, got) in (0..=u16::MAX).zip(decoded) {
            let want = from_fields(bits, exponent_bits, mantissa_bits);
            if want.is_nan() {
                assert!(got.is_nan(), "{dtype} {bits:#06x}: {got} is not a NaN");
            } else {
                assert_eq!(f64::from(got).to_bits(), want.to_bits(), "{dtype} {bits:#06x}: {got} is not {want}");
            }
        }
    }

    #[test]
    fn every_f16_pattern_has_its_ieee_value() {
        check_every_pattern(Dtype::F16, 5, 10);
    }

    #[test]
    fn every_bf16_pattern_has_its_value() {
        check_every_pattern(Dtype::BF16, 8, 7);
    }

    #[test]
    fn values_worked_out_by_hand() {
        // F16: 1, -2, the largest (65504), the smallest subnormal (2^-24), -0
        let f16 = [0x00, 0x3c, 0x00, 0xc0, 0xff, 0x7b, 0x01, 0x00, 0x00, 0x80];
        let values = decode(Dtype::F16, &f16, 5);
        assert_eq!(values, [1.0, -2.0, 65504.0, 1.0 / 16_777_216.0, 0.0]);
        assert!(values[4].is_sign_negative());
        // BF16: 1, -0.5, 3.140625 (pi cut to eight bits), the smallest normal
        let bf16 = [0x80, 0x3f, 0x00, 0xbf, 0x49, 0x40, 0x80, 0x00];
        assert_eq!(decode(Dtype::BF16, &bf16, 4), [1.0, -0.5, 3.140625, f32::MIN_POSITIVE]);
        // F32: 1, -1.5, the smallest subnormal
        let f32_bytes = [0x00, 0x00, 0x80, 0x3f, 0x00, 0x00, 0xc0, 0xbf, 0x01, 0x00, 0x00, 0x00];
        assert_eq!(decode(Dtype::F32, &f32_bytes, 3), [1.0, -1.5, f32::from_bits(1)]);
    }

    #[test]
    fn a_byte_holds_four_planes_of_two_bits() {
        // transformers' own example (unpack_weights): 0b10100001 is 0, -1, 1, 1 from the low end, 0b00011000 is -1, 1, 0, -1.
        let planes = [[0.0, -1.0], [-1.0, 1.0], [1.0, 0.0], [1.0, -1.0]];
        for (plane, expected) in (0..).zip(planes) {
            let mut out = [f32::NAN; 2];
            Decoder::Ternary { plane }.decode(&[0b1010_0001, 0b0001_1000], &mut out);
            assert_eq!(out, expected, "plane {plane}");
        }
    }

    #[test]
    fn a_run_decodes_alike_wherever_it_starts_and_however_long_it_is() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let size = dtype.decoder().unwrap().block_bytes();
            // Finite patterns: a top byte of at most 0x3f.
            let bytes: Vec<u8> = (0..600 * size).map(|i| (i * 37 % 64) as u8).collect();
            let whole = decode(dtype.clone(), &bytes, 600);
            for (start, end) in [(0, 0), (0, 1), (3, 10), (255, 257), (1, 600), (511, 513)] {
                let part = decode(dtype.clone(), &bytes[start * size..end * size], end - start);
                assert_eq!(part, whole[start..end], "{dtype} {start}..{end}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "its format's number of bytes")]
    fn bytes_that_do_not_fill_the_run_are_a_mistake_of_the_caller() {
        decode(Dtype::BF16, &[0; 5], 3);
    }

    #[test]
    fn sizes_are_those_of_the_safetensors_crate() {
        use safetensors::Dtype::*;
        for theirs in [
            BOOL,
            F4,
            F6_E2M3,
            F6_E3M2,
            U8,
            I8,
            F8_E5M2,
            F8_E4M3,
            F8_E8M0,
            F8_E4M3FNUZ,
            F8_E5M2FNUZ,
            I16,
            U16,
            F16,
            BF16,
            I32,
            U32,
            F32,
            C64,
            F64,
            I64,
            U64,
        ] {
            let ours = Dtype::parse(&theirs.to_string());
            assert_eq!(ours.to_string(), theirs.to_string());
            let bits = ours.unit().map(|unit| (unit.bytes * 8 / unit.elements, unit.bytes * 8 % unit.elements));
            assert_eq!(bits, Some((theirs.bitsize(), 0)), "{ours}");
        }
        assert_eq!(Dtype::parse("Q4_K").unit(), None);
        assert_eq!(Dtype::parse("f32"), Dtype::Other("f32".into()), "spellings are case-sensitive");
    }

    #[test]
    fn row_sizes_count_whole_bytes_only() {
        assert_eq!(Dtype::BF16.row_bytes(3), Some(6));
        assert_eq!(Dtype::parse("F4").row_bytes(4), Some(2));
        assert_eq!(Dtype::parse("F4").row_bytes(3), None);
        assert_eq!(Dtype::parse("F6_E2M3").row_bytes(4), Some(3));
        assert_eq!(Dtype::parse("F64").bytes(u64::MAX), None);
        assert_eq!(Dtype::F32.shape_bytes(&[]), Some(4));
        assert_eq!(Dtype::F16.shape_bytes(&[2, 3, 5]), Some(60));
        assert_eq!(Dtype::F16.shape_bytes(&[1 << 40, 1 << 40]), None);
        assert_eq!(Dtype::F16.shape_bytes(&[1 << 40, 1 << 40, 0]), Some(0));
        assert_eq!(Dtype::parse("Q4_K").row_bytes(256), None);
        let block =
            |name: &str| Dtype::Block(*Block::ALL.iter().find(|block| block.name() == name).expect("a block format"));
        assert_eq!(block("Q4_K").row_bytes(512), Some(288));
        assert_eq!(block("Q4_0").shape_bytes(&[5, 64]), Some(180));
        assert_eq!(block("Q4_0").shape_bytes(&[64, 5]), None, "as many elements, but no whole blocks in a row");
        assert_eq!(block("Q4_0").shape_bytes(&[0, 64]), Some(0));
        assert_eq!(block("Q4_0").shape_bytes(&[]), None);
        let sentence = "expected a row of a multiple of 32 elements for Q4_0, found 48";
        assert_eq!(block("Q4_0").check_row(48), Err(sentence.into()));
        assert_eq!(block("Q4_0").check_row(64), Ok(()));
        assert_eq!(Dtype::BF16.check_row(7), Ok(()));
    }

    #[test]
    fn numbers_of_gguf_name_each_format_once() {
        let named: Vec<Dtype> = (0..100).filter_map(Dtype::of_ggml).collect();
        assert_eq!(named.len(), 8 + Block::ALL.len());
        for (i, dtype) in named.iter().enumerate() {
            assert!(!named[..i].contains(dtype), "{dtype}");
            let elements = dtype.unit().unwrap().elements;
            assert_eq!(256 % elements, 0, "kernels decode 256 elements of a row at a time: {dtype}");
        }
        assert_eq!(Dtype::of_ggml(12).unwrap().name(), "Q4_K");
        assert_eq!(Dtype::of_ggml(4), None, "Q4_2 is gone");
    }
}
