//! What every subcommand that takes a checkpoint does first: open it and close its books.

use crate::checkpoint::{Config, Source};
use crate::model::{self, Books, Pack, close_books};
use crate::{Problem, problem};
use anyhow::{Result, bail};
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
pub struct CheckpointArgs {
    /// Folder with config.json and model.safetensors, or shards with model.safetensors.index.json; or a GGUF file
    #[arg(value_name = "CKPT")]
    pub path: PathBuf,

    /// A config key or tensor that may stay unused; the file's receipt records it (repeatable)
    #[arg(long, value_name = "NAME")]
    pub allow_unused: Vec<String>,

    /// A further model family, as a TOML file; it comes before the built-in ones (docs/packs.md)
    #[arg(long, value_name = "FILE")]
    pub pack: Option<PathBuf>,
}

/// A checkpoint's parts, as far as they could be had, and everything that was found.
pub struct Survey {
    pub path: PathBuf,
    pub config: Option<Config>,
    pub source: Option<Arc<dyn Source>>,
    pub books: Option<Books>,
    /// What forbids a run.
    pub problems: Vec<Problem>,
    /// What a reader should know and that forbids nothing.
    pub notes: Vec<Problem>,
}

/// Opens the checkpoint and closes its books, from headers alone.
///
/// # Errors
/// The user's pack is unusable; everything else is in the survey's problems.
pub fn survey(args: &CheckpointArgs) -> Result<Survey> {
    let mut packs = Vec::new();
    if let Some(path) = &args.pack {
        match Pack::read(path) {
            Ok(pack) => packs.push(pack),
            Err(problem) => bail!("{problem}"),
        }
    }
    packs.extend_from_slice(Pack::embedded());

    let opened = model::open(&args.path, &packs);
    let (mut problems, mut notes) = (opened.problems, opened.notes);
    let mut books = None;
    if let (Some(config), Some(source)) = (&opened.config, &opened.source) {
        let closed = close_books(config, source.as_ref(), &opened.unavailable, &packs, &args.allow_unused);
        problems.extend_from_slice(&closed.problems);
        notes.extend_from_slice(&closed.notes);
        if let (Some(path), Some((chosen, why))) = (&args.pack, &closed.pack)
            && *chosen != packs[0]
        {
            let message = format!("is not used: pack {} answers, because of {why}", chosen.name);
            notes.push(Problem::new("pack-unused", path.display().to_string(), message));
        }
        books = Some(closed);
    }
    Ok(Survey { path: args.path.clone(), config: opened.config, source: opened.source, books, problems, notes })
}

impl Survey {
    /// Everything that is wrong, as one error for a person; the first few where there are many.
    ///
    /// # Errors
    /// There is a problem.
    pub fn refuse_problems(&self) -> Result<()> {
        const SHOWN: usize = 20;
        match self.problems.as_slice() {
            [] => Ok(()),
            [one] => bail!("{one}"),
            many => {
                let mut text = format!("{}: {} problems:", self.path.display(), many.len());
                for problem in many.iter().take(SHOWN) {
                    text += &format!("\n  {problem}");
                }
                if many.len() > SHOWN {
                    let path = problem::quote(&self.path.display().to_string());
                    text += &format!("\n  and {} more: oracle check {path} lists all", many.len() - SHOWN);
                }
                bail!(text)
            }
        }
    }
}
