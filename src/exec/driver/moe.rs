//! A mixture of experts: each token through the few that its router chooses.

use super::Seer;
use super::compute::{Compute, add, scale};
use super::routing::route;
use crate::model::plan::{Mlp, Moe, Router};
use crate::ops::activation::sigmoid;
use crate::ops::{Float, Matrix};
use anyhow::Result;

/// Per token, its experts in ascending order, each with its weight.
type Chosen<F> = Vec<Vec<(usize, F)>>;

impl<F: Float> Compute<'_, F> {
    /// `x` is the norm of `before`, which the router and the experts see where they have norms of their own.
    ///
    /// Only experts that some token chose are read, and each once, for all tokens of the pass.
    pub fn moe(&mut self, x: &Matrix<F>, before: &Matrix<F>, moe: &Moe, see: &mut Seer<'_, F>) -> Result<Matrix<F>> {
        let seen = if moe.norms.is_some() { before } else { x };
        let chosen = self.choose(seen, &moe.router, see)?;
        see.observer.experts(see.layer, &chosen, moe.experts.len());
        let mut selected: Vec<usize> = chosen.iter().flatten().map(|&(e, _)| e).collect();
        selected.sort_unstable();
        selected.dedup();
        self.weights.expect_experts(selected.iter().map(|&e| &moe.experts[e]));

        let mut shared = match &moe.shared {
            Some(mlp) => Some(self.mlp(x, mlp, None)?),
            None => None,
        };
        if let (Some(gate), Some(shared)) = (&moe.shared_gate, &mut shared) {
            let gate = self.linear(x, gate)?;
            for (row, gate) in shared.iter_rows_mut().zip(gate.data()) {
                let factor = sigmoid(*gate);
                row.iter_mut().for_each(|v| *v *= factor);
            }
        }
        shared.iter().for_each(|rows| see.at("mlp.shared", rows));
        let (normed, out_norm) = match &moe.norms {
            Some(norms) => {
                if let Some(shared) = &mut shared {
                    self.norm_heads(shared, &norms.shared_out)?;
                }
                (Some(self.norm(before, &norms.experts_in)?), Some(&norms.experts_out))
            }
            None => (None, None),
        };
        let mut out = self.experts(normed.as_ref().unwrap_or(x), moe, &selected, &chosen)?;
        see.at("mlp.experts", &out);
        if let Some(norm) = out_norm {
            self.norm_heads(&mut out, norm)?;
        }
        shared.iter().for_each(|shared| add(&mut out, shared));
        Ok(out)
    }

    fn choose(&mut self, x: &Matrix<F>, router: &Router, see: &mut Seer<'_, F>) -> Result<Chosen<F>> {
        let mut x = x.clone();
        if let Some(norm) = &router.norm {
            self.norm_heads(&mut x, norm)?;
        }
        scale(&mut x, router.input_scale);
        let logits = self.linear(&x, &router.linear)?;
        see.at("mlp.router", &logits);
        let mut vector = |weight: Option<&_>| weight.map(|weight| self.weights.vector::<F>(weight)).transpose();
        let bias = vector(router.selection_bias.as_ref())?;
        let scales = vector(router.expert_scale.as_ref())?;
        Ok(logits.iter_rows().map(|row| route(router, row, bias.as_deref(), scales.as_deref())).collect())
    }

    /// Each token's experts, weighted and added up in ascending order, `[tokens, hidden_size]`.
    fn experts(&mut self, x: &Matrix<F>, moe: &Moe, selected: &[usize], chosen: &Chosen<F>) -> Result<Matrix<F>> {
        let mut sum = Matrix::filled(x.rows(), x.cols(), F::ZERO);
        for &e in selected {
            let weight_of = |experts: &[(usize, F)]| experts.iter().find(|&&(i, _)| i == e).map(|&(_, weight)| weight);
            let tokens: Vec<(usize, F)> =
                chosen.iter().enumerate().filter_map(|(t, experts)| Some((t, weight_of(experts)?))).collect();
            let out = self.expert(x, &moe.experts[e], &tokens, moe.router.weights_input)?;
            for (&(t, weight), out) in tokens.iter().zip(out.iter_rows()) {
                for (sum, &v) in sum.row_mut(t).iter_mut().zip(out) {
                    *sum += if moe.router.weights_input { v } else { v * weight };
                }
            }
        }
        Ok(sum)
    }

    /// One expert's result for the rows `tokens` of `x`, which are multiplied by their weights before where
    /// `weights_input` holds.
    fn expert(&mut self, x: &Matrix<F>, expert: &Mlp, tokens: &[(usize, F)], weights_input: bool) -> Result<Matrix<F>> {
        let mut rows = Matrix::filled(0, x.cols(), F::ZERO);
        tokens.iter().for_each(|&(t, _)| rows.extend_rows(x.row(t)));
        if weights_input {
            for (row, &(_, weight)) in rows.iter_rows_mut().zip(tokens) {
                row.iter_mut().for_each(|v| *v *= weight);
            }
        }
        self.mlp(&rows, expert, None)
    }
}
