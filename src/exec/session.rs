//! What a sequence remembers between two passes.

use crate::model::plan::{Mixer, Plan};
use crate::ops::attention::Kv;
use crate::ops::{Float, Matrix};

/// The state of one sequence: per layer what its mixer keeps, and how many tokens it has seen.
#[derive(Debug, Clone)]
pub struct Session<F> {
    pub(super) layers: Vec<LayerState<F>>,
    pub(super) len: usize,
    length: usize,
}

/// What one layer's mixer keeps.
#[derive(Debug, Clone)]
pub enum LayerState<F> {
    Kv(Kv<F>),
}

impl<F: Float> Session<F> {
    /// An empty session. `length` is one more than the largest position that the whole sequence will reach: RoPE kinds
    /// that depend on the sequence's length (dynamic, longrope) are fixed by it, so that the result doesn't depend on
    /// how the sequence is cut into passes.
    pub fn new(plan: &Plan, length: usize) -> Self {
        let state = |layer: &crate::model::plan::Layer| match &layer.mixer {
            Mixer::Attention(a) => {
                let width = a.spec.num_key_value_heads * a.spec.head_dim;
                let empty = || Matrix::filled(0, width, F::ZERO);
                LayerState::Kv(Kv { keys: empty(), values: empty() })
            }
        };
        Self { layers: plan.layers.iter().map(state).collect(), len: 0, length }
    }

    /// Tokens seen so far: the next token's slot.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the largest position that the sequence will reach.
    pub fn length(&self) -> usize {
        self.length
    }
}
