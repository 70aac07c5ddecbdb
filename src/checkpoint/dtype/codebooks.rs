//! Formats of four bits, of which each stands for one of 16 values: `d * value`.
//!
//! In the order of gguf-py's `dequantize_blocks`: the value is an integer that becomes a float32, then one product.

use super::block::{half, part};

/// The values of IQ4_NL and IQ4_XS (`kvalues` in gguf/quants.py).
const NON_LINEAR: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// The values of MXFP4 and NVFP4: E2M1, doubled. The negative zero is a zero, as in gguf-py, where they are integers.
const E2M1: [f32; 16] = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// Low halves of `N` bytes, then their high halves.
#[inline(always)]
fn halves<const N: usize>(values: &[f32; 16], d: f32, qs: &[u8; N], out: &mut [f32]) {
    let (low, high) = out.split_at_mut(N);
    for ((low, high), &q) in low.iter_mut().zip(high).zip(qs) {
        *low = d * values[usize::from(q & 15)];
        *high = d * values[usize::from(q >> 4)];
    }
}

/// `d` in float16, 16 bytes.
#[inline(always)]
pub fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    halves(&NON_LINEAR, half(block, 0), part::<16>(block, 2), out);
}

/// `d` in float16, the upper two and the lower four bits of eight scales, 16 bytes for each. A scale is 32 less than
/// stored; `(d * scale) * value`.
#[inline(always)]
pub fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high, low) = (half(block, 0), u16::from_le_bytes(*part(block, 2)), part::<4>(block, 4));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = u16::from(low[i / 2] >> (i % 2 * 4) & 15) | (high >> (2 * i) & 3) << 4;
        let scale = d * (i32::from(scale) - 32) as f32;
        halves(&NON_LINEAR, scale, part::<16>(block, 8 + 16 * i), out);
    }
}

/// The exponent of a power of two (E8M0), 16 bytes. The power is halved, since the values are doubled; 255, which is not
/// a number in the OCP format, is a power as well, as in gguf-py and ggml.
#[inline(always)]
pub fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let e = u32::from(block[0]);
    let d = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 });
    halves(&E2M1, d, part::<16>(block, 1), out);
}

/// Four scales in E4M3 without a sign, 8 bytes for each.
#[inline(always)]
pub fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        halves(&E2M1, halved_e4m3(block[i]), part::<8>(block, 4 + 8 * i), out);
    }
}

/// Half of an E4M3 number, as gguf-py's `ue4m3_to_fp32`: the sign bit is not looked at, except that 0x7f, not a number,
/// is zero and 0xff is not. Exact.
#[inline(always)]
fn halved_e4m3(x: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(x >> 3 & 15), f32::from(x & 7));
    match (x, exponent) {
        (0x7f, _) => 0.0,
        (_, 0) => mantissa / 1024.0,
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 127 - 8) << 23),
    }
}
