//! A smooth ReLU, which makes step sizes and decays positive.

use super::Float;

/// `x` above 20, else `log1p(exp(x))`, as torch's `softplus` with its defaults.
#[inline(always)]
pub fn softplus<F: Float>(x: F) -> F {
    if x > F::from_f64(20.0) { x } else { x.exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `ln(1 + e^x)` from mpmath to 20 digits.
    #[test]
    fn values_and_the_threshold() {
        for (x, expected) in [
            (0.0f64, std::f64::consts::LN_2),
            (1.0, 1.313_261_687_518_222_8),
            (-2.0, 0.126_928_011_042_972_5),
            (-40.0, 4.248_354_255_291_589e-18),
        ] {
            assert!((softplus(x) - expected).abs() <= 1e-15 * expected, "{x}");
        }
        assert_eq!(softplus(20.5f32), 20.5);
        assert!(softplus(20.0f64) > 20.0, "20 itself is below the threshold");
        assert!(softplus(f32::NAN).is_nan());
    }
}
