//! The reference: all kernels in exactly the order of docs/numerics.md, at the speed of the processor's vectors.
//!
//! The order binds the sum of one output, not which outputs are computed together: many outputs advance side by side,
//! each with its own accumulator.

mod accumulate;
mod attention;
mod lanes;
mod linear;
mod panel;
mod shared;
mod stored;
mod vectors;

pub(super) use shared::{DecodeColumns, transpose};
pub use vectors::Vectors;

use super::kernels::Kernels;
use super::weights::{Tile, Transposed};
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::{Level, Matrix};

/// Name in the `engine` record of a file.
pub const ENGINE: &str = "oracle-reference";

/// The reference kernels; they run on the rayon pool that they are called in.
#[derive(Debug, Clone, Copy)]
pub struct Reference {
    level: Level,
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

impl Default for Reference {
    /// On the selected level, or the widest where the selection is an error.
    fn default() -> Self {
        Self { level: Level::selected().unwrap_or_else(|_| Level::widest()) }
    }
}

impl<F: Vectors> Kernels<F> for Reference {
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize) {
        linear::linear(self.level, x, w, out, first);
    }

    fn accumulate(&self, x: &Matrix<F>, w: &Transposed<'_>, out: &mut Matrix<F>) {
        accumulate::accumulate(self.level, x, w, out);
    }

    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>, sinks: Option<&[F]>) -> Matrix<F> {
        attention::attend(self.level, spec, q, past, kv, sinks)
    }
}
