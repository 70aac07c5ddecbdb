//! The float type that an evaluation runs in.

use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub};

/// `f32` or `f64`, with elementary functions whose bits are the same on every machine.
///
/// Addition, multiplication, division and square root are IEEE 754 and correctly rounded. The others are the pure
/// Rust `libm` crate's float64 functions, rounded to `Self`: never the platform's own (which `std` calls), since those
/// differ between operating systems.
pub trait Float:
    Copy
    + Send
    + Sync
    + PartialEq
    + PartialOrd
    + Add<Output = Self>
    + AddAssign
    + Sub<Output = Self>
    + Mul<Output = Self>
    + MulAssign
    + Div<Output = Self>
    + Neg<Output = Self>
    + Sum
    + 'static
{
    const ZERO: Self;
    const ONE: Self;
    const NEG_INFINITY: Self;

    /// Exact.
    fn from_f32(x: f32) -> Self;
    /// Rounded to nearest, ties to even.
    fn from_f64(x: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    /// Correctly rounded.
    fn sqrt(self) -> Self;

    fn exp(self) -> Self {
        Self::from_f64(libm::exp(self.to_f64()))
    }
    fn sin(self) -> Self {
        Self::from_f64(libm::sin(self.to_f64()))
    }
    fn cos(self) -> Self {
        Self::from_f64(libm::cos(self.to_f64()))
    }
    fn tanh(self) -> Self {
        Self::from_f64(libm::tanh(self.to_f64()))
    }
    fn erf(self) -> Self {
        Self::from_f64(libm::erf(self.to_f64()))
    }
    fn pow(self, exponent: Self) -> Self {
        Self::from_f64(libm::pow(self.to_f64(), exponent.to_f64()))
    }
    fn from_usize(n: usize) -> Self {
        Self::from_f64(n as f64)
    }
    /// The larger of the two; `self` where either is not a number.
    fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    fn min(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

impl Float for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f32::NEG_INFINITY;

    fn from_f32(x: f32) -> Self {
        x
    }
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    fn from_f32(x: f32) -> Self {
        f64::from(x)
    }
    fn from_f64(x: f64) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}
