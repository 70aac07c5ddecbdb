//! Normalisation of one row.

use super::Float;

/// RMSNorm (Zhang and Sennrich 2019) of one row `x` of length n with weights `w`, in place:
/// `r = 1 / sqrt(sum(x * x) / n + eps)`, then `(x * r) * w`. Without weights it is `x * r`.
pub fn rms_norm<F: Float>(x: &mut [F], w: Option<&[F]>, eps: F) {
    let r = F::ONE / (mean_square(x) + eps).sqrt();
    scale(x, r, w);
}

/// LayerNorm (Ba, Kiros and Hinton 2016) of one row `x` of length n with weights `w`, in place: `mean = sum(x) / n`,
/// `r = 1 / sqrt(sum((x - mean) * (x - mean)) / n + eps)`, then `((x - mean) * r) * w`.
pub fn layer_norm<F: Float>(x: &mut [F], w: Option<&[F]>, eps: F) {
    let (mean, variance) = moments(x);
    let r = F::ONE / (variance + eps).sqrt();
    for v in x.iter_mut() {
        *v = *v - mean;
    }
    scale(x, r, w);
}

/// Mean of a row, and the mean of the squared deviations from it.
pub fn moments<F: Float>(x: &[F]) -> (F, F) {
    let n = F::from_usize(x.len());
    let mut sum = F::ZERO;
    for &v in x {
        sum += v;
    }
    let mean = sum / n;
    let mut squares = F::ZERO;
    for &v in x {
        let deviation = v - mean;
        squares += deviation * deviation;
    }
    (mean, squares / n)
}

/// Mean of the squares of a row.
pub fn mean_square<F: Float>(x: &[F]) -> F {
    let mut sum = F::ZERO;
    for &v in x {
        sum += v * v;
    }
    sum / F::from_usize(x.len())
}

/// `(x * r) * w`
fn scale<F: Float>(x: &mut [F], r: F, w: Option<&[F]>) {
    match w {
        Some(w) => {
            for (v, &w) in x.iter_mut().zip(w) {
                *v = (*v * r) * w;
            }
        }
        None => {
            for v in x.iter_mut() {
                *v *= r;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rms_norm_of_three_and_four() {
        // mean of squares (9 + 16) / 2 = 12.5, plus eps 3.5 = 16, root 4: 3/4 * 2 and 4/4 * 10.
        let mut x = [3.0f32, 4.0];
        rms_norm(&mut x, Some(&[2.0, 10.0]), 3.5);
        assert_eq!(x, [1.5, 10.0]);
        let mut x = [3.0f32, 4.0];
        rms_norm(&mut x, None, 3.5);
        assert_eq!(x, [0.75, 1.0]);
        let mut x = [3.0f64, 4.0];
        rms_norm(&mut x, Some(&[2.0, 10.0]), 0.0);
        assert_ne!(x, [1.5, 10.0], "eps matters");
    }

    #[test]
    fn layer_norm_takes_the_mean_away_first() {
        // Mean 5, squared deviations 9 and 9, plus eps 7 = 16, root 4: -3/4 * 2 and 3/4 * 10.
        let mut x = [2.0f32, 8.0];
        layer_norm(&mut x, Some(&[2.0, 10.0]), 7.0);
        assert_eq!(x, [-1.5, 7.5]);
        let mut x = [2.0f32, 8.0];
        layer_norm(&mut x, None, 7.0);
        assert_eq!(x, [-0.75, 0.75]);
        let mut x = [2.0f32, 8.0];
        rms_norm(&mut x, None, 7.0);
        assert_ne!(x, [-0.75, 0.75], "RMSNorm is another");
    }

    #[test]
    fn moments_of_a_row() {
        // (1 + 3 + 5 + 7) / 4 = 4; 9 + 1 + 1 + 9 = 20 over 4, not over 3.
        assert_eq!(moments(&[1.0f64, 3.0, 5.0, 7.0]), (4.0, 5.0));
        assert_eq!(mean_square(&[3.0f32, 4.0]), 12.5);
    }
}
