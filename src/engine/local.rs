//! Our own executors as an engine.

use super::{BoxedSession, Engine, EngineSession, Step, Tokenized, Tokenizer, Unsupported};
use crate::checkpoint::Source;
use crate::exec::faults::Injection;
use crate::exec::state::PartShape;
use crate::exec::{Executor, Input, Kernels, Observer, Rows, Session, SessionOptions, Stage};
use crate::model::Plan;
use crate::ops::{Float, Matrix};
use crate::oracle::Output;
use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::sync::Arc;

/// A plan, the weights and the kernels to run it on, and possibly a fault.
pub struct Local<'k, F: Float> {
    name: String,
    plan: &'k Plan,
    source: &'k Arc<dyn Source>,
    kernels: &'k dyn Kernels<F>,
    options: SessionOptions,
    tokenizer: Option<&'k Tokenizer>,
    fault: Option<Fault<'k, F>>,
}

/// A fault, and the kernels that it has wrapped.
struct Fault<'k, F> {
    injection: &'k Injection,
    kernels: Box<dyn Kernels<F> + 'k>,
}

impl<'k, F: Float> Local<'k, F> {
    /// `name` is that of the kernels' executor, as in the `engine` record of a file.
    pub fn new(
        name: impl Into<String>,
        plan: &'k Plan,
        source: &'k Arc<dyn Source>,
        kernels: &'k dyn Kernels<F>,
    ) -> Self {
        let options = SessionOptions::default();
        Self { name: name.into(), plan, source, kernels, options, tokenizer: None, fault: None }
    }

    /// Sessions keep things in this way.
    pub fn with_options(self, options: SessionOptions) -> Self {
        Self { options, ..self }
    }

    pub fn with_tokenizer(self, tokenizer: Option<&'k Tokenizer>) -> Self {
        Self { tokenizer, ..self }
    }

    /// Becomes the engine with this fault, if there is one.
    pub fn with_fault(self, injection: Option<&'k Injection>) -> Self {
        let fault = injection.map(|injection| Fault { injection, kernels: injection.wrap(self.kernels) });
        Self { fault, ..self }
    }

    /// The plan that is computed.
    fn plan(&self) -> &Plan {
        self.fault.as_ref().map_or(self.plan, |fault| &fault.injection.plan)
    }

    fn injection(&self) -> Option<&Injection> {
        self.fault.as_ref().map(|fault| fault.injection)
    }

    fn options(&self) -> SessionOptions {
        self.injection().map_or(self.options, |injection| injection.options(self.options))
    }

    fn executor(&self) -> Executor<'_, F> {
        let kernels = self.fault.as_ref().map_or(self.kernels, |fault| fault.kernels.as_ref());
        Executor::new(self.plan(), self.source, kernels)
    }

    fn tokenizer(&self) -> Result<&Tokenizer> {
        self.tokenizer.ok_or_else(|| Unsupported(format!("{} was given no tokenizer", self.name)).into())
    }
}

impl<F: Float> Engine for Local<'_, F> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn vocab_size(&self) -> usize {
        self.plan().vocab_size
    }

    fn tokenize(&self, text: &str) -> Result<Tokenized> {
        self.tokenizer()?.tokenize(text)
    }

    fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        self.tokenizer()?.detokenize(tokens)
    }

    fn embed(&self, tokens: &[u32]) -> Result<Matrix<f64>> {
        let mut session = Session::new(self.plan(), tokens.len());
        let positions = (0..tokens.len() as u32).collect();
        let input = Input { session: &mut session, tokens: tokens.to_vec(), positions };
        Ok(widened(self.executor().begin(vec![input], &mut ())?.hidden()))
    }

    fn session(&self, length: usize) -> Result<BoxedSession<'_>> {
        let session = Session::with_options(self.plan(), length, self.options());
        Ok(Box::new(LocalSession { engine: self, session }))
    }
}

struct LocalSession<'e, F: Float> {
    engine: &'e Local<'e, F>,
    session: Session<F>,
}

impl<'e, F: Float> EngineSession<'e> for LocalSession<'e, F> {
    fn len(&self) -> usize {
        self.session.len()
    }

    fn prefill(&mut self, tokens: &[u32], positions: &[u32]) -> Result<Step> {
        let Self { engine, session } = self;
        let mut positions = positions.to_vec();
        if let Some(injection) = engine.injection() {
            injection.before_pass(session, tokens.len());
            positions = injection.positions(session.len(), &positions);
        }
        let mut layers = Layers::default();
        let input = Input { session, tokens: tokens.to_vec(), positions };
        let logits = engine.executor().run(vec![input], Rows::All, &mut layers)?;
        if let Some(injection) = engine.injection() {
            injection.after_pass(session, tokens.len());
        }
        let logits = logits.first().map(widened).context("a pass of one input gives one output")?;
        Ok(Step { logits, layers: layers.0 })
    }

    fn trim(&mut self, len: usize) -> Result<()> {
        self.session.trim(len)?;
        if let Some(injection) = self.engine.injection() {
            injection.after_trim(&mut self.session);
        }
        Ok(())
    }

    fn fork(&self) -> Result<BoxedSession<'e>> {
        let mut session = self.session.fork();
        if let Some(injection) = self.engine.injection() {
            injection.after_fork(&mut session);
        }
        Ok(Box::new(LocalSession { engine: self.engine, session }))
    }

    fn snapshot(&self, path: &Path) -> Result<()> {
        Output::open(Some(path))?.commit(|out| self.session.snapshot(self.engine.plan(), out))?;
        Ok(())
    }

    fn restore(&mut self, path: &Path) -> Result<()> {
        let named = || path.display().to_string();
        let file = File::open(path).with_context(|| format!("{}: the snapshot can't be opened", path.display()))?;
        if !file.metadata().is_ok_and(|m| m.is_file()) {
            bail!("{}: expected a snapshot's file", path.display());
        }
        let engine = self.engine;
        let restored = Session::restore(engine.plan(), engine.options(), &mut BufReader::new(file));
        self.session = restored.with_context(named)?;
        if let Some(injection) = engine.injection() {
            injection.after_restore(&mut self.session);
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        self.session.reset();
        Ok(())
    }

    fn shape(&self) -> Vec<PartShape> {
        self.session.shape()
    }

    fn digest(&self) -> Option<String> {
        let mut sha = Hashing(Sha256::new());
        self.session.snapshot(self.engine.plan(), &mut sha).ok()?;
        Some(crate::digest::to_hex(&sha.0.finalize()))
    }
}

/// Hashes what is written into it.
struct Hashing(Sha256);

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps the hidden states after each layer.
#[derive(Default)]
struct Layers(Vec<Matrix<f64>>);

impl<F: Float> Observer<F> for Layers {
    fn see(&mut self, stage: Stage, rows: &Matrix<F>) {
        if stage.layer.is_some() && stage.name == "out" {
            self.0.push(widened(rows));
        }
    }
}

fn widened<F: Float>(matrix: &Matrix<F>) -> Matrix<f64> {
    Matrix::from_vec(matrix.rows(), matrix.cols(), matrix.data().iter().map(|v| v.to_f64()).collect())
}
