//! The executor seam: the two operations in which all the work is.

use super::weights::Tile;
use crate::ops::{
    Float, Matrix,
    attention::{AttentionSpec, Kv},
};

/// `linear` and `attend`; everything else is shared by all executors.
pub trait Kernels<F: Float>: Sync {
    /// `out[t][first + o] = sum_i x[t][i] * w[o][i]` for the stored rows `o` of `w`.
    ///
    /// `x` is `[tokens, in]`, `w` `[rows, in]` as stored, `out` `[tokens, out]` with `first + rows <= out`. Decoding
    /// the stored elements belongs to this operation: no weight exists as floats outside it.
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize);

    /// Attention of the queries `q` (`[tokens, num_attention_heads * head_dim]`), the first of which is at slot `past`
    /// of `kv`, which already holds the keys and values of these tokens. The result has the shape of `q`.
    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>) -> Matrix<F>;
}
