//! Scaled dot-product attention of one query over the slots of a cache.

use super::{Float, Matrix, softmax::softmax};
use serde::Serialize;
use std::ops::Range;

/// What one attention computes, apart from the values.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct AttentionSpec {
    pub num_attention_heads: usize,
    /// Query head h reads key/value head `h / (num_attention_heads / num_key_value_heads)`.
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// Factor of the dot products.
    pub scale: f64,
    /// A query at slot s sees the slots `s - window + 1 ..= s`; all up to s where absent.
    pub sliding_window: Option<usize>,
    /// A query at slot s sees no slot before `s / chunk * chunk` (Llama 4's `attention_chunk_size`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention_chunk_size: Option<usize>,
    /// Columns of a value head, where they aren't as many as a key head's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub v_head_dim: Option<usize>,
    /// `cap * tanh(score / cap)` after the scale.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_logit_softcapping: Option<f64>,
}

impl AttentionSpec {
    /// All slots up to the query's, scores divided by the root of `head_dim`, values as wide as keys.
    pub fn new(num_attention_heads: usize, num_key_value_heads: usize, head_dim: usize) -> Self {
        Self {
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            sliding_window: None,
            attention_chunk_size: None,
            v_head_dim: None,
            attn_logit_softcapping: None,
        }
    }

    /// The slots that the query at `slot` sees.
    pub fn visible(&self, slot: usize) -> Range<usize> {
        let in_window = self.sliding_window.map_or(0, |w| (slot + 1).saturating_sub(w));
        let in_chunk = self.attention_chunk_size.map_or(0, |chunk| slot / chunk * chunk);
        in_window.max(in_chunk)..slot + 1
    }

    /// Columns of a value head.
    pub fn v_head_dim(&self) -> usize {
        self.v_head_dim.unwrap_or(self.head_dim)
    }
}

/// Keys (after RoPE) and values of the tokens so far, `[slots, num_key_value_heads * head_dim]` and
/// `[slots, num_key_value_heads * v_head_dim]`.
#[derive(Debug, Clone)]
pub struct Kv<F> {
    /// The slot of the first row: those before it have been dropped, and no query that is still to come sees them.
    pub first: usize,
    pub keys: Matrix<F>,
    pub values: Matrix<F>,
}

/// One head of one query: sequential dot products `q . k` times the scale, the cap if there is one, softmax, then the
/// values in ascending slot order.
///
/// `q` is `[head_dim]`, `out` `[v_head_dim]`; `sink` is a score without a value in this head's softmax; `scores` is
/// scratch.
#[expect(clippy::too_many_arguments, reason = "it is one operation")]
pub fn attend<F: Float>(
    spec: &AttentionSpec,
    head: usize,
    slot: usize,
    q: &[F],
    kv: &Kv<F>,
    sink: Option<F>,
    scores: &mut Vec<F>,
    out: &mut [F],
) {
    let kv_head = head / (spec.num_attention_heads / spec.num_key_value_heads);
    let columns = |dim: usize| kv_head * dim..(kv_head + 1) * dim;
    let scale = F::from_f64(spec.scale);
    let visible = spec.visible(slot);
    scores.clear();
    for s in visible.clone() {
        let mut dot = F::ZERO;
        for (&a, &b) in q.iter().zip(&kv.keys.row(s - kv.first)[columns(spec.head_dim)]) {
            dot += a * b;
        }
        scores.push(dot * scale);
    }
    if let Some(cap) = spec.attn_logit_softcapping {
        softcap(scores, F::from_f64(cap));
    }
    softmax(scores, sink);
    out.fill(F::ZERO);
    for (s, &p) in visible.zip(scores.iter()) {
        for (o, &v) in out.iter_mut().zip(&kv.values.row(s - kv.first)[columns(spec.v_head_dim())]) {
            *o += p * v;
        }
    }
}

/// `cap * tanh(x / cap)` in place (Gemma 2, of scores and of logits).
pub fn softcap<F: Float>(x: &mut [F], cap: F) {
    for v in x {
        *v = (*v / cap).tanh() * cap;
    }
}

/// The factor of the queries at `position`: `1 + beta * ln(floor((position + offset) / floor_scale) + 1)`
/// (Nakanishi 2025, as in Llama 4).
pub fn temperature<F: Float>(position: f64, beta: f64, floor_scale: f64, offset: f64) -> F {
    let blocks = ((position + offset) / floor_scale).floor();
    F::ONE + F::from_f64(beta) * F::from_f64(libm::log(blocks + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(window: Option<usize>) -> AttentionSpec {
        AttentionSpec { scale: 1.0, sliding_window: window, ..AttentionSpec::new(2, 1, 1) }
    }

    #[test]
    fn a_window_counts_the_current_token() {
        assert_eq!(spec(None).visible(5), 0..6);
        assert_eq!(spec(Some(3)).visible(5), 3..6);
        assert_eq!(spec(Some(3)).visible(1), 0..2);
        assert_eq!(spec(Some(1)).visible(5), 5..6);
    }

    #[test]
    fn zero_scores_average_the_visible_values() {
        let kv =
            Kv { first: 0, keys: Matrix::filled(3, 1, 0.0f32), values: Matrix::from_vec(3, 1, vec![100.0, 2.0, 4.0]) };
        let mut out = [0.0];
        attend(&spec(Some(2)), 1, 2, &[1.0], &kv, None, &mut Vec::new(), &mut out);
        assert_eq!(out, [3.0]);
        // A third score of zero takes a third of the weight and adds nothing.
        attend(&spec(Some(2)), 1, 2, &[1.0], &kv, Some(0.0), &mut Vec::new(), &mut out);
        assert_eq!(out, [2.0f32 / 3.0 + 4.0 / 3.0]);
    }

    #[test]
    fn a_chunk_begins_anew() {
        let spec = AttentionSpec { attention_chunk_size: Some(4), ..spec(None) };
        assert_eq!((spec.visible(3), spec.visible(4), spec.visible(7)), (0..4, 4..5, 4..8));
        let spec = AttentionSpec { sliding_window: Some(2), ..spec };
        assert_eq!((spec.visible(4), spec.visible(7)), (4..5, 6..8));
    }

    #[test]
    fn values_have_a_width_of_their_own_and_each_head_its_columns() {
        let spec = AttentionSpec { v_head_dim: Some(2), ..AttentionSpec::new(2, 2, 1) };
        let kv = Kv {
            first: 0,
            keys: Matrix::filled(2, 2, 0.0f32),
            values: Matrix::from_vec(2, 4, vec![1.0, 2.0, 3.0, 4.0, 3.0, 4.0, 5.0, 6.0]),
        };
        let mut out = [0.0; 2];
        attend(&spec, 0, 1, &[1.0], &kv, None, &mut Vec::new(), &mut out);
        assert_eq!(out, [2.0, 3.0]);
        attend(&spec, 1, 1, &[1.0], &kv, None, &mut Vec::new(), &mut out);
        assert_eq!(out, [4.0, 5.0]);
    }

    #[test]
    fn the_cap_comes_after_the_scale_and_before_the_softmax() {
        // Scores 4 and 0, times 1/2, capped by 1: tanh(2) = 0.96402758 and 0. Shares: exp(0.96402758) = 2.62222 to 1.
        let spec = AttentionSpec { scale: 0.5, attn_logit_softcapping: Some(1.0), ..AttentionSpec::new(1, 1, 1) };
        let kv = Kv {
            first: 0,
            keys: Matrix::from_vec(2, 1, vec![4.0f64, 0.0]),
            values: Matrix::from_vec(2, 1, vec![1.0, 0.0]),
        };
        let share = |spec: &AttentionSpec| {
            let mut out = [0.0];
            attend(spec, 0, 1, &[1.0], &kv, None, &mut Vec::new(), &mut out);
            out[0]
        };
        let e = 0.964_027_580_075_816_9_f64.exp();
        assert!((share(&spec) - e / (e + 1.0)).abs() < 1e-15);
        let uncapped = AttentionSpec { attn_logit_softcapping: None, ..spec };
        assert!((share(&uncapped) - 2f64.exp() / (2f64.exp() + 1.0)).abs() < 1e-15);
        let mut x = [f32::INFINITY, 0.0, f32::NAN];
        softcap(&mut x, 30.0);
        assert!(x[0] == 30.0 && x[1] == 0.0 && x[2].is_nan());
    }

    #[test]
    fn temperature_grows_in_steps() {
        // floor((7 + 1) / 4) = 2: 1 + 0.5 * ln 3; one position before it is floor(7 / 4) = 1: 1 + 0.5 * ln 2.
        for (position, offset, blocks) in [(7.0, 1.0, 2.0f64), (6.0, 1.0, 1.0), (7.0, 0.0, 1.0)] {
            let expected = 1.0 + 0.5 * (blocks + 1.0).ln();
            assert!((temperature::<f64>(position, 0.5, 4.0, offset) - expected).abs() < 1e-15, "{position} {offset}");
        }
        assert_eq!(temperature::<f32>(3.0, 0.5, 4.0, 0.0), 1.0);
    }
}
