//! Which instruction set the reference runs on. No bit depends on it.

use super::lanes;
use super::panel::Work;
use crate::ops::Float;
use std::fmt;

/// Instruction sets, from the one that every processor has to the widest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Plain code without any instruction set named.
    Portable,
    /// SSE2 on x86-64, NEON on 64-bit Arm.
    Baseline,
    Avx2,
    Avx512,
}

impl Level {
    pub const ALL: [Level; 4] = [Level::Portable, Level::Baseline, Level::Avx2, Level::Avx512];

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        match self {
            Level::Portable => true,
            Level::Baseline => cfg!(any(target_arch = "x86_64", target_arch = "aarch64")),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => is_x86_feature_detected!("avx512f"),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// The widest that this processor has.
    pub fn widest() -> Self {
        Self::ALL.into_iter().rev().find(|l| l.available()).unwrap_or(Level::Portable)
    }
}

impl std::str::FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let level = Self::ALL.into_iter().find(|l| l.to_string() == name);
        let level = level.ok_or_else(|| {
            let known = Self::ALL.map(|l| l.to_string()).join(", ");
            format!("no instruction set {name}; known are {known}")
        })?;
        if level.available() { Ok(level) } else { Err(format!("this processor has no {level}")) }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Level::Portable => "portable",
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        })
    }
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
