//! The nonlinearity of an MLP, named as in `hidden_act`.

use super::Float;
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
    }
}
