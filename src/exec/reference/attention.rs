use super::level::{Level, Vectors};
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::Matrix;
use rayon::prelude::*;

pub fn attend<F: Vectors>(_level: Level, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>) -> Matrix<F> {
    let mut out = Matrix::filled(q.rows(), q.cols(), F::ZERO);
    out.data_mut().par_chunks_mut(spec.head_dim).enumerate().for_each_init(Vec::new, |scores, (at, out)| {
        let (t, head) = (at / spec.num_attention_heads, at % spec.num_attention_heads);
        let q = &q.row(t)[head * spec.head_dim..][..spec.head_dim];
        crate::ops::attention::attend(spec, head, past + t, q, kv, scores, out);
    });
    out
}
