//! Normalisation of one row.

use super::Float;

/// RMSNorm (Zhang and Sennrich 2019) of one row `x` of length n with weights `w`, in place:
/// `r = 1 / sqrt(sum(x * x) / n + eps)`, then `(x * r) * w`.
pub fn rms_norm<F: Float>(x: &mut [F], w: &[F], eps: F) {
    let mut sum = F::ZERO;
    for &v in x.iter() {
        sum += v * v;
    }
    let r = F::ONE / (sum / F::from_usize(x.len()) + eps).sqrt();
    for (v, &w) in x.iter_mut().zip(w) {
        *v = (*v * r) * w;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_of_three_and_four() {
        // mean of squares (9 + 16) / 2 = 12.5, plus eps 3.5 = 16, root 4: 3/4 * 2 and 4/4 * 10.
        let mut x = [3.0f32, 4.0];
        rms_norm(&mut x, &[2.0, 10.0], 3.5);
        assert_eq!(x, [1.5, 10.0]);
        let mut x = [3.0f64, 4.0];
        rms_norm(&mut x, &[2.0, 10.0], 0.0);
        assert_ne!(x, [1.5, 10.0], "eps matters");
    }
}
