//! Softmax of one row.

use super::Float;

/// Softmax in place: subtract the maximum, exp, sum in ascending order, divide.
///
/// A `sink` is one more score that takes part in the maximum and comes last in the sum; its own share is dropped, so
/// that the others add up to less than one.
///
/// Always inlined, so that it is compiled for the instruction set of the kernel that calls it.
#[inline(always)]
pub fn softmax<F: Float>(x: &mut [F], sink: Option<F>) {
    let mut max = maximum(x);
    if let Some(sink) = sink {
        max = max.max(sink);
    }
    for v in x.iter_mut() {
        *v = (*v - max).exp();
    }
    let mut sum = F::ZERO;
    for &v in x.iter() {
        sum += v;
    }
    if let Some(sink) = sink {
        sum += (sink - max).exp();
    }
    for v in x.iter_mut() {
        *v = *v / sum;
    }
}

/// The largest value, whatever the order in which it is looked for.
#[inline(always)]
fn maximum<F: Float>(x: &[F]) -> F {
    const LANES: usize = 16;
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut lanes = [F::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (max, &v) in lanes.iter_mut().zip(chunk) {
            *max = max.max(v);
        }
    }
    lanes.iter().chain(rest).fold(F::NEG_INFINITY, |max, &v| max.max(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_of_equal_scores_is_uniform_and_of_a_log_ratio_is_that_ratio() {
        let mut x = [5.0f32; 4];
        softmax(&mut x, None);
        assert_eq!(x, [0.25; 4]);
        let mut x = [0.0f64, 3f64.ln()];
        softmax(&mut x, None);
        assert!((x[1] - 0.75).abs() < 1e-15 && (x[0] - 0.25).abs() < 1e-15);
    }

    #[test]
    fn a_sink_takes_its_share() {
        // exp of the scores 1, 2, and of the sink 5: eighths.
        let mut x = [0.0f64, 2f64.ln()];
        softmax(&mut x, Some(5f64.ln()));
        assert!((x[0] - 0.125).abs() < 1e-15 && (x[1] - 0.25).abs() < 1e-15, "{x:?}");
        // The sink is the maximum: nothing overflows.
        let mut x = [0.0f32, 0.0];
        softmax(&mut x, Some(1000.0));
        assert_eq!(x, [0.0, 0.0]);
        let mut x = [0.0f32, 0.0];
        softmax(&mut x, Some(f32::NAN));
        assert!(x.iter().all(|v| v.is_nan()), "a sink that is not a number is not hidden: {x:?}");
    }

    #[test]
    fn a_large_score_does_not_overflow() {
        let mut x = [1000.0f32, 0.0];
        softmax(&mut x, None);
        assert_eq!(x, [1.0, 0.0]);
    }
}
