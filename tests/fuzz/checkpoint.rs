//! All that is done with a checkpoint: opened, its books closed, every tensor read, a short pass.

use checkpoint_oracle::checkpoint::{Source, TensorInfo};
use checkpoint_oracle::exec::reference::Reference;
use checkpoint_oracle::exec::{Executor, Input, Rows, Session};
use checkpoint_oracle::model::{Pack, Plan, close_books, open};
use std::path::Path;
use std::sync::Arc;

/// What became of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With these sentences.
    Refused(Vec<String>),
    /// In a pass, with this sentence.
    Stopped(String),
    Ran,
}

/// Uses the checkpoint at `path`; sentences name `place`, which is in every file's path. `step` cuts tensors into pieces.
pub fn use_all(path: &Path, place: &str, step: u64) -> Outcome {
    let opened = open(path, Pack::embedded());
    let mut problems = opened.problems;
    opened.notes.iter().for_each(|note| assert_named(&note.to_string(), place));
    let mut plan = None;
    if let (Some(config), Some(source)) = (&opened.config, &opened.source) {
        let books = close_books(config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
        problems.extend(books.problems);
        books.notes.iter().for_each(|note| assert_named(&note.to_string(), place));
        plan = books.plan;
    }
    let mut unreadable = None;
    if let Some(source) = &opened.source {
        let bytes: u64 = source.files().iter().map(|file| file.len).sum();
        for info in source.tensors().values() {
            assert!(info.len <= 64 * bytes, "{} of {bytes} bytes has {}", info.name, info.len);
            if let Some(error) = read(source.as_ref(), info, step) {
                assert_named(&error, place);
                unreadable = Some(error);
            }
        }
    }
    if !problems.is_empty() {
        let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
        sentences.iter().for_each(|sentence| assert_named(sentence, place));
        return Outcome::Refused(sentences);
    }
    let (Some(plan), Some(source)) = (plan, opened.source) else { panic!("neither problems nor a checkpoint") };
    match pass(&plan, &source) {
        None => Outcome::Ran,
        Some(error) => {
            assert!(unreadable.is_some(), "all of it can be read: {error}");
            assert_named(&error, place);
            Outcome::Stopped(error)
        }
    }
}

/// In which file and what is wrong, fit for a terminal.
#[track_caller]
pub fn assert_named(sentence: &str, place: &str) {
    assert!(sentence.contains(place), "no file is named: {sentence}");
    assert!(!sentence.chars().any(char::is_control), "not fit for a terminal: {sentence:?}");
    assert!(sentence.len() < 20_000, "nobody reads {} bytes", sentence.len());
}

/// The same bytes as a whole and in pieces; or why a tensor can't be read.
fn read(source: &dyn Source, info: &TensorInfo, step: u64) -> Option<String> {
    let whole = source.read(info, 0..info.len);
    let step = info.len / (2 + step % 5) + 1 + step % 3;
    let pieces = (0..info.len).step_by(step as usize).map(|at| source.read(info, at..info.len.min(at + step)));
    let pieces: Result<Vec<Vec<u8>>, _> = pieces.collect();
    match (whole, pieces) {
        (Ok(whole), Ok(pieces)) => {
            assert_eq!(whole.len() as u64, info.len, "{}", info.name);
            assert!(pieces.concat() == whole, "{} is another one in pieces of {step} bytes", info.name);
            None
        }
        (Err(error), Err(_)) => Some(format!("{error:#}")),
        (Ok(_), Err(error)) => panic!("{} can be read, but not in pieces of {step} bytes: {error:#}", info.name),
        (Err(error), Ok(_)) => panic!("{} can be read only in pieces of {step} bytes: {error:#}", info.name),
    }
}

fn pass(plan: &Plan, source: &Arc<dyn Source>) -> Option<String> {
    let last = u32::try_from(plan.vocab_size).ok()?.checked_sub(1)?;
    let tokens = vec![1.min(last), last];
    let mut session = Session::<f32>::new(plan, tokens.len());
    let input = Input { session: &mut session, positions: (0..tokens.len() as u32).collect(), tokens };
    let run = Executor::new(plan, source, &Reference::default()).run(vec![input], Rows::All, &mut ());
    match run {
        Ok(logits) => {
            assert_eq!((logits[0].rows(), logits[0].cols()), (2, plan.vocab_size));
            None
        }
        Err(error) => Some(format!("{error:#}")),
    }
}
