//! Storage formats of a tensor's elements, and how each becomes float32.

use serde::Serialize;
use std::fmt;

/// How a tensor's elements are stored.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Dtype {
    F32,
    F16,
    BF16,
    /// A format that a header may name and that no decoder exists for, with the header's own spelling (`F64`, `I64`, `F8_E4M3` ...).
    Other(String),
}
