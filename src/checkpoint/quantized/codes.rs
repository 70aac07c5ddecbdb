//! Where the code of each element lies, and what it stands for.

use super::super::dtype::{Decoder, minifloat};
use super::super::presented::Piece;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

/// The codes of a matrix `[rows, cols]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    pub stored: Piece,
    pub packing: Packing,
    pub values: Values,
}

/// How codes lie in bytes. Words are of four bytes, little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// One after the other, in a stream of bits that starts with the lowest bit of the first byte; each row takes whole
    /// units of `align` bits.
    Stream { bits: u32, align: usize },
    /// One after the other, two in a byte, the upper half first.
    UpperFirst,
    /// Two rows in a byte, the upper half being the second.
    RowPairs,
    /// Each row in words of its own, as many codes in each as there is space for, the first one lowest.
    Words { bits: u32 },
    /// Each row's codes below one another, in a stream of bits through the words of a column of a matrix
    /// `[cols * bits / 32, rows]`: GPTQ.
    Down { bits: u32 },
    /// Eight rows in a word of a matrix `[cols, rows / 8]`: AWQ.
    Interleaved,
    /// Four rows, in words of two bytes of a matrix `[rows / 4, cols]`: of each 64 columns one row after the other, four
    /// columns in a word: AWQ for fast GEMV.
    Quartets,
    /// The matrix read as one of `width` columns, in as many planes as there are codes in a unit: its first rows are the
    /// uppermost codes of all units: HQQ.
    Planes { bits: u32, width: usize, height: usize },
}

/// In which place of a word AWQ has the rows 0 to 7 of eight.
const INTERLEAVED: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// What each code stands for.
#[derive(Debug, Clone)]
pub struct Values(Arc<[f32; 256]>);

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.0.map(f32::to_bits) == other.0.map(f32::to_bits)
    }
}

impl Values {
    /// An unsigned number, less `offset`.
    pub fn less(offset: i32) -> Self {
        static PLAIN: LazyLock<Values> = LazyLock::new(|| Values::each(f32::from));
        if offset == 0 { PLAIN.clone() } else { Self::each(|code| (i32::from(code) - offset) as f32) }
    }

    /// E4M3.
    pub fn float8() -> Self {
        static E4M3: LazyLock<Values> = LazyLock::new(|| Values::of(Decoder::E4M3));
        E4M3.clone()
    }

    /// As a decoder of single bytes has it.
    pub fn of(decoder: Decoder) -> Self {
        let mut values = [0.0; 256];
        let bytes: [u8; 256] = std::array::from_fn(|code| code as u8);
        decoder.decode(&bytes, &mut values);
        Self(Arc::new(values))
    }

    /// As a function has it.
    pub fn each(value: impl Fn(u8) -> f32) -> Self {
        Self(Arc::new(std::array::from_fn(|code| value(code as u8))))
    }

    /// One of 16.
    pub fn table(table: &[f32; 16]) -> Self {
        Self::each(|code| table[usize::from(code % 16)])
    }

    pub fn get(&self, code: u8) -> f32 {
        self.0[usize::from(code)]
    }

    /// E2M1.
    pub fn float4() -> Self {
        static E2M1: LazyLock<Values> = LazyLock::new(|| Values::table(&minifloat::E2M1));
        E2M1.clone()
    }
}

impl Packing {
    /// Whether the bytes of some rows lie together.
    pub fn by_rows(self) -> bool {
        matches!(self, Self::Stream { .. } | Self::UpperFirst | Self::RowPairs | Self::Words { .. })
    }

    /// Stored bytes of a whole matrix; `None` beyond 64 bits.
    pub fn bytes(self, rows: usize, cols: usize) -> Option<u64> {
        let (rows, cols) = (rows as u64, cols as u64);
        match self {
            Self::Stream { bits, align } => {
                let row = cols.checked_mul(bits.into())?.checked_next_multiple_of(align as u64)?;
                Some(rows.checked_mul(row / 8)?)
            }
            Self::UpperFirst => Some(rows.checked_mul(cols)?.div_ceil(2)),
            Self::RowPairs => rows.div_ceil(2).checked_mul(cols),
            Self::Words { bits } => cols.div_ceil(32 / u64::from(bits)).checked_mul(4)?.checked_mul(rows),
            Self::Down { bits } => cols.checked_mul(bits.into())?.div_ceil(32).checked_mul(4)?.checked_mul(rows),
            Self::Interleaved => cols.checked_mul(rows.div_ceil(8))?.checked_mul(4),
            Self::Quartets => cols.next_multiple_of(64).checked_mul(rows.div_ceil(4))?.checked_mul(2),
            Self::Planes { bits, width, height } => {
                let (codes, bytes) = unit(bits);
                (height as u64).div_ceil(codes.into()).checked_mul(width as u64)?.checked_mul(bytes as u64)
            }
        }
    }

    /// The bytes of some rows, where these lie together; else all.
    pub fn bytes_of(self, rows: &Range<usize>, cols: usize, all: u64) -> Range<u64> {
        let cols = cols as u64;
        let span = |bits: u64| rows.start as u64 * bits / 8..(rows.end as u64 * bits).div_ceil(8);
        match self {
            Self::Stream { bits, align } => span((cols * u64::from(bits)).next_multiple_of(align as u64)),
            Self::UpperFirst => span(cols * 4),
            Self::RowPairs => (rows.start / 2) as u64 * cols..rows.end.div_ceil(2) as u64 * cols,
            Self::Words { bits } => span(cols.div_ceil(32 / u64::from(bits)) * 32),
            _ => 0..all,
        }
    }

    /// The codes of the columns `cols` of row `row`, of a matrix `[rows, width]` whose bytes are there from `bytes_from`
    /// on.
    fn unpack(self, loaded: Loaded<'_>, row: usize, cols: Range<usize>, out: &mut [u8]) {
        let Loaded { bytes, first, rows, cols: width } = loaded;
        let first_bit = first as usize * 8;
        match self {
            Self::Stream { bits, align } => {
                let above = row * (width * bits as usize).next_multiple_of(align);
                let start = above + cols.start * bits as usize - first_bit;
                stream(bytes, start, bits, out);
            }
            Self::UpperFirst => {
                let start = row * width + cols.start - first as usize * 2;
                for (i, code) in out.iter_mut().enumerate() {
                    let at = start + i;
                    *code = bytes[at / 2] >> ((at + 1) % 2 * 4) & 15;
                }
            }
            Self::RowPairs => {
                let start = row / 2 * width + cols.start - first as usize;
                for (code, &byte) in out.iter_mut().zip(&bytes[start..]) {
                    *code = byte >> (row % 2 * 4) & 15;
                }
            }
            Self::Words { bits } => {
                let each = (32 / bits) as usize;
                let start = row * width.div_ceil(each) * 4 - first as usize;
                for (col, code) in cols.zip(out) {
                    let word = word(bytes, start / 4 + col / each);
                    *code = (word >> (col % each * bits as usize)) as u8 & mask(bits);
                }
            }
            Self::Down { bits } => {
                for (col, code) in cols.zip(out) {
                    let bit = col * bits as usize;
                    let (at, shift) = (bit / 32, bit % 32);
                    let mut value = u64::from(word(bytes, at * rows + row));
                    if shift + bits as usize > 32 {
                        value |= u64::from(word(bytes, (at + 1) * rows + row)) << 32;
                    }
                    *code = (value >> shift) as u8 & mask(bits);
                }
            }
            Self::Interleaved => {
                let (words, shift) = (rows.div_ceil(8), 4 * INTERLEAVED[row % 8]);
                for (col, code) in cols.zip(out) {
                    *code = (word(bytes, col * words + row / 8) >> shift) as u8 & 15;
                }
            }
            Self::Quartets => {
                let line = row / 4 * width.next_multiple_of(64) * 2;
                for (col, code) in cols.zip(out) {
                    // Of 32 columns, a * 8 + b * 2 + c comes at b * 8 + c * 4 + a.
                    let (a, b, c) = (col % 32 / 8, col % 8 / 2, col % 2);
                    let place = col / 64 * 256 + row % 4 * 64 + col % 64 / 32 * 32 + b * 8 + c * 4 + a;
                    *code = bytes[line + place / 2] >> (place % 2 * 4) & 15;
                }
            }
            Self::Planes { bits, width: across, height } => {
                let (codes, size) = unit(bits);
                let deep = height.div_ceil(codes as usize);
                for (col, code) in cols.zip(out) {
                    let (y, x) = ((row * width + col) / across, (row * width + col) % across);
                    let at = y % deep * across + x;
                    let shift = bits * (codes - 1 - (y / deep) as u32);
                    let unit = if size == 1 { bytes[at].into() } else { word(bytes, at) };
                    *code = (unit >> shift) as u8 & mask(bits);
                }
            }
        }
    }
}

/// Codes and bytes of a unit of planes: three bits are ten in a word, others fill bytes.
fn unit(bits: u32) -> (u32, usize) {
    if 8 % bits == 0 { (8 / bits, 1) } else { (32 / bits, 4) }
}

fn mask(bits: u32) -> u8 {
    (0xff_u32 >> (8 - bits)) as u8
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[4 * at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// Codes of a stream from bit `start` on.
fn stream(bytes: &[u8], start: usize, bits: u32, out: &mut [u8]) {
    match (bits, start % 8) {
        (8, _) => out.copy_from_slice(&bytes[start / 8..][..out.len()]),
        (4, 0) => {
            let bytes = &bytes[start / 8..];
            for (pair, &byte) in out.chunks_mut(2).zip(bytes) {
                pair[0] = byte & 15;
                if let Some(second) = pair.get_mut(1) {
                    *second = byte >> 4;
                }
            }
        }
        _ => {
            for (i, code) in out.iter_mut().enumerate() {
                let bit = start + i * bits as usize;
                let low = u32::from(bytes[bit / 8]);
                let high = bytes.get(bit / 8 + 1).map_or(0, |&byte| u32::from(byte));
                *code = ((low | high << 8) >> (bit % 8)) as u8 & mask(bits);
            }
        }
    }
}

/// Stored bytes of a packed matrix `[rows, cols]`, from its byte `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Loaded<'a> {
    pub bytes: &'a [u8],
    pub first: u64,
    pub rows: usize,
    pub cols: usize,
}

impl Codes {
    /// Those of one of `count` entries.
    pub fn entry(&self, i: usize, count: usize) -> Self {
        Self { stored: self.stored.entry(i, count), ..self.clone() }
    }

    /// What the code in column `col` of row `row` stands for.
    pub fn get(&self, loaded: Loaded<'_>, row: usize, col: usize) -> f32 {
        let mut code = [0];
        self.packing.unpack(loaded, row, col..col + 1, &mut code);
        self.values.get(code[0])
    }

    /// What the columns `cols` of row `row` stand for.
    pub fn decode(&self, loaded: Loaded<'_>, row: usize, cols: Range<usize>, codes: &mut Vec<u8>, out: &mut [f32]) {
        codes.resize(cols.len(), 0);
        self.packing.unpack(loaded, row, cols, codes);
        for (value, &code) in out.iter_mut().zip(codes.iter()) {
            *value = self.values.get(code);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(packing: Packing, [rows, cols]: [usize; 2], bytes: &[u8]) -> Vec<u8> {
        assert_eq!(packing.bytes(rows, cols), Some(bytes.len() as u64), "{packing:?}");
        let mut all = vec![0; rows * cols];
        for (row, out) in all.chunks_exact_mut(cols).enumerate() {
            let range = packing.bytes_of(&(row..row + 1), cols, bytes.len() as u64);
            let part = &bytes[range.start as usize..range.end as usize];
            packing.unpack(Loaded { bytes: part, first: range.start, rows, cols }, row, 0..cols, out);
            let mut one = [0];
            packing.unpack(Loaded { bytes, first: 0, rows, cols }, row, cols - 1..cols, &mut one);
            assert_eq!(one[0], out[cols - 1], "{packing:?}: a single column of row {row}");
        }
        all
    }

    #[test]
    fn codes_worked_out_by_hand() {
        // 0b101_011_001, then 0b111: three bits each, from the low end.
        let three = Packing::Stream { bits: 3, align: 8 };
        assert_eq!(unpacked(three, [1, 4], &[0b0101_1001, 0b1111]), [1, 3, 5, 7]);
        // A row of three codes of four bits leaves half a byte.
        let four = Packing::Stream { bits: 4, align: 8 };
        assert_eq!(unpacked(four, [2, 3], &[0x21, 0x93, 0x54, 0x96]), [1, 2, 3, 4, 5, 6]);
        let words = Packing::Stream { bits: 4, align: 32 };
        assert_eq!(unpacked(words, [2, 1], &[1, 9, 9, 9, 2, 9, 9, 9]), [1, 2]);
        assert_eq!(unpacked(Packing::RowPairs, [3, 2], &[0x31, 0x42, 0x95, 0x96]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(unpacked(Packing::UpperFirst, [2, 3], &[0x12, 0x34, 0x56]), [1, 2, 3, 4, 5, 6]);
        assert_eq!(unpacked(Packing::Stream { bits: 8, align: 8 }, [2, 1], &[9, 200]), [9, 200]);
        // Ten codes of three bits in a word, two bits unused; the next row starts a word.
        let word = (0..10).fold(0u32, |word, i| word | (i as u32 % 8) << (3 * i)) | 3 << 30;
        let bytes = [word, 5, 6, 7].map(u32::to_le_bytes).concat();
        let expected = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 5, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(unpacked(Packing::Words { bits: 3 }, [2, 11], &bytes), expected);
        // Two rows, eight columns: each row is one word of a line of two.
        let bytes = [0x8765_4321_u32, 0xfedc_ba98].map(u32::to_le_bytes).concat();
        let expected = [1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12, 13, 14, 15];
        assert_eq!(unpacked(Packing::Down { bits: 4 }, [2, 8], &bytes), expected);
        // AWQ: the word's places 0 to 7 are the rows 0, 2, 4, 6, 1, 3, 5, 7.
        assert_eq!(unpacked(Packing::Interleaved, [8, 1], &0x7531_6420_u32.to_le_bytes()), [0, 1, 2, 3, 4, 5, 6, 7]);
        // HQQ: of four lines of two, the upper half of the bytes holds the first two lines.
        let packing = Packing::Planes { bits: 4, width: 2, height: 4 };
        assert_eq!(unpacked(packing, [2, 4], &[0x15, 0x26, 0x37, 0x48]), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn three_bits_below_one_another_straddle_words() {
        // Code 10 has two bits in the first word and one in the second; code 21 one and two.
        let codes: Vec<u8> = (0..32).map(|i| (i * 5 % 8) as u8).collect();
        let mut words = [0u32; 3];
        for (i, &code) in codes.iter().enumerate() {
            for bit in 0..3 {
                let at = 3 * i + bit;
                words[at / 32] |= u32::from(code >> bit & 1) << (at % 32);
            }
        }
        let bytes = words.map(u32::to_le_bytes).concat();
        assert_eq!(unpacked(Packing::Down { bits: 3 }, [1, 32], &bytes), codes);
    }

    #[test]
    fn values_are_numbers_less_an_offset_or_those_of_a_table() {
        let decode = |values: Values| {
            let codes = Codes {
                stored: Piece { stored: "w".into(), range: 0..2 },
                packing: Packing::Stream { bits: 8, align: 8 },
                values,
            };
            let mut out = [0.0; 2];
            let loaded = Loaded { bytes: &[1, 15], first: 0, rows: 1, cols: 2 };
            codes.decode(loaded, 0, 0..2, &mut Vec::new(), &mut out);
            out
        };
        assert_eq!(decode(Values::less(8)), [-7.0, 7.0]);
        assert_eq!(decode(Values::float4()), [0.5, -6.0]);
        assert_eq!(decode(Values::of(Decoder::I8)), [1.0, 15.0]);
    }
}
