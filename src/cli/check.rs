//! `oracle check CKPT`: the closed books, from headers alone.

use super::Exit;
use super::survey::{CheckpointArgs, Survey, survey};
use crate::Problem;
use crate::checkpoint::Source;
use crate::model::plan::{FeedForward, Linear, Mixer, Plan};
use crate::ops::rope::{Rope, RopeScaling};
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
    for info in source.tensors().values() {
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

fn text(report: &Report<'_>) -> String {
    let mut rows: Vec<(&str, String)> = vec![("checkpoint", report.checkpoint.clone())];
    if let (Some(pack), Some(because)) = (report.pack, report.because) {
        rows.push(("pack", format!("{pack}, because of {because}")));
    }
    if let Some(plan) = report.plan {
        plan_rows(plan, &mut rows);
    }
    for (dtype, count) in &report.census {
        let (n, elements) = (count.tensors, count.elements);
        rows.push(("tensors", format!("{n} {dtype}, {elements} elements, {}", HumanBytes(count.bytes))));
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
    for problem in report.problems {
        let _ = writeln!(text, "problem: {problem}");
    }
    let _ = match report.problems.len() {
        0 => writeln!(text, "the books close: every config key and every tensor is accounted for"),
        1 => writeln!(text, "1 problem: this checkpoint can't be run"),
        n => writeln!(text, "{n} problems: this checkpoint can't be run"),
    };
    text
}

/// Every number that affects the result, with the config's own names.
fn plan_rows(plan: &Plan, rows: &mut Vec<(&str, String)>) {
    let mut row = |name, value: String| rows.push((name, value));
    row("vocab_size", plan.vocab_size.to_string());
    row("hidden_size", plan.hidden_size.to_string());
    row("num_hidden_layers", plan.layers.len().to_string());
    row(
        "attention",
        per_layer(plan, |layer| {
            let Some(s) = layer.mixer.attention_spec() else { return "none".to_owned() };
            format!(
                "{}, {}, head_dim {}, scale {}",
                counted(s.num_attention_heads, "head"),
                counted(s.num_key_value_heads, "key/value head"),
                s.head_dim,
                number(s.scale)
            )
        }),
    );
    row(
        "sliding_window",
        per_layer(plan, |layer| {
            let spec = layer.mixer.attention_spec();
            spec.and_then(|s| s.sliding_window).map_or("none".to_owned(), |w| w.to_string())
        }),
    );
    row(
        "rope",
        per_layer(plan, |layer| {
            let Mixer::Attention(a) = &layer.mixer else { return "none".to_owned() };
            a.rope.map_or("none".to_owned(), |r| rope(&plan.ropes[r]))
        }),
    );
    row(
        "q/k norm",
        per_layer(plan, |layer| {
            let Mixer::Attention(a) = &layer.mixer else { return "none".to_owned() };
            a.qk_norm.as_ref().map_or("none".to_owned(), |n| {
                let order = if n.after_rope { "after" } else { "before" };
                format!("RMSNorm per head {order} RoPE, eps {}", number(n.q.eps))
            })
        }),
    );
    row(
        "mlp",
        per_layer(plan, |layer| {
            let Some(FeedForward::Dense(mlp)) = &layer.mlp else { return "none".to_owned() };
            format!("gated, intermediate_size {}, hidden_act {}", mlp.up.outputs(), mlp.activation.name())
        }),
    );
    row(
        "bias",
        per_layer(plan, |layer| {
            let (Mixer::Attention(a), Some(FeedForward::Dense(mlp))) = (&layer.mixer, &layer.mlp) else {
                return "none".to_owned();
            };
            let parts = [
                ("q", Some(&a.q)),
                ("k", a.k.as_ref()),
                ("v", a.v.as_ref()),
                ("o", Some(&a.o)),
                ("gate", mlp.gate.as_ref()),
                ("up", Some(&mlp.up)),
                ("down", Some(&mlp.down)),
            ];
            let biased = |(_, linear): &(&str, Option<&Linear>)| linear.is_some_and(|l| l.bias.is_some());
            let names: Vec<&str> = parts.into_iter().filter(biased).map(|(name, _)| name).collect();
            if names.is_empty() { "none".to_owned() } else { names.join(", ") }
        }),
    );
    row("norm", format!("RMSNorm before mixer, mlp and head, eps {}", number(plan.norm.eps)));
    row("head", if plan.head.tied { "tied to the embedding".to_owned() } else { plan.head.linear.weight.name.clone() });
}

/// "1 head", "2 heads".
fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// What holds for each layer: said once where all agree, else by ranges of layers.
fn per_layer(plan: &Plan, value: impl Fn(&crate::model::plan::Layer) -> String) -> String {
    let mut ranges: Vec<(usize, usize, String)> = Vec::new();
    for (i, layer) in plan.layers.iter().enumerate() {
        let value = value(layer);
        match ranges.last_mut() {
            Some((_, last, previous)) if *previous == value => *last = i,
            _ => ranges.push((i, i, value)),
        }
    }
    match ranges.as_slice() {
        [(.., only)] => only.clone(),
        _ => {
            let texts = ranges.iter().map(|(first, last, value)| match first == last {
                true => format!("layer {first}: {value}"),
                false => format!("layers {first}-{last}: {value}"),
            });
            texts.collect::<Vec<_>>().join("; ")
        }
    }
}

fn rope(rope: &Rope) -> String {
    let scaling = match &rope.scaling {
        RopeScaling::Default => "default".to_owned(),
        RopeScaling::Linear { factor } => format!("linear, factor {}", number(*factor)),
        RopeScaling::NtkAlpha { alpha } => format!("dynamic with alpha {}", number(*alpha)),
        RopeScaling::Proportional { factor, rotated } => {
            format!("proportional, {rotated} of {} pairs, factor {}", rope.dim / 2, number(*factor))
        }
        RopeScaling::Dynamic { factor, max_position_embeddings: max } => {
            format!("dynamic, factor {} beyond max_position_embeddings {max}", number(*factor))
        }
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings: max } => {
            let [factor, low, high] = [factor, low_freq_factor, high_freq_factor].map(|&n| number(n));
            format!(
                "llama3, factor {factor}, low_freq_factor {low}, high_freq_factor {high}, original_max_position_embeddings {max}"
            )
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings: max,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
        } => {
            let [factor, attention, fast, slow] = [factor, attention_factor, beta_fast, beta_slow].map(|&n| number(n));
            format!(
                "yarn, factor {factor}, attention_factor {attention}, beta_fast {fast}, beta_slow {slow}, truncate {truncate}, original_max_position_embeddings {max}"
            )
        }
        RopeScaling::Longrope {
            short_factor,
            long_factor,
            original_max_position_embeddings: max,
            attention_factor,
        } => {
            let (short, long) = (list(short_factor), list(long_factor));
            let attention = number(*attention_factor);
            format!(
                "longrope, attention_factor {attention}, short_factor {short} up to {max} positions, long_factor {long} beyond"
            )
        }
    };
    let pairing = if rope.interleaved { "interleaved pairs" } else { "halves" };
    format!("{scaling}, rope_theta {}, {} dimensions in {pairing}", number(rope.rope_theta), rope.dim)
}

/// The shortest digits that read back as the same number.
fn number(value: f64) -> String {
    let plain = value == 0.0 || (1e-3..1e15).contains(&value.abs());
    if plain { value.to_string() } else { format!("{value:e}") }
}

/// Numbers, the first and the last where there are many.
fn list(numbers: &[f64]) -> String {
    match numbers {
        [first, _, _, .., _, last] => {
            format!("[{}, ..., {}] ({} values)", number(*first), number(*last), numbers.len())
        }
        _ => format!("[{}]", numbers.iter().map(|&n| number(n)).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::{elements, list, number};

    #[test]
    fn a_number_is_shown_in_the_short_form() {
        let shown = [0.0, 1e-5, 0.01, 500_000.0, 1.138_629_436_111_989, 1e300].map(number);
        assert_eq!(shown, ["0", "1e-5", "0.01", "500000", "1.138629436111989", "1e300"]);
    }

    #[test]
    fn a_long_list_is_shown_by_its_ends() {
        assert_eq!(list(&[1.0, 1.5, 2.0, 4.25]), "[1, 1.5, 2, 4.25]");
        assert_eq!(list(&[1.0, 1.5, 2.0, 4.25, 8.0]), "[1, ..., 8] (5 values)");
    }

    #[test]
    fn elements_never_overflow() {
        assert_eq!(elements(&[3, 5]), 15);
        assert_eq!(elements(&[]), 1);
        assert_eq!(elements(&[1 << 40, 1 << 40, 0]), 0);
        assert_eq!(elements(&[1 << 40, 1 << 40]), u64::MAX);
    }
}
