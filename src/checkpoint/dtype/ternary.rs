//! Formats of one and of two bits, and of three values: `d * q` with one float16 scale for 128 or 256 elements.
//!
//! TQ1_0 and TQ2_0 in the order of gguf-py's `dequantize_blocks`.

use super::block::{half, part};

/// 48 bytes of five elements each, 4 of four, `d`.
///
/// A byte is a fraction of 256 in base 3: times 3 to the k, modulo 256, times 3, its carry is element k plus one.
#[inline(always)]
pub fn tq1_0(block: &[u8; 54], out: &mut [f32; 256]) {
    let d = half(block, 52);
    let (first, rest) = out.split_at_mut(160);
    let (second, third) = rest.split_at_mut(80);
    trits(d, part::<32>(block, 0), first);
    trits(d, part::<16>(block, 32), second);
    trits(d, part::<4>(block, 48), third);
}

#[inline(always)]
fn trits<const N: usize>(d: f32, bytes: &[u8; N], out: &mut [f32]) {
    let mut power = 1u8;
    for out in out.as_chunks_mut::<N>().0 {
        for (out, &byte) in out.iter_mut().zip(bytes) {
            let trit = (u16::from(byte.wrapping_mul(power)) * 3) >> 8;
            *out = d * (i32::from(trit) - 1) as f32;
        }
        power *= 3;
    }
}

/// 64 bytes, `d`. Byte j of each 32 bytes holds the elements j, 32 + j, 64 + j and 96 + j of 128, each plus one.
#[inline(always)]
pub fn tq2_0(block: &[u8; 66], out: &mut [f32; 256]) {
    let (qs, d) = (part::<64>(block, 0), half(block, 64));
    for (i, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (out, &q) in out.iter_mut().zip(part::<32>(qs, i / 4 * 32)) {
            *out = d * (i32::from(q >> (i % 4 * 2) & 3) - 1) as f32;
        }
    }
}

/// `d`, 128 bits from the low end of each byte: `d` where the bit is one, else `-d`. gguf-py does not have it: as ggml's
/// `dequantize_row_q1_0`.
#[inline(always)]
pub fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half(block, 0);
    for (out, &byte) in out.as_chunks_mut::<8>().0.iter_mut().zip(part::<16>(block, 2)) {
        for (k, out) in out.iter_mut().enumerate() {
            *out = f32::from_bits(d.to_bits() ^ (u32::from(!byte) >> k & 1) << 31);
        }
    }
}
