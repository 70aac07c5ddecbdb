//! The command line: one file per subcommand, one place for the exit code.

pub mod check;
pub mod diff;
pub mod faults;
pub mod generate;
pub mod kv_equivalence;
pub mod packs;
pub mod probes;
pub mod prompt;
pub mod run;
pub mod self_test;
pub mod survey;
pub mod weights;

use crate::engine::external;
use crate::ops::Level;
use crate::oracle::output::exit_without_leftovers;
use crate::problem::visible;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
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
    /// Compare the weights of two checkpoints by what they mean
    Weights(weights::WeightsArgs),
    /// Say what a checkpoint computes and close its books, from headers alone
    Check(check::CheckArgs),
    /// Say which faults of an engine a check with given prompts would notice
    Faults(faults::FaultsArgs),
    /// Propose a few prompts that show every fault that a checkpoint's engine can have
    Probes(probes::ProbesArgs),
    /// Hold a prompt that comes in pieces against the same prompt in one pass
    KvEquivalence(kv_equivalence::KvEquivalenceArgs),
    /// Prove on this machine that the bits are those that were promised
    SelfTest(self_test::SelfTestArgs),
    /// List the model families
    Packs(packs::PacksArgs),
}

/// Runs the command line `args`, the program's name included.
pub fn main(args: Vec<OsString>) -> ExitCode {
    let args = as_runner(args, std::env::var_os(external::OUT), std::env::var_os(external::CHUNKS));
    let meant = meant_run(&args);
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // A reader of the help text that has gone away is no error.
            let _ = error.print();
            if let Some(meant) = meant.filter(|_| error.kind() == ErrorKind::InvalidSubcommand) {
                say(format_args!("\nto run a checkpoint: {meant}"));
            }
            return if error.use_stderr() { Exit::Trouble.into() } else { Exit::Done.into() };
        }
    };
    match ctrlc::set_handler(interrupted).map_err(Into::into).and_then(|()| dispatch(cli)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            say(format_args!("error: {error:#}"));
            Exit::Trouble.into()
        }
    }
}

/// Ends the process on SIGINT or SIGTERM, and with it what it started and what it has not finished.
fn interrupted() {
    crate::engine::external::end_running();
    exit_without_leftovers(130)
}

fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    Level::selected().map_err(anyhow::Error::msg)?;
    if let Some(what) = cli.generate {
        return generate::run(what, Cli::command());
    }
    match cli.command {
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Diff(args)) => diff::run(&args),
        Some(Command::Weights(args)) => weights::run(&args),
        Some(Command::Check(args)) => check::run(&args),
        Some(Command::Faults(args)) => faults::run(&args),
        Some(Command::Probes(args)) => probes::run(&args),
        Some(Command::KvEquivalence(args)) => kv_equivalence::run(&args),
        Some(Command::SelfTest(args)) => self_test::run(&args),
        Some(Command::Packs(args)) => packs::run(&args),
        // Without a subcommand clap prints the help, so only the flag is left.
        None => self_test::run(&self_test::SelfTestArgs::default()),
    }
}

/// A line on standard error. That nobody can read it (a closed pipe, a full disk) changes no verdict.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The runner protocol: `MEMRA_ORACLE_OUT=out.tsv oracle CKPT TOKEN...` means `oracle run --quiet --output=out.tsv CKPT
/// TOKEN...`; with `MEMRA_ORACLE_CHUNKS=3,1` it is `--chunks=3,1` besides.
fn as_runner(mut args: Vec<OsString>, out: Option<OsString>, chunks: Option<OsString>) -> Vec<OsString> {
    let Some(out) = out.filter(|out| !out.is_empty()) else { return args };
    if !begins_with_a_checkpoint(&args) {
        return args;
    }
    let option = |name: &str, value: OsString| {
        let mut option = OsString::from(name);
        option.push(value);
        option
    };
    let run = ["run".into(), "--quiet".into(), option("--output=", out)];
    let chunks = chunks.filter(|chunks| !chunks.is_empty()).map(|chunks| option("--chunks=", chunks));
    args.splice(1..1, run.into_iter().chain(chunks));
    args
}

/// Whether the first word is neither an option nor a subcommand.
fn begins_with_a_checkpoint(args: &[OsString]) -> bool {
    let Some(first) = args.get(1).filter(|first| !first.as_encoded_bytes().starts_with(b"-")) else { return false };
    let command = Cli::command();
    let mut subcommands = command.get_subcommands();
    first != "help" && !subcommands.any(|c| first == c.get_name() || c.get_all_aliases().any(|a| first == a))
}

/// The run that `oracle CKPT TOKEN...` outside the runner protocol was meant to be: the first word is a folder, or what
/// follows looks like tokens.
fn meant_run(args: &[OsString]) -> Option<String> {
    let digits = |word: &OsString| word.to_str().is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let likely = begins_with_a_checkpoint(args) && (Path::new(&args[1]).is_dir() || args.get(2).is_some_and(digits));
    let words: Vec<String> = args.iter().skip(1).map(|word| visible(&word.to_string_lossy())).collect();
    likely.then(|| format!("oracle run {}", words.join(" ")))
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
        let runner = |line, out| as_runner(words(line), out, None);
        assert_eq!(runner("oracle ckpt 1 2", out()), words("oracle run --quiet --output=o.tsv ckpt 1 2"));
        let expected = words("oracle run --quiet --output=o.tsv --chunks=1,1 ckpt 1 2");
        assert_eq!(as_runner(words("oracle ckpt 1 2"), out(), Some("1,1".into())), expected);
        for other in ["oracle diff a b", "oracle compare a b", "oracle --self-test", "oracle"] {
            assert_eq!(runner(other, out()), words(other));
        }
        assert_eq!(runner("oracle ckpt 1", None), words("oracle ckpt 1"));
    }
}
