//! The accelerated executor: the same kernels with sums in any order, on the matrix product of a [`Backend`].
//!
//! It promises no bits. It stays within a small multiple of the reference's own distance from the float64 truth, and it
//! sees what the reference sees: the same mask, the same infinities, nothing skipped.

mod accumulate;
mod attention;
mod backend;
#[cfg(feature = "blas")]
mod blas;
mod gemm;
mod linear;

pub use backend::{Backend, Blocking, Order, View, ViewMut};
#[cfg(feature = "blas")]
pub use blas::Blas;
pub use gemm::Gemm;

use super::kernels::Kernels;
use super::reference::Reference;
use super::weights::{Tile, Transposed};
use crate::ops::attention::{AttentionSpec, Kv};
use crate::ops::{Level, Matrix};
use anyhow::{Result, bail};

/// Names of the backends in this build; the first is the default.
pub const BACKENDS: &[&str] = &[
    gemm::NAME,
    #[cfg(feature = "blas")]
    blas::NAME,
];

/// The backend of that name.
///
/// # Errors
/// This build has no such backend; the sentence names those that it has.
pub fn by_name(name: &str) -> Result<Box<dyn Backend>> {
    match name {
        gemm::NAME => Ok(Box::new(Gemm)),
        #[cfg(feature = "blas")]
        blas::NAME => Ok(Box::new(Blas)),
        _ => {
            let hint = if cfg!(feature = "blas") { "" } else { "; blas needs a build with `--features blas`" };
            bail!("no backend {}; this build has {}{hint}", crate::problem::quote(name), BACKENDS.join(", "))
        }
    }
}

/// The accelerated kernels; they run on the rayon pool that they are called in.
pub struct Accelerated {
    backend: Box<dyn Backend>,
    /// For what a matrix product would only slow down, or get wrong.
    reference: Reference,
    level: Level,
}

impl Accelerated {
    pub fn new(backend: Box<dyn Backend>) -> Self {
        let level = Level::selected().unwrap_or_else(|_| Level::widest());
        Self { backend, reference: Reference::at(level), level }
    }

    /// Name in the `engine` record of a file.
    pub fn engine(&self) -> String {
        format!("oracle-accelerated-{}", self.backend.name())
    }
}

impl Kernels<f32> for Accelerated {
    /// Up to [`Blocking::few`] tokens the reference's kernel does it: reading and decoding the weights is then most of
    /// the work, and it loses no time in the order of the sums.
    fn linear(&self, x: &Matrix<f32>, w: &Tile<'_>, out: &mut Matrix<f32>, first: usize) {
        if x.rows() <= self.backend.blocking().few {
            self.reference.linear(x, w, out, first);
        } else {
            linear::linear(self.backend.as_ref(), self.level, x, w, out, first);
        }
    }

    /// As `linear`.
    fn accumulate(&self, x: &Matrix<f32>, w: &Transposed<'_>, out: &mut Matrix<f32>) {
        if x.rows() <= self.backend.blocking().few {
            self.reference.accumulate(x, w, out);
        } else {
            accumulate::accumulate(self.backend.as_ref(), x, w, out);
        }
    }

    /// The reference's kernel does it for up to [`Blocking::few`] queries, and where a value is infinite or not a
    /// number: a matrix product multiplies even what the mask hides, by zero, and zero times infinity would be seen.
    fn attend(
        &self,
        spec: &AttentionSpec,
        q: &Matrix<f32>,
        past: usize,
        kv: &Kv<f32>,
        sinks: Option<&[f32]>,
    ) -> Matrix<f32> {
        if q.rows() <= self.backend.blocking().few || kv.values.data().iter().any(|v| !v.is_finite()) {
            self.reference.attend(spec, q, past, kv, sinks)
        } else {
            attention::attend(self.backend.as_ref(), self.level, spec, q, past, kv, sinks)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_backend_is_found_by_its_name_and_others_are_refused_with_the_list() {
        for &name in BACKENDS {
            let backend = by_name(name).unwrap();
            assert_eq!(backend.name(), name);
            assert_eq!(Accelerated::new(backend).engine(), format!("oracle-accelerated-{name}"));
        }
        let Err(error) = by_name("cublas") else { panic!("there is no cublas") };
        let error = error.to_string();
        assert!(BACKENDS.iter().all(|name| error.contains(name)) && error.contains("cublas"), "{error}");
        assert_eq!(error.contains("--features blas"), !BACKENDS.contains(&"blas"), "{error}");
    }
}
