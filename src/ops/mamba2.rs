//! The scan of Mamba-2 (Dao and Gu 2024), token after token.

use super::{Float, softplus::softplus};

/// The sizes of a scan.
#[derive(Debug, Clone, Copy)]
pub struct ScanSpec {
    pub num_heads: usize,
    pub head_dim: usize,
    /// Head h reads `B` and `C` of group `h / (num_heads / n_groups)`.
    pub n_groups: usize,
    pub state_size: usize,
}

/// What a head does with every token.
#[derive(Debug, Clone, Copy)]
pub struct ScanHead<F> {
    /// `-exp(a_log)`
    pub a: F,
    /// Factor of the input that is added to the result.
    pub d: Option<F>,
}

/// The step of a head from its projection `dt`: `clamp(softplus(dt + bias), limit)`.
#[inline(always)]
pub fn step_size<F: Float>(dt: F, bias: F, (least, most): (F, F)) -> F {
    softplus(dt + bias).max(least).min(most)
}

/// One token through one head.
///
/// `x` is `[head_dim]`, `b` and `c` are `[state_size]`, `state` is `[state_size, head_dim]`:
/// `state[n][p] = state[n][p] * exp(dt * a) + (dt * b[n]) * x[p]`, then
/// `out[p] = sum_n state[n][p] * c[n] + d * x[p]`, the sum over ascending n, `d * x[p]` added after it.
#[inline(always)]
pub fn scan<F: Float>(head: &ScanHead<F>, dt: F, x: &[F], b: &[F], c: &[F], state: &mut [F], out: &mut [F]) {
    let decay = (dt * head.a).exp();
    out.fill(F::ZERO);
    for ((state, &b), &c) in state.chunks_exact_mut(x.len()).zip(b).zip(c) {
        let b = dt * b;
        for ((s, y), &x) in state.iter_mut().zip(out.iter_mut()).zip(x) {
            *s = *s * decay + b * x;
            *y += *s * c;
        }
    }
    if let Some(d) = head.d {
        for (y, &x) in out.iter_mut().zip(x) {
            *y += d * x;
        }
    }
}

impl ScanSpec {
    /// Columns of the heads' inputs together.
    pub fn inner(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// The columns of x, B and C (which stand side by side) that a head reads.
    pub fn columns(&self, head: usize) -> [std::ops::Range<usize>; 3] {
        let group = head / (self.num_heads / self.n_groups);
        let of = |start: usize, i: usize, size: usize| start + i * size..start + (i + 1) * size;
        [
            of(0, head, self.head_dim),
            of(self.inner(), group, self.state_size),
            of(self.inner() + self.n_groups * self.state_size, group, self.state_size),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_clamped_after_softplus() {
        let limit = (0.5, 2.0);
        assert_eq!(step_size(-1.0, 31.0, (0.0, f64::INFINITY)), 30.0);
        assert_eq!(step_size(1.0, 30.0, limit), 2.0);
        assert_eq!(step_size(-1.0, -3.0, limit), 0.5);
        assert!(step_size(f64::NAN, 0.0, limit).is_nan());
    }

    #[test]
    fn heads_of_a_group_share_b_and_c() {
        let spec = ScanSpec { num_heads: 4, head_dim: 3, n_groups: 2, state_size: 5 };
        assert_eq!(spec.columns(0), [0..3, 12..17, 22..27]);
        assert_eq!(spec.columns(1), [3..6, 12..17, 22..27]);
        assert_eq!(spec.columns(3), [9..12, 17..22, 27..32]);
    }

    /// Values from the sum over all earlier tokens (`sum_s (C_t . B_s) dt_s exp(a * sum dt) x_s + D x_t`) in NumPy, which
    /// knows no state.
    #[test]
    fn three_tokens_against_the_closed_form() {
        let x = [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]];
        let b = [[0.5, -1.0, 2.0], [1.5, 0.25, -0.75], [-0.5, 1.0, 0.125]];
        let c = [[1.0, 0.5, -0.25], [-2.0, 1.0, 0.5], [0.75, -0.5, 1.25]];
        let dt = [0.5, 0.25, 1.5];
        let expected = [
            [0.125, -0.25],
            [-0.617_639_559_090_200_2, -0.389_720_881_819_599_63],
            [1.511_408_310_881_734_9, -1.068_932_092_553_573],
        ];
        let head = ScanHead { a: -0.75, d: Some(0.375) };
        let mut state = [0.0f64; 6];
        for t in 0..3 {
            let mut out = [9.0; 2];
            scan(&head, dt[t], &x[t], &b[t], &c[t], &mut state, &mut out);
            for (y, e) in out.into_iter().zip(expected[t]) {
                assert!((y - e).abs() < 1e-14, "token {t}: {y}, expected {e}");
            }
        }
        let kept = [
            1.253_158_924_811_986_5,
            0.043_160_851_413_551_53,
            -2.374_427_784_759_643_3,
            0.705_018_686_358_874_4,
            -0.042_539_820_085_661_43,
            -0.674_034_710_347_439_4,
        ];
        assert!(state.iter().zip(kept).all(|(s, e)| (s - e).abs() < 1e-14), "{state:?}");
    }
}
