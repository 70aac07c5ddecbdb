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
}

impl Activation {
    /// Every spelling of `hidden_act` that is known.
    pub const NAMES: [(&'static str, Activation); 6] = [
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("gelu", Activation::Gelu),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("gelu_new", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ];

    pub fn parse(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(n, _)| *n == name).map(|&(_, a)| a)
    }

    /// The first spelling, which is also the one that is printed.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|&&(_, a)| a == self).map_or("", |(n, _)| n)
    }

    /// - silu: `x / (1 + exp(-x))`
    /// - gelu: `(0.5 * x) * (1 + erf(x * sqrt(1/2)))`
    /// - gelu_pytorch_tanh: `(0.5 * x) * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * ((x * x) * x))))`
    /// - relu: `max(x, 0)`
    pub fn apply<F: Float>(self, x: F) -> F {
        let half = F::from_f64(0.5);
        match self {
            Activation::Silu => x / (F::ONE + (-x).exp()),
            Activation::Gelu => (half * x) * (F::ONE + (x * F::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf()),
            Activation::GeluTanh => {
                let root = F::from_f64(std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
                let cubic = F::from_f64(0.044715) * ((x * x) * x);
                (half * x) * (F::ONE + (root * (x + cubic)).tanh())
            }
            // Written so that NaN stays NaN.
            Activation::Relu => {
                if x < F::ZERO {
                    F::ZERO
                } else {
                    x
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values from the functions' definitions, evaluated with mpmath to 20 digits.
    #[test]
    fn values_at_one_and_minus_two() {
        for (act, at_one, at_minus_two) in [
            (Activation::Silu, 0.731_058_578_630_004_9, -0.238_405_844_044_235_17),
            (Activation::Gelu, 0.841_344_746_068_542_9, -0.045_500_263_896_358_42),
            (Activation::GeluTanh, 0.841_191_990_608_306_2, -0.045_402_305_912_224_98),
            (Activation::Relu, 1.0, 0.0),
        ] {
            assert!((act.apply(1.0f64) - at_one).abs() < 1e-12, "{} at 1", act.name());
            assert!((act.apply(-2.0f64) - at_minus_two).abs() < 1e-12, "{} at -2", act.name());
            assert!((f64::from(act.apply(1.0f32)) - at_one).abs() < 1e-7, "{} at 1 in f32", act.name());
        }
    }

    #[test]
    fn nothing_hides_a_nan() {
        for (_, act) in Activation::NAMES {
            assert!(act.apply(f32::NAN).is_nan(), "{}", act.name());
        }
    }
}
