//! Does an engine compute the same when a prompt comes in pieces? The full forward pass against incremental runs.
//!
//! What is run, and why it is enough, is in docs/kv-equivalence.md.

use super::blind::BlindSpot;
use super::schedule::{self, Schedule};
use super::{BoxedSession, Engine, EngineSession, Step, Unsupported};
use crate::exec::state::{PartShape, SnapshotError, StateError};
use crate::oracle::printable::exact_logit;
use crate::oracle::verdict::Verdict;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

/// Prompts of up to so many tokens are cut in every possible way.
pub const ALL_WAYS: usize = 12;

/// What is checked.
pub struct Check<'a> {
    /// At least two.
    pub tokens: &'a [u32],
    /// One per token.
    pub positions: &'a [u32],
    /// Whose full forward pass is taken as right.
    pub full: &'a dyn Engine,
    /// The engine in each of the ways in which it can keep its state.
    pub subjects: &'a [Subject<'a>],
    pub gate: Gate,
    /// Sizes around which a longer prompt is cut.
    pub windows: BTreeSet<usize>,
    /// A further schedule; it adds up to the tokens.
    pub chunks: Option<Schedule>,
}

/// An engine under test.
pub struct Subject<'a> {
    /// Which way of keeping its state this is; empty for the usual one.
    pub name: String,
    pub engine: &'a dyn Engine,
    /// It promises the same bits and the same state however a prompt is cut, so that an induction over chunks stands for
    /// all ways to cut it.
    pub exact: bool,
    /// The number of tokens that its sessions have room for, which is that of the prompt.
    pub full_at: Option<usize>,
}

/// What may differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "name", rename_all = "kebab-case")]
pub enum Gate {
    /// Nothing.
    Bits,
    /// Logits, by `atol + rtol * |full forward|`.
    Tolerance { atol: f64, rtol: f64 },
    /// Logits and hidden states, by `factor` times the largest distance of the float32 reference from the float64 truth
    /// over all tokens of this very prompt.
    Truth { factor: f64, logits: f64, layers: Vec<f64> },
}

impl Gate {
    /// Measures the float32 reference against the truth: `narrow` and `wide` are the two. Where the reference happens to
    /// be nearer than float32 can say, the rounding of the largest value counts instead.
    ///
    /// # Errors
    /// One of them failed.
    pub fn from_truth(narrow: &dyn Engine, wide: &dyn Engine, check: &Prompt<'_>, factor: f64) -> Result<Self> {
        let (narrow, wide) = (full_forward(narrow, check)?, full_forward(wide, check)?);
        let distance = |a: &[f64], b: &[f64]| {
            let largest = b.iter().fold(0.0f64, |m, v| m.max(v.abs()));
            let apart = a.iter().zip(b).fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
            apart.max(largest * f64::from(f32::EPSILON) / 2.0)
        };
        let layers = narrow.layers.iter().zip(&wide.layers).map(|(a, b)| distance(a.data(), b.data())).collect();
        Ok(Self::Truth { factor, logits: distance(narrow.logits.data(), wide.logits.data()), layers })
    }

    /// Whether `found` may stand where the full forward pass has `expected`. What is not finite never passes.
    fn holds(&self, place: Place, expected: f64, found: f64) -> bool {
        if !expected.is_finite() || !found.is_finite() {
            return false;
        }
        let apart = (found - expected).abs();
        match (self, place) {
            (Self::Bits, _) => expected.to_bits() == found.to_bits(),
            (Self::Tolerance { atol, rtol }, Place::Logits) => apart <= atol + rtol * expected.abs(),
            (Self::Tolerance { .. }, Place::Layer(_)) => true,
            (Self::Truth { factor, logits, .. }, Place::Logits) => apart <= factor * logits,
            (Self::Truth { factor, layers, .. }, Place::Layer(l)) => layers.get(l).is_some_and(|d| apart <= factor * d),
        }
    }
}

/// Tokens and their positions.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    pub tokens: &'a [u32],
    /// One per token.
    pub positions: &'a [u32],
}

impl Prompt<'_> {
    /// One more than the largest position.
    fn length(&self) -> usize {
        self.positions.iter().max().map_or(0, |&p| p as usize + 1)
    }
}

/// A value of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Layer(usize),
    Logits,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layer(layer) => write!(f, "hidden state after layer {layer}"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

/// What came out. Its serialized form is the JSON report; keys are added, never renamed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Equivalence {
    pub verdict: Verdict,
    pub engine: String,
    pub checkpoint: String,
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub gate: Gate,
    /// Which ways to cut the prompt were covered, for each way of keeping the state.
    pub coverage: Vec<String>,
    /// Largest difference of a logit from the full forward pass.
    pub max_abs: f64,
    pub runs: Vec<Run>,
    /// What a session keeps after the prompt.
    pub state: Vec<PartShape>,
    /// Per layer, the kind of its mixer; empty where no plan is known.
    pub layer_kinds: Vec<String>,
    pub cannot_see: Vec<BlindSpot>,
    pub notes: Vec<String>,
}

/// A group of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    FullForward,
    Chunks,
    Trim,
    Prefix,
    Snapshot,
    Reset,
    Capacity,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::FullForward => "full forward",
            Self::Chunks => "chunks",
            Self::Trim => "trim and redo",
            Self::Prefix => "prefix reuse",
            Self::Snapshot => "snapshot and restore",
            Self::Reset => "reset and again",
            Self::Capacity => "capacity filled",
        })
    }
}

/// One incremental run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    pub kind: Kind,
    /// As [`Subject::name`].
    pub state: String,
    /// In words.
    pub what: String,
    pub outcome: RunOutcome,
    /// Passes that it took.
    pub passes: usize,
    /// Rows of logits that were held against the full forward pass.
    pub rows_compared: usize,
    pub max_abs: f64,
    /// Where it first differs.
    pub difference: Option<Difference>,
    /// Why it was not checked.
    pub reason: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunOutcome {
    Same,
    Different,
    /// The engine has no way to do it.
    NotChecked,
}

/// Where an incremental run first differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The chunks so far, the last one being that which differs.
    pub chunks: Schedule,
    /// The token; absent where it is the state that differs.
    pub token: Option<usize>,
    /// The first layer that differs; absent for the logits and for the state.
    pub layer: Option<usize>,
    /// A sentence.
    pub message: String,
}

impl Equivalence {
    /// The first run that differs.
    pub fn first_difference(&self) -> Option<(&Run, &Difference)> {
        self.runs.iter().find_map(|run| Some((run, run.difference.as_ref()?)))
    }
}

/// Runs the full forward pass and every incremental run.
///
/// # Errors
/// Fewer than two tokens, a token beyond the vocabulary, a schedule that doesn't fit, or an engine that failed in another
/// way than a broken state does: nothing was judged then.
pub fn check(check: &Check<'_>) -> Result<Equivalence> {
    let n = check.tokens.len();
    ensure!(n >= 2, "a prompt of {n} token can't be cut: expected at least two tokens");
    ensure!(check.positions.len() == n, "expected {n} positions, found {}", check.positions.len());
    let vocab = check.full.vocab_size();
    if let Some(token) = check.tokens.iter().find(|&&t| t as usize >= vocab) {
        anyhow::bail!("token {token} is beyond the vocabulary of {vocab} (0 to {})", vocab - 1);
    }
    if let Some(chunks) = &check.chunks {
        schedule::check(chunks, n)?;
    }
    let prompt = Prompt { tokens: check.tokens, positions: check.positions };
    let full = full_forward(check.full, &prompt)?;
    let mut bench = Bench { check, prompt, full, runs: Vec::new(), bits: true };
    bench.full_forward();
    let (mut coverage, mut state) = (Vec::new(), Vec::new());
    for subject in check.subjects {
        let mut subject = Bound { subject, known: BTreeMap::new() };
        match subject.subject.full_at {
            Some(capacity) => bench.capacity(&mut subject, capacity)?,
            None => {
                coverage.push(bench.cuts(&mut subject)?);
                bench.operations(&mut subject)?;
            }
        }
        if state.is_empty() {
            state = subject.known.remove(&n).map(|known| known.shape).unwrap_or_default();
        }
    }
    let Bench { runs, bits, .. } = bench;
    // One pass over the whole prompt says nothing of pieces.
    let pieces = runs.iter().any(|r| r.outcome == RunOutcome::Same && r.kind == Kind::Chunks && r.passes > 1);
    let verdict = match (runs.iter().any(|r| r.outcome == RunOutcome::Different), pieces) {
        (true, _) => Verdict::Different,
        (false, false) => Verdict::Refused,
        (false, true) if bits => Verdict::Identical,
        (false, true) => Verdict::WithinTolerance,
    };
    Ok(Equivalence {
        verdict,
        engine: check.subjects.first().map_or_else(String::new, |s| s.engine.name()),
        checkpoint: String::new(),
        tokens: check.tokens.to_vec(),
        positions: check.positions.to_vec(),
        gate: check.gate.clone(),
        coverage,
        max_abs: runs.iter().fold(0.0, |m, r| m.max(r.max_abs)),
        runs,
        state,
        layer_kinds: Vec::new(),
        cannot_see: Vec::new(),
        notes: Vec::new(),
    })
}

/// The whole prompt in one pass.
///
/// # Errors
/// The engine failed, or gave no logits.
pub fn full_forward(engine: &dyn Engine, prompt: &Prompt<'_>) -> Result<Step> {
    let mut session = engine.session(prompt.length())?;
    let step = session.prefill(prompt.tokens, prompt.positions).context("the full forward pass")?;
    ensure!(step.logits.rows() > 0, "{}: the full forward pass gave no logits", engine.name());
    Ok(step)
}

/// A check on its way.
pub(super) struct Bench<'a> {
    pub check: &'a Check<'a>,
    pub prompt: Prompt<'a>,
    full: Step,
    runs: Vec<Run>,
    /// Nothing so far had other bits.
    bits: bool,
}

/// A subject, and what is known of its state after so many tokens of the prompt.
pub(super) struct Bound<'a> {
    pub subject: &'a Subject<'a>,
    known: BTreeMap<usize, Known>,
}

/// A state as one pass over the tokens leaves it.
struct Known {
    shape: Vec<PartShape>,
    digest: Option<String>,
}

/// Whatever it should be cut to.
const RECURRENT: &str = "a recurrent state can't be cut: it goes back to the start only. A fork or a snapshot, taken \
                         in time, stands for it, and those are checked";

/// Why a run ends early.
pub(super) enum Stop {
    Unsupported(String),
    Different(Difference),
    /// Nothing can be said.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Self {
        match (error.downcast_ref::<Unsupported>(), error.downcast_ref::<StateError>()) {
            (Some(Unsupported(reason)), _) => Self::Unsupported(reason.clone()),
            (_, Some(dropped @ StateError::Dropped { .. })) => Self::Unsupported(dropped.to_string()),
            (_, Some(StateError::Recurrent { .. })) => Self::Unsupported(RECURRENT.to_owned()),
            (_, Some(_)) => Self::state(format!("{error:#}")),
            _ if error.is::<SnapshotError>() => Self::state(format!("{error:#}")),
            _ => Self::Failed(error),
        }
    }
}

impl Stop {
    /// The state is not what it should be.
    pub fn state(message: String) -> Self {
        Self::Different(Difference { chunks: Vec::new(), token: None, layer: None, message })
    }
}

/// One run on its way.
pub(super) struct Walk<'b, 'a> {
    bench: &'b mut Bench<'a>,
    bound: &'b mut Bound<'a>,
    /// The chunks of the prompt that the last session took.
    pub chunks: Schedule,
    passes: usize,
    rows_compared: usize,
    max_abs: f64,
}

impl<'a> Bench<'a> {
    /// Makes a run of what `body` does.
    pub fn run(
        &mut self,
        kind: Kind,
        bound: &mut Bound<'a>,
        what: String,
        body: impl FnOnce(&mut Walk<'_, 'a>) -> Result<(), Stop>,
    ) -> Result<RunOutcome> {
        let state = bound.subject.name.clone();
        let mut walk = Walk { bench: self, bound, chunks: vec![], passes: 0, rows_compared: 0, max_abs: 0.0 };
        let ended = body(&mut walk);
        let Walk { chunks, passes, rows_compared, max_abs, .. } = walk;
        let mut run = Run {
            kind,
            state,
            what,
            outcome: RunOutcome::Same,
            passes,
            rows_compared,
            max_abs,
            difference: None,
            reason: None,
        };
        match ended {
            Ok(()) if rows_compared > 0 => {}
            Ok(()) => {
                run.outcome = RunOutcome::NotChecked;
                run.reason = Some("the engine gave no logits to compare".to_owned());
            }
            Err(Stop::Unsupported(reason)) => {
                run.outcome = RunOutcome::NotChecked;
                run.reason = Some(reason);
            }
            Err(Stop::Different(difference)) => {
                run.outcome = RunOutcome::Different;
                run.difference = Some(Difference { chunks, ..difference });
            }
            Err(Stop::Failed(error)) => return Err(error.context(format!("{kind}: {}", run.what))),
        }
        let outcome = run.outcome;
        self.runs.push(run);
        Ok(outcome)
    }

    /// The full forward pass must be numbers.
    fn full_forward(&mut self) {
        let bad = self.full.layers.iter().enumerate().map(|(l, rows)| (Place::Layer(l), rows));
        let bad = bad.chain([(Place::Logits, &self.full.logits)]).find_map(|(place, rows)| {
            let at = rows.data().iter().position(|v| !v.is_finite())?;
            let token = self.prompt.tokens.len() - rows.rows() + at / rows.cols();
            Some((place, token, at % rows.cols(), rows.data()[at]))
        });
        let Some((place, token, index, value)) = bad else { return };
        let layer = if let Place::Layer(layer) = place { Some(layer) } else { None };
        let message = format!("token {token}, {place}, value {index}: {value} in the full forward pass never passes");
        self.runs.push(Run {
            kind: Kind::FullForward,
            state: String::new(),
            what: "the whole prompt in one pass".to_owned(),
            outcome: RunOutcome::Different,
            passes: 1,
            rows_compared: 0,
            max_abs: 0.0,
            difference: Some(Difference { chunks: vec![self.prompt.tokens.len()], token: Some(token), layer, message }),
            reason: None,
        });
    }

    /// The prompt cut in all ways, or in those of the list. Says which.
    fn cuts(&mut self, bound: &mut Bound<'a>) -> Result<String> {
        let n = self.prompt.tokens.len();
        let name = match bound.subject.name.as_str() {
            "" => String::new(),
            name => format!("{name}: "),
        };
        // What one pass leaves is what every other way must leave.
        self.run(Kind::Chunks, bound, chunks_in_words(&[n]), |walk| walk.chunked(&[n]))?;
        let known = bound.known.get(&n).is_some_and(|known| known.digest.is_some());
        let ways = if n <= ALL_WAYS { 1u64 << (n - 1) } else { 0 };
        let mut covered = String::new();
        if ways > 0 && bound.subject.exact && known {
            self.induction(bound)?;
            covered =
                format!("every chunk i..j ({}), which stands for all {ways} ways to cut the prompt", n * (n + 1) / 2);
        } else if ways > 0 {
            let what = format!("all {ways} ways to cut the prompt");
            let outcome = self.run(Kind::Chunks, bound, what.clone(), |walk| {
                let session = walk.session()?;
                walk.every_way(&session)
            })?;
            match outcome {
                RunOutcome::NotChecked => drop(self.runs.pop()),
                _ => covered = what,
            }
        }
        let mut list = if covered.is_empty() { schedule::listed(n, &self.check.windows) } else { Vec::new() };
        if covered.is_empty() {
            covered = format!("{} schedules of the list", list.len());
        }
        list.extend(self.check.chunks.clone().filter(|chunks| !list.contains(chunks)));
        for chunks in list {
            self.run(Kind::Chunks, bound, chunks_in_words(&chunks), |walk| walk.chunked(&chunks))?;
        }
        Ok(name + &covered)
    }

    /// From the state after `i` tokens every chunk `i..j` gives the right values, and the state that one pass over `j`
    /// tokens leaves.
    fn induction(&mut self, bound: &mut Bound<'a>) -> Result<()> {
        let n = self.prompt.tokens.len();
        // The states that one pass leaves come first.
        let firsts = (1..n).map(|j| vec![j]);
        let seconds = (1..n).flat_map(|i| (i + 1..=n).map(move |j| vec![i, j - i]));
        for chunks in firsts.chain(seconds) {
            self.run(Kind::Chunks, bound, chunks_in_words(&chunks), |walk| walk.chunked(&chunks))?;
        }
        Ok(())
    }

    /// Holds `found`, the result for the tokens `range`, against the full forward pass.
    fn compare(&mut self, range: Range<usize>, found: &Step) -> Result<Compared, Stop> {
        let n = self.prompt.tokens.len();
        let (rows, full_rows) = (found.logits.rows(), self.full.logits.rows());
        let vocab = self.full.logits.cols();
        if rows > range.len() || (rows > 0 && found.logits.cols() != vocab) {
            let message = format!("{rows} x {} logits for {} tokens", found.logits.cols(), range.len());
            return Err(Stop::state(format!("expected at most {} x {vocab} logits, found {message}", range.len())));
        }
        let layers = found.layers.len().min(self.full.layers.len());
        let told = !found.layers.is_empty() && !self.full.layers.is_empty();
        if told
            && (found.layers.len() != self.full.layers.len() || found.layers.iter().any(|m| m.rows() != range.len()))
        {
            return Err(Stop::state(format!("expected hidden states of {} tokens after each layer", range.len())));
        }
        let (mut rows_compared, mut max_abs) = (0, 0.0f64);
        let mut first = None;
        for (row, token) in range.clone().enumerate() {
            let hidden = (0..layers).map(|l| {
                let expected = self.full.layers[l].row(token);
                (Place::Layer(l), expected, found.layers[l].row(row))
            });
            let logits = (token + full_rows >= n && row + rows >= range.len()).then(|| {
                let expected = self.full.logits.row(token + full_rows - n);
                (Place::Logits, expected, found.logits.row(row + rows - range.len()))
            });
            rows_compared += usize::from(logits.is_some());
            for (place, expected, found) in hidden.chain(logits) {
                for (index, (&e, &f)) in expected.iter().zip(found).enumerate() {
                    if e.to_bits() == f.to_bits() && e.is_finite() {
                        continue;
                    }
                    self.bits = false;
                    if place == Place::Logits && (f - e).abs() > max_abs {
                        max_abs = (f - e).abs();
                    }
                    if first.is_none() && !self.check.gate.holds(place, e, f) {
                        first = Some((token, place, index, e, f));
                    }
                }
            }
        }
        let difference = first.map(|(token, place, index, expected, found)| {
            let message = format!(
                "token {token}, {place}, value {index}: the full forward pass has {}, this run {}",
                exact_logit(expected),
                exact_logit(found)
            );
            let layer = if let Place::Layer(layer) = place { Some(layer) } else { None };
            Difference { chunks: Vec::new(), token: Some(token), layer, message }
        });
        Ok(Compared { rows: rows_compared, max_abs, difference })
    }
}

/// What a comparison of one step found.
struct Compared {
    /// Rows of logits that were compared.
    rows: usize,
    /// Largest difference of a logit.
    max_abs: f64,
    difference: Option<Difference>,
}

impl<'a> Walk<'_, 'a> {
    pub fn prompt(&self) -> Prompt<'a> {
        self.bench.prompt
    }

    /// A new session for the prompt.
    pub fn session(&mut self) -> Result<BoxedSession<'a>, Stop> {
        self.chunks.clear();
        let session = self.bound.subject.engine.session(self.bench.prompt.length())?;
        self.state(session.as_ref(), 0)?;
        Ok(session)
    }

    /// A session through these chunks.
    pub fn chunked(&mut self, chunks: &[usize]) -> Result<(), Stop> {
        let mut session = self.session()?;
        chunks.iter().try_for_each(|&n| self.advance(session.as_mut(), n))
    }

    /// Every way to cut what is left of the prompt.
    fn every_way(&mut self, session: &BoxedSession<'a>) -> Result<(), Stop> {
        let left = self.bench.prompt.tokens.len() - session.len();
        for n in 1..=left {
            let mut fork = session.fork()?;
            self.advance(fork.as_mut(), n)?;
            self.every_way(&fork)?;
            self.chunks.pop();
        }
        Ok(())
    }

    /// The next `n` tokens of the prompt, held against the full forward pass.
    pub fn advance(&mut self, session: &mut dyn EngineSession<'a>, n: usize) -> Result<(), Stop> {
        let (first, prompt) = (session.len(), self.bench.prompt);
        self.chunks.push(n);
        self.passes += 1;
        let (end, all) = (first + n, prompt.tokens.len());
        if end > all {
            return Err(Stop::state(format!("a session of {first} tokens should have room for {n} more of {all}")));
        }
        let step = session.prefill(&prompt.tokens[first..end], &prompt.positions[first..end])?;
        let compared = self.bench.compare(first..end, &step)?;
        self.rows_compared += compared.rows;
        self.max_abs = self.max_abs.max(compared.max_abs);
        if let Some(difference) = compared.difference {
            return Err(Stop::Different(difference));
        }
        self.state(session, end)
    }

    /// The next `n` places of the prompt with other tokens; nothing is compared.
    pub fn go_astray(&mut self, session: &mut dyn EngineSession<'a>, n: usize) -> Result<(), Stop> {
        let (first, prompt) = (session.len(), self.bench.prompt);
        let vocab = self.bound.subject.engine.vocab_size() as u32;
        let tokens: Vec<u32> = prompt.tokens[first..first + n].iter().map(|t| (t + 1) % vocab).collect();
        self.passes += 1;
        session.prefill(&tokens, &prompt.positions[first..first + n])?;
        Ok(())
    }

    /// Checks the state after `len` tokens of the prompt.
    pub fn state(&mut self, session: &dyn EngineSession<'a>, len: usize) -> Result<(), Stop> {
        if session.len() != len {
            return Err(Stop::state(format!("after {len} tokens the session says {}", session.len())));
        }
        let shape = session.shape();
        if let Some(part) = shape.iter().find(|p| p.first.is_some_and(|first| first + p.rows != len)) {
            let PartShape { layer, name, rows, .. } = part;
            let first = part.first.unwrap_or_default();
            let message = format!("after {len} tokens layer {layer} keeps {rows} rows of {name} from token {first} on");
            return Err(Stop::state(message));
        }
        if !self.bound.subject.exact {
            let known = Known { shape, digest: None };
            self.bound.known.entry(len).or_insert(known);
            return Ok(());
        }
        let found = Known { digest: session.digest(), shape };
        let known = match self.bound.known.entry(len) {
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(found);
                return Ok(());
            }
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
        };
        if found.shape != known.shape {
            return Err(Stop::state(format!("after {len} tokens the state has another shape than one pass leaves")));
        }
        if found.digest != known.digest {
            return Err(Stop::state(format!("after {len} tokens the state holds other bits than one pass leaves")));
        }
        Ok(())
    }
}

/// "chunks 3 + 1 + 1".
fn chunks_in_words(chunks: &[usize]) -> String {
    /// A schedule of more chunks is abbreviated.
    const SHOWN: usize = 12;
    let mut words: Vec<String> = chunks.iter().take(SHOWN).map(usize::to_string).collect();
    if chunks.len() > SHOWN {
        words.push(format!("... ({} chunks)", chunks.len()));
    }
    words.join(" + ")
}
