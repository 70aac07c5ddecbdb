//! Formats of which each element is a number by itself.

use super::{Decoder, minifloat};

/// Decodes one element after the other; a block format is not for here.
#[inline(always)]
pub fn decode(decoder: Decoder, bytes: &[u8], out: &mut [f32]) {
    match decoder {
        Decoder::F32 => each(bytes, out, f32::from_le_bytes),
        Decoder::F16 => each(bytes, out, |word| f16_to_f32(u16::from_le_bytes(word))),
        // bfloat16 is the upper half of a float32.
        Decoder::BF16 => each(bytes, out, |word| f32::from_bits(u32::from(u16::from_le_bytes(word)) << 16)),
        Decoder::F64 => each(bytes, out, |word| f64::from_le_bytes(word) as f32),
        Decoder::I8 => each(bytes, out, |word| f32::from(i8::from_le_bytes(word))),
        Decoder::Ternary { plane } => each(bytes, out, |[byte]| f32::from((byte >> (2 * plane) & 3) as i8 - 1)),
        Decoder::U8 => each(bytes, out, |[byte]| f32::from(byte)),
        Decoder::E4M3 => table(bytes, out, &minifloat::E4M3),
        Decoder::E5M2 => table(bytes, out, &minifloat::E5M2),
        Decoder::E8M0 => table(bytes, out, &minifloat::E8M0),
        Decoder::I16 => each(bytes, out, |word| f32::from(i16::from_le_bytes(word))),
        Decoder::I32 => each(bytes, out, |word| i32::from_le_bytes(word) as f32),
        Decoder::I64 => each(bytes, out, |word| i64::from_le_bytes(word) as f32),
        Decoder::Block(_) => unreachable!("blocks have decoders of their own"),
    }
}

/// Decodes elements of `N` bytes each by itself.
#[inline(always)]
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    let (words, _) = bytes.as_chunks::<N>();
    for (value, word) in out.iter_mut().zip(words) {
        *value = decode(*word);
    }
}

/// Looks up bytes in a table.
#[inline(always)]
fn table(bytes: &[u8], out: &mut [f32], values: &[f32; 256]) {
    each(bytes, out, |[byte]| values[usize::from(byte)]);
}

/// IEEE 754 binary16, without a branch so that many can be decoded at once: the exponent's bias changes by a
/// multiplication with 2^112, which is exact and makes subnormals normal.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let magnitude = u32::from(half & 0x7fff) << 13;
    // Infinities and NaNs: the largest exponent stays the largest.
    let special = if half & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    let sign = u32::from(half & 0x8000) << 16;
    f32::from_bits((f32::from_bits(magnitude) * REBIAS).to_bits() | special | sign)
}
