//! One file per subcommand.

pub mod diff;

use std::process::ExitCode;

/// How a run ends: the process's exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done; for a comparison: identical, or within the stated tolerance.
    Done = 0,
    /// Compared, and different; a check failed.
    Different = 1,
    /// Bad usage, unreadable, refused, not comparable.
    Trouble = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
