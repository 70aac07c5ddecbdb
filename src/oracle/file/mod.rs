//! The v1 oracle file: what it holds. [`read`] is the grammar we accept, [`write`] the grammar we write.

mod error;
mod read;
mod write;

pub use error::FileError;
pub use read::Reading;

use std::fmt;

/// The value of the `format` header.
pub const FORMAT: &str = "memra-checkpoint-oracle-v1";

/// What messages and reports call a file that is read from standard input.
pub const STANDARD_INPUT: &str = "standard input";

/// The receipt keys this program writes. `--strict` reading refuses every other key that is not a header.
pub const RECEIPTS: [&str; 13] = [
    "oracle_version",
    "positions",
    "config_sha256",
    "weights_sha256",
    "weights_digest",
    "weights_dtype",
    "plan_sha256",
    "executor_backend",
    "allowed_unused",
    "injected_fault",
    "truth_max_abs",
    "truth_rms",
    "chunks",
];

/// The keys every file must have, besides its logits.
pub(crate) const HEADERS: [&str; 5] = ["format", "engine", "numeric_class", "tokens", "vocab"];

/// The logits of the last position of a token sequence, and what produced them.
#[derive(Debug, Clone, PartialEq)]
pub struct OracleFile {
    /// Who computed the logits, for example `oracle-reference`.
    pub engine: String,
    /// The arithmetic they were computed in.
    pub numeric_class: NumericClass,
    /// The token ids that were run; never empty.
    pub tokens: Vec<u32>,
    /// One position per token, or `None` for 0, 1, 2, ...
    pub positions: Option<Vec<u32>>,
    /// Two-field records beyond the headers and `positions`, in file order.
    pub receipts: Vec<(String, String)>,
    /// One value per row of the output head; never empty.
    pub logits: Logits,
}

impl OracleFile {
    /// Number of logits: the rows of the output head.
    pub fn vocab(&self) -> usize {
        self.logits.len()
    }

    /// The value of a receipt, if the file has it.
    pub fn receipt(&self, key: &str) -> Option<&str> {
        self.receipts.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The positions without the case that needs no record: `None` where they are 0, 1, 2, ...
    pub fn explicit_positions(&self) -> Option<&[u32]> {
        self.positions.as_deref().filter(|list| !is_plain_range(list))
    }
}

/// Whether the list is 0, 1, 2, ...
fn is_plain_range(positions: &[u32]) -> bool {
    positions.iter().enumerate().all(|(index, &position)| index == position as usize)
}

/// The arithmetic a file's logits were computed in; decides how wide its bits are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NumericClass {
    /// Every activation and every sum in f32; 32-bit logits.
    Float32,
    /// The same operations in f64; 64-bit logits.
    Float64,
    /// A class another engine declares; 32-bit logits.
    Other(String),
}

impl NumericClass {
    /// The name as it stands in a file.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Float32 => "source-weights-float32-accumulation",
            Self::Float64 => "source-weights-float64-accumulation",
            Self::Other(name) => name,
        }
    }

    /// Hex digits that a logit of this class has at most: 8 or 16.
    pub fn hex_digits(&self) -> usize {
        match self {
            Self::Float64 => 16,
            Self::Float32 | Self::Other(_) => 8,
        }
    }
}

impl From<&str> for NumericClass {
    fn from(name: &str) -> Self {
        match name {
            "source-weights-float32-accumulation" => Self::Float32,
            "source-weights-float64-accumulation" => Self::Float64,
            other => Self::Other(other.to_string()),
        }
    }
}

impl fmt::Display for NumericClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One row of logits, `[vocab]`, in the width they were computed in.
#[derive(Debug, Clone)]
pub enum Logits {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl From<Vec<f32>> for Logits {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values)
    }
}

impl From<Vec<f64>> for Logits {
    fn from(values: Vec<f64>) -> Self {
        Self::F64(values)
    }
}

impl Logits {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
        }
    }

    /// Whether there is no value at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values as f64. Exact: f64 holds every f32.
    pub fn to_f64(&self) -> Vec<f64> {
        match self {
            Self::F32(values) => values.iter().map(|&value| f64::from(value)).collect(),
            Self::F64(values) => values.clone(),
        }
    }

    /// The bits at `index`, in the hex digits a file holds. Panics where `index` is not below `len()`.
    pub fn hex(&self, index: usize) -> String {
        match self {
            Self::F32(values) => format!("{:08x}", values[index].to_bits()),
            Self::F64(values) => format!("{:016x}", values[index].to_bits()),
        }
    }
}

/// Equality of bits: a NaN equals itself, and 0.0 is not -0.0.
impl PartialEq for Logits {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            (Self::F64(a), Self::F64(b)) => a.iter().map(|v| v.to_bits()).eq(b.iter().map(|v| v.to_bits())),
            _ => false,
        }
    }
}
