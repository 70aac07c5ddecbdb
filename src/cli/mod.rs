//! One file per subcommand.

pub mod diff;
