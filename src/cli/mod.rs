//! The command line: one file per subcommand, one place for the exit code.

pub mod check;
pub mod diff;
pub mod generate;
pub mod packs;
pub mod run;
pub mod self_test;
pub mod survey;

use crate::ops::Level;
use crate::oracle::output::exit_without_leftovers;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

/// What the process says at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Done; for a comparison: identical, or within the stated tolerance.
    Done = 0,
    /// Compared, and different; a check or self-test failed.
    Different = 1,
    /// Bad usage, unreadable, refused, not comparable. Missing evidence is never 0.
    Trouble = 2,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// Say what a language-model checkpoint computes, exactly, and whether another engine computes the same.
#[derive(Debug, Parser)]
#[command(
    name = "oracle",
    version,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true,
    max_term_width = 120
)]
#[command(after_help = "\
Examples:
  oracle run models/smollm2 2 818 5279 -o ref.tsv   write the reference logits of the last position
  oracle diff ref.tsv mine.tsv --atol 1e-3          compare another engine's file with it
  oracle check models/smollm2                       what will be computed, and whether anything is left unused

Runner protocol: MEMRA_ORACLE_OUT=out.tsv oracle CKPT TOKEN...

Exit codes: 0 done, identical or within tolerance; 1 different, or a check failed; 2 refused or not comparable")]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    /// The same as `oracle self-test`
    #[arg(long)]
    self_test: bool,

    /// Print a man page or a shell completion
    #[arg(long, value_name = "WHAT")]
    generate: Option<generate::What>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a checkpoint and write the last position's logits
    #[command(alias = "run-oracle")]
    Run(run::RunArgs),
    /// Compare two oracle files
    #[command(alias = "compare")]
    Diff(diff::DiffArgs),
    /// Say what a checkpoint computes and close its books, from headers alone
    Check(check::CheckArgs),
    /// Prove on this machine that the bits are those that were promised
    SelfTest(self_test::SelfTestArgs),
    /// List the model families
    Packs(packs::PacksArgs),
}

/// Runs the command line `args`, the program's name included.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let args = as_runner(args, std::env::var_os("MEMRA_ORACLE_OUT"));
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A reader of the help text that has gone away is no error.
            let _ = error.print();
            return if error.use_stderr() { Exit::Trouble.into() } else { Exit::Done.into() };
        }
    };
    match ctrlc::set_handler(|| exit_without_leftovers(130)).map_err(Into::into).and_then(|()| dispatch(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("oracle: {error:#}");
            Exit::Trouble.into()
        }
    }
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    Level::selected().map_err(anyhow::Error::msg)?;
    if let Some(what) = cli.generate {
        return generate::run(what, Cli::command());
    }
    match cli.command {
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::SelfTest(args)) => self_test::run(&args),
        Some(Command::Packs(args)) => packs::run(&args),
        // Without a subcommand clap prints the help, so only the flag is left.
        None => self_test::run(&self_test::SelfTestArgs::default()),
    }
}

/// The runner protocol: `MEMRA_ORACLE_OUT=out.tsv oracle CKPT TOKEN...` means `oracle run CKPT TOKEN... --output out.tsv`.
fn as_runner(mut args: Vec<OsString>, out: Option<OsString>) -> Vec<OsString> {
    let Some(out) = out.filter(|out| !out.is_empty()) else { return args };
    let Some(first) = args.get(1).filter(|first| !first.as_encoded_bytes().starts_with(b"-")) else { return args };
    if Cli::command().get_subcommands().any(|c| first == c.get_name() || c.get_all_aliases().any(|a| first == a))
        || first == "help"
    {
        return args;
    }
    args.insert(1, "run".into());
    args.extend(["--quiet".into(), "--output".into(), out]);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn the_definition_of_the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_runner_protocol_is_a_run() {
        let out = || Some(OsString::from("o.tsv"));
        assert_eq!(as_runner(words("oracle ckpt 1 2"), out()), words("oracle run ckpt 1 2 --quiet --output o.tsv"));
        for other in ["oracle diff a b", "oracle compare a b", "oracle --self-test", "oracle"] {
            assert_eq!(as_runner(words(other), out()), words(other));
        }
        assert_eq!(as_runner(words("oracle ckpt 1"), None), words("oracle ckpt 1"));
    }
}
