//! Linear layers of BitNet: a token's inputs are rounded, and weights where they aren't stored as what they become.

use super::compute::Compute;
use crate::checkpoint::Decoder;
use crate::exec::weights::{Stored, Tile};
use crate::model::plan::{Linear, TernaryScale};
use crate::ops::ternary::{magnitude, round_inputs, round_weight, weight_scale};
use crate::ops::{Float, Matrix};
use anyhow::{Result, bail};
use rayon::prelude::*;

/// A matrix's rows as whole numbers, and what each row was multiplied by.
pub(super) struct Rounded<F> {
    pub x: Matrix<F>,
    scales: Vec<F>,
}

impl<F: Float> Rounded<F> {
    /// Nothing where none of the layers asks for it.
    pub fn of(x: &Matrix<F>, linears: &[&Linear]) -> Option<Self> {
        linears.iter().any(|linear| linear.rounds_inputs()).then(|| {
            let mut x = x.clone();
            let scales = x.par_iter_rows_mut().map(round_inputs).collect();
            Self { x, scales }
        })
    }
}

impl<F: Float> Compute<'_, F> {
    /// What each layer's weights are multiplied by before they are rounded; nothing for those that are not. Reads all of
    /// such weights.
    pub fn weight_scales(&mut self, linears: &[&Linear]) -> Result<Vec<Option<F>>> {
        let rounded: Vec<usize> = (0..linears.len()).filter(|&i| linears[i].rounds_weights()).collect();
        let weights: Vec<_> = rounded.iter().map(|&i| &linears[i].weight).collect();
        if weights.iter().any(|weight| weight.part.is_some()) {
            bail!("ternary weights are rounded where they are whole tensors");
        }
        let mut sums = vec![0.0; weights.len()];
        self.weights.each_piece(&weights, |which, stored| {
            if let Stored::Rows { tile, .. } = stored {
                let scratch = || (Vec::new(), vec![0.0f64; tile.cols]);
                let rows = (0..tile.rows).into_par_iter().map_init(scratch, |(narrow, row), r| {
                    tile.decode(r, 0, narrow, row);
                    magnitude(row)
                });
                let rows: Vec<f64> = rows.collect();
                rows.into_iter().for_each(|row| sums[which] += row);
            }
        })?;
        let mut scales = vec![None; linears.len()];
        for ((i, weight), sum) in rounded.into_iter().zip(weights).zip(sums) {
            scales[i] = Some(weight_scale(sum, weight.shape.iter().product()));
        }
        Ok(scales)
    }

    /// From sums of whole numbers to outputs: divides by the scales of inputs and weights, adds biases, multiplies by
    /// stored scales. `by` is what weights were multiplied by.
    pub fn finish_linears(
        &mut self,
        outs: &mut [Matrix<F>],
        linears: &[&Linear],
        rounded: Option<&Rounded<F>>,
        by: &[Option<F>],
    ) -> Result<()> {
        let tensors: Vec<_> = linears.iter().filter_map(|linear| linear.stored_scale()).collect();
        let mut stored = self.weights.matrices::<F>(&tensors)?.into_iter().map(|scale| scale.data()[0]);
        let mut factors = vec![None; linears.len()];
        for (i, linear) in linears.iter().enumerate() {
            let Some(ternary) = &linear.ternary else { continue };
            let stored = linear.stored_scale().and_then(|_| stored.next());
            let divisor = match ternary.scale {
                TernaryScale::Multiplies(_) => {
                    factors[i] = stored;
                    None
                }
                TernaryScale::Divides(_) => stored,
                TernaryScale::Mean => by[i],
                TernaryScale::Dropped => None,
            };
            let tokens = rounded.filter(|_| linear.rounds_inputs());
            for (t, row) in outs[i].iter_rows_mut().enumerate() {
                let of_token = tokens.map_or(F::ONE, |rounded| rounded.scales[t]);
                let divisor = of_token * divisor.unwrap_or(F::ONE);
                row.iter_mut().for_each(|y| *y = *y / divisor);
            }
        }
        self.add_biases(outs, linears)?;
        for (out, factor) in outs.iter_mut().zip(factors) {
            if let Some(factor) = factor {
                out.data_mut().iter_mut().for_each(|y| *y *= factor);
            }
        }
        Ok(())
    }
}

/// The ternary weights that some stored ones become, in `trits`.
pub(super) fn rounded_tile<'t, F: Float>(tile: &Tile<'_>, scale: F, trits: &'t mut Vec<u8>) -> Tile<'t> {
    let (rows, cols) = (tile.rows, tile.cols);
    trits.resize(rows * cols, 0);
    let scratch = || (Vec::new(), vec![F::ZERO; cols]);
    trits.par_chunks_exact_mut(cols).enumerate().for_each_init(scratch, |(narrow, row), (r, trits)| {
        tile.decode(r, 0, narrow, row);
        for (trit, &w) in trits.iter_mut().zip(row.iter()) {
            // As plane 0 of packed bytes. What is not a number becomes one here, but its scale isn't one either.
            *trit = (round_weight(w, scale) + F::ONE).to_f64() as u8;
        }
    });
    Tile { decoder: Decoder::Ternary { plane: 0 }, rows, cols, bytes: trits }
}
