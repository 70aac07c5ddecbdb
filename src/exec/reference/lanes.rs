//! Several numbers that advance together: one vector type per instruction set.
//!
//! A lane's arithmetic is that of the scalar code: multiply, round, add, round. No instruction here fuses the two.

use crate::ops::Float;

/// A vector of `N` floats.
///
/// # Safety
/// The functions may only run where the instruction set of the type is available: they are inlined into a function that
/// enables it.
pub trait Lanes<F>: Copy {
    /// Numbers in a vector.
    const N: usize;

    unsafe fn zero() -> Self;
    /// `N` floats from `p`, which need not be aligned.
    unsafe fn load(p: *const F) -> Self;
    /// `N` floats to `p`, which need not be aligned.
    unsafe fn store(self, p: *mut F);
    unsafe fn splat(x: F) -> Self;
    /// `self + a * b`, rounded after the multiplication and after the addition.
    unsafe fn plus_product(self, a: Self, b: Self) -> Self;
    /// Copies a square of `N` rows of `N` floats with rows and columns exchanged. Rows are `from_stride` and `to_stride`
    /// floats apart.
    unsafe fn transpose(from: *const F, from_stride: usize, to: *mut F, to_stride: usize);
    /// As [`Lanes::transpose`] for stored words of 32 bits, which need not be aligned; strides count words.
    #[inline(always)]
    unsafe fn transpose_words(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
        for r in 0..Self::N {
            for c in 0..Self::N {
                unsafe { *to.add(c * to_stride + r) = from.add(r * from_stride + c).read_unaligned() }
            }
        }
    }
}

/// Asks the processor to bring the line of memory at `p` into the cache, where it can be asked; any `p` will do.
#[inline(always)]
pub fn prefetch(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it does nothing that a program can see.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

/// Plain code, for any float type and any processor.
#[derive(Clone, Copy)]
pub struct Portable<F>([F; 8]);

impl<F: Float> Lanes<F> for Portable<F> {
    const N: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        Self([F::ZERO; 8])
    }
    #[inline(always)]
    unsafe fn load(p: *const F) -> Self {
        Self(unsafe { p.cast::<[F; 8]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut F) {
        unsafe { p.cast::<[F; 8]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: F) -> Self {
        Self([x; 8])
    }
    #[inline(always)]
    unsafe fn plus_product(mut self, a: Self, b: Self) -> Self {
        for ((sum, a), b) in self.0.iter_mut().zip(a.0).zip(b.0) {
            *sum += a * b;
        }
        self
    }
    #[inline(always)]
    unsafe fn transpose(from: *const F, from_stride: usize, to: *mut F, to_stride: usize) {
        for r in 0..8 {
            for c in 0..8 {
                unsafe { *to.add(c * to_stride + r) = *from.add(r * from_stride + c) }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    use super::Lanes;
    use std::arch::x86_64::*;

    /// What every x86-64 processor has.
    #[derive(Clone, Copy)]
    pub struct Sse2(__m128);

    impl Lanes<f32> for Sse2 {
        const N: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { Self(_mm_loadu_ps(p)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(_mm_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { Self(_mm_add_ps(self.0, _mm_mul_ps(a.0, b.0))) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe {
                let row = |r: usize| _mm_loadu_ps(from.add(r * from_stride));
                let (mut a, mut b, mut c, mut d) = (row(0), row(1), row(2), row(3));
                _MM_TRANSPOSE4_PS(&mut a, &mut b, &mut c, &mut d);
                for (i, v) in [a, b, c, d].into_iter().enumerate() {
                    _mm_storeu_ps(to.add(i * to_stride), v);
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_words(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            // Nothing but moves: the bits stay whatever they are.
            unsafe { Self::transpose(from.cast(), from_stride, to.cast(), to_stride) }
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    impl Lanes<f32> for Avx2 {
        const N: usize = 8;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm256_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { Self(_mm256_loadu_ps(p)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm256_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(_mm256_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { Self(_mm256_add_ps(self.0, _mm256_mul_ps(a.0, b.0))) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe {
                // Pairs of rows, then fours, then halves: after each step a register holds longer runs of a column.
                let mut rows = [_mm256_setzero_ps(); 8];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = _mm256_loadu_ps(from.add(r * from_stride));
                }
                let mut twos = rows;
                for i in 0..4 {
                    twos[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                    twos[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
                }
                for half in 0..2 {
                    for column in 0..4 {
                        let (i, j) = (half * 4 + column / 2, half * 4 + column / 2 + 2);
                        let (a, b) = (_mm256_castps_pd(twos[i]), _mm256_castps_pd(twos[j]));
                        let four = if column % 2 == 0 { _mm256_unpacklo_pd(a, b) } else { _mm256_unpackhi_pd(a, b) };
                        let four = _mm256_castpd_ps(four);
                        // Columns `column` and `column + 4` of four rows.
                        let at = to.add(column * to_stride + half * 4);
                        _mm_storeu_ps(at, _mm256_castps256_ps128(four));
                        _mm_storeu_ps(at.add(4 * to_stride), _mm256_extractf128_ps::<1>(four));
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_words(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            // Nothing but moves: the bits stay whatever they are.
            unsafe { Self::transpose(from.cast(), from_stride, to.cast(), to_stride) }
        }
    }

    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Lanes<f32> for Avx512 {
        const N: usize = 16;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(_mm512_setzero_ps()) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { Self(_mm512_loadu_ps(p)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { _mm512_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(_mm512_set1_ps(x)) }
        }
        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { Self(_mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0))) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe {
                // A loop, since the closure of `array::from_fn` would be a call for each row.
                let mut rows = [_mm512_setzero_ps(); 16];
                for (r, row) in rows.iter_mut().enumerate() {
                    *row = _mm512_loadu_ps(from.add(r * from_stride));
                }
                // fours[4 * g + c]: column 4 * lane + c of the rows 4 * g .. 4 * g + 4, for the four 128-bit lanes.
                let mut fours = rows;
                for g in 0..4 {
                    let [a, b, c, d] = [rows[4 * g], rows[4 * g + 1], rows[4 * g + 2], rows[4 * g + 3]];
                    let (ab_low, ab_high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                    let (cd_low, cd_high) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                    let pd = |v| _mm512_castps_pd(v);
                    let ps = |v| _mm512_castpd_ps(v);
                    fours[4 * g] = ps(_mm512_unpacklo_pd(pd(ab_low), pd(cd_low)));
                    fours[4 * g + 1] = ps(_mm512_unpackhi_pd(pd(ab_low), pd(cd_low)));
                    fours[4 * g + 2] = ps(_mm512_unpacklo_pd(pd(ab_high), pd(cd_high)));
                    fours[4 * g + 3] = ps(_mm512_unpackhi_pd(pd(ab_high), pd(cd_high)));
                }
                for c in 0..4 {
                    let [a, b, d, e] = [fours[c], fours[4 + c], fours[8 + c], fours[12 + c]];
                    // Lanes 0 and 2, then 1 and 3, of two groups of rows each.
                    let (even_low, even_high) =
                        (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0x88>(d, e));
                    let (odd_low, odd_high) = (_mm512_shuffle_f32x4::<0xdd>(a, b), _mm512_shuffle_f32x4::<0xdd>(d, e));
                    let columns = [
                        _mm512_shuffle_f32x4::<0x88>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0x88>(odd_low, odd_high),
                        _mm512_shuffle_f32x4::<0xdd>(even_low, even_high),
                        _mm512_shuffle_f32x4::<0xdd>(odd_low, odd_high),
                    ];
                    for (lane, column) in columns.into_iter().enumerate() {
                        _mm512_storeu_ps(to.add((4 * lane + c) * to_stride), column);
                    }
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_words(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            // Nothing but moves: the bits stay whatever they are.
            unsafe { Self::transpose(from.cast(), from_stride, to.cast(), to_stride) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub mod arm {
    use super::Lanes;
    use std::arch::aarch64::*;

    /// What every 64-bit Arm processor has.
    #[derive(Clone, Copy)]
    pub struct Neon(float32x4_t);

    impl Lanes<f32> for Neon {
        const N: usize = 4;

        #[inline(always)]
        unsafe fn zero() -> Self {
            unsafe { Self(vdupq_n_f32(0.0)) }
        }
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            unsafe { Self(vld1q_f32(p)) }
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            unsafe { vst1q_f32(p, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            unsafe { Self(vdupq_n_f32(x)) }
        }
        #[inline(always)]
        unsafe fn plus_product(self, a: Self, b: Self) -> Self {
            unsafe { Self(vaddq_f32(self.0, vmulq_f32(a.0, b.0))) }
        }
        #[inline(always)]
        unsafe fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
            unsafe {
                let row = |r: usize| vld1q_f32(from.add(r * from_stride));
                let (low, high) = (vtrnq_f32(row(0), row(1)), vtrnq_f32(row(2), row(3)));
                let pair = |a, b| vcombine_f32(a, b);
                let columns = [
                    pair(vget_low_f32(low.0), vget_low_f32(high.0)),
                    pair(vget_low_f32(low.1), vget_low_f32(high.1)),
                    pair(vget_high_f32(low.0), vget_high_f32(high.0)),
                    pair(vget_high_f32(low.1), vget_high_f32(high.1)),
                ];
                for (i, v) in columns.into_iter().enumerate() {
                    vst1q_f32(to.add(i * to_stride), v);
                }
            }
        }
        #[inline(always)]
        unsafe fn transpose_words(from: *const u32, from_stride: usize, to: *mut u32, to_stride: usize) {
            // Nothing but moves: the bits stay whatever they are.
            unsafe { Self::transpose(from.cast(), from_stride, to.cast(), to_stride) }
        }
    }
}
