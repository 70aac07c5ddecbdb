//! Grouped-query attention, with everything that models add to it.

use super::compute::Compute;
use super::{Seer, Segment};
use crate::exec::state::LayerState;
use crate::model::plan::{Attention, Mixer, QkNorm, Temperature};
use crate::ops::activation::sigmoid;
use crate::ops::attention::{AttentionSpec, temperature};
use crate::ops::level::elementwise;
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::ops::Range;

impl<F: Float> Compute<'_, F> {
    /// Projections, norms, clip, rotation, temperature, attention, gate, output: in this order.
    pub fn attention(
        &mut self,
        x: &Matrix<F>,
        attention: &Attention,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let spec = &attention.spec;
        let optional = [&attention.k, &attention.v, &attention.gate];
        let linears: Vec<_> = std::iter::once(&attention.q).chain(optional.into_iter().flatten()).collect();
        let mut projected = self.linears(x, &linears)?.into_iter();
        let mut q = projected.next().context("queries are always projected")?;
        let mut k = attention.k.as_ref().and_then(|_| projected.next());
        let mut v = attention.v.as_ref().and_then(|_| projected.next());
        let gate = attention.gate.as_ref().and_then(|_| projected.next());
        if v.is_none() {
            v.clone_from(&k);
        }
        for (name, rows) in [("mixer.q", Some(&q)), ("mixer.k", k.as_ref()), ("mixer.v", v.as_ref())] {
            rows.iter().for_each(|rows| see.at(name, rows));
        }
        let norms = |after_rope| attention.qk_norm.as_ref().filter(|norms| norms.after_rope == after_rope);
        if let Some(norms) = norms(false) {
            self.qk_norm(&mut q, k.as_mut(), norms, see)?;
        }
        if let Some(clip) = attention.clip.map(F::from_f64) {
            for rows in std::iter::once(&mut q).chain(&mut k).chain(&mut v) {
                rows.data_mut().iter_mut().for_each(|v| *v = v.max(-clip).min(clip));
            }
        }
        if let Some(rope) = attention.rope {
            for rows in std::iter::once(&mut q).chain(&mut k) {
                rotate(rows, segments, rope, spec.head_dim, 0..spec.head_dim);
            }
        }
        if let Some(norms) = norms(true) {
            self.qk_norm(&mut q, k.as_mut(), norms, see)?;
        }
        if let (Some(norm), Some(v)) = (&attention.v_norm, &mut v) {
            self.norm_heads(v, norm)?;
            see.at("mixer.v_norm", v);
        }
        if let Some(temperature) = &attention.temperature {
            heat(&mut q, segments, temperature);
        }
        let sinks = match &attention.sinks {
            Some(sinks) => Some(self.weights.vector::<F>(sinks)?),
            None => None,
        };
        let kv = k.as_ref().zip(v.as_ref());
        let mut attended = self.attend(spec, &q, kv, sinks.as_deref(), attention.kv_layer, segments, see)?;
        if let Some(gate) = &gate {
            see.at("mixer.gate", gate);
            attended.par_iter_rows_mut().zip(gate.par_iter_rows()).for_each(|(row, gate)| {
                elementwise(
                    #[inline(always)]
                    || row.iter_mut().zip(gate).for_each(|(v, &g)| *v *= sigmoid(g)),
                );
            });
        }
        if let Some(norm) = &attention.sub_norm {
            self.norm_heads(&mut attended, norm)?;
            see.at("mixer.sub_norm", &attended);
        }
        self.linear(&attended, &attention.o)
    }

    /// Adds keys and values to each sequence's session and lets its queries attend: `[tokens, heads * v_head_dim]`.
    /// Without keys and values those of the layer `owner` are read.
    #[expect(clippy::too_many_arguments, reason = "it is one operation")]
    pub fn attend(
        &mut self,
        spec: &AttentionSpec,
        q: &Matrix<F>,
        new: Option<(&Matrix<F>, &Matrix<F>)>,
        sinks: Option<&[F]>,
        owner: Option<usize>,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let owner = owner.unwrap_or(see.layer);
        ensure!(
            owner <= see.layer && (owner == see.layer) == new.is_some(),
            "layer {}: keys and values are projected here, or read from an earlier layer",
            see.layer
        );
        let done = !self.is_read_after(see.layer, owner);
        let mut attended = Matrix::filled(0, spec.num_attention_heads * spec.v_head_dim(), F::ZERO);
        for segment in segments {
            let rows = || segment.rows.clone();
            let LayerState::Kv(kv) = &mut segment.session.layers[owner] else {
                bail!("layer {}: layer {owner} keeps no keys and values", see.layer)
            };
            if let Some((k, v)) = new {
                kv.append(&k.slice_rows(rows()), &v.slice_rows(rows()));
            }
            let q = q.slice_rows(rows());
            attended.extend_rows(self.kernels.attend(spec, &q, segment.session.len, kv.kv(), sinks).data());
            if done {
                kv.settle();
            }
        }
        see.at("mixer.attend", &attended);
        Ok(attended)
    }

    /// Whether a layer after `layer` reads the keys and values of `owner`.
    fn is_read_after(&self, layer: usize, owner: usize) -> bool {
        let reads = |mixer: &Mixer| matches!(mixer, Mixer::Attention(a) if a.kv_layer == Some(owner));
        self.plan.layers[layer + 1..].iter().any(|layer| reads(&layer.mixer))
    }

    /// Normalises queries and keys.
    fn qk_norm(
        &mut self,
        q: &mut Matrix<F>,
        k: Option<&mut Matrix<F>>,
        norms: &QkNorm,
        see: &mut Seer<'_, F>,
    ) -> Result<()> {
        self.norm_heads(q, &norms.q)?;
        see.at("mixer.q_norm", q);
        if let (Some(norm), Some(k)) = (&norms.k, k) {
            self.norm_heads(k, norm)?;
            see.at("mixer.k_norm", k);
        }
        Ok(())
    }
}

/// Rotates the columns `part` of every head of `head_dim` columns by each token's position.
pub(super) fn rotate<F: Float>(
    x: &mut Matrix<F>,
    segments: &[Segment<'_, F>],
    rope: usize,
    head_dim: usize,
    part: Range<usize>,
) {
    for segment in segments {
        let table = &segment.ropes[rope];
        let rows = x.par_iter_rows_mut().skip(segment.rows.start).take(segment.rows.len());
        rows.enumerate().for_each(|(t, row)| {
            row.chunks_exact_mut(head_dim).for_each(|head| table.rotate(t, &mut head[part.clone()]));
        });
    }
}

/// Multiplies each token's queries by the temperature of its position, or of its slot.
pub(super) fn heat<F: Float>(q: &mut Matrix<F>, segments: &[Segment<'_, F>], by: &Temperature) {
    for segment in segments {
        for (t, (row, &position)) in segment.rows.clone().zip(&segment.positions).enumerate() {
            let at = if by.slots { (segment.session.len() + t) as f64 } else { f64::from(position) };
            let factor = temperature::<F>(at, by.beta, by.floor_scale, by.offset);
            q.row_mut(row).iter_mut().for_each(|v| *v *= factor);
        }
    }
}
