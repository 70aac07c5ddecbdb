//! What a session can do besides going on, each held against the full forward pass.

use super::equivalence::{Bench, Bound, Kind, Stop, Walk};
use super::{BoxedSession, EngineSession};
use crate::exec::state::StateError;
use anyhow::{Context, Result};
use std::collections::BTreeSet;

impl<'a> Bench<'a> {
    /// Trim, fork, snapshot and reset, in the middle of the prompt and before its last token.
    pub fn operations(&mut self, bound: &mut Bound<'a>) -> Result<()> {
        let n = self.prompt.tokens.len();
        for k in BTreeSet::from([n / 2, n - 1]) {
            self.trim(bound, n, k)?;
            self.prefix(bound, n, k)?;
            self.snapshot(bound, n, k)?;
        }
        self.run(Kind::Trim, bound, "all tokens, trimmed to none, and again".to_owned(), |walk| {
            let mut session = walk.all(n)?;
            walk.trim(&mut session, 0)?;
            walk.advance(session.as_mut(), n)
        })?;
        self.run(Kind::Reset, bound, "other tokens, a reset, and the prompt token by token".to_owned(), |walk| {
            let mut session = walk.session()?;
            walk.go_astray(session.as_mut(), n)?;
            session.reset()?;
            walk.state(session.as_ref(), 0)?;
            walk.one_by_one(session.as_mut(), n)
        })?;
        Ok(())
    }

    fn trim(&mut self, bound: &mut Bound<'a>, n: usize, k: usize) -> Result<()> {
        self.run(Kind::Trim, bound, format!("all tokens, trimmed to {k}, and the rest again"), |walk| {
            let mut session = walk.all(n)?;
            walk.trim(&mut session, k)?;
            walk.advance(session.as_mut(), n - k)
        })?;
        self.run(Kind::Trim, bound, format!("{k} tokens, trimmed to as many, and the rest"), |walk| {
            let mut session = walk.first(k)?;
            walk.trim(&mut session, k)?;
            walk.advance(session.as_mut(), n - k)
        })?;
        self.run(
            Kind::Trim,
            bound,
            format!("{k} tokens, other tokens, trimmed to {k}, and the rest one by one"),
            |walk| {
                let mut session = walk.first(k)?;
                walk.go_astray(session.as_mut(), n - k)?;
                walk.trim(&mut session, k)?;
                walk.one_by_one(session.as_mut(), n - k)
            },
        )?;
        Ok(())
    }

    fn prefix(&mut self, bound: &mut Bound<'a>, n: usize, k: usize) -> Result<()> {
        self.run(Kind::Prefix, bound, format!("a fork after {k} tokens, whose origin goes another way"), |walk| {
            let mut origin = walk.first(k)?;
            let mut fork = origin.fork()?;
            walk.state(fork.as_ref(), k)?;
            walk.go_astray(origin.as_mut(), n - k)?;
            walk.advance(fork.as_mut(), n - k)
        })?;
        self.run(Kind::Prefix, bound, format!("after {k} tokens, a fork of which goes another way"), |walk| {
            let mut origin = walk.first(k)?;
            let mut fork = origin.fork()?;
            walk.go_astray(fork.as_mut(), n - k)?;
            walk.advance(origin.as_mut(), n - k)
        })?;
        self.run(Kind::Prefix, bound, format!("a fork of another prompt, trimmed to the {k} common tokens"), |walk| {
            let mut other = walk.first(k)?;
            walk.go_astray(other.as_mut(), n - k)?;
            let mut fork = other.fork()?;
            walk.trim(&mut fork, k)?;
            walk.one_by_one(fork.as_mut(), n - k)
        })?;
        Ok(())
    }

    fn snapshot(&mut self, bound: &mut Bound<'a>, n: usize, k: usize) -> Result<()> {
        let folder = tempfile::tempdir().context("a temporary folder can't be made")?;
        let path = folder.path().join("session");
        self.run(Kind::Snapshot, bound, format!("a snapshot after {k} tokens, restored in a new session"), |walk| {
            walk.first(k)?.snapshot(&path)?;
            let chunks = walk.chunks.clone();
            let mut session = walk.session()?;
            walk.chunks = chunks;
            session.restore(&path)?;
            walk.state(session.as_ref(), k)?;
            walk.advance(session.as_mut(), n - k)
        })?;
        self.run(Kind::Snapshot, bound, format!("a snapshot after {k} tokens, restored after other tokens"), |walk| {
            let mut session = walk.first(k)?;
            session.snapshot(&path)?;
            walk.go_astray(session.as_mut(), n - k)?;
            session.restore(&path)?;
            walk.state(session.as_ref(), k)?;
            walk.one_by_one(session.as_mut(), n - k)
        })?;
        Ok(())
    }

    /// A session with room for exactly the prompt takes it, and not one token more.
    pub fn capacity(&mut self, bound: &mut Bound<'a>, capacity: usize) -> Result<()> {
        let n = self.prompt.tokens.len();
        self.run(Kind::Capacity, bound, format!("room for {capacity} tokens, and no more"), |walk| {
            let mut session = walk.first(n - 1)?;
            walk.advance(session.as_mut(), 1)?;
            let (token, position) = (walk.last_token(), walk.last_position());
            match session.decode(token, position) {
                Ok(_) => Err(Stop::state(format!("a session for {capacity} tokens took one more"))),
                Err(error) if matches!(error.downcast_ref(), Some(StateError::Full { .. })) => {
                    walk.state(session.as_ref(), n)
                }
                Err(error) => Err(error.into()),
            }
        })?;
        Ok(())
    }
}

impl<'a> Walk<'_, 'a> {
    /// A session after the first `k` tokens.
    fn first(&mut self, k: usize) -> Result<BoxedSession<'a>, Stop> {
        let mut session = self.session()?;
        self.advance(session.as_mut(), k)?;
        Ok(session)
    }

    /// A session after all tokens but the last in one chunk, and then the last.
    fn all(&mut self, n: usize) -> Result<BoxedSession<'a>, Stop> {
        let mut session = self.first(n - 1)?;
        self.advance(session.as_mut(), 1)?;
        Ok(session)
    }

    fn one_by_one(&mut self, session: &mut dyn EngineSession<'a>, n: usize) -> Result<(), Stop> {
        (0..n).try_for_each(|_| self.advance(session, 1))
    }

    fn trim(&mut self, session: &mut BoxedSession<'a>, len: usize) -> Result<(), Stop> {
        session.trim(len)?;
        self.state(session.as_ref(), len)
    }

    fn last_token(&self) -> u32 {
        self.prompt().tokens.last().copied().unwrap_or_default()
    }

    fn last_position(&self) -> u32 {
        self.prompt().positions.last().copied().unwrap_or_default()
    }
}
