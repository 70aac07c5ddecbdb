//! Watching a run: every named intermediate as it is produced.

use crate::ops::{Float, Matrix};
use std::fmt;

/// Where in the model a value is: `embed`, `layer.3.mixer.q`, `layer.3.out`, `head`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage {
    pub layer: Option<usize>,
    pub name: &'static str,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "layer.{layer}.{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

/// Sees the rows (`[tokens, width]`) of each stage in the order in which they are computed.
pub trait Observer<F: Float> {
    fn see(&mut self, stage: Stage, rows: &Matrix<F>);

    /// Is told which of the `count` experts of a layer each token goes to, in ascending order and each with its weight:
    /// experts that no token goes to are not read.
    fn experts(&mut self, _layer: usize, _chosen: &[Vec<(usize, F)>], _count: usize) {}
}

/// Sees nothing.
impl<F: Float> Observer<F> for () {
    fn see(&mut self, _: Stage, _: &Matrix<F>) {}
}

/// Remembers the first place where a value was not finite.
#[derive(Debug, Default)]
pub struct FirstNonFinite {
    pub found: Option<NonFinite>,
}

/// A value that is not a number, or infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NonFinite {
    pub stage: Stage,
    /// Row (token of the pass) and column.
    pub row: usize,
    pub column: usize,
    pub value: f64,
}

impl NonFinite {
    /// What it is and in which stage: "NaN first appears in layer.3.mixer.q".
    pub fn first(&self) -> String {
        format!("{} first appears in {}", self.value, self.stage)
    }
}

impl<F: Float> Observer<F> for FirstNonFinite {
    fn see(&mut self, stage: Stage, rows: &Matrix<F>) {
        if self.found.is_some() {
            return;
        }
        if let Some(at) = rows.data().iter().position(|v| !v.is_finite()) {
            let (row, column) = (at / rows.cols(), at % rows.cols());
            self.found = Some(NonFinite { stage, row, column, value: rows.data()[at].to_f64() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_bad_value_is_named_and_kept() {
        let mut watch = FirstNonFinite::default();
        let mut see = |name, data| {
            watch.see(Stage { layer: Some(3), name }, &Matrix::from_vec(2, 2, data));
            watch.found.map(|f| (f.first(), f.row, f.column))
        };
        assert_eq!(see("mixer.in", vec![1.0f32, 2.0, 3.0, 4.0]), None);
        let first = Some(("NaN first appears in layer.3.mixer.q".to_owned(), 1, 0));
        assert_eq!(see("mixer.q", vec![1.0, 2.0, f32::NAN, 4.0]), first);
        assert_eq!(see("mixer.out", vec![f32::INFINITY; 4]), first);
    }
}
