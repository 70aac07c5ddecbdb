//! A prompt in chunks, as the runner protocol may ask for.

use super::prompts::{Prompt, numbers};
use crate::engine::schedule;
use crate::exec::{Executor, FirstNonFinite, Input, Rows, Session};
use crate::ops::Float;
use anyhow::{Context, Result, bail};
use std::fmt;
use std::str::FromStr;

/// The lengths of the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks(Vec<usize>);

impl FromStr for Chunks {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(Self(numbers(text, "chunk")?.into_iter().map(|n| n as usize).collect()))
    }
}

impl fmt::Display for Chunks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(usize::to_string).collect::<Vec<_>>().join(","))
    }
}

impl Chunks {
    /// # Errors
    /// They don't add up to the prompt.
    pub fn check(&self, prompt: &Prompt) -> Result<()> {
        schedule::check(&self.0, prompt.tokens.len()).context("--chunks")
    }
}

/// Takes the prompt through all chunks but the last, which is what is returned; without chunks that is all of it.
///
/// # Errors
/// The source can't be read, or a value on the way is not finite.
pub fn rest<F: Float>(
    chunks: Option<&Chunks>,
    executor: Executor<'_, F>,
    prompts: &[Prompt],
    sessions: &mut [Session<F>],
) -> Result<Vec<Prompt>> {
    let firsts = chunks.and_then(|chunks| chunks.0.split_last()).map_or(&[][..], |(_, firsts)| firsts);
    let mut rest = Vec::new();
    for (prompt, session) in prompts.iter().zip(sessions) {
        let mut at = 0;
        for &n in firsts {
            let tokens = prompt.tokens[at..at + n].to_vec();
            let positions = prompt.positions[at..at + n].to_vec();
            let mut watch = FirstNonFinite::default();
            executor.run(vec![Input { session: &mut *session, tokens, positions }], Rows::Last, &mut watch)?;
            if let Some(found) = watch.found {
                bail!("{} in the chunk from token {at} on", found.first());
            }
            at += n;
        }
        let (tokens, positions) = (prompt.tokens[at..].to_vec(), prompt.positions[at..].to_vec());
        rest.push(Prompt { id: prompt.id.clone(), tokens, positions });
    }
    Ok(rest)
}
