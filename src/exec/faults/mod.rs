//! Bugs that shipped somewhere, to be put into an executor on purpose, so that a check can prove that it sees them.
//!
//! A fault changes the plan, wraps the kernels, or handles the session wrongly between two passes. The arithmetic itself
//! knows nothing of faults.

use super::kernels::Kernels;
use super::state::{Session, SessionOptions};
use crate::model::Plan;
use crate::ops::Float;
use crate::problem::quote;
use thiserror::Error;

/// Why a fault can't be injected.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotInjected {
    #[error("no fault {0}")]
    Unknown(String),
}

/// Makes the fault `name` ready for a plan.
///
/// # Errors
/// No such fault, or one that would change nothing in this plan.
pub fn inject(name: &str, _plan: &Plan) -> Result<Injection, NotInjected> {
    Err(NotInjected::Unknown(quote(name)))
}

/// A fault that applies to a plan, ready to be used.
pub struct Injection {
    /// The plan that the broken engine computes.
    pub plan: Plan,
}

impl Injection {
    /// The kernels that the broken engine computes with.
    pub fn wrap<'a, F: Float>(&self, kernels: &'a dyn Kernels<F>) -> Box<dyn Kernels<F> + 'a> {
        let _ = kernels;
        unimplemented!()
    }

    /// How the broken engine keeps its state.
    pub fn options(&self, options: SessionOptions) -> SessionOptions {
        options
    }

    /// The positions that it gives to the next tokens of a session of `past` tokens.
    pub fn positions(&self, _past: usize, positions: &[u32]) -> Vec<u32> {
        positions.to_vec()
    }

    /// What it does to a session before `new` tokens go through.
    pub fn before_pass<F: Float>(&self, _session: &mut Session<F>, _new: usize) {}

    /// What it does to a session after `new` tokens went through.
    pub fn after_pass<F: Float>(&self, _session: &mut Session<F>, _new: usize) {}

    /// What it makes of a session that was just trimmed.
    pub fn after_trim<F: Float>(&self, _session: &mut Session<F>) {}

    /// What it makes of a session that was just forked from another one.
    pub fn after_fork<F: Float>(&self, _session: &mut Session<F>) {}

    /// What it makes of a session that was just restored from a snapshot.
    pub fn after_restore<F: Float>(&self, _session: &mut Session<F>) {}
}
