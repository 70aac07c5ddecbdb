//! The narrow waist for whole engines: what a check needs from one, whoever wrote it.

pub mod blind;
pub mod equivalence;
pub mod external;
pub mod local;
pub mod mock;
mod operations;
mod report;
pub mod schedule;
pub mod tokenizer;

pub use external::External;
pub use local::Local;
pub use tokenizer::Tokenizer;

use crate::exec::state::PartShape;
use crate::ops::Matrix;
use anyhow::Result;
use std::path::Path;
use thiserror::Error;

/// What an engine has no way to do: no bug, and no evidence either.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct Unsupported(pub String);

/// A session of an engine that lives for `'e`.
pub type BoxedSession<'e> = Box<dyn EngineSession<'e> + 'e>;

/// A model that is loaded and can be run.
pub trait Engine {
    /// As in the `engine` record of a file.
    fn name(&self) -> String;

    fn vocab_size(&self) -> usize;

    /// # Errors
    /// The engine has no tokenizer, or the text can't be tokenized.
    fn tokenize(&self, text: &str) -> Result<Tokenized>;

    /// # Errors
    /// As [`Engine::tokenize`], or an unknown token.
    fn detokenize(&self, tokens: &[u32]) -> Result<String>;

    /// The embedding of each token, `[tokens, hidden_size]`.
    ///
    /// # Errors
    /// A token beyond the vocabulary, or the engine doesn't give embeddings.
    fn embed(&self, tokens: &[u32]) -> Result<Matrix<f64>>;

    /// An empty session for a sequence whose largest position is `length - 1`.
    ///
    /// # Errors
    /// The engine can't start one.
    fn session(&self, length: usize) -> Result<BoxedSession<'_>>;
}

/// Token ids of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokenized {
    pub tokens: Vec<u32>,
    /// The token at the beginning that is not of the text.
    pub added_bos: Option<u32>,
}

/// One sequence in an engine. Floats of any width come as f64, which holds them exactly.
///
/// What a session has no way to do it answers with [`Unsupported`].
pub trait EngineSession<'e> {
    /// Tokens seen.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs the next tokens in one piece.
    ///
    /// # Errors
    /// They don't fit, or the engine failed.
    fn prefill(&mut self, tokens: &[u32], positions: &[u32]) -> Result<Step>;

    /// Runs one token.
    ///
    /// # Errors
    /// As [`EngineSession::prefill`].
    fn decode(&mut self, token: u32, position: u32) -> Result<Step> {
        self.prefill(&[token], &[position])
    }

    /// Forgets all but the first `len` tokens.
    ///
    /// # Errors
    /// The engine can't, or the past that would be needed is gone.
    fn trim(&mut self, len: usize) -> Result<()>;

    /// A second session with the same past.
    ///
    /// # Errors
    /// The engine can't.
    fn fork(&self) -> Result<BoxedSession<'e>>;

    /// # Errors
    /// The engine can't, or the file can't be written.
    fn snapshot(&self, path: &Path) -> Result<()>;

    /// Takes the state of a snapshot in place of its own.
    ///
    /// # Errors
    /// The engine can't, or the file isn't a snapshot of such a session.
    fn restore(&mut self, path: &Path) -> Result<()>;

    /// Forgets everything.
    ///
    /// # Errors
    /// The engine can't.
    fn reset(&mut self) -> Result<()>;

    /// What is kept, layer by layer; empty where the engine doesn't tell.
    fn shape(&self) -> Vec<PartShape>;

    /// A digest of everything that is kept, by which a session's future is decided: two sessions with the same one go on
    /// alike. Absent where the engine doesn't tell.
    fn digest(&self) -> Option<String>;
}

/// What came out of some tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Logits of each token, or of the last one alone where the engine gives no more, or of none where it gives them at
    /// the end of the sequence only: `[rows, vocab_size]`.
    pub logits: Matrix<f64>,
    /// Hidden states after each layer, `[tokens, hidden_size]` each; empty where the engine doesn't tell.
    pub layers: Vec<Matrix<f64>>,
}
