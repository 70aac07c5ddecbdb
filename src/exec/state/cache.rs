//! Formats that engines keep keys and values in. A cache in one of them holds what the format can say, as floats: the
//! numbers are those of such an engine, the memory is not.

use crate::ops::Float;
use half::{bf16, f16};
use std::fmt;

/// What keys and values are rounded to before they are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum CacheFormat {
    /// As they are computed: nothing is lost.
    #[default]
    Computed,
    F16,
    Bf16,
    /// 32 numbers share a half-precision scale of largest / 127, each is a whole number of it (llama.cpp's Q8_0).
    #[value(name = "q8_0")]
    Q8_0,
    /// 32 numbers share a half-precision scale of largest / -8, each is one of 16 multiples of it (llama.cpp's Q4_0).
    #[value(name = "q4_0")]
    Q4_0,
    /// 8-bit floats with 4 exponent and 3 mantissa bits, no infinities, largest 448 (OCP E4M3), saturating.
    #[value(name = "fp8")]
    Fp8,
}

/// Numbers with a common scale.
const BLOCK: usize = 32;

impl CacheFormat {
    /// Rounds one row (one token) in place. Blocks start at the row's beginning; the last one may be shorter.
    pub fn round<F: Float>(self, row: &mut [F]) {
        let each = |row: &mut [F], f: fn(f32) -> f32| {
            for v in row {
                *v = F::from_f32(f(v.to_f64() as f32));
            }
        };
        match self {
            CacheFormat::Computed => {}
            CacheFormat::F16 => each(row, |x| f16::from_f32(x).to_f32()),
            CacheFormat::Bf16 => each(row, |x| bf16::from_f32(x).to_f32()),
            CacheFormat::Fp8 => each(row, e4m3),
            CacheFormat::Q8_0 => row.chunks_mut(BLOCK).for_each(|block| by_block(block, q8_0)),
            CacheFormat::Q4_0 => row.chunks_mut(BLOCK).for_each(|block| by_block(block, q4_0)),
        }
    }
}

impl fmt::Display for CacheFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CacheFormat::Computed => "computed",
            CacheFormat::F16 => "f16",
            CacheFormat::Bf16 => "bf16",
            CacheFormat::Q8_0 => "q8_0",
            CacheFormat::Q4_0 => "q4_0",
            CacheFormat::Fp8 => "fp8",
        })
    }
}

fn by_block<F: Float>(block: &mut [F], round: fn(&mut [f32])) {
    let mut narrow = [0.0f32; BLOCK];
    let narrow = &mut narrow[..block.len()];
    for (n, v) in narrow.iter_mut().zip(block.iter()) {
        *n = v.to_f64() as f32;
    }
    round(narrow);
    for (v, &n) in block.iter_mut().zip(narrow.iter()) {
        *v = F::from_f32(n);
    }
}

fn q8_0(block: &mut [f32]) {
    let largest = block.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    let scale = largest / 127.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale).to_f32();
    for v in block {
        *v = (*v * inverse).round() * stored;
    }
}

fn q4_0(block: &mut [f32]) {
    let extreme = block.iter().fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
    let scale = extreme / -8.0;
    let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
    let stored = f16::from_f32(scale).to_f32();
    for v in block {
        *v = ((*v * inverse + 8.5).trunc().clamp(0.0, 15.0) - 8.0) * stored;
    }
}

fn e4m3(x: f32) -> f32 {
    const LARGEST: f32 = 448.0;
    const SMALLEST_EXPONENT: i32 = -6;
    let magnitude = x.abs();
    if magnitude.is_nan() || magnitude == 0.0 {
        return x;
    }
    if magnitude >= LARGEST {
        return LARGEST.copysign(x);
    }
    let exponent = ((magnitude.to_bits() >> 23) as i32 - 127).max(SMALLEST_EXPONENT);
    let step = f32::from_bits(((exponent - 3 + 127) as u32) << 23);
    ((magnitude / step).round_ties_even() * step).min(LARGEST).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(format: CacheFormat, row: &[f32]) -> Vec<f32> {
        let mut row = row.to_vec();
        format.round(&mut row);
        row
    }

    #[test]
    fn plain_formats_round_to_nearest() {
        assert_eq!(rounded(CacheFormat::Computed, &[0.1]), [0.1]);
        // Half precision has 11 significant bits: 2049 lies between 2048 and 2050.
        assert_eq!(rounded(CacheFormat::F16, &[2049.0, 2051.0]), [2048.0, 2052.0]);
        // bfloat16 has 8: 257 lies between 256 and 258.
        assert_eq!(rounded(CacheFormat::Bf16, &[257.0, 1.0]), [256.0, 1.0]);
    }

    #[test]
    fn e4m3_has_three_bits_after_the_point_and_saturates() {
        // Between 16 and 32 steps are 2 wide; 17 ties to even (16), 19 to 20. The smallest subnormal is 2^-9.
        let values = [17.0, 19.0, 448.0, 1e6, -500.0, 0.001953125, 0.0009, 0.0];
        assert_eq!(rounded(CacheFormat::Fp8, &values), [16.0, 20.0, 448.0, 448.0, -448.0, 0.001953125, 0.0, 0.0]);
        assert!(rounded(CacheFormat::Fp8, &[f32::NAN])[0].is_nan());
    }

    #[test]
    fn q8_0_keeps_multiples_of_the_largest_over_127() {
        // Scale 1 is exact in half precision.
        assert_eq!(rounded(CacheFormat::Q8_0, &[127.0, 3.4, -2.5, 0.0]), [127.0, 3.0, -3.0, 0.0]);
        assert_eq!(rounded(CacheFormat::Q8_0, &[0.0; 3]), [0.0; 3]);
        // A new block starts after 32 numbers.
        let mut row = [127.0; 33];
        row[32] = 0.5;
        assert_eq!(rounded(CacheFormat::Q8_0, &row)[32], f16::from_f32(0.5 / 127.0).to_f32() * 127.0);
    }

    #[test]
    fn q4_0_keeps_sixteen_multiples() {
        // The extreme is -8: scale 1, codes -8 ..= 7.
        assert_eq!(rounded(CacheFormat::Q4_0, &[-8.0, 7.4, 7.6, 0.4, -0.6]), [-8.0, 7.0, 7.0, 0.0, -1.0]);
        // The extreme is 8: scale -1, so that 8 itself is kept.
        assert_eq!(rounded(CacheFormat::Q4_0, &[8.0, -8.0]), [8.0, -7.0]);
    }
}
