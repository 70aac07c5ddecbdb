//! Both ends of a model: embeddings, and the head.

use super::compute::{Compute, add, scale};
use crate::exec::observer::{Observer, Stage};
use crate::model::plan::{PerLayerInputs, Plan};
use crate::ops::attention::softcap;
use crate::ops::norm::mean_square;
use crate::ops::{Float, Matrix};
use anyhow::{Result, ensure};
use rayon::prelude::*;

/// # Errors
/// Positions are learned, and one is beyond them.
pub(super) fn check_positions(plan: &Plan, positions: &[u32]) -> Result<()> {
    if let Some(embed) = &plan.position_embed {
        let (known, _) = embed.rows_and_cols();
        let beyond = positions.iter().find(|&&position| position as usize >= known);
        ensure!(
            beyond.is_none(),
            "position {} is beyond the {known} positions that the model has learned",
            beyond.copied().unwrap_or_default()
        );
    }
    Ok(())
}

/// What goes into the first layer: each copy of the hidden state, `[tokens, hidden_size]`, and the layers' own inputs,
/// `[tokens, layers * dim]`.
pub(super) struct Embedded<F> {
    pub streams: Vec<Matrix<F>>,
    pub per_layer: Option<Matrix<F>>,
}

impl<F: Float> Compute<'_, F> {
    /// The tokens' embeddings, and the positions' where they are learned.
    pub fn embed(&mut self, tokens: &[u32], positions: &[u32], observer: &mut dyn Observer<F>) -> Result<Embedded<F>> {
        let plan = self.plan;
        let mut hidden = self.weights.gather(&plan.embed, tokens)?;
        scale(&mut hidden, plan.embed_scale);
        let per_layer = match &plan.per_layer_inputs {
            Some(inputs) => Some(self.per_layer_inputs(inputs, tokens, &hidden)?),
            None => None,
        };
        if let Some(embed) = &plan.position_embed {
            let learned = self.weights.gather(embed, positions)?;
            add(&mut hidden, &learned);
        }
        observer.see(Stage { layer: None, name: "embed" }, &hidden);
        if let Some(rows) = &per_layer {
            observer.see(Stage { layer: None, name: "embed.per_layer" }, rows);
        }
        let mut streams = vec![hidden];
        for projection in plan.altup.iter().flat_map(|ends| &ends.projections) {
            let mut copy = self.linear(&streams[0], projection)?;
            as_large(&mut copy, &streams[0]);
            streams.push(copy);
        }
        Ok(Embedded { streams, per_layer })
    }

    /// Gemma 3n's and 4's, for all layers side by side: `(norm(projection(hidden)) + embedding) * scale`.
    fn per_layer_inputs(&mut self, inputs: &PerLayerInputs, tokens: &[u32], hidden: &Matrix<F>) -> Result<Matrix<F>> {
        let (known, _) = inputs.embed.rows_and_cols();
        let indices: Vec<u32> = tokens.iter().map(|&t| if (t as usize) < known { t } else { 0 }).collect();
        let mut embedded = self.weights.gather(&inputs.embed, &indices)?;
        scale(&mut embedded, inputs.embed_scale);
        let mut out = self.linear(hidden, &inputs.projection)?;
        scale(&mut out, inputs.projection_scale);
        self.norm_heads(&mut out, &inputs.norm)?;
        add(&mut out, &embedded);
        scale(&mut out, inputs.scale);
        Ok(out)
    }

    /// From each copy of the hidden state to the logits, `[rows, vocab_size]`.
    pub fn head(&mut self, mut streams: Vec<Matrix<F>>, observer: &mut dyn Observer<F>) -> Result<Matrix<F>> {
        let plan = self.plan;
        if let Some(ends) = &plan.altup {
            for (i, projection) in ends.unembed_projections.iter().enumerate() {
                let mut copy = self.linear(&streams[i + 1], projection)?;
                as_large(&mut copy, &streams[0]);
                streams[i + 1] = copy;
            }
            streams = vec![mean(&streams)];
        }
        let x = self.norm(&streams[0], &plan.norm)?;
        observer.see(Stage { layer: None, name: "norm" }, &x);
        let head = &plan.head;
        let mut logits = self.linear(&x, &head.linear)?;
        scale(&mut logits, head.logit_scale);
        if head.logits_scaling != 1.0 {
            let divisor = F::from_f64(head.logits_scaling);
            logits.data_mut().iter_mut().for_each(|v| *v = *v / divisor);
        }
        if let Some(cap) = head.final_logit_softcapping {
            let cap = F::from_f64(cap);
            logits.par_iter_rows_mut().for_each(|row| softcap(row, cap));
        }
        observer.see(Stage { layer: None, name: "head" }, &logits);
        Ok(logits)
    }
}

/// Gives each row of `x` the magnitude (root of the mean square) of the same row of `like`:
/// `(x * magnitude(like)) / sqrt(max(mean_square(x), 1e-5))`.
fn as_large<F: Float>(x: &mut Matrix<F>, like: &Matrix<F>) {
    let least = F::from_f64(1e-5);
    x.par_iter_rows_mut().zip(like.par_iter_rows()).for_each(|(row, like)| {
        let (target, own) = (mean_square(like).sqrt(), mean_square(row).max(least).sqrt());
        for v in row {
            *v = *v * target / own;
        }
    });
}

/// The mean of several matrices of one shape.
fn mean<F: Float>(all: &[Matrix<F>]) -> Matrix<F> {
    let mut sum = Matrix::filled(all[0].rows(), all[0].cols(), F::ZERO);
    all.iter().for_each(|one| add(&mut sum, one));
    let n = F::from_usize(all.len());
    sum.data_mut().iter_mut().for_each(|v| *v = *v / n);
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_gets_the_magnitude_of_the_first() {
        // Mean squares 4 and 1: doubled. A row of zeros stays one, and a tiny one is not blown up.
        let like = Matrix::from_vec(3, 2, vec![2.0f64, -2.0, 1.0, 1.0, 1.0, 1.0]);
        let mut x = Matrix::from_vec(3, 2, vec![1.0, 1.0, 0.0, 0.0, 1e-3, 1e-3]);
        as_large(&mut x, &like);
        assert_eq!(x.row(0), [2.0, 2.0]);
        assert_eq!(x.row(1), [0.0, 0.0]);
        assert!((x.row(2)[0] - 1e-3 / 1e-5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn the_mean_is_taken_over_the_copies() {
        let all = [1.0f32, 2.0, 6.0].map(|v| Matrix::from_vec(1, 2, vec![v, -v]));
        assert_eq!(mean(&all).data(), [3.0, -3.0]);
    }
}
