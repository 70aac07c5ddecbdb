//! Rotary position embedding (Su et al. 2021) and its context extensions.

use super::{Float, Matrix};
use serde::Serialize;

/// One rotary table: the frequencies of a head's `dim / 2` pairs and how they are scaled.
///
/// Names are those of transformers' `rope_parameters`; the formulas are those of its `modeling_rope_utils.py`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rope {
    /// Rotated part of a head: `dim / 2` pairs.
    pub dim: usize,
    pub rope_theta: f64,
    /// Pair i is `(2i, 2i + 1)`, as in GPT-J and Cohere, instead of `(i, i + dim / 2)`, as in GPT-NeoX and Llama.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interleaved: bool,
    #[serde(flatten)]
    pub scaling: RopeScaling,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        factor: f64,
    },
    /// NTK-aware: the base grows with the sequence once it is longer than `max_position_embeddings`.
    Dynamic {
        factor: f64,
        max_position_embeddings: usize,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a smooth ramp between.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al. 2023); `attention_factor` scales cos and sin.
    Yarn {
        factor: f64,
        original_max_position_embeddings: usize,
        attention_factor: f64,
        beta_fast: f64,
        beta_slow: f64,
        truncate: bool,
    },
    /// Hunyuan's: the base multiplied by `alpha ^ (dim / (dim - 2))`, whatever the length.
    #[serde(rename = "ntk_alpha")]
    NtkAlpha {
        alpha: f64,
    },
    /// Gemma 4's: the first `rotated` pairs turn as in a whole head, divided by `factor`, the others don't.
    Proportional {
        factor: f64,
        rotated: usize,
    },
    /// LongRoPE (Ding et al. 2024): one divisor per pair, another set once the sequence is longer than
    /// `original_max_position_embeddings`.
    Longrope {
        short_factor: Vec<f64>,
        long_factor: Vec<f64>,
        original_max_position_embeddings: usize,
        attention_factor: f64,
    },
}

impl Rope {
    /// What cos and sin are multiplied by.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::Longrope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }

    /// `[dim / 2]` inverse frequencies in radians per position, for a sequence whose largest position is
    /// `length - 1` (only the dynamic and longrope kinds look at it).
    pub fn inv_freq<F: Float>(&self, length: usize) -> Vec<F> {
        let f = F::from_f64;
        let mut theta = f(self.rope_theta);
        if let RopeScaling::Dynamic { factor, max_position_embeddings } = self.scaling {
            let max = max_position_embeddings;
            let stretch = f(factor) * F::from_usize(length.max(max)) / F::from_usize(max) - f(factor - 1.0);
            let exponent = self.dim as f64 / (self.dim as f64 - 2.0);
            theta *= stretch.pow(f(exponent));
        }
        if let RopeScaling::NtkAlpha { alpha } = self.scaling {
            let exponent = self.dim as f64 / (self.dim as f64 - 2.0);
            theta = f(self.rope_theta * libm::pow(alpha, exponent));
        }
        let half = self.dim / 2;
        // theta^(2i/dim): the wavelength of pair i over 2 pi.
        let scales = (0..half).map(|i| theta.pow(F::from_usize(2 * i) / F::from_usize(self.dim)));
        match &self.scaling {
            RopeScaling::Default | RopeScaling::Dynamic { .. } | RopeScaling::NtkAlpha { .. } => {
                scales.map(|s| F::ONE / s).collect()
            }
            RopeScaling::Proportional { factor, rotated } => {
                let turn = |(i, s)| if i < *rotated { F::ONE / s / f(*factor) } else { F::ZERO };
                scales.enumerate().map(turn).collect()
            }
            RopeScaling::Linear { factor } => scales.map(|s| F::ONE / s / f(*factor)).collect(),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original,
            } => {
                let original = *original as f64;
                let (low, high) = (f(original / low_freq_factor), f(original / high_freq_factor));
                scales
                    .map(|s| {
                        let inv = F::ONE / s;
                        let wavelength = f(2.0 * std::f64::consts::PI) / inv;
                        if wavelength > low {
                            inv / f(*factor)
                        } else if wavelength < high {
                            inv
                        } else {
                            let smooth = (f(original) / wavelength - f(*low_freq_factor))
                                / f(high_freq_factor - low_freq_factor);
                            (F::ONE - smooth) * inv / f(*factor) + smooth * inv
                        }
                    })
                    .collect()
            }
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                beta_fast,
                beta_slow,
                truncate,
                ..
            } => {
                let dim = self.dim as f64;
                // The pair that turns `rotations` times over the original context.
                let pair = |rotations: f64| {
                    dim * libm::log(*original as f64 / (rotations * 2.0 * std::f64::consts::PI))
                        / (2.0 * libm::log(self.rope_theta))
                };
                let (mut low, mut high) = (pair(*beta_fast), pair(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                scales
                    .enumerate()
                    .map(|(i, s)| {
                        let ramp = ((F::from_usize(i) - f(low)) / f(high - low)).max(F::ZERO).min(F::ONE);
                        let kept = F::ONE - ramp;
                        F::ONE / (f(*factor) * s) * (F::ONE - kept) + F::ONE / s * kept
                    })
                    .collect()
            }
            RopeScaling::Longrope { short_factor, long_factor, original_max_position_embeddings: original, .. } => {
                let divisors = if length > *original { long_factor } else { short_factor };
                scales.zip(divisors).map(|(s, &d)| F::ONE / (f(d) * s)).collect()
            }
        }
    }

    /// The rotation of each position: angle = position * inverse frequency, its cosine and sine times the attention
    /// factor.
    pub fn table<F: Float>(&self, positions: &[u32], length: usize) -> RopeTable<F> {
        let inv_freq = self.inv_freq::<F>(length);
        let factor = F::from_f64(self.attention_factor());
        let angles = positions.iter().flat_map(|&p| {
            let p = F::from_f64(f64::from(p));
            inv_freq.iter().map(move |&w| p * w)
        });
        let (cos, sin) = angles.map(|a| (a.cos() * factor, a.sin() * factor)).unzip();
        let shape = |data| Matrix::from_vec(positions.len(), inv_freq.len(), data);
        RopeTable { cos: shape(cos), sin: shape(sin), interleaved: self.interleaved }
    }
}

/// `[tokens, dim / 2]` each.
#[derive(Debug, Clone)]
pub struct RopeTable<F> {
    pub cos: Matrix<F>,
    pub sin: Matrix<F>,
    /// As in [`Rope::interleaved`].
    pub interleaved: bool,
}

impl<F: Float> RopeTable<F> {
    /// Rotates one head of token `t` in place.
    pub fn rotate(&self, t: usize, head: &mut [F]) {
        let rotate = if self.interleaved { rotate_pairs } else { rotate_halves };
        rotate(head, self.cos.row(t), self.sin.row(t));
    }
}

/// Rotates one head `x` in place, halves pairing (pair i is `x[i], x[i + dim / 2]`):
/// `x1 * cos - x2 * sin` and `x2 * cos + x1 * sin`. `cos` and `sin` are `[dim / 2]`; the rest of `x` stays as it is.
pub fn rotate_halves<F: Float>(x: &mut [F], cos: &[F], sin: &[F]) {
    let (first, rest) = x.split_at_mut(cos.len());
    for (((x1, x2), &c), &s) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*x1, *x2) = (*x1 * c - *x2 * s, *x2 * c + *x1 * s);
    }
}

/// As [`rotate_halves`] for interleaved pairs: pair i is `x[2i], x[2i + 1]`, and stays there.
pub fn rotate_pairs<F: Float>(x: &mut [F], cos: &[F], sin: &[F]) {
    for ((pair, &c), &s) in x.chunks_exact_mut(2).zip(cos).zip(sin) {
        (pair[0], pair[1]) = (pair[0] * c - pair[1] * s, pair[1] * c + pair[0] * s);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> Rope {
        Rope { dim: 4, rope_theta: 10_000.0, interleaved: false, scaling }
    }

    fn close(a: &[f64], b: &[f64]) {
        assert_eq!(a.len(), b.len());
        for (x, y) in a.iter().zip(b) {
            assert!((x - y).abs() <= 1e-12 * y.abs(), "{a:?} against {b:?}");
        }
    }

    #[test]
    fn default_and_linear_frequencies() {
        // theta^(0/4) = 1 and theta^(2/4) = 100.
        close(&rope(RopeScaling::Default).inv_freq::<f64>(1), &[1.0, 0.01]);
        close(&rope(RopeScaling::Linear { factor: 4.0 }).inv_freq::<f64>(1), &[0.25, 0.0025]);
    }

    #[test]
    fn dynamic_grows_the_base_only_beyond_the_trained_length() {
        let r = rope(RopeScaling::Dynamic { factor: 2.0, max_position_embeddings: 8 });
        close(&r.inv_freq::<f64>(8), &[1.0, 0.01]);
        // 2 * 16 / 8 - 1 = 3, to the power 4 / 2 = 9: base 90000, root 300.
        close(&r.inv_freq::<f64>(16), &[1.0, 1.0 / 300.0]);
    }

    #[test]
    fn llama3_keeps_short_waves_and_stretches_long_ones() {
        let r = |original| {
            rope(RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: original,
            })
        };
        // Wavelengths 6.28 and 628. Original 8192: both shorter than 2048. Original 20: both longer than 5, and the
        // second longer than 20; the first between 5 and 20: smooth = (20 / 6.283 - 1) / 3.
        close(&r(8192).inv_freq::<f64>(1), &[1.0, 0.01]);
        let smooth = (20.0 / (2.0 * std::f64::consts::PI) - 1.0) / 3.0;
        close(&r(20).inv_freq::<f64>(1), &[(1.0 - smooth) / 8.0 + smooth, 0.01 / 8.0]);
    }

    #[test]
    fn longrope_switches_one_past_the_original_length() {
        let r = rope(RopeScaling::Longrope {
            short_factor: vec![1.0, 2.0],
            long_factor: vec![4.0, 5.0],
            original_max_position_embeddings: 16,
            attention_factor: 1.5,
        });
        close(&r.inv_freq::<f64>(16), &[1.0, 0.005]);
        close(&r.inv_freq::<f64>(17), &[0.25, 0.002]);
        let table = r.table::<f64>(&[0], 1);
        assert_eq!((table.cos.data(), table.sin.data()), (&[1.5, 1.5][..], &[0.0, 0.0][..]));
    }

    #[test]
    fn a_quarter_turn_moves_the_first_half_into_the_second() {
        let mut x = [1.0f32, 2.0, 3.0, 4.0, 9.0];
        rotate_halves(&mut x, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(x, [-3.0, 2.0, 1.0, 4.0, 9.0]);
    }

    #[test]
    fn interleaved_pairs_stand_side_by_side() {
        // A quarter turn of the first pair (1, 2) gives (-2, 1); the second pair doesn't turn.
        let mut x = [1.0f32, 2.0, 3.0, 4.0, 9.0];
        rotate_pairs(&mut x, &[0.0, 1.0], &[1.0, 0.0]);
        assert_eq!(x, [-2.0, 1.0, 3.0, 4.0, 9.0]);
        let mut table = rope(RopeScaling::Default).table::<f32>(&[0, 3], 4);
        let (mut halves, mut pairs) = ([1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]);
        table.rotate(1, &mut halves);
        table.interleaved = true;
        table.rotate(1, &mut pairs);
        // The same two turns, by 3 and by 0.03, of other pairs.
        let turned = |a: f32, b: f32, angle: f32| {
            let (c, s) = (Float::cos(angle), Float::sin(angle));
            (a * c - b * s, b * c + a * s)
        };
        assert_eq!((halves[0], halves[2]), turned(1.0, 3.0, 3.0));
        assert_eq!((pairs[0], pairs[1]), turned(1.0, 2.0, 3.0));
    }

    #[test]
    fn a_plan_without_interleaving_says_nothing_of_it() {
        let mut rope = rope(RopeScaling::Default);
        let json = serde_json::to_string(&rope).unwrap();
        assert_eq!(json, "{\"dim\":4,\"rope_theta\":10000.0,\"rope_type\":\"default\"}");
        rope.interleaved = true;
        assert!(serde_json::to_string(&rope).unwrap().contains("\"interleaved\":true"));
    }
}
