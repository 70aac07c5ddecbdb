//! One layer: how branches and hidden states belong together.

use super::compute::{Compute, add, scale};
use super::{Pass, Seer, Segment};
use crate::exec::observer::Observer;
use crate::model::plan::{AltUp, FeedForward, Layer, Mixer, Norm, PerLayerInput};
use crate::ops::{Float, Matrix};
use anyhow::Result;
use rayon::prelude::*;

impl<F: Float> Pass<'_, '_, F> {
    /// Computes the next layer.
    ///
    /// # Errors
    /// The source can't be read; the pass is then of no further use.
    pub fn step(&mut self, observer: &mut dyn Observer<F>) -> Result<()> {
        let layer = &self.plan.layers[self.layer];
        let mut see = Seer { observer, layer: self.layer };
        match &layer.altup {
            Some(altup) => self.altup_layer(layer, altup, &mut see)?,
            None => self.layer(layer, &mut see)?,
        }
        see.at("out", self.hidden());
        self.layer += 1;
        Ok(())
    }

    fn layer(&mut self, layer: &Layer, see: &mut Seer<'_, F>) -> Result<()> {
        let Self { compute, segments, streams, per_layer, .. } = self;
        let hidden = &mut streams[0];
        let x = compute.maybe_norm(hidden, layer.mixer_norm.as_ref())?;
        let mut mixed = compute.mixer_branch(&x, segments, layer, see)?;
        if layer.parallel {
            let x = if layer.mlp_norm.is_some() { compute.maybe_norm(hidden, layer.mlp_norm.as_ref())? } else { x };
            if let Some(mlp) = compute.mlp_branch(&x, hidden, layer, see)? {
                add(&mut mixed, &mlp);
            }
            add(hidden, &mixed);
        } else {
            drop(x);
            add(hidden, &mixed);
            drop(mixed);
            if layer.mlp.is_some() {
                let x = compute.maybe_norm(hidden, layer.mlp_norm.as_ref())?;
                if let Some(mlp) = compute.mlp_branch(&x, hidden, layer, see)? {
                    add(hidden, &mlp);
                }
            }
        }
        if let (Some(input), Some(all)) = (&layer.per_layer_input, per_layer.as_ref()) {
            let update = compute.per_layer_input(hidden, input, all, see)?;
            add(hidden, &update);
        }
        if let Some(scalar) = &layer.scalar {
            let scalar = compute.weights.vector::<F>(scalar)?[0];
            hidden.data_mut().iter_mut().for_each(|v| *v *= scalar);
        }
        Ok(())
    }

    /// Gemma 3n's layer: all copies of the hidden state are predicted from each other, the active one goes through the
    /// layer, and what it learns there corrects them all. The layer's own input goes to every copy but the first.
    fn altup_layer(&mut self, layer: &Layer, altup: &AltUp, see: &mut Seer<'_, F>) -> Result<()> {
        let Self { plan, compute, segments, streams, per_layer, .. } = self;
        let active = plan.altup.as_ref().map_or(0, |ends| ends.active);
        let coefficients = compute.coefficients(&streams[active], altup, Coefficients::Prediction)?;
        predict(streams, &coefficients);

        let x = compute.maybe_norm(&streams[active], layer.mixer_norm.as_ref())?;
        let mut laurel = compute.linear(&x, &altup.laurel_left)?;
        laurel = compute.linear(&laurel, &altup.laurel_right)?;
        compute.norm_heads(&mut laurel, &altup.laurel_norm)?;
        see.at("laurel", &laurel);
        let mut activated = compute.mixer_branch(&x, segments, layer, see)?;
        // (stream + mixed) + (x + laurel), over the root of two.
        let root = F::from_f64(std::f64::consts::SQRT_2);
        let parts = streams[active].data().iter().zip(x.data()).zip(laurel.data());
        for (a, ((&stream, &x), &laurel)) in activated.data_mut().iter_mut().zip(parts) {
            *a = ((stream + *a) + (x + laurel)) / root;
        }
        drop((x, laurel));
        let x = compute.maybe_norm(&activated, layer.mlp_norm.as_ref())?;
        if let Some(mlp) = compute.mlp_branch(&x, &activated, layer, see)? {
            add(&mut activated, &mlp);
        }
        let coefficients = compute.coefficients(&activated, altup, Coefficients::Correction)?;
        correct(streams, active, &activated, &coefficients);

        let mut first = streams[active].clone();
        if let Some(weight) = &altup.output_scale {
            let weight = compute.weights.vector::<F>(weight)?;
            first.iter_rows_mut().for_each(|row| row.iter_mut().zip(&weight).for_each(|(v, &w)| *v *= w));
        }
        if let (Some(input), Some(all)) = (&layer.per_layer_input, per_layer.as_ref()) {
            let update = compute.per_layer_input(&first, input, all, see)?;
            streams[1..].iter_mut().for_each(|stream| add(stream, &update));
        }
        Ok(())
    }
}

/// Which of AltUp's coefficients.
#[derive(Clone, Copy)]
enum Coefficients {
    /// `[inputs * inputs]`: row i those of copy i.
    Prediction,
    /// `[inputs]`, with one added.
    Correction,
}

impl<F: Float> Compute<'_, F> {
    fn maybe_norm(&mut self, x: &Matrix<F>, norm: Option<&Norm>) -> Result<Matrix<F>> {
        norm.map_or_else(|| Ok(x.clone()), |norm| self.norm(x, norm))
    }

    /// The mixer's branch of `x`, as it is added to the hidden state.
    fn mixer_branch(
        &mut self,
        x: &Matrix<F>,
        segments: &mut [Segment<'_, F>],
        layer: &Layer,
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        see.at("mixer.in", x);
        let mut mixed = match &layer.mixer {
            Mixer::Attention(attention) => self.attention(x, attention, segments, see)?,
            Mixer::LatentAttention(attention) => self.latent_attention(x, attention, segments, see)?,
            Mixer::ShortConv(conv) => self.short_conv(x, conv, segments, see)?,
            Mixer::Mamba2(mamba) => self.mamba2(x, mamba, segments, see)?,
            Mixer::GatedDelta(delta) => self.gated_delta(x, delta, segments, see)?,
        };
        see.at("mixer.out", &mixed);
        if let Some(norm) = &layer.mixer_post_norm {
            self.norm_heads(&mut mixed, norm)?;
            see.at("mixer.post_norm", &mixed);
        }
        scale(&mut mixed, layer.residual_multiplier);
        Ok(mixed)
    }

    /// The MLP's branch of `x`, as it is added to the hidden state; `before` is what `x` is the norm of.
    fn mlp_branch(
        &mut self,
        x: &Matrix<F>,
        before: &Matrix<F>,
        layer: &Layer,
        see: &mut Seer<'_, F>,
    ) -> Result<Option<Matrix<F>>> {
        let Some(mlp) = &layer.mlp else { return Ok(None) };
        see.at("mlp.in", x);
        let mut out = match mlp {
            FeedForward::Dense(mlp) => self.mlp(x, mlp, Some(see))?,
            FeedForward::Moe(moe) => self.moe(x, before, moe, see)?,
        };
        see.at("mlp.out", &out);
        if let Some(norm) = &layer.mlp_post_norm {
            self.norm_heads(&mut out, norm)?;
            see.at("mlp.post_norm", &out);
        }
        scale(&mut out, layer.residual_multiplier);
        Ok(Some(out))
    }

    /// `norm(projection(activation(gate(x)) * part))`, the part being this layer's of `all`.
    fn per_layer_input(
        &mut self,
        x: &Matrix<F>,
        input: &PerLayerInput,
        all: &Matrix<F>,
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let mut gate = self.linear(x, &input.gate)?;
        let dim = gate.cols();
        let part = see.layer * dim..(see.layer + 1) * dim;
        gate.par_iter_rows_mut().zip(all.par_iter_rows()).for_each(|(gate, all)| {
            input.activation.gate(gate, &all[part.clone()]);
        });
        let mut out = self.linear(&gate, &input.projection)?;
        self.norm_heads(&mut out, &input.norm)?;
        see.at("per_layer", &out);
        Ok(out)
    }

    /// `linear(tanh(router(norm(x) * scale)))`
    fn coefficients(&mut self, x: &Matrix<F>, altup: &AltUp, which: Coefficients) -> Result<Matrix<F>> {
        let mut x = self.norm(x, &altup.router_norm)?;
        scale(&mut x, altup.router_scale);
        let mut routed = self.linear(&x, &altup.router)?;
        routed.data_mut().iter_mut().for_each(|v| *v = v.tanh());
        match which {
            Coefficients::Prediction => self.linear(&routed, &altup.prediction),
            Coefficients::Correction => {
                let mut out = self.linear(&routed, &altup.correction)?;
                out.data_mut().iter_mut().for_each(|v| *v += F::ONE);
                Ok(out)
            }
        }
    }
}

/// `new[i] = sum_j stream[j] * coefficient[i][j] + stream[i]`; the coefficients are `[tokens, copies * copies]`.
fn predict<F: Float>(streams: &mut [Matrix<F>], coefficients: &Matrix<F>) {
    let (n, cols) = (streams.len(), streams[0].cols());
    let mut old = vec![F::ZERO; n];
    for t in 0..coefficients.rows() {
        let coefficients = coefficients.row(t);
        for c in 0..cols {
            old.iter_mut().zip(&*streams).for_each(|(old, stream)| *old = stream.row(t)[c]);
            for (i, stream) in streams.iter_mut().enumerate() {
                let mut sum = F::ZERO;
                for (&old, &coefficient) in old.iter().zip(&coefficients[i * n..]) {
                    sum += old * coefficient;
                }
                stream.row_mut(t)[c] = sum + old[i];
            }
        }
    }
}

/// `new[i] = (activated - stream[active]) * coefficient[i] + stream[i]`; the coefficients are `[tokens, copies]`.
fn correct<F: Float>(streams: &mut [Matrix<F>], active: usize, activated: &Matrix<F>, coefficients: &Matrix<F>) {
    let innovation: Vec<F> =
        activated.data().iter().zip(streams[active].data()).map(|(&a, &stream)| a - stream).collect();
    let cols = activated.cols();
    for (i, stream) in streams.iter_mut().enumerate() {
        for (t, (row, innovation)) in stream.iter_rows_mut().zip(innovation.chunks_exact(cols)).enumerate() {
            let coefficient = coefficients.row(t)[i];
            for (v, &innovation) in row.iter_mut().zip(innovation) {
                *v = innovation * coefficient + *v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_copy_is_predicted_from_all_as_they_were() {
        // Two copies 1 and 10: 1*2 + 10*3 + 1 = 33, and 1*4 + 10*5 + 10 = 64.
        let mut streams = [1.0f32, 10.0].map(|v| Matrix::from_vec(1, 1, vec![v]));
        predict(&mut streams, &Matrix::from_vec(1, 4, vec![2.0, 3.0, 4.0, 5.0]));
        assert_eq!(streams.map(|s| s.data()[0]), [33.0, 64.0]);
    }

    #[test]
    fn every_copy_is_corrected_by_what_the_active_one_learned() {
        // 16 - 10 = 6: 6*2 + 1 = 13, and 6*3 + 10 = 28.
        let mut streams = [1.0f32, 10.0].map(|v| Matrix::from_vec(1, 1, vec![v]));
        correct(&mut streams, 1, &Matrix::from_vec(1, 1, vec![16.0]), &Matrix::from_vec(1, 2, vec![2.0, 3.0]));
        assert_eq!(streams.map(|s| s.data()[0]), [13.0, 28.0]);
    }
}
