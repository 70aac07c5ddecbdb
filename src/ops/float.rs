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
    /// Fills `out` with float32 values; `scratch` holds them on the way to a wider float.
    fn fill_from_f32(out: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32]));
    /// Rounded to nearest, ties to even.
    fn from_f64(x: f64) -> Self;
    /// Exact.
    fn to_f64(self) -> f64;
    fn is_finite(self) -> bool;
    /// Little endian.
    fn write_le(self, out: &mut dyn std::io::Write) -> std::io::Result<()>;
    /// From as many bytes as the type has, little endian.
    fn from_le(bytes: &[u8]) -> Self;
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
    /// The logarithm of one more.
    fn ln_1p(self) -> Self {
        Self::from_f64(libm::log1p(self.to_f64()))
    }
    fn pow(self, exponent: Self) -> Self {
        Self::from_f64(libm::pow(self.to_f64(), exponent.to_f64()))
    }
    fn from_usize(n: usize) -> Self {
        Self::from_f64(n as f64)
    }
    /// The nearest whole number; of two that are as near the even one. Exact.
    #[inline(always)]
    fn round_ties_even(self) -> Self {
        Self::from_f64(self.to_f64().round_ties_even())
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Self::from_f64(self.to_f64().abs())
    }
    /// The larger of the two; `self` where either is not a number.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if other > self { other } else { self }
    }
    #[inline(always)]
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
    #[inline(always)]
    fn fill_from_f32(out: &mut [Self], _: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        fill(out);
    }
    fn from_f64(x: f64) -> Self {
        x as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn write_le(self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        out.write_all(&self.to_le_bytes())
    }
    fn from_le(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("as many bytes as the type has"))
    }
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
    #[inline(always)]
    fn exp(self) -> Self {
        exp_f32(self)
    }
}

/// The same bits as the `libm` crate's float64 `exp` rounded to float32, for each of the 2^32 arguments (the test below
/// compares them all), and without a branch, so that a loop over it can be vectorised.
///
/// exp(x) = 2^k exp(r) with k = round(x / ln 2) and |r| <= ln(2) / 2; exp(r) by its Taylor series, whose first
/// neglected term is below 2^-60.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    /// Adding it rounds a small number to a whole one, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    // ln 2 in two parts; the product of the first with any k here is exact.
    const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    const INVERSE_FACTORIALS: [f64; 14] = {
        let mut terms = [1.0; 14];
        let (mut n, mut factorial) = (1, 1.0);
        while n < 14 {
            factorial *= n as f64;
            terms[n] = 1.0 / factorial;
            n += 1;
        }
        terms
    };
    let x = f64::from(x);
    // Beyond these the float32 result is infinity or zero anyway; a NaN passes through.
    let x = if x > 100.0 { 100.0 } else { x };
    let x = if x < -120.0 { -120.0 } else { x };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    let mut sum = INVERSE_FACTORIALS[13];
    let mut n = 13;
    while n > 0 {
        n -= 1;
        sum = sum * r + INVERSE_FACTORIALS[n];
    }
    let power = f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52);
    (sum * power) as f32
}

impl Float for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NEG_INFINITY: Self = f64::NEG_INFINITY;

    fn from_f32(x: f32) -> Self {
        f64::from(x)
    }
    #[inline(always)]
    fn fill_from_f32(out: &mut [Self], scratch: &mut Vec<f32>, fill: impl FnOnce(&mut [f32])) {
        scratch.resize(out.len(), 0.0);
        fill(scratch);
        for (wide, &narrow) in out.iter_mut().zip(scratch.iter()) {
            *wide = f64::from(narrow);
        }
    }
    fn from_f64(x: f64) -> Self {
        x
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn write_le(self, out: &mut dyn std::io::Write) -> std::io::Result<()> {
        out.write_all(&self.to_le_bytes())
    }
    fn from_le(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("as many bytes as the type has"))
    }
    fn is_finite(self) -> bool {
        self.is_finite()
    }
    fn sqrt(self) -> Self {
        self.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare_exp(bits: impl Iterator<Item = u32>) {
        for bits in bits {
            let x = f32::from_bits(bits);
            let (ours, defined) = (Float::exp(x), libm::exp(f64::from(x)) as f32);
            assert!(
                ours.to_bits() == defined.to_bits() || (ours.is_nan() && defined.is_nan()),
                "exp({x:e} = {bits:#010x})"
            );
        }
    }

    #[test]
    fn exp_is_the_defined_one_at_a_sample_of_arguments() {
        compare_exp((0..=u32::MAX).step_by(4099));
        for x in [
            0.0f32,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            88.72284,
            88.72283,
            -103.97208,
            -103.97207,
            -87.33655,
        ] {
            compare_exp(std::iter::once(x.to_bits()));
        }
    }

    /// Takes about a minute on two cores: `cargo test --release --lib -- --ignored every_argument`.
    #[test]
    #[ignore = "compares all 2^32 arguments, which takes a minute"]
    fn exp_is_the_defined_one_at_every_argument() {
        use rayon::prelude::*;
        (0..1u32 << 12).into_par_iter().for_each(|high| compare_exp((0..1 << 20).map(|low| high << 20 | low)));
    }
}
