//! The gated delta rule (Yang, Kautz and Hatamizadeh 2024) and Kimi delta attention, token after token.

use super::{Float, softplus::softplus};

/// The sizes of a gated delta rule.
#[derive(Debug, Clone, Copy)]
pub struct DeltaSpec {
    pub num_k_heads: usize,
    /// Value head h reads key head `h / (num_v_heads / num_k_heads)`.
    pub num_v_heads: usize,
    pub head_k_dim: usize,
    pub head_v_dim: usize,
}

/// What is normalised before a head uses it: `r = 1 / sqrt(sum(x * x) + eps)`, then `x * r`, in place.
#[inline(always)]
pub fn l2_norm<F: Float>(x: &mut [F], eps: F) {
    let mut sum = F::ZERO;
    for &v in x.iter() {
        sum += v * v;
    }
    let r = F::ONE / (sum + eps).sqrt();
    for v in x.iter_mut() {
        *v *= r;
    }
}

/// What is left of a state after a token: `exp(a * softplus(x + bias))`, `a` being `-exp(a_log)`.
#[inline(always)]
pub fn decay<F: Float>(x: F, bias: F, a: F) -> F {
    (a * softplus(x + bias)).exp()
}

/// What a value head sees of a token.
#[derive(Debug, Clone, Copy)]
pub struct DeltaToken<'a, F> {
    /// `[head_k_dim]`
    pub q: &'a [F],
    /// `[head_k_dim]`
    pub k: &'a [F],
    /// `[head_v_dim]`
    pub v: &'a [F],
    /// How far the state's answer to `k` goes towards `v`.
    pub beta: F,
    /// One factor, or one for each row of the state.
    pub decay: &'a [F],
}

/// One token through one value head, whose `state` is `[head_k_dim, head_v_dim]`:
/// `state[d][e] *= decay[d]`; `delta[e] = (v[e] - sum_d state[d][e] * k[d]) * beta`; `state[d][e] += k[d] * delta[e]`;
/// `out[e] = sum_d state[d][e] * q[d]`. Both sums run over ascending d. `delta` is scratch, `[head_v_dim]`.
#[inline(always)]
pub fn delta_rule<F: Float>(token: DeltaToken<'_, F>, state: &mut [F], delta: &mut [F], out: &mut [F]) {
    let DeltaToken { q, k, v, beta, decay } = token;
    delta.fill(F::ZERO);
    for (d, (state, &k)) in state.chunks_exact_mut(v.len()).zip(k).enumerate() {
        let decay = decay[if decay.len() == 1 { 0 } else { d }];
        for (s, sum) in state.iter_mut().zip(delta.iter_mut()) {
            *s *= decay;
            *sum += *s * k;
        }
    }
    for (delta, &v) in delta.iter_mut().zip(v) {
        *delta = (v - *delta) * beta;
    }
    out.fill(F::ZERO);
    for ((state, &k), &q) in state.chunks_exact_mut(v.len()).zip(k).zip(q) {
        for ((s, y), &delta) in state.iter_mut().zip(out.iter_mut()).zip(delta.iter()) {
            *s += k * delta;
            *y += *s * q;
        }
    }
}

impl DeltaSpec {
    /// Columns of all queries, or of all keys.
    pub fn keys(&self) -> usize {
        self.num_k_heads * self.head_k_dim
    }

    /// Columns of all values.
    pub fn values(&self) -> usize {
        self.num_v_heads * self.head_v_dim
    }

    /// The columns of q, k and v (which stand side by side) that a value head reads.
    pub fn columns(&self, head: usize) -> [std::ops::Range<usize>; 3] {
        let key = head / (self.num_v_heads / self.num_k_heads);
        let of = |start: usize, i: usize, size: usize| start + i * size..start + (i + 1) * size;
        [of(0, key, self.head_k_dim), of(self.keys(), key, self.head_k_dim), of(2 * self.keys(), head, self.head_v_dim)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_of_five_becomes_one() {
        let mut x = [3.0f64, 4.0];
        l2_norm(&mut x, 0.0);
        assert_eq!(x, [3.0 * (1.0 / 5.0), 4.0 * (1.0 / 5.0)]);
        let mut x = [0.0f32; 3];
        l2_norm(&mut x, 1e-6);
        assert_eq!(x, [0.0; 3]);
    }

    #[test]
    fn value_heads_share_key_heads_in_groups() {
        let spec = DeltaSpec { num_k_heads: 2, num_v_heads: 4, head_k_dim: 3, head_v_dim: 5 };
        assert_eq!(spec.columns(0), [0..3, 6..9, 12..17]);
        assert_eq!(spec.columns(1), [0..3, 6..9, 17..22]);
        assert_eq!(spec.columns(2), [3..6, 9..12, 22..27]);
    }

    /// Values from `S = (I - beta k k^T) diag(decay) S + beta k v^T`, `o = S^T q` with whole matrices in NumPy.
    #[test]
    fn three_tokens_against_the_matrix_form() {
        let q = [[0.5, -1.0], [1.5, 0.25], [-0.75, 2.0]];
        let k = [[0.6, 0.8], [-0.28, 0.96], [1.0, 0.5]];
        let v = [[1.0, 2.0, -0.5], [0.25, -1.5, 3.0], [2.0, 0.5, 1.0]];
        let beta = [0.5, 0.25, 0.75];
        let by_head: [&[f64]; 3] = [&[0.9], &[0.5], &[0.8]];
        let by_channel: [&[f64]; 3] = [&[0.9, 0.4], &[0.5, 0.7], &[0.8, 0.3]];
        let of_head = [[-0.25, -0.5, 0.125], [0.2705, 0.631, -0.275_875], [0.609_35, -0.274_55, 1.378_137_5]];
        let of_channel =
            [[-0.25, -0.5, 0.125], [0.293_956, 0.677_912, -0.287_603], [0.427_027_2, -0.181_695_6, 0.754_455_15]];
        for (decay, expected) in [(by_head, of_head), (by_channel, of_channel)] {
            let mut state = [0.0; 6];
            for t in 0..3 {
                let (mut delta, mut out) = ([9.0; 3], [9.0; 3]);
                let token = DeltaToken { q: &q[t], k: &k[t], v: &v[t], beta: beta[t], decay: decay[t] };
                delta_rule(token, &mut state, &mut delta, &mut out);
                for (y, e) in out.into_iter().zip(expected[t]) {
                    assert!((y - e).abs() < 1e-14, "token {t}: {y}, expected {e}");
                }
            }
        }
    }

    /// `exp(-exp(0.5) * ln(1 + exp(0.25)))`, by Python's math module.
    #[test]
    fn a_decay_by_hand() {
        let left = decay(0.75f64, -0.5, -(0.5f64.exp()));
        assert!((left - 0.2562135788715812).abs() < 1e-15, "{left}");
    }
}
