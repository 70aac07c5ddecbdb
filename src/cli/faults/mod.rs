//! `oracle faults CKPT | --pack P`: the kill matrix. Which faults would a check with these prompts notice?

pub mod honest;
pub mod matrix;
pub mod report;
pub mod subject;

use super::Exit;
use crate::exec::faults::{Probe, catalogue};
use crate::oracle::output::to_standard_output;
use crate::oracle::power::Check;
use crate::oracle::report::Format;
use anyhow::{Context, Result, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use matrix::measure;
use report::KillMatrix;
use subject::{Subject, SubjectArgs};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle faults --pack llama
  oracle faults fixtures/mistral-window --prompt 1,2,3,4
  oracle faults models/smollm2 --prompt 2,818,5279@0,9,5000 --require bits --format junit")]
pub struct FaultsArgs {
    #[command(flatten)]
    subject: SubjectArgs,

    /// A prompt of your own check, in place of the recommended ones: token ids, and after @ their positions (repeatable)
    #[arg(long = "prompt", value_name = "TOKENS[@POSITIONS]")]
    prompts: Vec<String>,

    /// Exit with 1 where a fault goes unnoticed by this check (repeatable)
    #[arg(long, value_enum, value_name = "CHECK")]
    require: Vec<Check>,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,
}

/// Tries every fault with every prompt, and prints what each check makes of it.
///
/// # Errors
/// Bad arguments, a checkpoint with problems, an unreadable weight.
pub fn run(args: &FaultsArgs) -> Result<Exit> {
    let given = args.prompts.iter().enumerate().map(|(i, text)| prompt(i + 1, text)).collect::<Result<Vec<_>>>()?;
    let subjects = subject::subjects(&args.subject)?;
    let mut matrices = Vec::new();
    for subject in &subjects {
        let probes = if given.is_empty() { subject.probes() } else { given.clone() };
        let bar = progress(subject);
        matrices.push(measure(subject, probes, &bar)?);
        bar.finish_and_clear();
    }
    let matrix = KillMatrix { matrices, required: args.require.clone() };
    to_standard_output(|out| args.format.write(&matrix, out)).context("cannot write the report to standard output")?;
    Ok(if matrix.holds() { Exit::Done } else { Exit::Different })
}

/// `TOKENS` or `TOKENS@POSITIONS`.
fn prompt(number: usize, text: &str) -> Result<Probe> {
    let (tokens, positions) = match text.split_once('@') {
        Some((tokens, positions)) => (tokens, Some(positions)),
        None => (text, None),
    };
    let parse = |list: &str, what| super::run::prompts::numbers(list, what).context("--prompt");
    let mut probe = Probe::new(&format!("prompt-{number}"), parse(tokens, "token")?);
    ensure!(!probe.tokens.is_empty(), "--prompt: holds no token");
    if let Some(positions) = positions {
        let positions = parse(positions, "position")?;
        let (expected, found) = (probe.tokens.len(), positions.len());
        ensure!(expected == found, "--prompt: expected one position per token ({expected}), found {found}");
        probe.positions = positions;
    }
    Ok(probe)
}

/// A bar over the catalogue, on a terminal.
pub fn progress(subject: &Subject) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {prefix}: {msg}").expect("the template is sound");
    ProgressBar::new(catalogue().len() as u64).with_style(style).with_prefix(subject.name.clone())
}
