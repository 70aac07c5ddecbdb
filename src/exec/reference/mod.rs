//! The reference: both kernels in exactly the order of docs/numerics.md, at the speed of the processor's vectors.
//!
//! The order binds the sum of one output, not which outputs are computed together: many outputs advance side by side,
//! each with its own accumulator.

mod attention;
mod lanes;
mod level;
mod linear;
mod panel;

pub use level::{Level, Vectors};

use super::{kernels::Kernels, weights::Tile};
use crate::ops::Matrix;
use crate::ops::attention::{AttentionSpec, Kv};

/// Name in the `engine` record of a file.
pub const ENGINE: &str = "oracle-reference";

/// The reference kernels; they run on the rayon pool that they are called in.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    level: Level,
}

impl Default for Reference {
    /// On the widest vectors that the processor has.
    fn default() -> Self {
        Self { level: Level::widest() }
    }
}

impl Reference {
    /// On the vectors of one level.
    ///
    /// # Panics
    /// The processor doesn't have it.
    pub fn at(level: Level) -> Self {
        assert!(level.available(), "this processor has no {level}");
        Self { level }
    }
}

impl<F: Vectors> Kernels<F> for Reference {
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize) {
        linear::linear(self.level, x, w, out, first);
    }

    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>) -> Matrix<F> {
        attention::attend(self.level, spec, q, past, kv)
    }
}
