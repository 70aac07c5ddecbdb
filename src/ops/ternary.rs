//! BitNet's roundings (Ma et al. 2024): weights to -1, 0 and 1, a token's inputs to whole numbers of eight bits.
//!
//! As transformers 5.24 has them (`integrations/bitnet.py`): a value is multiplied by its scale, rounded to the nearest whole
//! number with ties to even, and cut. A NaN stays one, and so does what an infinite scale makes of a number.

use super::Float;

/// Below it a magnitude counts as this much, so that nothing is divided by zero.
const LEAST: f64 = 1e-5;

/// Rounds a token's inputs in place to whole numbers from -128 to 127, and returns what they were multiplied by:
/// `s = 127 / max(max|x|, 1e-5)`.
pub fn round_inputs<F: Float>(x: &mut [F]) -> F {
    let mut largest = F::ZERO;
    for &v in x.iter() {
        largest = largest.max(v.abs());
    }
    let scale = F::from_f64(127.0) / largest.max(F::from_f64(LEAST));
    let (low, high) = (F::from_f64(-128.0), F::from_f64(127.0));
    for v in x.iter_mut() {
        *v = (*v * scale).round_ties_even().max(low).min(high);
    }
    scale
}

/// Sum of a row's magnitudes: in float64 whatever the class, since one float32 accumulator would come to a halt long
/// before the millions of weights of a matrix are through.
pub fn magnitude(row: &[f64]) -> f64 {
    let mut sum = 0.0;
    for &w in row {
        sum += w.abs();
    }
    sum
}

/// What a matrix of `count` weights is multiplied by before they are rounded: `1 / max(mean|w|, 1e-5)`, `sum` being that of
/// all magnitudes.
pub fn weight_scale<F: Float>(sum: f64, count: usize) -> F {
    F::ONE / F::from_f64(sum / count as f64).max(F::from_f64(LEAST))
}

/// -1, 0 or 1: `round(w * scale)`, cut.
pub fn round_weight<F: Float>(w: F, scale: F) -> F {
    (w * scale).round_ties_even().max(-F::ONE).min(F::ONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_are_rounded_by_their_largest() {
        // The largest is 254: halved, ties to even. 5 / 2 = 2.5 becomes 2, 7 / 2 = 3.5 becomes 4.
        let mut x = [254.0f32, -254.0, 5.0, 7.0, -5.0, 0.0];
        assert_eq!(round_inputs(&mut x), 0.5);
        assert_eq!(x, [127.0, -127.0, 2.0, 4.0, -2.0, 0.0]);
        let mut zeros = [0.0f64; 3];
        assert_eq!(round_inputs(&mut zeros), 127.0 / 1e-5);
        assert_eq!(zeros, [0.0; 3]);
    }

    #[test]
    fn what_is_not_a_number_is_not_rounded_away() {
        let mut x = [1.0f32, f32::NAN];
        round_inputs(&mut x);
        assert!(x[1].is_nan());
        let mut x = [1.0f64, f64::INFINITY];
        round_inputs(&mut x);
        assert!(x[1].is_nan(), "infinity times a scale of zero");
        assert!(weight_scale::<f32>(f64::NAN, 2).is_nan());
    }

    #[test]
    fn weights_are_rounded_by_their_mean() {
        // Magnitudes 0.5, 1.5, 0.5, 1.5: the mean is 1, 0.5 is a tie and goes to 0, 1.5 to 2, which is cut.
        let row = [0.5f64, -1.5, -0.5, 1.5];
        let scale = weight_scale::<f64>(magnitude(&row), row.len());
        assert_eq!(scale, 1.0);
        assert_eq!(row.map(|w| round_weight(w, scale)), [0.0, -1.0, 0.0, 1.0]);
        assert_eq!(weight_scale::<f64>(0.0, 4), 1.0 / 1e-5);
    }
}
