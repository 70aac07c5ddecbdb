//! Which instruction set the arithmetic runs on. No bit depends on it.

use std::fmt;
use std::sync::OnceLock;

/// Names a level to run on instead of the widest one: for tests and measurements.
pub const VARIABLE: &str = "ORACLE_SIMD";

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

    /// The one that the variable [`VARIABLE`] names, else the widest; the same for the whole process.
    ///
    /// # Errors
    /// The variable names no level, or one that this processor has not.
    pub fn selected() -> Result<Self, &'static str> {
        static SELECTED: OnceLock<Result<Level, String>> = OnceLock::new();
        let select = || match std::env::var(VARIABLE) {
            Ok(name) if !name.is_empty() => name.parse().map_err(|e| format!("{VARIABLE}: {e}")),
            _ => Ok(Level::widest()),
        };
        SELECTED.get_or_init(select).as_ref().copied().map_err(String::as_str)
    }
}

/// Does elementwise work on the selected instruction set: loops inside `work` are compiled for it.
pub fn elementwise<R>(work: impl FnOnce() -> R) -> R {
    elementwise_at(Level::selected().unwrap_or(Level::Portable), work)
}

/// As [`elementwise`], on the instruction set of `level`, which is available.
pub(crate) fn elementwise_at<R>(level: Level, work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f")]
        fn avx512<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        #[target_feature(enable = "avx2")]
        fn avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: the level is available.
        match level {
            Level::Avx512 => return unsafe { avx512(work) },
            Level::Avx2 => return unsafe { avx2(work) },
            _ => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = level;
    work()
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
