//! What follows the mixer: one MLP.

use super::Seer;
use super::compute::Compute;
use crate::model::plan::Mlp;
use crate::ops::activation::{clamped_gate, keep_above};
use crate::ops::level::elementwise;
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result};
use rayon::prelude::*;

impl<F: Float> Compute<'_, F> {
    /// `down(activation(gate(x)) * up(x))`, or without a gate `down(activation(up(x)))`.
    pub fn mlp(&mut self, x: &Matrix<F>, mlp: &Mlp, mut see: Option<&mut Seer<'_, F>>) -> Result<Matrix<F>> {
        let mut at = |name, rows: &Matrix<F>| see.iter_mut().for_each(|see| see.at(name, rows));
        let linears: Vec<_> = mlp.gate.iter().chain([&mlp.up]).collect();
        let mut projected = self.linears(x, &linears)?;
        let up = projected.pop().context("up is always projected")?;
        let mut inner = match projected.pop() {
            Some(mut gate) => {
                at("mlp.gate", &gate);
                at("mlp.up", &up);
                if let Some(deviations) = mlp.sparsity.map(F::from_f64) {
                    gate.par_iter_rows_mut().for_each(|row| keep_above(row, deviations));
                }
                let clamp = mlp.clamp.as_ref().map(|c| (F::from_f64(c.alpha), F::from_f64(c.limit)));
                gate.par_iter_rows_mut().zip(up.par_iter_rows()).for_each(|(gate, up)| {
                    elementwise(
                        #[inline(always)]
                        || match clamp {
                            Some((alpha, limit)) => clamped_gate(gate, up, alpha, limit),
                            None => mlp.activation.gate(gate, up),
                        },
                    );
                });
                gate
            }
            None => {
                at("mlp.up", &up);
                let mut up = up;
                up.par_iter_rows_mut().for_each(|row| {
                    elementwise(
                        #[inline(always)]
                        || mlp.activation.apply(row),
                    );
                });
                up
            }
        };
        at("mlp.act", &inner);
        if let Some(norm) = &mlp.sub_norm {
            self.norm_heads(&mut inner, norm)?;
            at("mlp.sub_norm", &inner);
        }
        self.linear(&inner, &mlp.down)
    }
}
