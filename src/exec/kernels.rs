//! The executor seam: the operations in which all the work is.

use super::weights::{Tile, Transposed};
use crate::ops::{
    Float, Matrix,
    attention::{AttentionSpec, Kv},
};

/// `linear` (in two layouts of the weights) and `attend`; everything else is shared by all executors.
pub trait Kernels<F: Float>: Sync {
    /// `out[t][first + o] = sum_i x[t][i] * w[o][i]` for the stored rows `o` of `w`.
    ///
    /// `x` is `[tokens, in]`, `w` `[rows, in]` as stored, `out` `[tokens, out]` with `first + rows <= out`. Decoding
    /// the stored elements belongs to this operation: no weight exists as floats outside it.
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize);

    /// `out[t][o] += sum_i x[t][i] * w[i][o]` for the inputs `i` that `w` holds, which is stored as `[in, out]`.
    ///
    /// `x` is `[tokens, in]`, `out` `[tokens, out]`. From zeros and tile after tile in ascending order it is what
    /// [`Kernels::linear`] is of the same weights stored as `[out, in]`.
    fn accumulate(&self, x: &Matrix<F>, w: &Transposed<'_>, out: &mut Matrix<F>);

    /// Attention of the queries `q` (`[tokens, num_attention_heads * head_dim]`), the first of which is at slot `past`
    /// of `kv`, which already holds the keys and values of these tokens. The result is
    /// `[tokens, num_attention_heads * v_head_dim]`.
    ///
    /// `sinks`, where there are some, hold a score without a value for each head's softmax, after all others.
    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>, sinks: Option<&[F]>) -> Matrix<F>;
}
