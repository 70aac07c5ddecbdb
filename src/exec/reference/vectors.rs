//! From an instruction set to its vector type.

use super::lanes::{self, Lanes};
use crate::ops::{Float, Level};

/// Work that can be done on any vector type.
pub trait Work<F> {
    /// # Safety
    /// The instruction set of `V` must be available, and enabled in the caller.
    unsafe fn run<V: Lanes<F>>(self);
}

/// A float type for which there are vectors.
pub trait Vectors: Float {
    /// Does the work on the widest vectors that `level` allows. `level` is available.
    fn run<W: Work<Self>>(level: Level, work: W);
}

impl Vectors for f64 {
    fn run<W: Work<f64>>(_: Level, work: W) {
        // SAFETY: plain code runs anywhere.
        unsafe { work.run::<lanes::Portable<f64>>() }
    }
}

impl Vectors for f32 {
    fn run<W: Work<f32>>(level: Level, work: W) {
        // SAFETY: the caller has made sure that the level is available, and each function enables its instructions.
        unsafe {
            match level {
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512(work),
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2(work),
                #[cfg(target_arch = "x86_64")]
                Level::Baseline => work.run::<lanes::x86::Sse2>(),
                #[cfg(target_arch = "aarch64")]
                Level::Baseline => work.run::<lanes::arm::Neon>(),
                _ => work.run::<lanes::Portable<f32>>(),
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn avx512<W: Work<f32>>(work: W) {
    unsafe { work.run::<lanes::x86::Avx512>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn avx2<W: Work<f32>>(work: W) {
    unsafe { work.run::<lanes::x86::Avx2>() }
}
