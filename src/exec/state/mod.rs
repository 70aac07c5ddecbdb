//! What a sequence remembers between two passes.
//!
//! Each mixer keeps what it needs behind one interface, [`MixerState`]; a [`Session`] holds one per layer.

mod cache;
mod kv;
mod recurrent;
mod snapshot;

pub use cache::CacheFormat;
pub use kv::{KvState, Shared};
pub use recurrent::RecurrentState;
pub use snapshot::SnapshotError;

use crate::model::plan::{Layer, Mixer, Plan};
use crate::ops::{Float, Matrix};
use serde::Serialize;
use thiserror::Error;

/// What one layer's mixer keeps of the tokens that it has seen.
pub trait MixerState<F: Float> {
    /// # Errors
    /// Tokens that the state would need once the rest is forgotten are gone.
    fn can_trim(&self, len: usize) -> Result<(), StateError>;

    /// Forgets all but the first `len` tokens. [`MixerState::can_trim`] has said that this is possible.
    fn trim(&mut self, len: usize);

    /// Everything that is kept, for reports and snapshots.
    fn parts(&self) -> Vec<Part<'_, F>>;

    /// Takes what [`MixerState::parts`] gave, each with its name, the token of its first row, and its rows.
    ///
    /// # Errors
    /// Other parts than this state has, or of another shape; in a sentence.
    fn restore(&mut self, parts: Vec<(String, Option<usize>, Matrix<F>)>) -> Result<(), String>;
}

/// A matrix that a state keeps.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a, F> {
    pub name: &'static str,
    /// The token that the first row belongs to; absent where the matrix is a state after all tokens, and its rows are not
    /// those of tokens.
    pub first: Option<usize>,
    /// One row per token, or a state.
    pub rows: &'a Matrix<F>,
}

/// Why a session can't do what it is asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StateError {
    #[error("a session of {len} tokens can't be cut to {wanted}")]
    TooShort { len: usize, wanted: usize },

    #[error("a session can't be cut to {wanted} tokens: a sliding window has dropped those before token {first}")]
    Dropped { wanted: usize, first: usize },

    #[error("a session of {len} tokens can't be cut to {wanted}: a recurrent state can't go back, except to the start")]
    Recurrent { len: usize, wanted: usize },

    #[error("a session for {capacity} tokens holds {len}: {new} more don't fit")]
    Full { capacity: usize, len: usize, new: usize },

    #[error("{tokens} tokens came with {positions} positions: expected one each, and at least one token")]
    Positions { tokens: usize, positions: usize },

    #[error("position {position} is beyond the sequence, which was announced to end before position {length}")]
    Position { position: u32, length: usize },

    #[error("token {token} is beyond the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
}

/// How a session keeps what it keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionOptions {
    /// Refuse more tokens than this.
    pub capacity: Option<usize>,
    /// Layers with a sliding window keep no more than the window needs. No bit depends on it, but trimming is limited.
    pub rolling: bool,
    /// The format that keys and values are rounded to; as they are computed by default.
    pub cache: CacheFormat,
}

/// The state of one sequence: per layer what its mixer keeps, and how many tokens it has seen.
#[derive(Debug, Clone)]
pub struct Session<F> {
    pub(super) layers: Vec<LayerState<F>>,
    pub(super) len: usize,
    pub(super) length: usize,
    options: SessionOptions,
}

/// The state of one layer, by the kind of its mixer.
#[derive(Debug, Clone)]
pub enum LayerState<F> {
    Kv(KvState<F>),
    Recurrent(RecurrentState<F>),
    Shared(Shared),
}

impl<F: Float> LayerState<F> {
    fn new(layer: &Layer, options: SessionOptions) -> Self {
        match &layer.mixer {
            Mixer::Attention(a) if a.kv_layer.is_some() => LayerState::Shared(Shared),
            Mixer::Attention(a) => LayerState::Kv(KvState::new(&a.spec, options)),
            Mixer::LatentAttention(a) => LayerState::Kv(KvState::new(&a.spec, options)),
            Mixer::ShortConv(conv) => LayerState::Recurrent(RecurrentState::of_short_conv(conv)),
            Mixer::Mamba2(mamba) => LayerState::Recurrent(RecurrentState::of_mamba2(mamba)),
            Mixer::GatedDelta(delta) => LayerState::Recurrent(RecurrentState::of_delta(delta)),
        }
    }

    /// The state behind its interface.
    pub fn as_mixer(&self) -> &dyn MixerState<F> {
        match self {
            LayerState::Kv(kv) => kv,
            LayerState::Recurrent(state) => state,
            LayerState::Shared(shared) => shared,
        }
    }

    pub fn as_mixer_mut(&mut self) -> &mut dyn MixerState<F> {
        match self {
            LayerState::Kv(kv) => kv,
            LayerState::Recurrent(state) => state,
            LayerState::Shared(shared) => shared,
        }
    }
}

/// What one layer keeps, in numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartShape {
    pub layer: usize,
    pub name: &'static str,
    /// The token of the first row; absent where the rows are not those of tokens, but a state after all of them.
    pub first: Option<usize>,
    pub rows: usize,
    pub cols: usize,
    /// As they are held here, whatever format they were rounded to.
    pub bytes: usize,
}

impl<F: Float> Session<F> {
    /// An empty session. `length` is one more than the largest position that the whole sequence will reach: RoPE kinds
    /// that depend on the sequence's length (dynamic, longrope) are fixed by it, so that the result doesn't depend on
    /// how the sequence is cut into passes.
    pub fn new(plan: &Plan, length: usize) -> Self {
        Self::with_options(plan, length, SessionOptions::default())
    }

    /// As [`Session::new`], with another way of keeping things.
    pub fn with_options(plan: &Plan, length: usize, options: SessionOptions) -> Self {
        let layers = plan.layers.iter().map(|layer| LayerState::new(layer, options)).collect();
        Self { layers, len: 0, length, options }
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

    /// Forgets all but the first `len` tokens.
    ///
    /// # Errors
    /// There are fewer, a sliding window has dropped what would be needed, or a recurrent state would have to go back;
    /// nothing has changed then.
    pub fn trim(&mut self, len: usize) -> Result<(), StateError> {
        if len > self.len {
            return Err(StateError::TooShort { len: self.len, wanted: len });
        }
        self.layers.iter().try_for_each(|layer| layer.as_mixer().can_trim(len))?;
        for layer in &mut self.layers {
            layer.as_mixer_mut().trim(len);
        }
        self.len = len;
        Ok(())
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        for layer in &mut self.layers {
            layer.as_mixer_mut().trim(0);
        }
        self.len = 0;
    }

    /// A second session with the same past: what comes after goes into one of them only.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// What is kept, layer by layer.
    pub fn shape(&self) -> Vec<PartShape> {
        let parts = self.layers.iter().enumerate().flat_map(|(layer, state)| {
            let shape = move |p: Part<'_, F>| PartShape {
                layer,
                name: p.name,
                first: p.first,
                rows: p.rows.rows(),
                cols: p.rows.cols(),
                bytes: size_of_val(p.rows.data()),
            };
            state.as_mixer().parts().into_iter().map(shape)
        });
        parts.collect()
    }

    /// # Errors
    /// The next tokens don't fit this session.
    pub(super) fn accept(&self, tokens: &[u32], positions: &[u32], vocab: usize) -> Result<(), StateError> {
        if tokens.is_empty() || tokens.len() != positions.len() {
            return Err(StateError::Positions { tokens: tokens.len(), positions: positions.len() });
        }
        if let Some(capacity) = self.options.capacity.filter(|&c| self.len + tokens.len() > c) {
            return Err(StateError::Full { capacity, len: self.len, new: tokens.len() });
        }
        if let Some(&position) = positions.iter().find(|&&p| p as usize >= self.length) {
            return Err(StateError::Position { position, length: self.length });
        }
        match tokens.iter().find(|&&t| t as usize >= vocab) {
            Some(&token) => Err(StateError::Token { token, vocab }),
            None => Ok(()),
        }
    }
}
