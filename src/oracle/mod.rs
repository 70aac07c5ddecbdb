//! The `memra-checkpoint-oracle-v1` file, and what can be said about two of them.

pub mod auto;
pub mod comparable;
pub mod comparison;
pub mod file;
pub mod hints;
pub mod metrics;
pub mod output;
pub mod power;
pub(crate) mod printable;
pub mod report;
pub mod truth;
pub mod verdict;
pub mod weights;

pub use comparison::{Comparison, Input, compare};
pub use file::{FileError, Logits, NumericClass, OracleFile};
pub use output::{Output, OutputError};
pub use verdict::{Gate, Rules, Verdict};
