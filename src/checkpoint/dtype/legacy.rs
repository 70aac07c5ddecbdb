//! Blocks of 32 integers with one float16 scale `d`, some with a minimum `m` as well: `d * q`, `d * q + m`.
//!
//! In the order of gguf-py's `dequantize_blocks`: the integer is made whole before it becomes a float32, the product is
//! rounded, then the sum.

use super::block::{half, part};

/// `d`, 16 bytes: the low halves are elements 0 to 15, the high halves 16 to 31. `d * (q - 8)`.
#[inline(always)]
pub fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let (d, qs) = (half(block, 0), part::<16>(block, 2));
    for j in 0..16 {
        out[j] = d * (i32::from(qs[j] & 15) - 8) as f32;
        out[16 + j] = d * (i32::from(qs[j] >> 4) - 8) as f32;
    }
}

/// `d`, `m`, then as [`q4_0`]. `d * q + m`.
#[inline(always)]
pub fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m, qs) = (half(block, 0), half(block, 2), part::<16>(block, 4));
    for j in 0..16 {
        out[j] = d * f32::from(qs[j] & 15) + m;
        out[16 + j] = d * f32::from(qs[j] >> 4) + m;
    }
}

/// The integers of [`q5_0`] and [`q5_1`]: the fifth bits lie in one word, those of elements 0 to 31 from its low end.
#[inline(always)]
fn fives(high: &[u8; 4], qs: &[u8; 16]) -> [u32; 32] {
    let high = u32::from_le_bytes(*high);
    let mut q = [0; 32];
    for j in 0..16 {
        q[j] = u32::from(qs[j] & 15) | ((high >> j & 1) << 4);
        q[16 + j] = u32::from(qs[j] >> 4) | ((high >> (16 + j) & 1) << 4);
    }
    q
}

/// `d`, the fifth bits, then as [`q4_0`]. `d * (q - 16)`.
#[inline(always)]
pub fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let d = half(block, 0);
    for (out, q) in out.iter_mut().zip(fives(part(block, 2), part(block, 6))) {
        *out = d * (q as i32 - 16) as f32;
    }
}

/// `d`, `m`, the fifth bits, then as [`q4_0`]. `d * q + m`.
#[inline(always)]
pub fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    for (out, q) in out.iter_mut().zip(fives(part(block, 4), part(block, 8))) {
        *out = d * q as i32 as f32 + m;
    }
}

/// `d`, 32 signed bytes. `q * d`.
#[inline(always)]
pub fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    signed(half(block, 0), part::<32>(block, 2), out);
}

/// `d`, the sum of the elements (for dot products; not used here), 32 signed bytes. `q * d`, which gguf-py does not
/// have: as ggml makes these blocks.
#[inline(always)]
pub fn q8_1(block: &[u8; 36], out: &mut [f32; 32]) {
    signed(half(block, 0), part::<32>(block, 4), out);
}

/// `d` in float32, 256 signed bytes, the sums of each 16 (for dot products; not used here). `d * q`, which gguf-py does
/// not have: as ggml's `dequantize_row_q8_K`.
#[inline(always)]
pub fn q8_k(block: &[u8; 292], out: &mut [f32; 256]) {
    signed(f32::from_le_bytes(*part(block, 0)), part::<256>(block, 4), out);
}

#[inline(always)]
fn signed<const N: usize>(d: f32, qs: &[u8; N], out: &mut [f32; N]) {
    for (out, &q) in out.iter_mut().zip(qs) {
        *out = d * f32::from(q as i8);
    }
}
