//! The `oracle` command.

use checkpoint_oracle::cli::{Exit, diff};
use checkpoint_oracle::oracle::output::exit_without_leftovers;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Say what a checkpoint computes, and whether another engine computes the same
#[derive(Parser)]
#[command(name = "oracle", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(visible_alias = "compare")]
    Diff(diff::DiffArgs),
}

fn main() -> ExitCode {
    let result =
        ctrlc::set_handler(|| exit_without_leftovers(130)).map_err(anyhow::Error::from).and_then(
            |()| match Cli::parse().command {
                Command::Diff(args) => diff::run(&args),
            },
        );
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            Exit::Trouble.into()
        }
    }
}
