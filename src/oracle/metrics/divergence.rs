//! The Kullback-Leibler divergence of two softmaxes.

use super::finite;

/// `KL(softmax(r) || softmax(c))` in nats, at least 0. `None` where a value is not finite, or the result is beyond
/// f64.
pub fn kl_divergence(r: &[f64], c: &[f64]) -> Option<f64> {
    if !r.iter().chain(c).all(|value| value.is_finite()) {
        return None;
    }
    let (lse_r, lse_c) = (log_sum_exp(r)?, log_sum_exp(c)?);
    let weights: Vec<f64> = r.iter().map(|&value| libm::exp(value - lse_r)).collect();
    let differences = || r.iter().zip(c).map(|(&r, &c)| c - r);
    let total: f64 = weights.iter().sum();
    let average =
        |of: &dyn Fn(f64) -> f64| weights.iter().zip(differences()).map(|(p, d)| p * of(d)).sum::<f64>() / total;
    let mean = average(&|d| d);
    let divergence = if differences().all(|d| (d - mean).abs() < 1.0) {
        // ln(sum p exp(d)) - sum p d, with the mean taken out of d: it does not cancel where the rows are close.
        libm::log1p(average(&|d| libm::expm1(d - mean))) - average(&|d| d - mean)
    } else {
        let term = |(&p, (&r, &c)): (&f64, (&f64, &f64))| if p > 0.0 { p * ((r - lse_r) - (c - lse_c)) } else { 0.0 };
        weights.iter().zip(r.iter().zip(c)).map(term).sum()
    };
    finite(divergence).map(|divergence| divergence.max(0.0))
}

/// `ln(sum(exp(values)))`, stable: the maximum is taken out first.
fn log_sum_exp(values: &[f64]) -> Option<f64> {
    let max = values.iter().copied().reduce(f64::max)?;
    let sum: f64 = values.iter().map(|value| libm::exp(value - max)).sum();
    Some(max + libm::log(sum))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// softmax(0, ln 3) = (1/4, 3/4) against (1/2, 1/2): ln(1/2)/4 + 3 ln(3/2)/4.
    #[test]
    fn two_logits_by_hand() {
        let ln3 = 1.0986122886681098;
        let expected = 0.25 * 0.5f64.ln() + 0.75 * 1.5f64.ln();
        assert!((kl_divergence(&[0.0, ln3], &[0.0, 0.0]).unwrap() - expected).abs() < 1e-15);
        assert_eq!(kl_divergence(&[0.0, ln3], &[0.0, ln3]), Some(0.0));
    }

    /// A shift changes no probability; (0, d) against (0, 0) is d^2/8 to leading order.
    #[test]
    fn close_rows_keep_their_digits() {
        assert!(kl_divergence(&[1.0, 2.0], &[1001.0, 1002.0]).unwrap() < 1e-15);
        let tiny = kl_divergence(&[0.0, 1e-7], &[0.0, 0.0]).unwrap();
        assert!((tiny / 1.25e-15 - 1.0).abs() < 1e-6, "{tiny}");
    }

    /// Both branches say the same where they meet: (0, 1.99) and (0, 2.01) against (0, 0).
    #[test]
    fn the_two_ways_to_sum_agree() {
        for d in [1.99f64, 2.01] {
            let (p, q) = (1.0 / (1.0 + (-d).exp()), 0.5);
            let expected = p * (p / q).ln() + (1.0 - p) * ((1.0 - p) / q).ln();
            assert!((kl_divergence(&[0.0, d], &[0.0, 0.0]).unwrap() - expected).abs() < 1e-14);
        }
    }

    #[test]
    fn far_logits_do_not_overflow_and_nan_has_no_divergence() {
        assert_eq!(kl_divergence(&[0.0, 1e4], &[1e4, 0.0]), Some(1e4));
        assert_eq!(kl_divergence(&[f64::NAN], &[0.0]), None);
    }
}
