//! The IQ1, IQ2 and IQ3 formats: each index stands for four or eight small integers of a grid, some with signs apart.
//!
//! In the order of gguf-py's `dequantize_blocks`: the scale of a group first, from left to right, then times the grid's
//! integer, then the sign; IQ1: the scale times the rounded sum of integer and shift.

use super::block::{half, part};
use super::tables;

/// Eight codes of two bits, as the values that IQ2 gives them: 8, 25, 43.
#[inline(always)]
fn eight(grid: u16) -> [f32; 8] {
    std::array::from_fn(|i| {
        let code = i32::from(grid) >> (2 * i) & 3;
        (8 + 17 * code + (code >> 1)) as f32
    })
}

/// Signs of eight elements from the low end, of which seven bits are stored and the eighth is their parity (`ksigns` in
/// gguf/quants.py).
#[inline(always)]
fn even_signs(seven: u32) -> u8 {
    let seven = seven & 127;
    (seven | (seven.count_ones() & 1) << 7) as u8
}

/// `scale * value`, with the sign changed where its bit is one.
#[inline(always)]
fn signed<const N: usize>(scale: f32, values: [f32; N], signs: u8, out: &mut [f32; N]) {
    for (i, (out, value)) in out.iter_mut().zip(values).enumerate() {
        *out = f32::from_bits((scale * value).to_bits() ^ (u32::from(signs) >> i & 1) << 31);
    }
}

/// `d`, then for each 32 elements four indices and a word: signs of seven bits, a scale in the last four.
/// `((d * (0.5 + scale)) * 0.25) * value`.
#[inline(always)]
pub fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = half(block, 0);
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let indices = part::<4>(block, 2 + 8 * i);
        let word = u32::from_le_bytes(*part(block, 6 + 8 * i));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.25;
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = tables::IQ2_XXS[usize::from(indices[k])];
            signed(scale, eight(grid), even_signs(word >> (7 * k)), out);
        }
    }
}

/// `d`, 32 words of an index of nine bits and signs of seven, 8 bytes of scales, one for two words.
/// `((d * (0.5 + scale)) * 0.25) * value`.
#[inline(always)]
pub fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let (d, scales) = (half(block, 0), part::<8>(block, 66));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16::from_le_bytes(*part(block, 2 + 2 * i));
        let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
        let grid = tables::IQ2_XS[usize::from(word & 511)];
        signed(scale, eight(grid), even_signs(u32::from(word >> 9)), out);
    }
}

/// `d`, 32 bytes of indices, 32 of signs, 8 of two more bits for each index, 8 of scales, one for two indices.
/// `((d * (0.5 + scale)) * 0.25) * value`.
#[inline(always)]
pub fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = half(block, 0);
    let (indices, signs) = (part::<32>(block, 2), part::<32>(block, 34));
    let (high, scales) = (part::<8>(block, 66), part::<8>(block, 74));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let index = usize::from(indices[i]) | usize::from(high[i / 4] >> (i % 4 * 2) & 3) << 8;
        let scale = d * (0.5 + f32::from(scales[i / 4] >> (i / 2 % 2 * 4) & 15)) * 0.25;
        signed(scale, eight(tables::IQ2_S[index]), signs[i], out);
    }
}

/// Eight codes of four bits, from two entries of a grid.
#[inline(always)]
fn four_and_four(first: u16, second: u16, value: impl Fn(i32) -> i32) -> [f32; 8] {
    let both = u32::from(first) | u32::from(second) << 16;
    std::array::from_fn(|i| value((both >> (4 * i) & 15) as i32) as f32)
}

/// `d`, 64 indices, a word for each 32 elements as in [`iq2_xxs`]. `((d * (0.5 + scale)) * 0.5) * value`; values are 4,
/// 12, 20, 28, 36, 44, 52, 62.
#[inline(always)]
pub fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let (d, indices) = (half(block, 0), part::<64>(block, 2));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let word = u32::from_le_bytes(*part(block, 66 + 4 * i));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        for (k, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let grid = |n: usize| tables::IQ3_XXS[usize::from(indices[8 * i + 2 * k + n])];
            let values = four_and_four(grid(0), grid(1), |code| 4 + 8 * code + ((code + 1) >> 3) * 2);
            signed(scale, values, even_signs(word >> (7 * k)), out);
        }
    }
}

/// `d`, 64 indices, 8 bytes of their ninth bits, 32 of signs, 4 of scales, one for 32 elements.
/// `(d * (1 + 2 * scale)) * value`, the bracket in integers; values are 1, 3, .. 15.
#[inline(always)]
pub fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let (d, indices, high) = (half(block, 0), part::<64>(block, 2), part::<8>(block, 66));
    let (signs, scales) = (part::<32>(block, 74), part::<4>(block, 106));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * f32::from(1 + 2 * (scales[i / 8] >> (i / 4 % 2 * 4) & 15));
        let grid = |n: usize| {
            let n = 2 * i + n;
            tables::IQ3_S[usize::from(indices[n]) | usize::from(high[n / 8] >> (n % 8) & 1) << 8]
        };
        signed(scale, four_and_four(grid(0), grid(1), |code| 2 * code + 1), signs[i], out);
    }
}

/// `scale * (value + shift)`; values are -1, 0, 1.
#[inline(always)]
fn shifted(scale: f32, grid: u16, negative: bool, out: &mut [f32; 8]) {
    let shift = if negative { -0.125 } else { 0.125 };
    for (i, out) in out.iter_mut().enumerate() {
        let value = (i32::from(grid) >> (2 * i) & 3) - 1;
        *out = scale * (value as f32 + shift);
    }
}

/// `d`, 32 indices, a word for each 32 elements: three more bits for each index, a scale of three bits, the shift's
/// sign. The scale is `d * (2 * scale + 1)`, the bracket in integers.
#[inline(always)]
pub fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let (d, indices) = (half(block, 0), part::<32>(block, 2));
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16::from_le_bytes(*part(block, 34 + i / 4 * 2));
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let index = usize::from(indices[i]) | usize::from(word >> (i % 4 * 3) & 7) << 8;
        shifted(scale, tables::IQ1[index], word & 0x8000 != 0, out);
    }
}

/// 32 indices, 16 bytes of four bits for each (three more of the index, the shift's sign), four words of four scales of
/// three bits each, one for 16 elements; the upper four bits of the words are `d`, the first ones lowest. The scale is
/// `d * (2 * scale + 1)`, the bracket in integers.
#[inline(always)]
pub fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let (indices, high) = (part::<32>(block, 0), part::<16>(block, 32));
    let word = |i: usize| u16::from_le_bytes(*part(block, 48 + 2 * i));
    let d = word(0) >> 12 | (word(1) >> 8 & 0xf0) | (word(2) >> 4 & 0xf00) | (word(3) & 0xf000);
    let d = super::plain::f16_to_f32(d);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let scale = d * f32::from(2 * (word(i / 8) >> (i / 2 % 4 * 3) & 7) + 1);
        let high = high[i / 2] >> (i % 2 * 4) & 15;
        let index = usize::from(indices[i]) | usize::from(high & 7) << 8;
        shifted(scale, tables::IQ1[index], high & 8 != 0, out);
    }
}
