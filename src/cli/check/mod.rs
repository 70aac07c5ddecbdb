//! `oracle check CKPT`: the closed books, from headers alone.

mod plan;

use super::Exit;
use super::survey::{CheckpointArgs, Survey, survey};
use crate::Problem;
use crate::checkpoint::Source;
use crate::model::Plan;
use crate::oracle::output::to_standard_output;
use anyhow::Result;
use clap::{Args, ValueEnum};
use indicatif::HumanBytes;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle check fixtures/qwen3-plain
  oracle check models/smollm2 --format json | jq .plan.ropes")]
pub struct CheckArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,

    /// A table for people, or everything for machines
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// What a check found, as `--format json` prints it.
#[derive(Serialize)]
struct Report<'a> {
    checkpoint: String,
    /// Nothing forbids a run.
    ok: bool,
    pack: Option<&'a str>,
    /// Why this pack was chosen.
    because: Option<&'a str>,
    plan_sha256: Option<String>,
    config_sha256: Option<&'a str>,
    /// Stored elements that the plan uses.
    parameters: Option<u64>,
    /// By dtype, over every tensor of the checkpoint.
    census: BTreeMap<String, Count>,
    /// How many weights are stored in which format; a quantised one and its scales count once.
    formats: BTreeMap<String, usize>,
    files: Vec<File>,
    /// Tensors that have no effect on a text run.
    ignored_tensors: Option<&'a BTreeMap<String, Vec<String>>>,
    /// Keys and tensors that stay unused because the user allowed it.
    allowed_unused: &'a [String],
    notes: &'a [Problem],
    problems: &'a [Problem],
    plan: Option<&'a Plan>,
}

#[derive(Default, Serialize)]
struct Count {
    tensors: u64,
    elements: u64,
    bytes: u64,
}

#[derive(Serialize)]
struct File {
    path: String,
    bytes: u64,
}

/// Prints the report: exit 0 where a run would start, else 2.
///
/// # Errors
/// The user's pack is unusable, or standard output can't be written.
pub fn run(args: &CheckArgs) -> Result<Exit> {
    let survey = survey(&args.checkpoint)?;
    let report = report(&survey);
    let text = match args.format {
        Format::Text => text(&report),
        Format::Json => serde_json::to_string_pretty(&report)? + "\n",
    };
    to_standard_output(|out| out.write_all(text.as_bytes()))?;
    Ok(if report.ok { Exit::Done } else { Exit::Trouble })
}

fn report(survey: &Survey) -> Report<'_> {
    let books = survey.books.as_ref();
    let pack = books.and_then(|b| b.pack.as_ref());
    let plan = books.and_then(|b| b.plan.as_ref());
    let source = survey.source.as_deref();
    Report {
        checkpoint: survey.path.display().to_string(),
        ok: survey.problems.is_empty(),
        pack: pack.map(|(pack, _)| pack.name.as_str()),
        because: pack.map(|(_, why)| why.as_str()),
        plan_sha256: plan.map(Plan::sha256),
        config_sha256: survey.config.as_ref().map(|c| c.sha256.as_str()),
        parameters: plan.map(Plan::parameters),
        census: source.map(census).unwrap_or_default(),
        formats: source.map(Source::formats).unwrap_or_default(),
        files: source.map(files).unwrap_or_default(),
        ignored_tensors: books.map(|b| &b.ignored),
        allowed_unused: books.map_or(&[], |b| &b.allowed),
        notes: &survey.notes,
        problems: &survey.problems,
        plan,
    }
}

fn census(source: &dyn Source) -> BTreeMap<String, Count> {
    let mut census: BTreeMap<String, Count> = BTreeMap::new();
    for info in source.stored().values() {
        let count = census.entry(info.dtype.to_string()).or_default();
        count.tensors += 1;
        count.elements = count.elements.saturating_add(elements(&info.shape));
        count.bytes += info.len;
    }
    census
}

fn elements(shape: &[usize]) -> u64 {
    // Of several huge dimensions and a zero the product is still zero.
    if shape.contains(&0) { 0 } else { shape.iter().fold(1, |product, &n| product.saturating_mul(n as u64)) }
}

fn files(source: &dyn Source) -> Vec<File> {
    source.files().iter().map(|f| File { path: f.path.display().to_string(), bytes: f.len }).collect()
}

/// Problems that a person is shown.
const SHOWN: usize = 100;

fn text(report: &Report<'_>) -> String {
    let mut rows: Vec<(&str, String)> = vec![("checkpoint", report.checkpoint.clone())];
    if let (Some(pack), Some(because)) = (report.pack, report.because) {
        rows.push(("pack", format!("{pack}, because of {because}")));
    }
    if let Some(plan) = report.plan {
        plan::rows(plan, &mut rows);
    }
    for (dtype, count) in &report.census {
        let (n, elements) = (count.tensors, count.elements);
        rows.push(("tensors", format!("{n} {dtype}, {elements} elements, {}", HumanBytes(count.bytes))));
    }
    if report.formats.keys().any(|format| !report.census.contains_key(format)) {
        let formats: Vec<String> = report.formats.iter().map(|(format, count)| format!("{count} {format}")).collect();
        rows.push(("stored as", formats.join(", ")));
    }
    if let Some(parameters) = report.parameters {
        rows.push(("parameters", parameters.to_string()));
    }
    if !report.files.is_empty() {
        let bytes = report.files.iter().map(|f| f.bytes).sum();
        rows.push(("files", format!("{}, {} ({bytes} bytes)", report.files.len(), HumanBytes(bytes))));
    }
    for (what, names) in report.ignored_tensors.into_iter().flatten() {
        let (n, first) = (names.len(), names.first().map_or("", String::as_str));
        let more = if n == 1 { first.to_owned() } else { format!("{first}, ...") };
        rows.push(("ignored tensors", format!("{n} of {what}: {more}")));
    }
    if !report.allowed_unused.is_empty() {
        rows.push(("allowed unused", report.allowed_unused.join(", ")));
    }
    if let Some(sha256) = &report.plan_sha256 {
        rows.push(("plan sha256", sha256.clone()));
    }
    let mut text = String::new();
    for (name, value) in rows {
        let _ = writeln!(text, "{name:24} {value}");
    }
    for note in report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    for problem in report.problems.iter().take(SHOWN) {
        let _ = writeln!(text, "problem: {problem}");
    }
    if let Some(more) = report.problems.len().checked_sub(SHOWN).filter(|&more| more > 0) {
        let _ = writeln!(text, "[...] and {more} more; --format json has them all");
    }
    let _ = match report.problems.len() {
        0 => writeln!(text, "the books close: every config key and every tensor is accounted for"),
        1 => writeln!(text, "1 problem: this checkpoint can't be run"),
        n => writeln!(text, "{n} problems: this checkpoint can't be run"),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::elements;

    #[test]
    fn elements_never_overflow() {
        assert_eq!(elements(&[3, 5]), 15);
        assert_eq!(elements(&[]), 1);
        assert_eq!(elements(&[1 << 40, 1 << 40, 0]), 0);
        assert_eq!(elements(&[1 << 40, 1 << 40]), u64::MAX);
    }
}
