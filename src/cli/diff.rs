//! `oracle diff REF CAND` (also `compare`).

use super::Exit;
use crate::Problem;
use crate::oracle::comparison::{Comparison, Input, Side, compare};
use crate::oracle::file::{OracleFile, Reading, STANDARD_INPUT};
use crate::oracle::output::to_standard_output;
use crate::oracle::power::HONEST_MULTIPLE;
use crate::oracle::report::Format;
use crate::oracle::verdict::{Gate, Rules, Verdict};
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Compare two oracle files
///
/// Bit for bit, unless a tolerance or a gate is given. A tolerance need not be guessed: `--tolerance auto` takes it from
/// how far the reference itself is from a float64 truth. Exit code 0: identical, or within the tolerance; 1: different
/// (a NaN or an infinity is always different); 2: not comparable.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Examples:
  oracle diff reference.tsv candidate.tsv --atol 1e-4 --rtol 1e-5
  oracle diff reference.tsv candidate.tsv --tolerance auto --truth truth.tsv")]
pub struct DiffArgs {
    /// The file that is taken as right; - for standard input
    #[arg(value_name = "REF")]
    pub reference: PathBuf,

    /// The file that is held against it; - for standard input
    #[arg(value_name = "CAND")]
    pub candidate: PathBuf,

    /// Absolute tolerance: |cand - ref| <= ATOL + RTOL * |ref| passes [default: 0 with --rtol]
    #[arg(long, value_name = "ATOL", value_parser = tolerance)]
    pub atol: Option<f64>,

    /// Relative tolerance [default: 0 with --atol]
    #[arg(long, value_name = "RTOL", value_parser = tolerance)]
    pub rtol: Option<f64>,

    /// Take the tolerance from the truth, that of --truth or the reference's receipts
    #[arg(long, value_enum, conflicts_with_all = ["atol", "rtol", "gate"])]
    pub tolerance: Option<Measured>,

    /// With --tolerance auto: how many times as far from the truth as the reference the candidate may be, in the
    /// largest and in the RMS difference. 8 lets float32 engines pass that sum in another order, and stops half
    /// precision
    #[arg(long, value_name = "K", value_parser = factor, requires = "tolerance", default_value_t = HONEST_MULTIPLE)]
    pub factor: f64,

    /// With a tolerance: pass although the largest logit is another one
    #[arg(long)]
    pub ignore_argmax: bool,

    /// A fixed gate of another tool
    #[arg(long, value_enum, conflicts_with_all = ["atol", "rtol", "ignore_argmax", "allow_class_mismatch"])]
    pub gate: Option<FixedGate>,

    /// A row of the same tokens in a wider arithmetic: report how far both sides are from it
    #[arg(long, value_name = "FILE")]
    pub truth: Option<PathBuf>,

    /// Compare although the numeric classes differ
    #[arg(long)]
    pub allow_class_mismatch: bool,

    /// Refuse files with records that the format does not define
    #[arg(long)]
    pub strict: bool,

    /// How many of the largest differences to list
    #[arg(short = 'n', long = "worst", value_name = "N", default_value_t = 5)]
    pub worst: usize,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,

    /// Write nothing; the exit code tells
    #[arg(short, long)]
    pub quiet: bool,
}

/// Tolerances that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measured {
    /// A multiple (--factor) of the reference's own distance from the truth, and the same argmax
    Auto,
}

/// Gates that are known by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FixedGate {
    /// atol = rtol = 0.005 in float32, and the same argmax
    Memra,
}

impl DiffArgs {
    fn rules(&self) -> Rules {
        let gate = match (self.tolerance, self.gate, self.atol, self.rtol) {
            (Some(Measured::Auto), ..) => Gate::Auto { factor: self.factor },
            (None, Some(FixedGate::Memra), ..) => Gate::Memra,
            (None, None, None, None) => Gate::Bits,
            (None, None, atol, rtol) => Gate::Tolerance { atol: atol.unwrap_or(0.0), rtol: rtol.unwrap_or(0.0) },
        };
        Rules { gate, ignore_argmax: self.ignore_argmax, allow_class_mismatch: self.allow_class_mismatch }
    }
}

/// Compares the two files and writes the report to standard output.
///
/// Fails where the arguments contradict each other, a file cannot be read, or the report cannot be written; with
/// `--quiet`, an unreadable file is told by the exit code alone.
pub fn run(args: &DiffArgs) -> anyhow::Result<Exit> {
    let paths = [Some(&args.reference), Some(&args.candidate), args.truth.as_ref()];
    if paths.iter().flatten().filter(|path| path.as_os_str() == "-").count() > 1 {
        bail!("only one of the files can be standard input");
    }
    let reading = if args.strict { Reading::Strict } else { Reading::Lenient };
    let read = |path: &PathBuf| OracleFile::open(path, reading);
    let name =
        |path: &PathBuf| if path.as_os_str() == "-" { STANDARD_INPUT.to_string() } else { path.display().to_string() };
    let names = [name(&args.reference), name(&args.candidate)];
    let files = (read(&args.reference), read(&args.candidate), args.truth.as_ref().map(read).transpose());
    let (reference, candidate, truth) = match files {
        (Ok(reference), Ok(candidate), Ok(truth)) => (reference, candidate, truth),
        (reference, candidate, truth) => {
            let errors = [reference.err(), candidate.err(), truth.err()];
            return refuse(args, &names, &errors.map(|error| error.map(|error| error.to_string())));
        }
    };
    let truth_name = args.truth.as_ref().map(name).unwrap_or_default();
    let reference = Input { name: &names[0], file: &reference };
    let candidate = Input { name: &names[1], file: &candidate };
    let truth = truth.as_ref().map(|file| Input { name: &truth_name, file });
    let comparison = compare(reference, candidate, truth, &args.rules(), args.worst);
    write_report(args, &comparison)?;
    Ok(exit(comparison.verdict))
}

/// The end of a run that could not read its files: the sentences on standard error, a `refused` report besides where
/// a machine reads it.
fn refuse(args: &DiffArgs, names: &[String; 2], errors: &[Option<String>]) -> anyhow::Result<Exit> {
    if args.quiet {
        return Ok(Exit::Trouble);
    }
    let sentences: Vec<&str> = errors.iter().flatten().map(String::as_str).collect();
    if args.format != Format::Text {
        // A sentence begins with the file's name, which is the problem's place.
        let problem = |sentence: &&str| {
            let (place, message) = sentence.split_once(": ").unwrap_or(("file", sentence));
            Problem::new("unreadable", place, message)
        };
        let reasons = sentences.iter().map(problem).collect();
        let [reference, candidate] = names.each_ref().map(|name| Side::unread(name));
        write_report(args, &Comparison::refused(reference, candidate, &args.rules(), reasons, Vec::new()))?;
    }
    bail!("{}", sentences.join("\n"))
}

fn write_report(args: &DiffArgs, comparison: &Comparison) -> anyhow::Result<()> {
    if args.quiet {
        return Ok(());
    }
    to_standard_output(|out| args.format.write(comparison, out)).context("cannot write the report to standard output")
}

/// The exit code of a verdict.
pub(super) fn exit(verdict: Verdict) -> Exit {
    match verdict {
        Verdict::Identical | Verdict::WithinTolerance => Exit::Done,
        Verdict::Different => Exit::Different,
        Verdict::Refused => Exit::Trouble,
    }
}

/// A tolerance from the command line: finite and not negative.
pub(super) fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".to_string()),
    }
}

/// A factor from the command line. Below 1 the reference would not pass its own gate.
fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 1.0 => Ok(value),
        _ => Err("expected a finite number that is not below 1".to_string()),
    }
}
