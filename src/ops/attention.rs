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

/// Keys (after RoPE) and values of the tokens so far, `[slots, num_key_value_heads * head_dim]` each.
#[derive(Debug, Clone)]
pub struct Kv<F> {
    /// The slot of the first row: those before it have been dropped, and no query that is still to come sees them.
    pub first: usize,
    pub keys: Matrix<F>,
    pub values: Matrix<F>,
}

/// One head of one query: sequential dot products `q . k` times the scale, softmax, then the values in ascending slot
/// order.
///
/// `q` and `out` are `[head_dim]`; `scores` is scratch.
pub fn attend<F: Float>(
    spec: &AttentionSpec,
    head: usize,
    slot: usize,
    q: &[F],
    kv: &Kv<F>,
    scores: &mut Vec<F>,
    out: &mut [F],
) {
    let kv_head = head / (spec.num_attention_heads / spec.num_key_value_heads);
    let columns = kv_head * spec.head_dim..(kv_head + 1) * spec.head_dim;
    let scale = F::from_f64(spec.scale);
    let visible = spec.visible(slot);
    scores.clear();
    for s in visible.clone() {
        let mut dot = F::ZERO;
        for (&a, &b) in q.iter().zip(&kv.keys.row(s - kv.first)[columns.clone()]) {
            dot += a * b;
        }
        scores.push(dot * scale);
    }
    softmax(scores);
    out.fill(F::ZERO);
    for (s, &p) in visible.zip(scores.iter()) {
        for (o, &v) in out.iter_mut().zip(&kv.values.row(s - kv.first)[columns.clone()]) {
            *o += p * v;
        }
    }
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
        attend(&spec(Some(2)), 1, 2, &[1.0], &kv, &mut Vec::new(), &mut out);
        assert_eq!(out, [3.0]);
    }
}
