//! What is wrong with an input, said so that the reader can act on it.

use serde::Serialize;
use std::fmt;

/// One thing that is wrong with a checkpoint, found without reading a weight.
///
/// `code` is stable (a CI job may match on it), `place` names the file, tensor or key, and `message` says what was
/// expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    pub code: &'static str,
    pub place: String,
    pub message: String,
}

impl Problem {
    pub fn new(code: &'static str, place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code, place: place.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}
