//! The nonlinearity of an MLP, named as in `hidden_act`.

use super::{Float, norm::moments};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Activation {
    #[serde(rename = "silu")]
    Silu,
    #[serde(rename = "gelu")]
    Gelu,
    #[serde(rename = "gelu_pytorch_tanh")]
    GeluTanh,
    #[serde(rename = "relu")]
    Relu,
    /// The square of ReLU (So et al. 2021).
    #[serde(rename = "relu2")]
    Relu2,
    #[serde(rename = "sigmoid")]
    Sigmoid,
}

impl Activation {
    /// Every spelling of `hidden_act` that is known.
    pub const NAMES: [(&'static str, Activation); 8] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("relu", Activation::Relu),
        ("relu2", Activation::Relu2),
        ("sigmoid", Activation::Sigmoid),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(n, _)| *n == name).map(|&(_, a)| a)
    }

    /// The first spelling, which is also the one that is printed.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, a)| a == self).map_or("", |(n, _)| n)
    }

    /// `gate[i] = f(gate[i]) * up[i]`.
    ///
    /// Always inlined, so that it is compiled for the instruction set that it is called with.
    #[inline(always)]
    pub fn gate<F: Float>(self, gate: &mut [F], up: &[F]) {
        #[inline(always)]
        fn each<F: Float>(gate: &mut [F], up: &[F], f: impl Fn(F) -> F) {
            for (g, &u) in gate.iter_mut().zip(up) {
                *g = f(*g) * u;
            }
        }
        match self {
            Activation::Silu => each(gate, up, silu),
            Activation::Gelu => each(gate, up, gelu),
            Activation::GeluTanh => each(gate, up, gelu_tanh),
            Activation::Relu => each(gate, up, relu),
            Activation::Relu2 => each(gate, up, relu2),
            Activation::Sigmoid => each(gate, up, sigmoid),
        }
    }

    /// `x[i] = f(x[i])`.
    ///
    /// Always inlined, so that it is compiled for the instruction set that it is called with.
    #[inline(always)]
    pub fn apply<F: Float>(self, x: &mut [F]) {
        #[inline(always)]
        fn each<F: Float>(x: &mut [F], f: impl Fn(F) -> F) {
            for v in x {
                *v = f(*v);
            }
        }
        match self {
            Activation::Silu => each(x, silu),
            Activation::Gelu => each(x, gelu),
            Activation::GeluTanh => each(x, gelu_tanh),
            Activation::Relu => each(x, relu),
            Activation::Relu2 => each(x, relu2),
            Activation::Sigmoid => each(x, sigmoid),
        }
    }
}

/// gpt-oss' gate, in place of `gate`: `g = min(gate, limit)`, `u = min(max(up, -limit), limit)`, then
/// `(u + 1) * (g * sigmoid(alpha * g))`.
///
/// Always inlined, so that it is compiled for the instruction set that it is called with.
#[inline(always)]
pub fn clamped_gate<F: Float>(gate: &mut [F], up: &[F], alpha: F, limit: F) {
    for (g, &u) in gate.iter_mut().zip(up) {
        let (x, u) = (g.min(limit), u.max(-limit).min(limit));
        *g = (u + F::ONE) * (x * sigmoid(alpha * x));
    }
}

/// `max(x - cutoff, 0)` in place, the cutoff being the row's mean plus so many of its standard deviations (those of
/// the population): Gemma 3n's activation sparsity.
pub fn keep_above<F: Float>(x: &mut [F], deviations: F) {
    let (mean, variance) = moments(x);
    let cutoff = mean + variance.sqrt() * deviations;
    for v in x {
        *v = relu(*v - cutoff);
    }
}

/// `x / (1 + exp(-x))`
#[inline(always)]
pub fn silu<F: Float>(x: F) -> F {
    x / (F::ONE + (-x).exp())
}

/// `(0.5 * x) * (1 + erf(x * sqrt(1/2)))`
pub fn gelu<F: Float>(x: F) -> F {
    (F::from_f64(0.5) * x) * (F::ONE + (x * F::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

/// `(0.5 * x) * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * ((x * x) * x))))`
pub fn gelu_tanh<F: Float>(x: F) -> F {
    let root = F::from_f64(std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
    let cubic = F::from_f64(0.044715) * ((x * x) * x);
    (F::from_f64(0.5) * x) * (F::ONE + (root * (x + cubic)).tanh())
}

/// `max(x, 0)`, written so that NaN stays NaN.
pub fn relu<F: Float>(x: F) -> F {
    if x < F::ZERO { F::ZERO } else { x }
}

/// The square of [`relu`].
pub fn relu2<F: Float>(x: F) -> F {
    let x = relu(x);
    x * x
}

/// `1 / (1 + exp(-x))`
#[inline(always)]
pub fn sigmoid<F: Float>(x: F) -> F {
    F::ONE / (F::ONE + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply<F: Float>(activation: Activation, x: F) -> F {
        let mut gate = [x];
        activation.gate(&mut gate, &[F::ONE]);
        gate[0]
    }

    /// Values from the functions' definitions, evaluated with mpmath to 20 digits.
    #[test]
    fn values_at_one_and_minus_two() {
        for (act, at_one, at_minus_two) in [
            (Activation::Silu, 0.731_058_578_630_004_9, -0.238_405_844_044_235_17),
            (Activation::Gelu, 0.841_344_746_068_542_9, -0.045_500_263_896_358_42),
            (Activation::GeluTanh, 0.841_191_990_608_306_2, -0.045_402_305_912_224_98),
            (Activation::Relu, 1.0, 0.0),
            (Activation::Relu2, 1.0, 0.0),
            (Activation::Sigmoid, 0.731_058_578_630_004_9, 0.119_202_922_022_117_57),
        ] {
            assert!((apply(act, 1.0f64) - at_one).abs() < 1e-12, "{} at 1", act.name());
            assert!((apply(act, -2.0f64) - at_minus_two).abs() < 1e-12, "{} at -2", act.name());
            assert!((f64::from(apply(act, 1.0f32)) - at_one).abs() < 1e-7, "{} at 1 in f32", act.name());
        }
    }

    #[test]
    fn the_gate_is_multiplied() {
        let mut gate = [2.0f32, -2.0];
        Activation::Relu.gate(&mut gate, &[3.0, 3.0]);
        assert_eq!(gate, [6.0, 0.0]);
    }

    #[test]
    fn nothing_hides_a_nan() {
        for (_, act) in Activation::NAMES {
            assert!(apply(act, f32::NAN).is_nan(), "{}", act.name());
        }
        for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            let mut gate = [gate];
            clamped_gate(&mut gate, &[up], 1.0, 7.0);
            assert!(gate[0].is_nan());
        }
        let mut x = [1.0, f32::NAN];
        keep_above(&mut x, 0.0);
        assert!(x.iter().all(|v| v.is_nan()));
    }

    #[test]
    fn without_a_gate_it_is_the_gate_times_one() {
        for (_, act) in Activation::NAMES {
            let mut x = [1.5f32, -0.25];
            act.apply(&mut x);
            assert_eq!(x, [apply(act, 1.5f32), apply(act, -0.25)], "{}", act.name());
        }
        let mut x = [3.0f32, -3.0];
        Activation::Relu2.apply(&mut x);
        assert_eq!(x, [9.0, 0.0]);
    }

    #[test]
    fn the_clamped_gate_cuts_both_and_adds_one_to_up() {
        // alpha 0: the sigmoid is one half.
        let mut gate = [10.0f32, -10.0, 2.0];
        clamped_gate(&mut gate, &[9.0, -9.0, 0.5], 0.0, 7.0);
        assert_eq!(gate, [8.0 * 3.5, -6.0 * -5.0, 1.5], "the gate is not cut from below");
        let mut gate = [2.0f64];
        clamped_gate(&mut gate, &[0.0], 1.5, 7.0);
        assert_eq!(gate, [2.0 * sigmoid(3.0)]);
    }

    #[test]
    fn what_exceeds_the_mean_by_enough_deviations_passes() {
        // Mean 4, standard deviation 2.
        let row = [2.0f32, 6.0, 2.0, 6.0];
        for (deviations, expected) in [(0.5, [0.0, 1.0, 0.0, 1.0]), (-1.0, [0.0, 4.0, 0.0, 4.0]), (1.0, [0.0; 4])] {
            let mut x = row;
            keep_above(&mut x, deviations);
            assert_eq!(x, expected, "{deviations}");
        }
    }
}
