//! The mixers that keep a state instead of keys and values: short convolutions, Mamba-2, the gated delta rule.
//!
//! Each is a recurrence over tokens, whatever chunks they come in: no bit depends on how a prompt is cut. Threads share
//! out heads and tokens, never a sum.

use super::compute::Compute;
use super::{Seer, Segment};
use crate::exec::state::{LayerState, RecurrentState};
use crate::model::plan::{CausalConv, GatedDelta, Linear, Mamba2, Mixer, ShortConv, Weight};
use crate::ops::activation::{Activation, sigmoid};
use crate::ops::conv::{Taps, convolve};
use crate::ops::delta::{DeltaSpec, DeltaToken, decay, delta_rule, l2_norm};
use crate::ops::level::elementwise;
use crate::ops::mamba2::{ScanHead, scan, step_size};
use crate::ops::{Float, Matrix};
use anyhow::{Context, Result, bail, ensure};
use rayon::prelude::*;
use std::ops::Range;

/// Floats that a pass holds at the same time for such a mixer: per token, and what each session keeps. None for the other
/// mixers.
pub fn floats(mixer: &Mixer, hidden_size: usize) -> Option<(usize, usize)> {
    let conv = |convs: &[CausalConv]| {
        let kept = |conv: &CausalConv| conv.weight.shape.iter().product::<usize>();
        convs.iter().map(kept).sum::<usize>()
    };
    Some(match mixer {
        Mixer::Attention(_) | Mixer::LatentAttention(_) => return None,
        // The input and what the kernels make of it, b, c and x, the convolution's inputs and those with what was before
        // them, its result, and the mixer's.
        Mixer::ShortConv(m) => (9 * hidden_size, conv(std::slice::from_ref(&m.conv))),
        Mixer::Mamba2(m) => {
            let (inner, xbc) = (m.spec().inner(), m.xbc.outputs());
            // Besides: z, xbc as it goes through the convolution, the steps, the result by head and by row.
            let rows = 3 * hidden_size + 3 * inner + 4 * xbc + 2 * m.num_heads;
            (rows, conv(std::slice::from_ref(&m.conv)) + inner * m.state_size)
        }
        Mixer::GatedDelta(m) => {
            let (keys, values) = (m.spec().keys(), m.spec().values());
            let chains = m.decay.iter().chain(&m.gate).map(Linear::outputs).sum::<usize>();
            let rows = 3 * hidden_size + 5 * (2 * keys + values) + 4 * values + 2 * chains + 2 * m.num_v_heads;
            (rows, conv(&m.conv) + values * m.head_k_dim)
        }
    })
}

impl<F: Float> Compute<'_, F> {
    pub fn short_conv(
        &mut self,
        x: &Matrix<F>,
        conv: &ShortConv,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let [b, c, mut x] = self.several(x, [&conv.b, &conv.c, &conv.x])?;
        for (name, rows) in [("mixer.b", &b), ("mixer.c", &c), ("mixer.x", &x)] {
            see.at(name, rows);
        }
        multiply(&mut x, &b);
        let mut y = self.convolve(&x, std::slice::from_ref(&conv.conv), segments, see)?;
        multiply(&mut y, &c);
        see.at("mixer.gated", &y);
        self.linear(&y, &conv.out)
    }

    pub fn mamba2(
        &mut self,
        x: &Matrix<F>,
        mamba: &Mamba2,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let spec = mamba.spec();
        let [mut z, raw, mut dt] = self.several(x, [&mamba.z, &mamba.xbc, &mamba.dt])?;
        for (name, rows) in [("mixer.z", &z), ("mixer.xbc", &raw), ("mixer.dt", &dt)] {
            see.at(name, rows);
        }
        let xbc = self.convolve(&raw, std::slice::from_ref(&mamba.conv), segments, see)?;
        drop(raw);
        let bias = self.vector_or_zeros(mamba.dt_bias.as_ref(), spec.num_heads)?;
        let a = self.decay_rates(&mamba.a_log)?;
        let d = mamba.d.as_ref().map(|d| self.weights.vector::<F>(d)).transpose()?;
        let (least, most) = mamba.time_step_limit;
        let limit = (F::from_f64(least), F::from_f64(most));
        dt.par_iter_rows_mut().for_each(|row| {
            row.iter_mut().zip(&bias).for_each(|(dt, &bias)| *dt = step_size(*dt, bias, limit));
        });
        let size = spec.state_size * spec.head_dim;
        let mut y = by_head(segments, see.layer, size, spec.head_dim, |h, rows, state, out| {
            let head = ScanHead { a: a[h], d: d.as_ref().map(|d| d[h]) };
            let [x, b, c] = spec.columns(h).map(Columns);
            elementwise(
                #[inline(always)]
                || {
                    for (t, out) in rows.zip(out.chunks_exact_mut(spec.head_dim)) {
                        let row = xbc.row(t);
                        scan(&head, dt.row(t)[h], x.of(row), b.of(row), c.of(row), state, out);
                    }
                },
            );
        })?;
        see.at("mixer.scan", &y);
        if mamba.norm_before_gate {
            self.norm_heads(&mut y, &mamba.norm)?;
            gate(Activation::Silu, &mut z, &y);
        } else {
            gate(Activation::Silu, &mut z, &y);
            self.norm_heads(&mut z, &mamba.norm)?;
        }
        see.at("mixer.gated", &z);
        self.linear(&z, &mamba.out)
    }

    pub fn gated_delta(
        &mut self,
        x: &Matrix<F>,
        delta: &GatedDelta,
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let spec = delta.spec();
        let (first_decay, further_decays) = delta.decay.split_first().context("a gated delta rule has a decay")?;
        let first_gate = delta.gate.first();
        let linears: Vec<&Linear> =
            [&delta.q, &delta.k, &delta.v, &delta.beta, first_decay].into_iter().chain(first_gate).collect();
        let mut projected = self.linears(x, &linears)?;
        let gates = first_gate.and_then(|_| projected.pop());
        let [q, k, v, mut beta, left] = some(projected)?;
        for (name, rows) in [("mixer.q", &q), ("mixer.k", &k), ("mixer.v", &v), ("mixer.beta", &beta)] {
            see.at(name, rows);
        }
        let raw = side_by_side(&[q, k, v]);
        let mut qkv = self.convolve(&raw, &delta.conv, segments, see)?;
        drop(raw);
        normalize(&spec, &mut qkv, delta.qk_l2_norm_eps);
        beta.data_mut().iter_mut().for_each(|b| *b = sigmoid(*b));
        let mut left = self.chain(left, further_decays)?;
        see.at("mixer.decay", &left);
        let bias = self.vector_or_zeros(delta.dt_bias.as_ref(), left.cols())?;
        let a = self.decay_rates(&delta.a_log)?;
        let per_head = left.cols() / spec.num_v_heads;
        left.par_iter_rows_mut().for_each(|row| {
            for (i, (x, &bias)) in row.iter_mut().zip(&bias).enumerate() {
                *x = decay(*x, bias, a[i / per_head]);
            }
        });
        let size = spec.head_k_dim * spec.head_v_dim;
        let mut y = by_head(segments, see.layer, size, spec.head_v_dim, |h, rows, state, out| {
            let [q, k, v] = spec.columns(h).map(Columns);
            let decay = Columns(h * per_head..(h + 1) * per_head);
            let mut scratch = vec![F::ZERO; spec.head_v_dim];
            elementwise(
                #[inline(always)]
                || {
                    for (t, out) in rows.zip(out.chunks_exact_mut(spec.head_v_dim)) {
                        let (row, beta) = (qkv.row(t), beta.row(t)[h]);
                        let decay = decay.of(left.row(t));
                        let token = DeltaToken { q: q.of(row), k: k.of(row), v: v.of(row), beta, decay };
                        delta_rule(token, state, &mut scratch, out);
                    }
                },
            );
        })?;
        see.at("mixer.scan", &y);
        let gates = gates.map(|first| self.chain(first, &delta.gate[1..])).transpose()?;
        self.norm_heads(&mut y, &delta.norm)?;
        if let Some(mut gates) = gates {
            see.at("mixer.gate", &gates);
            gate(delta.gate_activation, &mut gates, &y);
            y = gates;
        }
        see.at("mixer.gated", &y);
        self.linear(&y, &delta.out)
    }

    fn several<const N: usize>(&mut self, x: &Matrix<F>, linears: [&Linear; N]) -> Result<[Matrix<F>; N]> {
        some(self.linears(x, &linears)?)
    }

    /// One linear layer after the other.
    fn chain(&mut self, mut x: Matrix<F>, linears: &[Linear]) -> Result<Matrix<F>> {
        for linear in linears {
            x = self.linear(&x, linear)?;
        }
        Ok(x)
    }

    fn vector_or_zeros(&mut self, weight: Option<&Weight>, n: usize) -> Result<Vec<F>> {
        weight.map_or_else(|| Ok(vec![F::ZERO; n]), |weight| self.weights.vector(weight))
    }

    /// `-exp(a_log)`
    fn decay_rates(&mut self, a_log: &Weight) -> Result<Vec<F>> {
        Ok(self.weights.vector(a_log)?.into_iter().map(|a: F| -a.exp()).collect())
    }

    /// A convolution's weights, channels becoming columns.
    fn taps(&mut self, conv: &CausalConv) -> Result<Taps<F>> {
        let stored = self.weights.matrix::<F>(&conv.weight)?;
        let mut weights = Matrix::filled(stored.cols(), stored.rows(), F::ZERO);
        for (channel, row) in stored.iter_rows().enumerate() {
            row.iter().enumerate().for_each(|(j, &w)| weights.row_mut(j)[channel] = w);
        }
        let bias = conv.bias.as_ref().map(|bias| self.weights.vector(bias)).transpose()?;
        Ok(Taps { weights, bias, activation: conv.activation })
    }

    /// Convolutions over neighbouring columns of `x`, each sequence by itself and after what it has kept.
    fn convolve(
        &mut self,
        x: &Matrix<F>,
        convs: &[CausalConv],
        segments: &mut [Segment<'_, F>],
        see: &mut Seer<'_, F>,
    ) -> Result<Matrix<F>> {
        let mut taps = Vec::new();
        let mut columns = 0;
        for conv in convs {
            let of = self.taps(conv)?;
            let first = columns;
            columns += of.weights.cols();
            taps.push((of, first..columns));
        }
        ensure!(columns == x.cols(), "convolutions over {columns} channels don't fit {} inputs", x.cols());
        let mut y = Matrix::filled(x.rows(), x.cols(), F::ZERO);
        for segment in segments {
            let rows = segment.rows.clone();
            let all = recurrent(segment, see.layer)?.append(&x.slice_rows(rows.clone()));
            let before = all.rows() - rows.len();
            y.par_iter_rows_mut().skip(rows.start).take(rows.len()).enumerate().for_each(|(t, row)| {
                elementwise(
                    #[inline(always)]
                    || {
                        for (taps, columns) in &taps {
                            convolve(taps, &all, before + t, columns.clone(), &mut row[columns.clone()]);
                        }
                    },
                );
            });
        }
        see.at("mixer.conv", &y);
        Ok(y)
    }
}

/// Runs each head of each sequence over the sequence's tokens: `work(head, rows, state, out)`, `state` being the head's
/// `size` values and `out` `[tokens, width]`. Gives `[tokens of all inputs, heads * width]`.
fn by_head<F: Float>(
    segments: &mut [Segment<'_, F>],
    layer: usize,
    size: usize,
    width: usize,
    work: impl Fn(usize, Range<usize>, &mut [F], &mut [F]) + Sync,
) -> Result<Matrix<F>> {
    let mut y: Option<Matrix<F>> = None;
    for segment in segments {
        let rows = segment.rows.clone();
        let state = recurrent(segment, layer)?.scan_mut();
        let heads = state.par_chunks_exact_mut(size).enumerate().map(|(h, state)| {
            let mut out = vec![F::ZERO; rows.len() * width];
            work(h, rows.clone(), state, &mut out);
            out
        });
        let heads: Vec<Vec<F>> = heads.collect();
        let mut joined = Matrix::filled(rows.len(), heads.len() * width, F::ZERO);
        joined.par_iter_rows_mut().enumerate().for_each(|(t, row)| {
            for (to, from) in row.chunks_exact_mut(width).zip(&heads) {
                to.copy_from_slice(&from[t * width..][..width]);
            }
        });
        match &mut y {
            None => y = Some(joined),
            Some(y) => y.extend_rows(joined.data()),
        }
    }
    y.context("a pass has at least one input")
}

/// Some columns of a row.
struct Columns(Range<usize>);

impl Columns {
    #[inline(always)]
    fn of<'a, F>(&self, row: &'a [F]) -> &'a [F] {
        &row[self.0.clone()]
    }
}

/// As many matrices as were asked for.
fn some<F, const N: usize>(found: Vec<Matrix<F>>) -> Result<[Matrix<F>; N]> {
    found.try_into().ok().context("as many results as layers")
}

fn recurrent<'s, F: Float>(segment: &'s mut Segment<'_, F>, layer: usize) -> Result<&'s mut RecurrentState<F>> {
    match &mut segment.session.layers[layer] {
        LayerState::Recurrent(state) => Ok(state),
        LayerState::Kv(_) | LayerState::Shared(_) => bail!("layer {layer} keeps no recurrent state"),
    }
}

/// The L2 norm of each query and key head, and the queries' scale.
fn normalize<F: Float>(spec: &DeltaSpec, qkv: &mut Matrix<F>, eps: Option<f64>) {
    let scale = F::from_f64(1.0 / (spec.head_k_dim as f64).sqrt());
    let eps = eps.map(F::from_f64);
    let keys = spec.keys();
    qkv.par_iter_rows_mut().for_each(|row| {
        for head in row[..2 * keys].chunks_exact_mut(spec.head_k_dim) {
            if let Some(eps) = eps {
                l2_norm(head, eps);
            }
        }
        row[..keys].iter_mut().for_each(|q| *q *= scale);
    });
}

fn side_by_side<F: Float>(parts: &[Matrix<F>; 3]) -> Matrix<F> {
    let cols = parts.iter().map(Matrix::cols).sum();
    let mut all = Matrix::filled(parts[0].rows(), cols, F::ZERO);
    all.par_iter_rows_mut().enumerate().for_each(|(t, row)| {
        let mut first = 0;
        for part in parts {
            row[first..first + part.cols()].copy_from_slice(part.row(t));
            first += part.cols();
        }
    });
    all
}

/// `x *= y`
fn multiply<F: Float>(x: &mut Matrix<F>, y: &Matrix<F>) {
    x.data_mut().iter_mut().zip(y.data()).for_each(|(x, &y)| *x *= y);
}

/// `gate = activation(gate) * y`
fn gate<F: Float>(activation: Activation, gate: &mut Matrix<F>, y: &Matrix<F>) {
    gate.par_iter_rows_mut().zip(y.par_iter_rows()).for_each(|(gate, y)| {
        elementwise(
            #[inline(always)]
            || activation.gate(gate, y),
        );
    });
}
