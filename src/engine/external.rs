//! Anyone's engine as a process that speaks the runner protocol (docs/format.md).
//!
//! A run is one process for the whole sequence, so logits come for its last token alone, and a session can only be
//! filled. That tokens were taken in chunks must be on record: a runner that ignores the wish gives no evidence.

use super::{BoxedSession, Engine, EngineSession, Step, Tokenized, Unsupported};
use crate::exec::state::PartShape;
use crate::ops::Matrix;
use crate::oracle::OracleFile;
use crate::oracle::file::Reading;
use crate::problem::visible;
use anyhow::{Context, Result, bail, ensure};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The environment variable that names the output file.
pub const OUT: &str = "MEMRA_ORACLE_OUT";
/// The environment variable that asks for the tokens to be taken in chunks.
pub const CHUNKS: &str = "MEMRA_ORACLE_CHUNKS";
/// The record by which a runner says that it did so.
pub const CHUNKS_RECORD: &str = "chunks";

/// A runner and the checkpoint that it is given.
pub struct External {
    /// The program and its first arguments.
    words: Vec<String>,
    checkpoint: PathBuf,
    timeout: Option<Duration>,
    folder: TempDir,
    name: String,
    vocab_size: usize,
    /// Tokens and last row of the run at the beginning, until somebody asks for them.
    opening: RefCell<Option<(Vec<u32>, Vec<f64>)>>,
}

/// The process that runs now, and its scratch folder.
static RUNNING: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<(u32, PathBuf)>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process of an engine that runs now, with everything that it started, and removes its scratch folder: for a
/// handler of SIGINT and SIGTERM.
pub fn end_running() {
    if let Some((process, folder)) = running().take() {
        end_group(process);
        // What can't be removed is only scratch.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Kills the process group that the process leads: a wrapper script's own children belong to it.
fn end_group(process: u32) {
    #[cfg(unix)]
    if let Ok(group) = i32::try_from(process) {
        // SAFETY: a system call on a number; a group that has ended is an error that changes nothing.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }
    #[cfg(not(unix))]
    let _ = process;
}

impl External {
    /// Runs the tokens in one piece, which tells the engine's name and vocabulary; the first session with these tokens
    /// in one piece gets the result, every later one a process of its own. `runner` is a command line: words
    /// separated by spaces, where quotes keep spaces together.
    ///
    /// # Errors
    /// The runner can't be started, or failed in any way.
    pub fn open(runner: &str, checkpoint: &Path, tokens: &[u32], timeout: Option<Duration>) -> Result<Self> {
        let words = split_words(runner)?;
        let folder = tempfile::tempdir().context("a temporary folder can't be made")?;
        let (checkpoint, opening) = (checkpoint.to_owned(), RefCell::default());
        let mut engine = Self { words, checkpoint, timeout, folder, name: String::new(), vocab_size: 0, opening };
        let file = engine.start(tokens, &[tokens.len()])?;
        engine.name = file.engine.clone();
        engine.vocab_size = file.vocab();
        engine.opening.replace(Some((tokens.to_vec(), file.logits.to_f64())));
        Ok(engine)
    }

    /// The last token's logits.
    fn run(&self, tokens: &[u32], chunks: &[usize]) -> Result<Vec<f64>> {
        let of_opening = |opening: &mut (Vec<u32>, Vec<f64>)| chunks.len() == 1 && opening.0 == tokens;
        if let Some((_, row)) = self.opening.borrow_mut().take_if(of_opening) {
            return Ok(row);
        }
        let file = self.start(tokens, chunks)?;
        let (found, expected) = (file.vocab(), self.vocab_size);
        ensure!(found == expected, "{}: gave {found} logits; before that {expected}", self.shown());
        Ok(file.logits.to_f64())
    }

    /// One process, and the file that it wrote.
    fn start(&self, tokens: &[u32], chunks: &[usize]) -> Result<OracleFile> {
        let out = self.folder.path().join("out.tsv");
        match fs::remove_file(&out) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("{}: can't be removed", out.display()));
            }
            _ => {}
        }
        let messages = self.folder.path().join("stderr");
        let stderr = File::create(&messages).with_context(|| messages.display().to_string())?;
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).arg(&self.checkpoint).args(tokens.iter().map(u32::to_string));
        command.env(OUT, &out).env("MEMRA_FULL_PREC", "1").env_remove(CHUNKS);
        let list = listed(chunks);
        if chunks.len() > 1 {
            command.env(CHUNKS, &list);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let what = || match chunks.len() {
            1 => format!("{} with {} tokens", self.shown(), tokens.len()),
            _ => format!("{} with {} tokens in chunks of {list}", self.shown(), tokens.len()),
        };
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().with_context(|| format!("{}: can't be started", self.shown()))?;
        *running() = Some((child.id(), self.folder.path().to_owned()));
        let status = self.wait(child);
        *running() = None;
        let status = status.with_context(what)?;
        if !status.success() {
            bail!("{}: failed ({status}){}", what(), quoted_end(&messages));
        }
        if !out.exists() {
            bail!("{}: ended with exit code 0 and wrote no file{}", what(), quoted_end(&messages));
        }
        let file = OracleFile::open(&out, Reading::Lenient)
            .map_err(|e| anyhow::anyhow!("{}: what it wrote is no oracle file: {e}", what()))?;
        if file.tokens != tokens {
            let (expected, found) = (listed(tokens), listed(&file.tokens));
            bail!("{}: wrote a file for other tokens: expected {expected}, found {found}", what());
        }
        if let Some(positions) = file.explicit_positions() {
            bail!("{}: wrote a file for the positions {}: expected 0, 1, 2, ...", what(), listed(positions));
        }
        match file.receipt(CHUNKS_RECORD) {
            None if chunks.len() > 1 => bail!(
                "{}: its file has no record `{CHUNKS_RECORD}` with {list}, so nothing says that the tokens were taken in \
                 chunks; a runner that honours {CHUNKS} writes it (docs/kv-equivalence.md)",
                what()
            ),
            Some(found) if found != list => {
                bail!("{}: its file was computed in chunks of {}: expected {list}", what(), visible(found))
            }
            _ => Ok(file),
        }
    }

    /// Waits for the end of the process, or ends it when its time is up.
    fn wait(&self, mut child: Child) -> Result<ExitStatus> {
        let Some(timeout) = self.timeout else { return Ok(child.wait()?) };
        let started = Instant::now();
        let mut pause = Duration::from_millis(1);
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if started.elapsed() >= timeout {
                // It may have just ended by itself.
                end_group(child.id());
                let _ = child.kill();
                child.wait()?;
                bail!("ran longer than {} s and was ended", timeout.as_secs_f64());
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(Duration::from_millis(50));
        }
    }

    /// The runner as messages name it.
    fn shown(&self) -> String {
        format!("runner {}", visible(&self.words.join(" ")))
    }

    fn without<T>(&self, what: &str) -> Result<T> {
        bail!(Unsupported(format!("the runner protocol has no {what}")))
    }
}

impl Engine for External {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    fn tokenize(&self, _: &str) -> Result<Tokenized> {
        self.without("text")
    }

    fn detokenize(&self, _: &[u32]) -> Result<String> {
        self.without("text")
    }

    fn embed(&self, _: &[u32]) -> Result<Matrix<f64>> {
        self.without("embeddings")
    }

    fn session(&self, length: usize) -> Result<BoxedSession<'_>> {
        Ok(Box::new(Runs { engine: self, length, tokens: Vec::new(), chunks: Vec::new() }))
    }
}

/// A sequence on its way; the process starts once it is whole.
struct Runs<'e> {
    engine: &'e External,
    length: usize,
    tokens: Vec<u32>,
    chunks: Vec<usize>,
}

impl<'e> EngineSession<'e> for Runs<'e> {
    fn len(&self) -> usize {
        self.tokens.len()
    }

    fn prefill(&mut self, tokens: &[u32], positions: &[u32]) -> Result<Step> {
        let plain = positions.iter().enumerate().all(|(i, &p)| p as usize == self.tokens.len() + i);
        if !plain {
            return self.engine.without("positions");
        }
        self.tokens.extend_from_slice(tokens);
        self.chunks.push(tokens.len());
        ensure!(self.tokens.len() <= self.length, "more tokens than the {} that were announced", self.length);
        let mut logits = Matrix::filled(0, self.engine.vocab_size, 0.0);
        if self.tokens.len() == self.length {
            logits.extend_rows(&self.engine.run(&self.tokens, &self.chunks)?);
        }
        Ok(Step { logits, layers: Vec::new() })
    }

    fn trim(&mut self, _: usize) -> Result<()> {
        self.engine.without("way to trim a session")
    }

    fn fork(&self) -> Result<BoxedSession<'e>> {
        self.engine.without("way to fork a session")
    }

    fn snapshot(&self, _: &Path) -> Result<()> {
        self.engine.without("snapshots")
    }

    fn restore(&mut self, _: &Path) -> Result<()> {
        self.engine.without("snapshots")
    }

    fn reset(&mut self) -> Result<()> {
        self.engine.without("way to reset a session")
    }

    fn shape(&self) -> Vec<PartShape> {
        Vec::new()
    }

    fn digest(&self) -> Option<String> {
        None
    }
}

/// Numbers as the protocol writes them: `3,1,1`.
fn listed<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// The end of what a process said, for a message.
fn quoted_end(messages: &Path) -> String {
    const SHOWN: usize = 2000;
    let text = fs::read(messages).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let text = text.trim();
    let skipped = text.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
    if text.is_empty() {
        return "; it said nothing on standard error".to_owned();
    }
    let lines = text[skipped..].lines().map(|line| format!("\n  {}", visible(line)));
    format!("; on standard error:{}", lines.collect::<String>())
}

/// Splits a command line at spaces; `'...'` and `"..."` keep them.
///
/// # Errors
/// No word at all, or a quote without an end.
fn split_words(line: &str) -> Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in line.chars() {
        match (c, quote) {
            (c, Some(q)) if c == q => quote = None,
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, None) if c.is_whitespace() => words.extend(word.take()),
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    if let Some(q) = quote {
        bail!("the runner's command line {} lacks a closing {q}", visible(line));
    }
    words.extend(word);
    ensure!(words.first().is_some_and(|w| !OsStr::new(w).is_empty()), "the runner's command line is empty");
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::split_words;

    #[test]
    fn a_command_line_is_split_at_spaces_outside_quotes() {
        assert_eq!(split_words("  sh  run.sh ").unwrap(), ["sh", "run.sh"]);
        assert_eq!(split_words("'a b' \"c'd\" e''f ''").unwrap(), ["a b", "c'd", "ef", ""]);
        for (line, wanted) in [("", "is empty"), ("  ", "is empty"), ("'' x", "is empty"), ("a 'b", "closing '")] {
            assert!(split_words(line).unwrap_err().to_string().contains(wanted), "{line}");
        }
    }
}
