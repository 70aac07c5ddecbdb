//! The K formats: 256 integers in groups of 16 or 32, whose scales are integers with a common float16 scale.
//!
//! In the order of gguf-py's `dequantize_blocks`: a group's scale is `d` times its integer, rounded, and so is its
//! minimum; then `scale * q`, rounded, then minus the minimum.

use super::block::{half, part};

/// 16 bytes of scales (low halves) and minima (high halves), 64 bytes of 2-bit integers, `d`, `dmin`.
///
/// Byte j of each 32 bytes holds the elements j, 32 + j, 64 + j and 96 + j of 128, the first one lowest.
#[inline(always)]
pub fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (part::<16>(block, 0), part::<64>(block, 16));
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] & 15);
        let min = dmin * f32::from(scales[group] >> 4);
        let (qs, shift) = twos(qs, group);
        for (out, &q) in out.iter_mut().zip(qs) {
            *out = scale * f32::from(q >> shift & 3) - min;
        }
    }
}

/// The bytes in which the 2-bit integers of a group of 16 lie, and how far from their low ends.
#[inline(always)]
fn twos(qs: &[u8; 64], group: usize) -> (&[u8; 16], usize) {
    (part::<16>(qs, group / 8 * 32 + group % 2 * 16), group % 8 / 2 * 2)
}

/// 32 bytes of third bits (bit i of byte j is that of element 32 * i + j), 64 bytes of 2-bit integers as in [`q2_k`], 12
/// bytes of 6-bit scales, `d`. An integer is 4 less where its third bit is zero, a scale is 32 less than stored.
#[inline(always)]
pub fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (high, qs, scales) = (part::<32>(block, 0), part::<64>(block, 32), part::<12>(block, 96));
    let d = half(block, 108);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * third_scale(scales, group);
        let (qs, shift) = twos(qs, group);
        let high = part::<16>(high, group % 2 * 16);
        for ((out, &q), &high) in out.iter_mut().zip(qs).zip(high) {
            let q = i32::from(q >> shift & 3) + i32::from((high >> (group / 2) & 1) << 2) - 4;
            *out = scale * q as f32;
        }
    }
}

/// The scale of group `group` of 16 in Q3_K, 32 less than stored: low halves of the first eight bytes, then their high
/// halves; two more bits each in the last four bytes.
#[inline(always)]
pub fn third_scale(scales: &[u8; 12], group: usize) -> f32 {
    let low = scales[group % 8] >> (group / 8 * 4) & 15;
    let top = scales[8 + group % 4] >> (group / 4 * 2) & 3;
    (i32::from(low | top << 4) - 32) as f32
}

/// The scale and the minimum of group `group` of 32, six bits each: of the first four groups in the first and the second
/// four bytes; of the others in the halves of the last four, with their upper bits above those of the first ones.
#[inline(always)]
pub fn scale_and_min(scales: &[u8; 12], group: usize) -> (f32, f32) {
    let (scale, min) = if group < 4 {
        (scales[group] & 63, scales[4 + group] & 63)
    } else {
        let (both, scale, min) = (scales[4 + group], scales[group - 4], scales[group]);
        (both & 15 | (scale >> 2 & 0x30), both >> 4 | (min >> 2 & 0x30))
    };
    (f32::from(scale), f32::from(min))
}

/// `d`, `dmin`, 12 bytes of scales and minima, 128 bytes: low halves are one group of 32, high halves the next.
#[inline(always)]
pub fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin, scales, qs) = (half(block, 0), half(block, 2), part::<12>(block, 4), part::<128>(block, 16));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let (qs, shift) = (part::<32>(qs, group / 2 * 32), group % 2 * 4);
        for (out, &q) in out.iter_mut().zip(qs) {
            *out = scale * f32::from(q >> shift & 15) - min;
        }
    }
}

/// As [`q4_k`], with 32 bytes of fifth bits (bit i of byte j is that of element 32 * i + j) before the others.
#[inline(always)]
pub fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin, scales) = (half(block, 0), half(block, 2), part::<12>(block, 4));
    let (high, qs) = (part::<32>(block, 16), part::<128>(block, 48));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_and_min(scales, group);
        let (scale, min) = (d * scale, dmin * min);
        let (qs, shift) = (part::<32>(qs, group / 2 * 32), group % 2 * 4);
        for ((out, &q), &high) in out.iter_mut().zip(qs).zip(high) {
            *out = scale * f32::from(q >> shift & 15 | (high >> group & 1) << 4) - min;
        }
    }
}

/// 128 bytes of lower four bits, 64 of upper two, 16 signed scales, `d`. An integer is 32 less than stored.
///
/// For each 128 elements, 64 bytes of lower bits: the low halves are the first 64 elements, the high halves the others;
/// and 32 bytes of upper bits as in [`q2_k`].
#[inline(always)]
pub fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (low, high, scales) = (part::<128>(block, 0), part::<64>(block, 128), part::<16>(block, 192));
    let d = half(block, 208);
    for (group, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[group] as i8);
        let low = part::<16>(low, group / 8 * 64 + group % 4 * 16);
        let low_shift = group % 8 / 4 * 4;
        let (high, high_shift) = twos(high, group);
        for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
            let q = i32::from(low >> low_shift & 15 | (high >> high_shift & 3) << 4) - 32;
            *out = scale * q as f32;
        }
    }
}
