//! Multi-head latent attention (DeepSeek-V2, 2024).

use super::attention::{heat, rotate};
use super::compute::Compute;
use super::{Seer, Segment};
use crate::model::plan::LatentAttention;
use crate::ops::{Float, Matrix};
use anyhow::Result;

impl<F: Float> Compute<'_, F> {
    /// Queries, directly or out of a small vector; keys and values out of another one, and the rotated part of the keys
    /// which all heads share.
    pub fn latent_attention(
        &mut self,
        x: &Matrix<F>,
        attention: &LatentAttention,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let LatentAttention { spec, qk_nope_head_dim: nope, qk_rope_head_dim: rope, .. } = attention;
        let mut q = match &attention.q_a {
            Some((linear, norm)) => {
                let mut small = self.linear(x, linear)?;
                self.norm_heads(&mut small, norm)?;
                see.at("mixer.q_a", &small);
                self.linear(&small, &attention.q)?
            }
            None => self.linear(x, &attention.q)?,
        };
        see.at("mixer.q", &q);
        let (mut latent, mut shared) = split(&self.linear(x, &attention.kv_a)?, *rope);
        self.norm_heads(&mut latent, &attention.kv_a_norm)?;
        see.at("mixer.kv_a", &latent);
        let expanded = self.linear(&latent, &attention.kv_b)?;
        if let Some(table) = attention.rope {
            rotate(&mut q, segments, table, spec.head_dim, *nope..nope + rope);
            rotate(&mut shared, segments, table, *rope, 0..*rope);
        }
        if let Some(temperature) = &attention.temperature {
            heat(&mut q, segments, temperature);
        }
        let (keys, values) = assemble(&expanded, &shared, *nope, spec.v_head_dim());
        drop(expanded);
        see.at("mixer.k", &keys);
        see.at("mixer.v", &values);
        let attended = self.attend(spec, &q, Some((&keys, &values)), None, None, segments, see)?;
        self.linear(&attended, &attention.o)
    }
}

/// All but the last `width` columns, and those.
fn split<F: Float>(x: &Matrix<F>, width: usize) -> (Matrix<F>, Matrix<F>) {
    let at = x.cols() - width;
    let part = |from: usize, to: usize| {
        let data = x.iter_rows().flat_map(|row| &row[from..to]).copied().collect();
        Matrix::from_vec(x.rows(), to - from, data)
    };
    (part(0, at), part(at, x.cols()))
}

/// From `[tokens, heads * (nope + v_dim)]` and the keys' shared part to keys, `[tokens, heads * (nope + shared)]`, and
/// values, `[tokens, heads * v_dim]`.
fn assemble<F: Float>(expanded: &Matrix<F>, shared: &Matrix<F>, nope: usize, v_dim: usize) -> (Matrix<F>, Matrix<F>) {
    let heads = expanded.cols() / (nope + v_dim);
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (row, shared) in expanded.iter_rows().zip(shared.iter_rows()) {
        for head in row.chunks_exact(nope + v_dim) {
            keys.extend_from_slice(&head[..nope]);
            keys.extend_from_slice(shared);
            values.extend_from_slice(&head[nope..]);
        }
    }
    let tokens = expanded.rows();
    let matrix = |dim: usize, data| Matrix::from_vec(tokens, heads * dim, data);
    (matrix(nope + shared.cols(), keys), matrix(v_dim, values))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_head_gets_its_key_with_the_shared_part_and_its_value() {
        // Two heads of two key columns and one value column each, one shared column.
        let expanded = Matrix::from_vec(1, 6, vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let (keys, values) = assemble(&expanded, &Matrix::from_vec(1, 1, vec![9.0]), 2, 1);
        assert_eq!((keys.data(), values.data()), (&[1.0, 2.0, 9.0, 4.0, 5.0, 9.0][..], &[3.0, 6.0][..]));
        let (left, right) = split(&expanded, 2);
        assert_eq!((left.data(), right.data()), (&[1.0, 2.0, 3.0, 4.0][..], &[5.0, 6.0][..]));
    }
}
