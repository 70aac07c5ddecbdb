//! Bugs that shipped somewhere, to be put into an executor on purpose, so that a check can prove that it sees them.
//!
//! A fault changes the plan, wraps the kernels, or handles the session or the positions wrongly between two passes. The
//! arithmetic itself knows nothing of faults. [`catalogue`] lists them, [`inject`] makes one ready for a plan,
//! [`trial`] runs a probe with one.

mod catalogue;
mod kernels;
mod plan;
mod recurrent;
mod session;

pub mod probes;
pub mod trial;

pub use catalogue::{Fault, Place, ShownBy, catalogue};
pub use probes::Probe;
pub use trial::{Schedule, Trial};

use super::kernels::Kernels;
use super::state::{CacheFormat, Session, SessionOptions};
use crate::model::Plan;
use crate::model::plan::Mixer;
use crate::ops::Float;
use crate::problem::{nearest, quote};
use catalogue::Make;
use kernels::{Faulty, KernelFault};
use session::{SessionFault, Tokens};
use std::fmt;
use thiserror::Error;

/// Why there is no injection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotInjected {
    #[error("no fault is called {}{nearest} (docs/faults.md lists all)", quote(.name))]
    Unknown {
        name: String,
        /// A few names of the catalogue, as a clause.
        nearest: String,
    },

    #[error("fault {name} does not apply: {reason}")]
    NotApplicable {
        name: String,
        /// A clause for a person.
        reason: String,
    },
}

/// A fault that applies to a plan, ready to be used.
#[derive(Debug, Clone)]
pub struct Injection {
    /// The plan that the broken engine computes.
    pub plan: Plan,
    fault: &'static Fault,
}

/// Makes the fault `name` ready for a plan. Of a fault with variants, `NAME:VARIANT` is one of them and `NAME` the first
/// that applies.
///
/// # Errors
/// No such fault, or one that would change nothing in this plan.
pub fn inject(name: &str, plan: &Plan) -> Result<Injection, NotInjected> {
    let named = |fault: &&Fault| fault.name == name || fault.base() == name;
    let mut refused = None;
    for fault in catalogue().iter().filter(named) {
        match fault.inject(plan) {
            Ok(injection) => return Ok(injection),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let known = catalogue().iter().map(|fault| fault.name);
        NotInjected::Unknown { name: name.to_owned(), nearest: nearest(name, known) }
    }))
}

impl Fault {
    /// This fault, ready for a plan.
    ///
    /// # Errors
    /// It would change nothing there.
    pub fn inject(&'static self, plan: &Plan) -> Result<Injection, NotInjected> {
        let mut broken = plan.clone();
        let applied = match self.make {
            Make::Plan(change) => change(&mut broken).and_then(|()| match broken == *plan {
                true => Err("it would change nothing in this plan".to_owned()),
                false => Ok(()),
            }),
            Make::Kernels(KernelFault::Bf16Activations) => Ok(()),
            Make::Kernels(fault) => attends(plan).and_then(|()| fault.applies(plan)),
            Make::Session(fault) => attends(plan).and_then(|()| fault.applies(plan)),
            Make::Recurrent(lost) => lost.applies(plan),
            Make::Positions(_) => sees_positions(plan),
            Make::Cache(_) => attends(plan),
        };
        match applied {
            Ok(()) => Ok(Injection { plan: broken, fault: self }),
            Err(reason) => Err(NotInjected::NotApplicable { name: self.name.to_owned(), reason }),
        }
    }
}

fn attends(plan: &Plan) -> Result<(), String> {
    match plan.layers.iter().any(|layer| layer.mixer.attention_spec().is_some()) {
        true => Ok(()),
        false => Err("no layer keeps keys and values".to_owned()),
    }
}

fn sees_positions(plan: &Plan) -> Result<(), String> {
    let sees = |mixer: &Mixer| match mixer {
        Mixer::Attention(a) => a.rope.is_some() || a.temperature.as_ref().is_some_and(|t| !t.slots),
        Mixer::LatentAttention(a) => a.rope.is_some() || a.temperature.as_ref().is_some_and(|t| !t.slots),
        Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::GatedDelta(_) => false,
    };
    match plan.position_embed.is_some() || plan.layers.iter().any(|layer| sees(&layer.mixer)) {
        true => Ok(()),
        false => Err("positions play no part".to_owned()),
    }
}

impl Injection {
    /// The catalogue's entry.
    pub fn fault(&self) -> &'static Fault {
        self.fault
    }

    /// The kernels that the broken engine computes with.
    pub fn wrap<'a, F: Float>(&self, kernels: &'a dyn Kernels<F>) -> Box<dyn Kernels<F> + 'a> {
        let fault = match self.fault.make {
            Make::Kernels(fault) => Some(fault),
            _ => None,
        };
        Box::new(Faulty { inner: kernels, fault })
    }

    /// How the broken engine keeps its state.
    pub fn options(&self, options: SessionOptions) -> SessionOptions {
        match self.fault.make {
            // A cache that is kept in this format on purpose is rounded more coarsely.
            Make::Cache(format) if format == options.cache => SessionOptions { cache: CacheFormat::Q4_0, ..options },
            Make::Cache(format) => SessionOptions { cache: format, ..options },
            _ => options,
        }
    }

    /// The positions that it gives to the next tokens of a session of `past` tokens.
    pub fn positions(&self, past: usize, positions: &[u32]) -> Vec<u32> {
        match self.fault.make {
            Make::Positions(fault) if past > 0 => fault.positions(positions),
            _ => positions.to_vec(),
        }
    }

    /// What it does to a session before `new` tokens go through. The pass has to come right after.
    pub fn before_pass<F: Float>(&self, session: &mut Session<F>, new: usize) {
        self.around_pass(session, session.len(), |length| length + 1, new);
        if let Make::Recurrent(lost) = self.fault.make
            && !session.is_empty()
        {
            session.lose_state(lost);
        }
    }

    /// What it does to a session after `new` tokens went through.
    pub fn after_pass<F: Float>(&self, session: &mut Session<F>, new: usize) {
        let past = session.len().saturating_sub(new);
        self.around_pass(session, past, |length| length - 1, new);
        if let Make::Session(SessionFault::NotAppended) = self.fault.make {
            session.lose(Tokens::Newest);
        }
    }

    /// What is done before a pass onto `past` tokens, and undone after it.
    fn around_pass<F: Float>(&self, session: &mut Session<F>, past: usize, length: fn(usize) -> usize, new: usize) {
        match self.fault.make {
            Make::Session(SessionFault::LayerMixup) if past > 0 => {
                if let Some((a, b)) = session::twins(&self.plan) {
                    session.layers.swap(a, b);
                }
            }
            // The sequence reaches one position farther than was announced.
            Make::Positions(PositionFault::DecodeOffByOne) if past > 0 && new == 1 => {
                session.length = length(session.length);
            }
            _ => {}
        }
    }

    /// What it makes of a session that was just trimmed.
    pub fn after_trim<F: Float>(&self, session: &mut Session<F>) {
        if let Make::Session(SessionFault::Trim) = self.fault.make {
            session.lose(Tokens::ColumnsBeyondLength);
        }
    }

    /// What it makes of a session that was just forked from another one.
    pub fn after_fork<F: Float>(&self, session: &mut Session<F>) {
        if let Make::Session(SessionFault::PrefixOffset) = self.fault.make {
            session.lose(Tokens::Newest);
        }
    }

    /// What it makes of a session that was just restored from a snapshot.
    pub fn after_restore<F: Float>(&self, session: &mut Session<F>) {
        if let Make::Session(SessionFault::SnapshotStale) = self.fault.make {
            session.lose(Tokens::Newest);
        }
    }

    /// An injection that does nothing: what a fault must never be.
    #[cfg(test)]
    pub(crate) fn without_effect(plan: &Plan) -> Self {
        let fault = catalogue().iter().find(|fault| fault.name == "rope-pairing").expect("it is in the catalogue");
        Self { plan: plan.clone(), fault }
    }
}

impl fmt::Display for Injection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.fault.name)
    }
}

/// Wrong positions of tokens that come after others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PositionFault {
    /// A single token sits one position too far.
    DecodeOffByOne,
    /// Several tokens begin at position 0 again.
    ChunkReset,
}

impl PositionFault {
    fn positions(self, positions: &[u32]) -> Vec<u32> {
        match (self, positions) {
            (PositionFault::DecodeOffByOne, [only]) => vec![only.saturating_add(1)],
            (PositionFault::ChunkReset, [first, _, ..]) => {
                positions.iter().map(|position| position.saturating_sub(*first)).collect()
            }
            _ => positions.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests;
