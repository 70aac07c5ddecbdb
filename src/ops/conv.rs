//! A depthwise causal convolution over tokens: each channel by itself.

use super::{Activation, Float, Matrix};
use std::ops::Range;

/// The weights of a convolution over `kernel` tokens.
#[derive(Debug, Clone)]
pub struct Taps<F> {
    /// `[kernel, channels]`: the transpose of what is stored. The last row meets the newest token.
    pub weights: Matrix<F>,
    /// `[channels]`
    pub bias: Option<Vec<F>>,
    pub activation: Option<Activation>,
}

/// `out[c] = activation(sum_j weights[j][c] * x[newest - kernel + 1 + j][c] + bias[c])`, the sum over ascending j.
///
/// `x` is `[rows, channels of all convolutions]`, of which this one has `columns`; `out` is `[channels]`. Tokens before
/// the sequence's first are rows of zeros.
#[inline(always)]
pub fn convolve<F: Float>(taps: &Taps<F>, x: &Matrix<F>, newest: usize, columns: Range<usize>, out: &mut [F]) {
    let first = newest + 1 - taps.weights.rows();
    out.fill(F::ZERO);
    for (j, weights) in taps.weights.iter_rows().enumerate() {
        for ((y, &w), &x) in out.iter_mut().zip(weights).zip(&x.row(first + j)[columns.clone()]) {
            *y += x * w;
        }
    }
    if let Some(bias) = &taps.bias {
        for (y, &b) in out.iter_mut().zip(bias) {
            *y += b;
        }
    }
    if let Some(activation) = taps.activation {
        activation.apply(out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two channels, three taps, by hand: channel 0 is 1*10 + 2*20 + 3*30 = 140, plus 0.5; channel 1 is
    /// 1*1 - 1*2 + 2*(-3) = -7, plus 1, and ReLU leaves 0.
    #[test]
    fn three_taps_by_hand() {
        let mut taps = Taps {
            weights: Matrix::from_vec(3, 2, vec![1.0f64, 1.0, 2.0, -1.0, 3.0, 2.0]),
            bias: Some(vec![0.5, 1.0]),
            activation: None,
        };
        // A channel of another convolution stands before them.
        let x = Matrix::from_vec(4, 3, vec![9.0, 9.0, 9.0, 9.0, 10.0, 1.0, 9.0, 20.0, 2.0, 9.0, 30.0, -3.0]);
        let mut out = [7.0; 2];
        convolve(&taps, &x, 3, 1..3, &mut out);
        assert_eq!(out, [140.5, -6.0]);
        taps.activation = Some(Activation::Relu);
        convolve(&taps, &x, 3, 1..3, &mut out);
        assert_eq!(out, [140.5, 0.0]);
    }
}
