//! Why a file is not an oracle file, in sentences.

use crate::oracle::printable::printable;
use std::io;
use thiserror::Error;

/// What is wrong with a v1 file. Lines count from 1; every `found` has its control characters escaped and is cut
/// to a readable length.
#[derive(Debug, Error)]
pub enum FileError {
    /// The operating system refused to open or read it.
    #[error("{file}: cannot be read: {cause}")]
    Unreadable { file: String, cause: io::Error },

    #[error("{file}: is a folder; expected an oracle file")]
    Folder { file: String },

    #[error("{file}: is empty; expected a memra-checkpoint-oracle-v1 file")]
    Empty { file: String },

    #[error("{file}: begins with a byte order mark; expected plain UTF-8 text without one")]
    ByteOrderMark { file: String },

    #[error("{file}: is not a text file: line {line} holds a NUL byte")]
    Nul { file: String, line: usize },

    #[error("{file}: is not a text file: line {line} is not valid UTF-8")]
    NotUtf8 { file: String, line: usize },

    #[error("{file}: is not an oracle file: line {line} has more than {limit} bytes")]
    LineTooLong { file: String, line: usize, limit: usize },

    #[error(
        "{file}: is not an oracle file: no format record; expected \"format<tab>memra-checkpoint-oracle-v1\", and its \
         first line is \"{found}\""
    )]
    FormatMissing { file: String, found: String },

    #[error("{file}: line {line}: the format is \"{found}\"; expected \"memra-checkpoint-oracle-v1\"")]
    FormatUnknown { file: String, line: usize, found: String },

    #[error("{file}: has no {key} record; expected \"{key}<tab>value\"")]
    HeaderMissing { file: String, key: &'static str },

    #[error("{file}: line {line}: {key} has no value")]
    HeaderEmpty { file: String, line: usize, key: String },

    #[error(
        "{file}: line {line}: {key} is \"{found}\", but line {first_line} says \"{first}\"; a file may say it only once"
    )]
    HeaderConflict { file: String, line: usize, key: String, found: String, first_line: usize, first: String },

    #[error("{file}: line {line}: the {key} record has {found} tab-separated fields; expected {expected}")]
    FieldCount { file: String, line: usize, key: String, found: usize, expected: usize },

    /// Only in strict reading.
    #[error(
        "{file}: line {line}: unknown key \"{found}\"; strict reading accepts only the records this format defines"
    )]
    UnknownKey { file: String, line: usize, found: String },

    /// An entry of `tokens` or `positions`, or `vocab`.
    #[error("{file}: line {line}: {key} holds \"{found}\"; expected a decimal number from {least} to 4294967295")]
    BadNumber { file: String, line: usize, key: &'static str, found: String, least: u32 },

    #[error("{file}: line {line}: {positions} positions for {tokens} tokens; expected one for each")]
    PositionCount { file: String, line: usize, positions: usize, tokens: usize },

    #[error("{file}: line {line}: the logit index is \"{found}\"; expected a decimal number below vocab")]
    BadIndex { file: String, line: usize, found: String },

    #[error(
        "{file}: line {line}: the bits of logit {index} are \"{found}\"; expected 1 to {digits} hex digits, without a \
         sign or prefix"
    )]
    BadBits { file: String, line: usize, index: u32, found: String, digits: usize },

    /// Read as f64, such bits would all be zero or denormal: they are another type's bits.
    #[error(
        "{file}: numeric_class is \"source-weights-float64-accumulation\", but no logit has more than 8 hex digits; \
         expected the 16 digits of a float64"
    )]
    NarrowBits { file: String },

    #[error("{file}: line {line}: logit {index} appears again; line {first_line} already has it")]
    DuplicateLogit { file: String, line: usize, index: u32, first_line: usize },

    #[error("{file}: logit {index} is missing; line {line} goes on with logit {found}")]
    MissingLogit { file: String, index: usize, line: usize, found: u32 },

    #[error("{file}: line {line}: logit {index} is beyond the vocabulary; line {vocab_line} says vocab is {vocab}")]
    IndexBeyondVocab { file: String, line: usize, index: u32, vocab: u32, vocab_line: usize },

    #[error(
        "{file}: holds {found} logits, but line {vocab_line} says vocab is {vocab}: logit {found} and what follows are \
         missing after line {line}"
    )]
    LogitCount { file: String, found: usize, vocab: u32, vocab_line: usize, line: usize },
}

/// A text from a file as it may be shown: control characters escaped, cut after 60 characters.
pub(crate) fn shown(text: &str) -> String {
    const LIMIT: usize = 60;
    match text.char_indices().nth(LIMIT) {
        Some((end, _)) => format!("{}...", printable(&text[..end])),
        None => printable(text),
    }
}
