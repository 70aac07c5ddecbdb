//! `oracle kv-equivalence CKPT TOKEN...`: a prompt in pieces against the same prompt in one pass.

use super::Exit;
use super::prompt::{OnePrompt, OnePromptArgs};
use super::run::prompts::numbers;
use super::survey::{CheckpointArgs, Survey, survey};
use crate::engine::blind::{blind_spots, sizes, windows};
use crate::engine::equivalence::{Check, Equivalence, Gate, Prompt, Subject, check, full_forward};
use crate::engine::schedule::Schedule;
use crate::engine::{Engine, External, Local};
use crate::exec::accelerated::{self, Accelerated};
use crate::exec::faults::inject;
use crate::exec::reference::{self, Reference};
use crate::exec::state::CacheFormat;
use crate::exec::{Kernels, SessionOptions};
use crate::model::Plan;
use crate::oracle::output::to_standard_output;
use crate::oracle::power::HONEST_MULTIPLE;
use crate::oracle::printable::short;
use crate::oracle::report::Format;
use crate::oracle::verdict::Verdict;
use crate::problem::sentences;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Hold a prompt that comes in pieces against the same prompt in one pass
///
/// Chunks of every kind, trimming, forks, snapshots and resets must give what one pass over the prompt gives: logits and
/// hidden states of every token, and the state. Exit code 0: they do; 1: they don't; 2: it could not be checked.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  oracle kv-equivalence fixtures/mistral-window 43 27 33 2 52 4 30 25 32
  oracle kv-equivalence models/smollm2 --text 'The quick brown fox'
  oracle kv-equivalence models/smollm2 2 818 5279 529 --engine './my-runner --kv-cache'")]
pub struct KvEquivalenceArgs {
    #[command(flatten)]
    checkpoint: CheckpointArgs,

    #[command(flatten)]
    prompt: OnePromptArgs,

    /// One more way to cut the prompt: the lengths of the chunks, such as 3,1,1,1
    #[arg(long, value_name = "LIST")]
    chunks: Option<String>,

    /// The executor to check
    #[arg(long, value_enum, default_value_t = ExecutorName::Reference)]
    executor: ExecutorName,

    /// Keep keys and values in this format. Every way must then give what one pass with such a cache gives; with --atol
    /// or --rtol, what one pass without it gives
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    cache: CacheFormat,

    /// Check a process instead: a command that is started as RUNNER CKPT TOKEN... by the runner protocol
    #[arg(long, value_name = "RUNNER", conflicts_with_all = ["executor", "cache", "inject", "positions"])]
    engine: Option<String>,

    /// Give up on a process of --engine after so many seconds
    #[arg(long, value_name = "SECONDS", requires = "engine", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,

    /// Break the executor by a fault on purpose, to see whether the check notices
    #[arg(long, value_name = "NAME")]
    inject: Option<String>,

    /// Absolute tolerance for logits: |piecewise - whole| <= ATOL + RTOL * |whole| passes [default: 0 with --rtol]
    #[arg(long, value_name = "ATOL", value_parser = tolerance)]
    atol: Option<f64>,

    /// Relative tolerance [default: 0 with --atol]
    #[arg(long, value_name = "RTOL", value_parser = tolerance)]
    rtol: Option<f64>,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Write nothing; the exit code tells
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExecutorName {
    /// Promises every bit
    Reference,
    /// Promises no bits; judged by the distance from the float64 truth
    Accelerated,
}

/// Checks, and writes the report to standard output.
///
/// # Errors
/// Bad arguments, a checkpoint with problems, an engine that failed: nothing was judged.
pub fn run(args: &KvEquivalenceArgs) -> Result<Exit> {
    let prompt = args.prompt.read(&args.checkpoint.path, args.quiet)?;
    if prompt.tokens.len() < 2 {
        bail!("a prompt of one token can't come in pieces: expected at least two tokens");
    }
    let chunks = args.chunks.as_deref().map(|list| numbers(list, "chunk")).transpose().context("--chunks")?;
    let chunks = chunks.map(|list| list.into_iter().map(|n| n as usize).collect::<Schedule>());
    if let Some(chunks) = &chunks {
        crate::engine::schedule::check(chunks, prompt.tokens.len()).context("--chunks")?;
    }
    let survey = survey(&args.checkpoint)?;
    if let Some(problem) = sound_plan(&survey).and_then(|plan| plan.placeholder(&prompt.tokens)) {
        bail!("{}: {problem}", survey.path.display());
    }
    let mut report = match &args.engine {
        Some(runner) => external(args, runner, &prompt, chunks, &survey)?,
        None => local(args, &prompt, chunks, &survey)?,
    };
    report.checkpoint = survey.path.display().to_string();
    if let Some(plan) = sound_plan(&survey) {
        report.cannot_see = blind_spots(plan, &prompt.tokens, &prompt.positions);
        report.layer_kinds = layer_kinds(plan);
    }
    if !args.quiet {
        to_standard_output(|out| args.format.write(&report, out))
            .context("cannot write the report to standard output")?;
    }
    Ok(match report.verdict {
        Verdict::Identical | Verdict::WithinTolerance => Exit::Done,
        Verdict::Different => Exit::Different,
        Verdict::Refused => Exit::Trouble,
    })
}

impl KvEquivalenceArgs {
    /// The tolerance that was given.
    fn tolerance(&self) -> Option<Gate> {
        let given = self.atol.is_some() || self.rtol.is_some();
        given.then(|| Gate::Tolerance { atol: self.atol.unwrap_or(0.0), rtol: self.rtol.unwrap_or(0.0) })
    }
}

/// The plan of a checkpoint that has no problem.
fn sound_plan(survey: &Survey) -> Option<&Plan> {
    let books = survey.books.as_ref().filter(|_| survey.problems.is_empty())?;
    books.plan.as_ref()
}

/// Someone's process, on a checkpoint that we need not be able to run.
fn external(
    args: &KvEquivalenceArgs,
    runner: &str,
    prompt: &OnePrompt,
    chunks: Option<Schedule>,
    survey: &Survey,
) -> Result<Equivalence> {
    let timeout = args.timeout.map(|seconds| Duration::from_secs(seconds.into()));
    let engine = External::open(runner, &survey.path, &prompt.tokens, timeout)?;
    let plan = sound_plan(survey);
    let subject = Subject { name: String::new(), engine: &engine, exact: false, full_at: None };
    let mut report = check(&Check {
        tokens: &prompt.tokens,
        positions: &prompt.positions,
        full: &engine,
        subjects: &[subject],
        gate: args.tolerance().unwrap_or(Gate::Bits),
        windows: plan.map(sizes).unwrap_or_default(),
        chunks,
    })?;
    if plan.is_none() {
        let why = sentences(&survey.problems);
        report
            .notes
            .push(format!("what this prompt cannot see is unknown, since this checkpoint can't be planned: {why}"));
    }
    Ok(report)
}

fn local(
    args: &KvEquivalenceArgs,
    prompt: &OnePrompt,
    chunks: Option<Schedule>,
    survey: &Survey,
) -> Result<Equivalence> {
    survey.refuse_problems()?;
    let (Some(source), Some(books)) = (&survey.source, &survey.books) else {
        bail!("{}: neither problems nor a checkpoint", survey.path.display());
    };
    let plan = books.plan.as_ref().context("books without problems have a plan")?;
    let injection = args.inject.as_deref().map(|name| inject(name, plan)).transpose()?;
    let reference = Reference::default();
    let accelerated;
    let (name, kernels): (String, &dyn Kernels<f32>) = match args.executor {
        ExecutorName::Reference => (reference::ENGINE.to_owned(), &reference),
        ExecutorName::Accelerated => {
            accelerated = Accelerated::new(accelerated::by_name(accelerated::BACKENDS[0])?);
            (accelerated.engine(), &accelerated)
        }
    };
    let engine = |options: SessionOptions| {
        Local::new(name.clone(), plan, source, kernels).with_options(options).with_fault(injection.as_ref())
    };
    let options = SessionOptions { cache: args.cache, ..SessionOptions::default() };
    let (plain, usual) = (engine(SessionOptions::default()), engine(options));
    let rolling = engine(SessionOptions { rolling: true, ..options });
    let n = prompt.tokens.len();
    let exactly = engine(SessionOptions { capacity: Some(n), ..options });

    let exact = args.executor == ExecutorName::Reference;
    let sequence = Prompt { tokens: &prompt.tokens, positions: &prompt.positions };
    let gate = match (args.tolerance(), exact) {
        (Some(gate), _) => gate,
        (None, true) => Gate::Bits,
        (None, false) => {
            let narrow = Local::<f32>::new(reference::ENGINE, plan, source, &reference).with_options(options);
            let wide = Local::<f64>::new(reference::ENGINE, plan, source, &reference).with_options(options);
            Gate::from_truth(&narrow, &wide, &sequence, HONEST_MULTIPLE)?
        }
    };
    let subject = |name: &str, engine, exact, full_at| Subject { name: name.to_owned(), engine, exact, full_at };
    let mut subjects = vec![subject("", &usual as &dyn Engine, exact, None)];
    if windows(plan).iter().any(|&window| window < n) {
        subjects.push(subject("rolling windows", &rolling, false, None));
    }
    subjects.push(subject("", &exactly, exact, Some(n)));
    // A tolerance for a cache's format is one for what the format loses.
    let full: &dyn Engine = if args.tolerance().is_some() { &plain } else { &usual };
    let mut report = check(&Check {
        tokens: &prompt.tokens,
        positions: &prompt.positions,
        full,
        subjects: &subjects,
        gate,
        windows: sizes(plan),
        chunks,
    })?;
    source.check_unchanged()?;
    if args.cache != CacheFormat::Computed {
        let lost = lost(&plain, &usual, &sequence)?;
        report.notes.push(format!(
            "a cache in {} moves the logits of one pass by up to {}; the state's bytes are those of its numbers as floats",
            args.cache,
            short(lost)
        ));
    }
    if let Some(name) = &args.inject {
        report.notes.push(format!("the executor was broken on purpose: {name}"));
    }
    Ok(report)
}

/// Largest difference of a logit that a cache's format makes in one pass.
fn lost(plain: &dyn Engine, cached: &dyn Engine, prompt: &Prompt<'_>) -> Result<f64> {
    let (a, b) = (full_forward(plain, prompt)?, full_forward(cached, prompt)?);
    Ok(a.logits.data().iter().zip(b.logits.data()).fold(0.0, |m, (x, y)| m.max((x - y).abs())))
}

fn layer_kinds(plan: &Plan) -> Vec<String> {
    let kinds = plan.layers.iter().map(|layer| {
        let window = layer.mixer.attention_spec().and_then(|spec| spec.sliding_window);
        match window {
            Some(window) => format!("{}, window {window}", layer.mixer.name()),
            None => layer.mixer.name().to_owned(),
        }
    });
    kinds.collect()
}

/// A tolerance from the command line: finite and not negative.
fn tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value >= 0.0 => Ok(value),
        _ => Err("expected a finite number that is not negative".to_string()),
    }
}
