//! The operations that need weights.

use super::ternary::{Rounded, rounded_tile};
use crate::exec::kernels::Kernels;
use crate::exec::weights::{Stored, Weights};
use crate::model::plan::{Linear, Norm, NormKind, Plan};
use crate::ops::norm::{layer_norm, rms_norm};
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result};
use rayon::prelude::*;

pub(super) struct Compute<'a, F: Float> {
    pub plan: &'a Plan,
    pub kernels: &'a dyn Kernels<F>,
    pub weights: Weights,
}

impl<F: Float> Compute<'_, F> {
    /// Several linear layers of the same `x`; what of their weights, or of their biases, lies in one tensor is read in
    /// one sweep, weights whose mean has to be known twice.
    pub fn linears(&mut self, x: &Matrix<F>, linears: &[&Linear]) -> Result<Vec<Matrix<F>>> {
        let kernels = self.kernels;
        let mut outs: Vec<Matrix<F>> =
            linears.iter().map(|linear| Matrix::filled(x.rows(), linear.outputs(), F::ZERO)).collect();
        let rounded = Rounded::of(x, linears);
        let by = self.weight_scales(linears)?;
        let mut trits = Vec::new();
        let weights: Vec<_> = linears.iter().map(|linear| &linear.weight).collect();
        self.weights.each_piece(&weights, |which, stored| {
            let x = rounded.as_ref().filter(|_| linears[which].rounds_inputs()).map_or(x, |rounded| &rounded.x);
            match stored {
                Stored::Rows { first, tile } => {
                    let tile = by[which].map_or(tile, |scale| rounded_tile(&tile, scale, &mut trits));
                    kernels.linear(x, &tile, &mut outs[which], first);
                }
                Stored::Columns(part) => kernels.accumulate(x, &part, &mut outs[which]),
            }
        })?;
        self.finish_linears(&mut outs, linears, rounded.as_ref(), &by)?;
        Ok(outs)
    }

    /// What of biases lies in one tensor is read in one sweep.
    pub(super) fn add_biases(&mut self, outs: &mut [Matrix<F>], linears: &[&Linear]) -> Result<()> {
        let biased: Vec<usize> = (0..linears.len()).filter(|&i| linears[i].bias.is_some()).collect();
        let biases: Vec<_> = linears.iter().filter_map(|linear| linear.bias.as_ref()).collect();
        for (i, bias) in biased.into_iter().zip(self.weights.matrices::<F>(&biases)?) {
            for row in outs[i].iter_rows_mut() {
                for (y, &b) in row.iter_mut().zip(bias.data()) {
                    *y += b;
                }
            }
        }
        Ok(())
    }

    pub fn linear(&mut self, x: &Matrix<F>, linear: &Linear) -> Result<Matrix<F>> {
        self.linears(x, &[linear])?.pop().context("as many results as layers")
    }

    pub fn norm(&mut self, x: &Matrix<F>, norm: &Norm) -> Result<Matrix<F>> {
        let mut out = x.clone();
        self.norm_heads(&mut out, norm)?;
        Ok(out)
    }

    /// Normalises each group of `size` columns: a whole row, or each head of it.
    pub fn norm_heads(&mut self, x: &mut Matrix<F>, norm: &Norm) -> Result<()> {
        let mut weight = match &norm.weight {
            Some(weight) => Some(self.weights.vector::<F>(weight)?),
            None => None,
        };
        for further in &norm.further {
            let further = self.weights.vector::<F>(further)?;
            weight.get_or_insert_default().extend(further);
        }
        if let Some(weight) = weight.as_mut().filter(|_| norm.offset != 0.0) {
            let offset = F::from_f64(norm.offset);
            weight.iter_mut().for_each(|w| *w = offset + *w);
        }
        let bias = match &norm.bias {
            Some(bias) => Some(self.weights.vector::<F>(bias)?),
            None => None,
        };
        let eps = F::from_f64(norm.eps);
        x.par_iter_rows_mut().for_each(|row| {
            for (i, group) in row.chunks_exact_mut(norm.size).enumerate() {
                let weight = weight.as_ref().map(|weight| of_group(weight, i, norm.size));
                match norm.kind {
                    NormKind::Rms => rms_norm(group, weight, eps),
                    NormKind::Layer => layer_norm(group, weight, eps),
                }
                for (v, &b) in group.iter_mut().zip(bias.iter().flat_map(|bias| of_group(bias, i, norm.size))) {
                    *v += b;
                }
            }
        });
        Ok(())
    }
}

/// Group `i`'s `size` values, where there are some for each group or the same for all.
fn of_group<F>(values: &[F], i: usize, size: usize) -> &[F] {
    &values[i * size % values.len()..][..size]
}

/// `x += y`
pub(super) fn add<F: Float>(x: &mut Matrix<F>, y: &Matrix<F>) {
    for (x, &y) in x.data_mut().iter_mut().zip(y.data()) {
        *x += y;
    }
}

/// `x *= factor`, unless the factor is one.
pub(super) fn scale<F: Float>(x: &mut Matrix<F>, factor: f64) {
    if factor != 1.0 {
        let factor = F::from_f64(factor);
        x.data_mut().iter_mut().for_each(|v| *v *= factor);
    }
}
