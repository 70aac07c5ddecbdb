//! A test double: an engine whose logits are a hash of what it remembers, so that every slip of its memory shows. It can
//! be told to slip.

use super::{BoxedSession, Engine, EngineSession, Step, Tokenized};
use crate::exec::state::{PartShape, StateError};
use crate::ops::Matrix;
use anyhow::{Context, Result, bail};
use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::rc::Rc;

/// What the mock does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slip {
    /// The last token of a later chunk is answered, but not remembered.
    ForgetsNewest,
    /// A restored session lacks the newest entry.
    RestoresStale,
    /// Trimming keeps the last entries instead of the first.
    TrimsTheWrongEnd,
    /// A fork lacks the newest entry.
    ForksShort,
    /// A fork and its origin write into the same memory.
    ForksShared,
    /// A reset leaves the memory as it was.
    ResetsNothing,
    /// A later chunk begins at position 0.
    RestartsPositions,
    /// More tokens are taken than there is room for.
    OverfillsCapacity,
    /// The state claims one row less than it has.
    MisstatesShape,
    /// The last logit of token 2 is no number.
    NotANumber,
}

/// A deterministic engine without weights.
#[derive(Debug, Clone, Default)]
pub struct Mock {
    pub vocab_size: usize,
    pub slip: Option<Slip>,
    pub capacity: Option<usize>,
}

impl Mock {
    fn slips(&self, slip: Slip) -> bool {
        self.slip == Some(slip)
    }
}

impl Engine for Mock {
    fn name(&self) -> String {
        "mock".to_owned()
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// One token per byte, below the vocabulary.
    fn tokenize(&self, text: &str) -> Result<Tokenized> {
        let tokens = text.bytes().map(|byte| u32::from(byte) % self.vocab_size as u32).collect();
        Ok(Tokenized { tokens, added_bos: None })
    }

    fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let each = |&token: &u32| char::from_u32(token).with_context(|| format!("there is no token {token}"));
        tokens.iter().map(each).collect()
    }

    fn embed(&self, tokens: &[u32]) -> Result<Matrix<f64>> {
        let data = tokens.iter().map(|&token| unit(hash(0, u64::from(token)))).collect();
        Ok(Matrix::from_vec(tokens.len(), 1, data))
    }

    fn session(&self, _length: usize) -> Result<BoxedSession<'_>> {
        Ok(Box::new(MockSession { engine: self, len: 0, memory: Rc::default() }))
    }
}

struct MockSession<'e> {
    engine: &'e Mock,
    len: usize,
    /// Token and position of each entry.
    memory: Rc<RefCell<Vec<(u32, u32)>>>,
}

impl MockSession<'_> {
    fn remembered(&self) -> u64 {
        self.memory
            .borrow()
            .iter()
            .fold(1, |h, &(token, position)| hash(h, u64::from(token) << 32 | u64::from(position)))
    }

    fn forget_newest_if(&self, slip: Slip) {
        if self.engine.slips(slip) {
            self.memory.borrow_mut().pop();
        }
    }
}

impl<'e> EngineSession<'e> for MockSession<'e> {
    fn len(&self) -> usize {
        self.len
    }

    fn prefill(&mut self, tokens: &[u32], positions: &[u32]) -> Result<Step> {
        let (engine, past) = (self.engine, self.len);
        if let Some(capacity) = engine.capacity.filter(|&c| past + tokens.len() > c)
            && !engine.slips(Slip::OverfillsCapacity)
        {
            bail!(StateError::Full { capacity, len: past, new: tokens.len() });
        }
        let mut logits = Matrix::filled(0, engine.vocab_size, 0.0);
        let mut hidden = Matrix::filled(0, 1, 0.0);
        for (i, (&token, &position)) in tokens.iter().zip(positions).enumerate() {
            let position = if engine.slips(Slip::RestartsPositions) && past > 0 { i as u32 } else { position };
            self.memory.borrow_mut().push((token, position));
            let seen = self.remembered();
            hidden.extend_rows(&[unit(seen)]);
            let mut row: Vec<f64> = (0..engine.vocab_size as u64).map(|v| unit(hash(seen, v))).collect();
            if let Some(last) = row.last_mut().filter(|_| engine.slips(Slip::NotANumber) && past + i == 2) {
                *last = f64::NAN;
            }
            logits.extend_rows(&row);
        }
        self.len += tokens.len();
        if past > 0 {
            self.forget_newest_if(Slip::ForgetsNewest);
        }
        Ok(Step { logits, layers: vec![engine.embed(tokens)?, hidden] })
    }

    fn trim(&mut self, len: usize) -> Result<()> {
        if len > self.len {
            bail!(StateError::TooShort { len: self.len, wanted: len });
        }
        let mut memory = self.memory.borrow_mut();
        let dropped = memory.len().saturating_sub(len);
        match self.engine.slips(Slip::TrimsTheWrongEnd) {
            true => drop(memory.drain(..dropped)),
            false => memory.truncate(len),
        }
        self.len = len;
        Ok(())
    }

    fn fork(&self) -> Result<BoxedSession<'e>> {
        let memory = match self.engine.slips(Slip::ForksShared) {
            true => Rc::clone(&self.memory),
            false => Rc::new(RefCell::new(self.memory.borrow().clone())),
        };
        let fork = MockSession { engine: self.engine, len: self.len, memory };
        fork.forget_newest_if(Slip::ForksShort);
        Ok(Box::new(fork))
    }

    fn snapshot(&self, path: &Path) -> Result<()> {
        let entries = self.memory.borrow().iter().map(|(t, p)| format!("{t} {p}\n")).collect::<String>();
        fs::write(path, entries).with_context(|| path.display().to_string())
    }

    fn restore(&mut self, path: &Path) -> Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let entry = |line: &str| {
            let (token, position) = line.split_once(' ').context("expected a token and a position")?;
            Ok((token.parse()?, position.parse()?))
        };
        let entries = text.lines().map(entry).collect::<Result<Vec<_>>>()?;
        self.len = entries.len();
        self.memory = Rc::new(RefCell::new(entries));
        self.forget_newest_if(Slip::RestoresStale);
        Ok(())
    }

    fn reset(&mut self) -> Result<()> {
        if !self.engine.slips(Slip::ResetsNothing) {
            self.memory.borrow_mut().clear();
        }
        self.len = 0;
        Ok(())
    }

    fn shape(&self) -> Vec<PartShape> {
        let rows = self.len - usize::from(self.engine.slips(Slip::MisstatesShape) && self.len > 1);
        vec![PartShape { layer: 0, name: "history", first: Some(0), rows, cols: 2, bytes: 8 * rows }]
    }

    fn digest(&self) -> Option<String> {
        Some(format!("{:016x}", self.remembered()))
    }
}

/// Mixes `value` into `state` (the finalizer of SplitMix64).
fn hash(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// From 0 up to 1.
fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1u64 << 53) as f64
}
