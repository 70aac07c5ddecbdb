//! What different checks would say of a candidate's logits, given a reference, the truth, and how far honest engines
//! are from it.

use clap::ValueEnum;
use serde::Serialize;

/// A tolerance is this many times the distance of an honest engine from the truth.
///
/// Two honest engines of one class are each about that far from the truth, so twice the distance apart; the rest is
/// room for engines whose sums are ordered less well (a factor of 6.5 in the RMS was seen). An engine that keeps a step in
/// half precision is hundreds of times farther.
pub const HONEST_MULTIPLE: f64 = 8.0;

/// An NMSE from which on a candidate is rejected.
pub const NMSE_LIMIT: f64 = 1e-2;

/// A way of comparing two rows of logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
#[value(rename_all = "lowercase")]
pub enum Check {
    /// The same bits
    Bits,
    /// No logit farther off than 8 times the float32 reference is from the truth
    F32,
    /// No logit farther off than 8 times an engine with bf16 activations is from the truth
    Bf16,
    /// A normalised mean squared error below 1e-2
    Nmse,
    /// The same largest logit
    Argmax,
}

impl Check {
    pub const ALL: [Check; 5] = [Check::Bits, Check::F32, Check::Bf16, Check::Nmse, Check::Argmax];

    /// The word on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Check::Bits => "bits",
            Check::F32 => "f32",
            Check::Bf16 => "bf16",
            Check::Nmse => "nmse",
            Check::Argmax => "argmax",
        }
    }

    /// A letter for tables.
    pub fn letter(self) -> char {
        match self {
            Check::Bits => 'b',
            Check::F32 => 'f',
            Check::Bf16 => 'h',
            Check::Nmse => 'n',
            Check::Argmax => 'a',
        }
    }
}

/// What a candidate is held against.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    /// `[vocab]`
    reference: Vec<f64>,
    /// Largest difference that [`Check::F32`] lets pass.
    pub f32_tolerance: f64,
    /// Largest difference that [`Check::Bf16`] lets pass.
    pub bf16_tolerance: f64,
}

impl Baseline {
    /// From rows of logits, `[vocab]` each: the float32 reference's, the truth, and those of an engine whose activations
    /// are rounded to bf16.
    pub fn new(reference: &[f32], truth: &[f64], bf16: &[f32]) -> Self {
        let wide = |row: &[f32]| row.iter().map(|&v| f64::from(v)).collect::<Vec<f64>>();
        let reference = wide(reference);
        Self {
            f32_tolerance: HONEST_MULTIPLE * distance(&reference, truth),
            bf16_tolerance: HONEST_MULTIPLE * distance(&wide(bf16), truth),
            reference,
        }
    }

    /// What is measured of a candidate, `[vocab]`.
    pub fn measure(&self, candidate: &[f32]) -> Measured {
        let candidate: Vec<f64> = candidate.iter().map(|&v| f64::from(v)).collect();
        let reference = &self.reference;
        let max_abs = distance(reference, &candidate);
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let errors = squares(&mut reference.iter().zip(&candidate).map(|(r, c)| c - r));
        let nmse = if errors == 0.0 { 0.0 } else { errors / squares(&mut reference.iter().copied()) };
        let same_bits = reference.iter().zip(&candidate).all(|(r, c)| r.to_bits() == c.to_bits());
        let largest = |row: &[f64]| (0..row.len()).reduce(|best, i| if row[i] > row[best] { i } else { best });
        let rejected = |check| {
            // What is not a number is within no tolerance.
            let passes = match check {
                Check::Bits => same_bits,
                Check::F32 => max_abs <= self.f32_tolerance,
                Check::Bf16 => max_abs <= self.bf16_tolerance,
                Check::Nmse => nmse < NMSE_LIMIT,
                Check::Argmax => largest(reference) == largest(&candidate),
            };
            !passes
        };
        Measured { max_abs, nmse, rejected: Check::ALL.map(rejected) }
    }
}

/// What the checks say of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    /// Largest difference from the reference.
    pub max_abs: f64,
    /// Squared differences over the reference's squares.
    pub nmse: f64,
    /// In the order of [`Check::ALL`].
    rejected: [bool; 5],
}

impl Measured {
    /// Of a candidate that was never held against anything: nothing is rejected.
    pub const NOTHING: Measured = Measured { max_abs: 0.0, nmse: 0.0, rejected: [false; 5] };

    /// Whether a check rejects it.
    pub fn rejected_by(&self, check: Check) -> bool {
        self.rejected[check as usize]
    }

    /// Of two candidates, what either shows.
    pub fn or(mut self, other: &Self) -> Self {
        let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        self.max_abs = larger(self.max_abs, other.max_abs);
        self.nmse = larger(self.nmse, other.nmse);
        for (a, b) in self.rejected.iter_mut().zip(other.rejected) {
            *a |= b;
        }
        self
    }
}

/// The largest absolute difference; NaN where one is.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let larger = |m: f64, d: f64| if d > m || d.is_nan() { d } else { m };
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference is 0.001 from the truth, the rounding engine 0.1: tolerances 0.008 and 0.8.
    fn baseline() -> Baseline {
        Baseline::new(&[1.0, 4.0, 2.0], &[1.0, 4.001, 2.0], &[1.0, 4.101, 2.0])
    }

    fn rejecting(candidate: [f32; 3]) -> String {
        let measured = baseline().measure(&candidate);
        Check::ALL.into_iter().filter(|&check| measured.rejected_by(check)).map(Check::letter).collect()
    }

    #[test]
    fn each_check_has_its_limit() {
        for (candidate, expected) in [
            ([1.0, 4.0, 2.0], ""),
            ([1.0, 4.0, 2.007], "b"),
            ([1.0, 4.0, 2.009], "bf"),
            // 0.4^2 / (1 + 16 + 4) is 0.0076, and 0.5^2 / 21 is 0.0119.
            ([1.0, 4.0, 2.4], "bf"),
            ([1.0, 4.0, 2.5], "bfn"),
            ([1.0, 4.0, 2.9], "bfhn"),
            ([1.0, 4.0, 4.5], "bfhna"),
            ([1.0, 4.0, f32::NAN], "bfhn"),
            ([1.0, 4.0, f32::INFINITY], "bfhna"),
        ] {
            assert_eq!(rejecting(candidate), expected, "{candidate:?}");
        }
    }

    #[test]
    fn zeros_of_other_signs_are_other_bits() {
        let baseline = Baseline::new(&[0.0, 1.0], &[0.0, 1.0], &[0.0, 1.0]);
        let measured = baseline.measure(&[-0.0, 1.0]);
        assert!(measured.rejected_by(Check::Bits) && !measured.rejected_by(Check::F32));
    }

    #[test]
    fn two_views_of_a_candidate_add_up() {
        let (a, b) = (baseline().measure(&[1.0, 4.0, 2.5]), baseline().measure(&[1.0, 4.0, 4.5]));
        assert_eq!(a.or(&b), b.or(&a));
        assert!(a.or(&b).rejected_by(Check::Argmax) && a.or(&b).max_abs == 2.5);
        assert_eq!(Measured::NOTHING.or(&a), a);
    }
}
