//! `oracle run CKPT TOKEN...` (also `run-oracle`): the reference logits of the last position, as an oracle file.

use super::Exit;
use super::survey::{CheckpointArgs, Survey, survey};
use crate::checkpoint::Source;
use crate::exec::observer::NonFinite;
use crate::exec::{Executor, FirstNonFinite, Input, Rows, Session, reference};
use crate::model::Plan;
use crate::oracle::{Logits, NumericClass, OracleFile, Output};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle run fixtures/llama-plain 1 2 3 4 -o ref.tsv
  oracle run fixtures/qwen3-plain 5,17,3 --top 5 > ref.tsv
  tokenizer-of-yours prompt.txt | oracle run models/smollm2 --tokens-file - -o ref.tsv")]
pub struct RunArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,

    /// Token ids, as words or separated by commas
    #[arg(value_name = "TOKEN", allow_negative_numbers = true)]
    tokens: Vec<String>,

    /// Read the token ids from a file (`-`: standard input), separated by white space or commas
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    tokens_file: Option<PathBuf>,

    /// Positions of the tokens, separated by commas (0,1,2,... by default). RoPE uses them; causal masks and sliding
    /// windows count tokens
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    positions: Option<String>,

    /// Where to write the file; standard output by default
    #[arg(short, long, value_name = "OUT.tsv")]
    output: Option<PathBuf>,

    /// Arithmetic: f32 is the reference that others compare with, f64 the truth that tells how much of a difference is
    /// rounding
    #[arg(long, value_enum, default_value_t = Numeric::F32)]
    numeric: Numeric,

    /// Threads; no bit depends on it [default: all processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Show the K largest logits on standard error
    #[arg(long, value_name = "K")]
    top: Option<usize>,

    /// What weights_sha256 covers: the headers alone, or every byte of the files
    #[arg(long, value_enum, default_value_t = Digest::Headers)]
    weights_digest: Digest,

    /// Go on when a value is NaN or infinite, and write the file
    #[arg(long)]
    allow_nonfinite: bool,

    /// Neither progress nor summary
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Numeric {
    F32,
    F64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Digest {
    Headers,
    Full,
}

/// What to run: one position per token.
struct Prompt {
    tokens: Vec<u32>,
    positions: Vec<u32>,
}

/// Runs the checkpoint and writes the file.
///
/// # Errors
/// Bad arguments, a checkpoint with problems, an unreadable weight, an unwritable output: nothing is written then.
pub fn run(args: &RunArgs) -> Result<Exit> {
    let started = Instant::now();
    let prompt = prompt(args)?;
    let output = Output::open(args.output.as_deref())?;
    let survey = survey(&args.checkpoint)?;
    survey.refuse_problems()?;
    if !args.quiet {
        for note in &survey.notes {
            eprintln!("oracle: note: {note}");
        }
    }
    let (Some(config), Some(source), Some(books)) = (&survey.config, &survey.source, &survey.books) else {
        bail!("{}: neither problems nor a checkpoint", survey.path.display());
    };
    let plan = books.plan.as_ref().context("books without problems have a plan")?;
    in_vocabulary(&prompt.tokens, plan.vocab_size)?;

    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.map_or(0, usize::from)).build()?;
    let bar = progress(plan, source.as_ref(), args.quiet);
    let (logits, nonfinite) = pool.install(|| match args.numeric {
        Numeric::F32 => forward::<f32>(plan, source.as_ref(), &prompt, args.allow_nonfinite, &bar)
            .map(|(row, bad)| (row.map(Logits::F32), bad)),
        Numeric::F64 => forward::<f64>(plan, source.as_ref(), &prompt, args.allow_nonfinite, &bar)
            .map(|(row, bad)| (row.map(Logits::F64), bad)),
    })?;
    bar.finish_and_clear();
    if let Some(bad) = nonfinite {
        eprintln!("oracle: {}: {bad}", survey.path.display());
    }
    let Some(logits) = logits else {
        eprintln!("oracle: nothing was written; --allow-nonfinite writes the file all the same");
        return Ok(Exit::Different);
    };

    let digest = match args.weights_digest {
        Digest::Headers => ("headers", source.headers_sha256()?),
        Digest::Full => ("full", source.full_sha256()?),
    };
    let mut receipts = vec![
        ("oracle_version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("config_sha256".to_owned(), config.sha256.clone()),
        ("weights_digest".to_owned(), digest.0.to_owned()),
        ("weights_sha256".to_owned(), digest.1),
        ("plan_sha256".to_owned(), plan.sha256()),
        ("executor_backend".to_owned(), "reference".to_owned()),
    ];
    if !books.allowed.is_empty() {
        receipts.push(("allowed_unused".to_owned(), books.allowed.join(",")));
    }
    let file = OracleFile {
        engine: reference::ENGINE.to_owned(),
        numeric_class: match args.numeric {
            Numeric::F32 => NumericClass::Float32,
            Numeric::F64 => NumericClass::Float64,
        },
        tokens: prompt.tokens,
        positions: Some(prompt.positions),
        receipts,
        logits,
    };
    output.commit(|mut out| file.write_to(&mut out))?;

    let ranked = ranked(&file.logits.to_f64());
    if let Some(k) = args.top {
        print_top(&file.logits, &ranked, k);
    }
    if !args.quiet {
        summary(args, &survey, &file, &ranked, bar.position(), started);
    }
    Ok(if nonfinite.is_some() { Exit::Different } else { Exit::Done })
}

/// Tokens and positions of the command line.
fn prompt(args: &RunArgs) -> Result<Prompt> {
    let tokens = match &args.tokens_file {
        Some(path) => tokens_of_file(path)?,
        None => {
            ensure!(!args.tokens.is_empty(), "no tokens: give token ids after the checkpoint, or --tokens-file");
            numbers(&args.tokens.join(" "), "token")?
        }
    };
    let positions = match &args.positions {
        None => (0..tokens.len() as u32).collect(),
        Some(list) => {
            let positions = numbers(list, "position")?;
            let (expected, found) = (tokens.len(), positions.len());
            ensure!(expected == found, "--positions: expected one per token ({expected}), found {found}");
            positions
        }
    };
    Ok(Prompt { tokens, positions })
}

fn tokens_of_file(path: &Path) -> Result<Vec<u32>> {
    /// A million tokens take less.
    const LIMIT: u64 = 16_000_000;
    let mut text = String::new();
    let mut reader: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("{}: can't be opened", path.display()))?)
    };
    let n = reader.by_ref().take(LIMIT).read_to_string(&mut text);
    let n = n.with_context(|| format!("{}: can't be read as text", path.display()))?;
    ensure!((n as u64) < LIMIT, "{}: expected less than {LIMIT} bytes of token ids", path.display());
    let tokens = numbers(&text, "token").with_context(|| path.display().to_string())?;
    ensure!(!tokens.is_empty(), "{}: holds no token", path.display());
    Ok(tokens)
}

/// Numbers separated by white space, commas or both.
fn numbers(text: &str, what: &str) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for word in text.split_whitespace() {
        let word = word.strip_suffix(',').unwrap_or(word);
        for piece in word.split(',') {
            let number = if piece.bytes().all(|b| b.is_ascii_digit()) { piece.parse() } else { "".parse() };
            let shown = crate::problem::quote(piece);
            let at = numbers.len();
            numbers.push(number.ok().with_context(|| {
                format!("{what} {at}: expected a whole number from 0 to {}, found {shown}", u32::MAX)
            })?);
        }
    }
    Ok(numbers)
}

fn in_vocabulary(tokens: &[u32], vocab_size: usize) -> Result<()> {
    match tokens.iter().enumerate().find(|&(_, &t)| t as usize >= vocab_size) {
        None => Ok(()),
        Some((at, t)) => bail!("token {at}: {t} is beyond the vocabulary of {vocab_size} (0 to {})", vocab_size - 1),
    }
}

/// The last position's logits (none where a value was not finite and that is not allowed), and the first such value.
fn forward<F: reference::Vectors>(
    plan: &Plan,
    source: &dyn Source,
    prompt: &Prompt,
    allow_nonfinite: bool,
    bar: &ProgressBar,
) -> Result<(Option<Vec<F>>, Option<NonFinite>)> {
    let length = prompt.positions.iter().max().map_or(0, |&p| p as usize + 1);
    let mut session = Session::<F>::new(plan, length);
    let input = Input { session: &mut session, tokens: prompt.tokens.clone(), positions: prompt.positions.clone() };
    let mut watch = FirstNonFinite::default();
    let kernels = reference::Reference::default();
    let mut pass = Executor::new(plan, source, &kernels).begin(vec![input], &mut watch)?;
    let stored = |name: &str| source.tensors().get(name).map_or(0, |info| info.len);
    for (i, layer) in plan.layers.iter().enumerate() {
        if watch.found.is_some() && !allow_nonfinite {
            return Ok((None, watch.found));
        }
        bar.set_message(format!("layer {}/{}", i + 1, plan.layers.len()));
        pass.step(&mut watch)?;
        layer.each_weight(&mut |w| bar.inc(stored(&w.name)));
    }
    bar.set_message("head");
    let logits = pass.finish(Rows::Last, &mut watch)?.remove(0);
    bar.inc(stored(&plan.head.linear.weight.name));
    let keep = watch.found.is_none() || allow_nonfinite;
    Ok((keep.then(|| logits.row(0).to_vec()), watch.found))
}

/// A bar over the bytes of all layers and the head, on a terminal.
fn progress(plan: &Plan, source: &dyn Source, quiet: bool) -> ProgressBar {
    let stored = |name: &str| source.tensors().get(name).map_or(0, |info| info.len);
    let mut total = stored(&plan.head.linear.weight.name);
    for layer in &plan.layers {
        layer.each_weight(&mut |w| total += stored(&w.name));
    }
    if quiet {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:30} {msg}  {bytes}/{total_bytes}  {eta} left");
    ProgressBar::new(total).with_style(style.expect("the template is sound"))
}

/// Indices by descending logit; ties by ascending index, and what is not a number last.
fn ranked(logits: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let key = |i: usize| if logits[i].is_nan() { f64::NEG_INFINITY } else { logits[i] };
    order.sort_by(|&a, &b| key(b).total_cmp(&key(a)));
    order
}

fn print_top(logits: &Logits, ranked: &[usize], k: usize) {
    let values = logits.to_f64();
    eprintln!("{:>4}  {:>8}  {:>14}  bits", "rank", "token", "logit");
    for (rank, &i) in ranked.iter().take(k).enumerate() {
        eprintln!("{:>4}  {i:>8}  {:>14.6}  {}", rank + 1, values[i], logits.hex(i));
    }
    if let [first, second, ..] = *ranked {
        eprintln!("margin of the first over the second: {:.6}", values[first] - values[second]);
    }
}

fn summary(args: &RunArgs, survey: &Survey, file: &OracleFile, ranked: &[usize], bytes: u64, started: Instant) {
    let values = file.logits.to_f64();
    let target = args.output.as_ref().map_or("standard output".to_owned(), |p| p.display().to_string());
    let layers = survey.books.as_ref().and_then(|b| b.plan.as_ref()).map_or(0, |p| p.layers.len());
    let pack = survey.books.as_ref().and_then(|b| b.pack.as_ref()).map_or("", |(p, _)| &p.name);
    let plural = if file.tokens.len() == 1 { "" } else { "s" };
    eprintln!(
        "{target}: {pack}, {layers} layers, {} token{plural}, {} logits; argmax {} ({:.4}); read {} in {:.2} s",
        file.tokens.len(),
        file.vocab(),
        ranked[0],
        values[ranked[0]],
        HumanBytes(bytes),
        started.elapsed().as_secs_f64(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_as_words_or_with_commas() {
        for text in ["1 2 3", "1,2,3", " 1, 2,3\n", "1,\n2,\t3,"] {
            assert_eq!(numbers(text, "token").unwrap(), [1, 2, 3], "{text:?}");
        }
        for text in ["1,,2", "-1", "+1", "1.5", "x", "4294967296", "0x10", ",1"] {
            assert!(numbers(text, "token").is_err(), "{text:?}");
        }
    }

    #[test]
    fn ties_rank_by_index_and_nan_comes_last() {
        assert_eq!(ranked(&[1.0, 2.0, f64::NAN, 2.0, f64::NEG_INFINITY]), [1, 3, 0, 2, 4]);
    }
}
