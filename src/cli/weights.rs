//! `oracle weights A B`: whether two checkpoints hold the same weights.

use super::diff::{exit, tolerance};
use super::survey::{CheckpointArgs, Survey, survey};
use super::{Exit, say};
use crate::Problem;
use crate::exec::driver::PIECE_BYTES;
use crate::oracle::output::to_standard_output;
use crate::oracle::report::Format;
use crate::oracle::verdict::Gate;
use crate::oracle::weights::{Checkpoint, Options, WeightsComparison, compare};
use crate::problem::quote;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::path::PathBuf;

/// Compare the weights of two checkpoints by what they mean
///
/// Folders and GGUF files alike, whatever the names, layouts and formats of their tensors: each weight of the plan is
/// decoded to float32 on both sides and compared, bit for bit unless a tolerance is given. Exit code 0: identical, or within
/// the tolerance; 1: different (a missing weight, another shape, a NaN or an infinity are always different); 2: not
/// comparable.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle weights fixtures/llama-plain fixtures/gguf/llama-plain.gguf
  oracle weights models/smollm2 smollm2-q8_0.gguf --worst 10
  oracle weights models/smollm2 models/smollm2-f16 --rtol 1e-3 --format junit > weights.xml")]
pub struct WeightsArgs {
    /// The checkpoint that is taken as right: a folder or a GGUF file
    #[arg(value_name = "A")]
    reference: PathBuf,

    /// The checkpoint that is held against it
    #[arg(value_name = "B")]
    candidate: PathBuf,

    /// A config key or tensor that may stay unused, in either checkpoint (repeatable)
    #[arg(long, value_name = "NAME")]
    allow_unused: Vec<String>,

    /// A further model family, as a TOML file; it comes before the built-in ones (docs/packs.md)
    #[arg(long, value_name = "FILE")]
    pack: Option<PathBuf>,

    /// Absolute tolerance for each element: |b - a| <= ATOL + RTOL * |a| passes [default: 0 with --rtol]
    #[arg(long, visible_alias = "tolerance", value_name = "ATOL", value_parser = tolerance)]
    atol: Option<f64>,

    /// Relative tolerance [default: 0 with --atol]
    #[arg(long, value_name = "RTOL", value_parser = tolerance)]
    rtol: Option<f64>,

    /// How many of the weights that are not identical to list; the formats for machines have all
    #[arg(short = 'n', long = "worst", value_name = "N", default_value_t = 20)]
    worst: usize,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Write nothing; the exit code tells
    #[arg(short, long)]
    quiet: bool,
}

/// Compares the two and writes the report to standard output.
///
/// # Errors
/// The user's pack is unusable, a checkpoint has problems, a weight can't be read, or the report can't be written; with
/// `--quiet`, the exit code alone tells of problems.
pub fn run(args: &WeightsArgs) -> Result<Exit> {
    let one = |path: &PathBuf| {
        let (path, allow_unused, pack) = (path.clone(), args.allow_unused.clone(), args.pack.clone());
        survey(&CheckpointArgs { path, allow_unused, pack })
    };
    let mut sides = [one(&args.reference)?, one(&args.candidate)?];
    excuse(&mut sides);
    if sides.iter().any(|side| !side.problems.is_empty()) {
        let sentences: Vec<String> =
            sides.iter().filter_map(|side| Some(side.refuse_problems().err()?.to_string())).collect();
        let problems = sides.iter().flat_map(|side| side.problems.clone()).collect();
        return refuse(args, &sides, problems, &sentences.join("\n"));
    }
    if !args.quiet {
        sides.iter().flat_map(|side| &side.notes).for_each(|note| say(format_args!("note: {note}")));
    }
    let names = sides.each_ref().map(|side| side.path.display().to_string());
    let [reference, candidate] = [checkpoint(&sides[0], &names[0])?, checkpoint(&sides[1], &names[1])?];
    let options = Options { gate: args.gate(), piece_bytes: PIECE_BYTES, listed: args.worst };
    let compared = compare(reference, candidate, options).and_then(|comparison| {
        reference.source.check_unchanged()?;
        candidate.source.check_unchanged()?;
        Ok(comparison)
    });
    match compared {
        Ok(comparison) => {
            write_report(args, &comparison)?;
            Ok(exit(comparison.verdict))
        }
        Err(error) => {
            let sentence = format!("{error:#}");
            // A sentence begins with the file's name, which is the problem's place.
            let (place, message) = sentence.split_once(": ").unwrap_or(("weights", &sentence));
            refuse(args, &sides, vec![Problem::new("unreadable", place, message)], &sentence)
        }
    }
}

impl WeightsArgs {
    fn gate(&self) -> Gate {
        match (self.atol, self.rtol) {
            (None, None) => Gate::Bits,
            (atol, rtol) => Gate::Tolerance { atol: atol.unwrap_or(0.0), rtol: rtol.unwrap_or(0.0) },
        }
    }
}

/// A name that may stay unused and a pack need be of use to one of the two alone.
fn excuse(sides: &mut [Survey; 2]) {
    let allowed = |side: &Survey| side.books.as_ref().map_or_else(Vec::new, |books| books.allowed.clone());
    let places: Vec<String> =
        sides.iter().flat_map(allowed).map(|name| format!("--allow-unused {}", quote(&name))).collect();
    let pack_unused = |note: &Problem| note.code == "pack-unused";
    let used = !sides.iter().all(|side| side.notes.iter().any(pack_unused));
    for side in sides {
        side.problems.retain(|problem| problem.code != "allow-unused" || !places.contains(&problem.place));
        side.notes.retain(|note| !(used && pack_unused(note)));
    }
}

/// # Errors
/// The survey found neither problems nor a plan.
fn checkpoint<'a>(survey: &'a Survey, name: &'a str) -> Result<Checkpoint<'a>> {
    let (Some(source), Some(books)) = (&survey.source, &survey.books) else {
        bail!("{name}: neither problems nor a checkpoint");
    };
    let plan = books.plan.as_ref().context("books without problems have a plan")?;
    let pack = books.pack.as_ref().map_or("", |(pack, _)| pack.name.as_str());
    Ok(Checkpoint { name, pack, plan, source: source.as_ref() })
}

/// The end of a run that could not compare: the sentences on standard error, a `refused` report besides where a machine
/// reads it.
fn refuse(args: &WeightsArgs, sides: &[Survey; 2], reasons: Vec<Problem>, sentences: &str) -> Result<Exit> {
    if args.quiet {
        return Ok(Exit::Trouble);
    }
    if args.format != Format::Text {
        let names = sides.each_ref().map(|side| side.path.display().to_string());
        write_report(args, &WeightsComparison::refused(names.each_ref().map(String::as_str), args.gate(), reasons))?;
    }
    bail!("{sentences}")
}

fn write_report(args: &WeightsArgs, comparison: &WeightsComparison) -> Result<()> {
    if args.quiet {
        return Ok(());
    }
    to_standard_output(|out| args.format.write(comparison, out)).context("cannot write the report to standard output")
}
