//! `oracle run CKPT TOKEN...` (also `run-oracle`): the reference logits of the last position, as an oracle file.

mod chunks;
mod lanes;
mod memory;
pub(super) mod prompts;

use super::survey::{CheckpointArgs, Survey, survey};
use super::{Exit, say};
use crate::checkpoint::{Counted, Source};
use crate::engine::external::CHUNKS_RECORD;
use crate::exec::accelerated::{self, Accelerated};
use crate::exec::faults::{Injection, ShownBy, inject};
use crate::exec::memory::{Load, PROGRAM, bound};
use crate::exec::observer::NonFinite;
use crate::exec::reference::{self, Reference};
use crate::exec::{Executor, Kernels, SessionOptions};
use crate::model::Plan;
use crate::oracle::{Logits, NumericClass, OracleFile, Output};
use crate::problem::visible;
use anyhow::{Context, Result, bail, ensure};
use chunks::Chunks;
use clap::{Args, ValueEnum};
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use lanes::{Distance, Experts, Lane, lane, sessions};
use prompts::{Prompt, PromptArgs, prompts};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle run fixtures/llama-plain 1 2 3 4 -o ref.tsv
  oracle run fixtures/qwen3-plain 5,17,3 --top 5 > ref.tsv
  tokenizer-of-yours prompt.txt | oracle run models/smollm2 --tokens-file - -o ref.tsv
  oracle run models/smollm2 --prompts prompts.jsonl -o refs --max-memory 500MB
  oracle run models/smollm2 2 818 5279 --executor both --with-truth -o ref.tsv")]
pub struct RunArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,

    #[command(flatten)]
    prompts: PromptArgs,

    /// Where to write the file, standard output by default; with --prompts, the folder for the files
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,

    /// Arithmetic: f32 is the reference that others compare with, f64 the truth that tells how much of a difference is
    /// rounding
    #[arg(long, value_enum, default_value_t = Numeric::F32)]
    numeric: Numeric,

    /// Which executor computes the file; `both` computes the reference's and shows how far the accelerated one is from
    /// it, layer by layer
    #[arg(long, value_enum, default_value_t = Engine::Reference, value_name = "EXECUTOR")]
    executor: Engine,

    /// Matrix product of the accelerated executor [default: the first that this build has]
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,

    /// Make a known mistake on purpose, to see whether a check notices it (docs/faults.md lists them); the file says so
    #[arg(long, value_name = "FAULT", conflicts_with_all = ["with_truth", "max_memory"])]
    inject: Option<String>,

    /// Compute the truth as well, in the same pass, and record how far the result is from it
    #[arg(long, conflicts_with = "numeric")]
    with_truth: bool,

    /// Threads; no bit depends on it [default: all processors]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Refuse a run that may take more memory than this (such as 500MB or 2GiB), before it starts
    #[arg(long, value_name = "SIZE", value_parser = memory::parse)]
    max_memory: Option<u64>,

    /// Show the K largest logits on standard error
    #[arg(long, value_name = "K")]
    top: Option<usize>,

    /// What weights_sha256 covers: the headers alone, or every byte of the files
    #[arg(long, value_enum, default_value_t = Digest::Headers)]
    weights_digest: Digest,

    /// Go on when a value is NaN or infinite, and write the file
    #[arg(long)]
    allow_nonfinite: bool,

    /// Take the prompt in chunks of these lengths, keeping keys and values in between (the runner protocol)
    #[arg(long, value_name = "LIST", hide = true, conflicts_with_all = ["prompts", "inject"])]
    chunks: Option<Chunks>,

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
enum Engine {
    /// Every bit specified
    Reference,
    /// Sums in any order, on a fast matrix product
    Accelerated,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Digest {
    Headers,
    Full,
}

/// Runs the checkpoint and writes a file for each prompt.
///
/// # Errors
/// Bad arguments, a checkpoint with problems, an unreadable weight, an unwritable output: nothing is written then.
pub fn run(args: &RunArgs) -> Result<Exit> {
    let started = Instant::now();
    ensure!(
        args.numeric == Numeric::F32 || args.executor == Engine::Reference,
        "--numeric f64: the accelerated executor computes in f32 only"
    );
    ensure!(
        args.backend.is_none() || args.executor != Engine::Reference,
        "--backend: only the accelerated executor has one; say --executor accelerated or both"
    );
    let backend = args.backend.as_deref().unwrap_or(accelerated::BACKENDS[0]);
    let accelerated = Accelerated::new(accelerated::by_name(backend)?);
    let prompts = prompts(&args.prompts, &args.checkpoint.path, args.quiet)?;
    let outputs = outputs(args, &prompts)?;
    let survey = survey(&args.checkpoint)?;
    survey.refuse_problems()?;
    if !args.quiet {
        for note in &survey.notes {
            say(format_args!("note: {note}"));
        }
    }
    let (Some(config), Some(source), Some(books)) = (&survey.config, &survey.source, &survey.books) else {
        bail!("{}: neither problems nor a checkpoint", survey.path.display());
    };
    refuse_inputs(args, &prompts, &survey)?;
    let plan = books.plan.as_ref().context("books without problems have a plan")?;
    let injection = args.inject.as_deref().map(|name| injected(name, plan)).transpose()?;
    let plan = injection.as_ref().map_or(plan, |injection| &injection.plan);
    for prompt in &prompts {
        prompt.check_tokens(plan).with_context(|| survey.path.display().to_string())?;
        args.chunks.iter().try_for_each(|chunks| chunks.check(prompt))?;
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(args.threads.map_or(0, usize::from)).build()?;
    if let Some(most) = args.max_memory {
        let tokens: Vec<usize> = prompts.iter().map(|p| p.tokens.len()).collect();
        let load = Load { tokens: &tokens, floats: args.floats(), threads: pool.current_num_threads() };
        // A tokenizer takes more than the program is granted, and its memory may stay with the process.
        let before = memory::peak().unwrap_or(0).saturating_sub(PROGRAM);
        memory::check(before + bound(plan, source.as_ref(), load), most)?;
    }

    let bar = progress(plan, source.as_ref(), args.quiet);
    let counted = Arc::new(Counted::new(Arc::clone(source)));
    let evaluated =
        pool.install(|| evaluate(args, &accelerated, injection.as_ref(), plan, &counted, &prompts, &bar))?;
    bar.finish_and_clear();
    let written = evaluated.nonfinite.is_none() || args.allow_nonfinite;
    if let Some(bad) = evaluated.nonfinite {
        let (word, rest) = match written {
            true => ("warning", ""),
            false => ("error", ". Nothing was written; --allow-nonfinite writes the file all the same"),
        };
        say(format_args!("{word}: {}: {}{rest}", survey.path.display(), described(bad, &prompts)));
    }
    if !written {
        return Ok(Exit::Different);
    }

    let (engine, backend) = match args.executor {
        Engine::Accelerated => (accelerated.engine(), backend),
        _ => (reference::ENGINE.to_owned(), "reference"),
    };
    let receipts = receipts(args, &survey, config.sha256.clone(), plan, source.as_ref(), backend, injection.as_ref())?;
    source.check_unchanged()?;
    let mut truths = evaluated.truth.into_iter().flatten();
    let mut files = Vec::new();
    for ((prompt, logits), output) in prompts.into_iter().zip(evaluated.logits).zip(outputs) {
        let mut receipts = receipts.clone();
        if let Some(truth) = truths.next() {
            let Distance { max, rms } = Distance::between(&logits.to_f64(), &truth.to_f64());
            receipts.push(("truth_max_abs".to_owned(), format!("{max:e}")));
            receipts.push(("truth_rms".to_owned(), format!("{rms:e}")));
        }
        let file = OracleFile {
            engine: if injection.is_some() { format!("{engine}-injected") } else { engine.clone() },
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
        if let Some(k) = args.top {
            print_top(prompt.id.as_deref(), &file.logits, k);
        }
        files.push(file);
    }
    if !args.quiet {
        let read = HumanBytes(counted.read_bytes());
        let peak = memory::peak().map_or(String::new(), |bytes| format!(", peak memory {}", HumanBytes(bytes)));
        let seconds = started.elapsed().as_secs_f64();
        let summary = summary(args, &survey, &files);
        say(format_args!("{summary}; read {read}{} in {seconds:.2} s{peak}", evaluated.experts));
    }
    Ok(if evaluated.nonfinite.is_some() { Exit::Different } else { Exit::Done })
}

impl RunArgs {
    /// Bytes of a float of each executor in the pass.
    fn floats(&self) -> &'static [usize] {
        match (self.numeric, self.executor, self.with_truth) {
            (Numeric::F64, ..) => &[8],
            (_, Engine::Both, true) => &[4, 8, 4],
            (_, Engine::Both, false) => &[4, 4],
            (_, _, true) => &[4, 8],
            (_, _, false) => &[4],
        }
    }
}

/// Opens every output before the long work.
fn outputs(args: &RunArgs, prompts: &[Prompt]) -> Result<Vec<Output>> {
    let (Some(folder), Some(_)) = (&args.output, &args.prompts.prompts) else {
        return Ok(vec![Output::open(args.output.as_deref())?]);
    };
    match std::fs::create_dir(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            Err(e).with_context(|| format!("{}: the folder can't be made", folder.display()))?;
        }
        _ => {
            ensure!(folder.is_dir(), "{}: expected a folder for the files of --prompts, found a file", folder.display())
        }
    }
    prompts.iter().map(|prompt| Ok(Output::open(Some(&file_of(folder, prompt)))?)).collect()
}

/// The fault of `--inject`.
///
/// # Errors
/// There is none of that name, it doesn't apply, or what it breaks doesn't happen in a single pass.
fn injected(name: &str, plan: &Plan) -> Result<Injection> {
    let injection = inject(name, plan).context("--inject")?;
    let shown_by = injection.fault().shown_by();
    ensure!(
        shown_by == ShownBy::Pass,
        "--inject {injection}: a run is a single pass, and it takes {} to show this fault: oracle kv-equivalence CKPT \
         TOKEN... --inject {injection}",
        shown_by.name(),
    );
    Ok(injection)
}

/// # Errors
/// An output is one of the files that the run reads: it would be lost.
fn refuse_inputs(args: &RunArgs, prompts: &[Prompt], survey: &Survey) -> Result<()> {
    let Some(output) = &args.output else { return Ok(()) };
    let outputs: Vec<PathBuf> = match args.prompts.prompts {
        Some(_) => prompts.iter().map(|prompt| file_of(output, prompt)).collect(),
        None => vec![output.clone()],
    };
    let config = survey.config.iter().map(|config| &config.path);
    let weights = survey.source.iter().flat_map(|source| source.files()).map(|file| &file.path);
    let inputs = config.chain(weights).chain(&args.checkpoint.pack).chain(args.prompts.files());
    let inputs: Vec<PathBuf> =
        inputs.filter_map(|path| path.canonicalize().ok()).filter(|path| path.is_file()).collect();
    for output in outputs {
        if output.canonicalize().is_ok_and(|path| inputs.contains(&path)) {
            bail!(
                "{}: is one of the files that this run reads; expected another name for the output",
                output.display()
            );
        }
    }
    Ok(())
}

/// Where a prompt's file goes in the folder for all of them.
fn file_of(folder: &Path, prompt: &Prompt) -> PathBuf {
    folder.join(format!("{}.tsv", prompt.id.as_deref().unwrap_or_default()))
}

/// What came out of the pass, one row per prompt.
struct Evaluated {
    logits: Vec<Logits>,
    truth: Option<Vec<Logits>>,
    /// The first value that was not finite, in any executor. The rows are not to be used then, unless that is allowed.
    nonfinite: Option<NonFinite>,
    experts: Experts,
}

/// Takes every executor through the layers side by side: the weights of a layer are read once from the disk.
fn evaluate(
    args: &RunArgs,
    accelerated: &Accelerated,
    injection: Option<&Injection>,
    plan: &Plan,
    counted: &Arc<Counted>,
    prompts: &[Prompt],
    bar: &ProgressBar,
) -> Result<Evaluated> {
    let source: &Arc<dyn Source> = &(Arc::clone(counted) as Arc<dyn Source>);
    let reference = Reference::default();
    let faulty = injection.map(|i| (i.wrap::<f32>(&reference), i.wrap::<f32>(accelerated), i.wrap::<f64>(&reference)));
    let (exact, quick, precise): (&dyn Kernels<f32>, &dyn Kernels<f32>, &dyn Kernels<f64>) = match &faulty {
        Some((exact, quick, precise)) => (exact.as_ref(), quick.as_ref(), precise.as_ref()),
        None => (&reference, accelerated, &reference),
    };
    let options = SessionOptions::default();
    let options = injection.map_or(options, |injection| injection.options(options));
    let (mut narrow, mut wide, mut fast);
    let mut lanes: Vec<(&str, Box<dyn Lane + '_>)> = Vec::new();
    if args.numeric == Numeric::F32 && args.executor != Engine::Accelerated {
        narrow = sessions::<f32>(plan, prompts, options);
        let rest = chunks::rest(args.chunks.as_ref(), Executor::new(plan, source, exact), prompts, &mut narrow)?;
        lanes.push((REFERENCE, lane(plan, source, exact, &rest, &mut narrow)?));
    }
    if args.executor != Engine::Reference {
        fast = sessions::<f32>(plan, prompts, options);
        let rest = chunks::rest(args.chunks.as_ref(), Executor::new(plan, source, quick), prompts, &mut fast)?;
        lanes.push((ACCELERATED, lane(plan, source, quick, &rest, &mut fast)?));
    }
    if args.numeric == Numeric::F64 || args.with_truth {
        wide = sessions::<f64>(plan, prompts, options);
        let rest = chunks::rest(args.chunks.as_ref(), Executor::new(plan, source, precise), prompts, &mut wide)?;
        lanes.push((TRUTH, lane(plan, source, precise, &rest, &mut wide)?));
    }
    let mut table = (args.executor == Engine::Both).then(Table::default);
    for i in 0..plan.layers.len() {
        bar.set_message(format!("layer {}/{}", i + 1, plan.layers.len()));
        for (_, lane) in &mut lanes {
            lane.step()?;
        }
        bar.set_position(counted.read_bytes());
        let nonfinite = lanes.iter().find_map(|(_, lane)| lane.nonfinite());
        if nonfinite.is_some() && !args.allow_nonfinite {
            return Ok(Evaluated { logits: vec![], truth: None, nonfinite, experts: Experts::default() });
        }
        if let Some(table) = &mut table {
            let hidden: Vec<_> = lanes.iter().map(|(name, lane)| (*name, lane.hidden())).collect();
            table.add(format!("layer {i}"), &hidden);
        }
    }
    bar.set_message("head");
    let mut rows: Vec<(&str, Vec<Logits>)> = Vec::new();
    let mut nonfinite = None;
    let mut experts = Experts::default();
    for (name, lane) in lanes {
        let (logits, watch) = lane.finish()?;
        rows.push((name, logits));
        nonfinite = nonfinite.or(watch.nonfinite.found);
        experts.extend(watch.experts);
    }
    if let Some(mut table) = table {
        let all = |logits: &[Logits]| logits.iter().flat_map(Logits::to_f64).collect();
        let logits: Vec<_> = rows.iter().map(|(name, logits)| (*name, all(logits))).collect();
        table.add("logits".to_owned(), &logits);
        bar.suspend(|| table.say());
    }
    let (_, logits) = rows.remove(0);
    let truth = rows.into_iter().find(|(name, _)| *name == TRUTH).map(|(_, rows)| rows);
    Ok(Evaluated { logits, truth, nonfinite, experts })
}

/// Names of the executors in a pass.
const REFERENCE: &str = "reference";
const ACCELERATED: &str = "accelerated";
const TRUTH: &str = "truth";

/// Distances between executors, stage by stage.
#[derive(Default)]
struct Table {
    lines: Vec<String>,
}

impl Table {
    /// Adds the distances between all pairs of executors' values at one stage.
    fn add(&mut self, stage: String, values: &[(&str, Vec<f64>)]) {
        let pairs = values.iter().enumerate().flat_map(|(i, a)| values[i + 1..].iter().map(move |b| (a, b)));
        let pairs: Vec<_> = pairs.map(|((a, x), (b, y))| (format!("{a} - {b}"), Distance::between(x, y))).collect();
        if self.lines.is_empty() {
            let titles: String = pairs.iter().map(|(title, _)| format!("  {title:>25}")).collect();
            let columns: String = pairs.iter().map(|_| format!("  {:>12}  {:>11}", "max", "RMS")).collect();
            self.lines = vec![format!("{:10}{titles}", ""), format!("{:10}{columns}", "stage")];
        }
        let columns = pairs.iter().map(|(_, d)| format!("  {:>12.3e}  {:>11.3e}", d.max, d.rms));
        self.lines.push(format!("{stage:10}{}", columns.collect::<String>()));
    }

    fn say(&self) {
        for line in &self.lines {
            say(format_args!("{line}"));
        }
    }
}

/// A value that is not finite, with the prompt and the token where it is.
fn described(bad: NonFinite, prompts: &[Prompt]) -> String {
    // Behind the layers there is one row per prompt.
    let last_only = bad.stage.layer.is_none() && bad.stage.name != "embed";
    let mut row = bad.row;
    for prompt in prompts {
        let rows = if last_only { 1 } else { prompt.tokens.len() };
        if row < rows {
            let token = if last_only { prompt.tokens.len() - 1 } else { row };
            let id = prompt.id.as_ref().map_or(String::new(), |id| format!("prompt {id}, "));
            return format!("{} ({id}token {token}, column {})", bad.first(), bad.column);
        }
        row -= rows;
    }
    bad.first()
}

/// The records that say what made a file, the same for every prompt.
fn receipts(
    args: &RunArgs,
    survey: &Survey,
    config_sha256: String,
    plan: &Plan,
    source: &dyn Source,
    backend: &str,
    injection: Option<&Injection>,
) -> Result<Vec<(String, String)>> {
    let (digest, weights_sha256) = match args.weights_digest {
        Digest::Headers => ("headers", source.headers_sha256()?),
        Digest::Full => ("full", source.full_sha256()?),
    };
    let mut receipts = vec![
        ("oracle_version", env!("CARGO_PKG_VERSION").to_owned()),
        ("config_sha256", config_sha256),
        ("weights_digest", digest.to_owned()),
        ("weights_sha256", weights_sha256),
        ("weights_dtype", weights_dtype(source)),
        ("plan_sha256", plan.sha256()),
        ("executor_backend", backend.to_owned()),
    ];
    if let Some(chunks) = &args.chunks {
        receipts.push((CHUNKS_RECORD, chunks.to_string()));
    }
    if let Some(injection) = injection {
        receipts.push(("injected_fault", injection.to_string()));
    }
    let allowed = survey.books.as_ref().map_or(&[][..], |books| &books.allowed);
    if !allowed.is_empty() {
        receipts.push(("allowed_unused", visible(&allowed.join(","))));
    }
    Ok(receipts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// How many tensors are stored in which format, the most first.
fn weights_dtype(source: &dyn Source) -> String {
    let mut counts: Vec<(String, usize)> = source.formats().into_iter().collect();
    counts.sort_by_key(|&(_, count)| std::cmp::Reverse(count));
    let counts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{name}:{count}")).collect();
    visible(&counts.join(","))
}

/// A bar over the bytes of all tensors, on a terminal. It ends early where not every expert is read.
fn progress(plan: &Plan, source: &dyn Source, quiet: bool) -> ProgressBar {
    let stored = |name: &str| source.tensors().get(name).map_or(0, |info| source.stored_bytes(info, &(0..info.len)));
    if quiet {
        return ProgressBar::hidden();
    }
    // Of a fused tensor there are several parts.
    let mut names = BTreeSet::new();
    plan.each_weight(&mut |w| {
        names.insert(w.name.as_str());
    });
    let total = names.into_iter().map(stored).sum();
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

fn print_top(id: Option<&str>, logits: &Logits, k: usize) {
    let values = logits.to_f64();
    let ranked = ranked(&values);
    if let Some(id) = id {
        say(format_args!("prompt {id}"));
    }
    say(format_args!("{:>4}  {:>8}  {:>14}  bits", "rank", "token", "logit"));
    for (rank, &i) in ranked.iter().take(k).enumerate() {
        say(format_args!("{:>4}  {i:>8}  {:>14.6}  {}", rank + 1, values[i], logits.hex(i)));
    }
    if let [first, second, ..] = *ranked {
        say(format_args!("margin of the first over the second: {:.6}", values[first] - values[second]));
    }
}

/// What was run and what came out, without the cost.
fn summary(args: &RunArgs, survey: &Survey, files: &[OracleFile]) -> String {
    let target = args.output.as_ref().map_or("standard output".to_owned(), |p| p.display().to_string());
    let books = survey.books.as_ref();
    let layers = books.and_then(|b| b.plan.as_ref()).map_or(0, |p| p.layers.len());
    let pack = books.and_then(|b| b.pack.as_ref()).map_or("", |(p, _)| &p.name);
    let tokens: usize = files.iter().map(|f| f.tokens.len()).sum();
    let plural = if tokens == 1 { "" } else { "s" };
    let outcome = match files {
        [file] => {
            let values = file.logits.to_f64();
            let first = ranked(&values)[0];
            format!("{} logits; argmax {first} ({:.4})", file.vocab(), values[first])
        }
        files => format!("{} files", files.len()),
    };
    let receipt = |key| files.iter().filter_map(|f| f.receipt(key)?.parse::<f64>().ok()).fold(0.0, f64::max);
    let truth = match args.with_truth {
        true => format!("; from the truth at most {:.2e} (RMS {:.2e})", receipt("truth_max_abs"), receipt("truth_rms")),
        false => String::new(),
    };
    format!("{target}: {pack}, {layers} layers, {tokens} token{plural}, {outcome}{truth}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_rank_by_index_and_nan_comes_last() {
        assert_eq!(ranked(&[1.0, 2.0, f64::NAN, 2.0, f64::NEG_INFINITY]), [1, 3, 0, 2, 4]);
    }
}
