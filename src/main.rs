//! `oracle`: parse, dispatch, one exit code. Everything else is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    checkpoint_oracle::cli::main(std::env::args_os().collect())
}
