//! On what faults are tried: a checkpoint, or the tiny checkpoints of a family.

use crate::checkpoint::{MemorySource, Source};
use crate::cli::survey::{CheckpointArgs, survey};
use crate::exec::faults::Probe;
use crate::model::{Pack, Plan, close_books, synthetic};
use crate::problem::sentences;
use anyhow::{Context, Result, bail};
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Args)]
pub struct SubjectArgs {
    /// Checkpoint folder, as for `oracle run`
    #[arg(value_name = "CKPT", required_unless_present = "pack")]
    path: Option<PathBuf>,

    /// Without CKPT: a model family by name (or its TOML file), whose tiny checkpoints for the self-test are taken. With
    /// CKPT: a further family, as a TOML file
    #[arg(long, value_name = "P")]
    pack: Option<PathBuf>,

    /// A config key or tensor of CKPT that may stay unused (repeatable)
    #[arg(long, value_name = "NAME", requires = "path")]
    allow_unused: Vec<String>,
}

/// A checkpoint that is ready to run.
pub struct Subject {
    /// Its path, or the family's name and that of one of its checkpoints.
    pub name: String,
    pub plan: Plan,
    pub source: Arc<dyn Source>,
    /// Probes beside the recommended ones.
    own: Vec<Probe>,
}

impl Subject {
    /// The recommended probes, and for a family's checkpoint the self-test's prompt.
    pub fn probes(&self) -> Vec<Probe> {
        let mut probes = Probe::recommended(&self.plan);
        probes.extend(self.own.clone());
        probes
    }
}

/// What the arguments name.
///
/// # Errors
/// A checkpoint with problems, an unknown family, or one without a self-test.
pub fn subjects(args: &SubjectArgs) -> Result<Vec<Subject>> {
    match (&args.path, &args.pack) {
        (Some(path), pack) => {
            let allow_unused = args.allow_unused.clone();
            let survey = survey(&CheckpointArgs { path: path.clone(), allow_unused, pack: pack.clone() })?;
            survey.refuse_problems()?;
            let plan = survey.books.and_then(|books| books.plan).context("books without problems have a plan")?;
            let source = survey.source.context("books without problems have tensors")?;
            Ok(vec![Subject { name: path.display().to_string(), plan, source, own: vec![] }])
        }
        (None, Some(pack)) => of_pack(&named(pack)?),
        (None, None) => bail!("expected a checkpoint, or --pack with a family"),
    }
}

/// A built-in family, or one from a file.
fn named(name: &Path) -> Result<Pack> {
    match Pack::named(&name.display().to_string()) {
        Ok(pack) => Ok(pack.clone()),
        Err(_) if name.exists() => Ok(Pack::read(name).map_err(|problem| anyhow::anyhow!("{problem}"))?),
        Err(unknown) => bail!("{unknown}"),
    }
}

/// The checkpoints of a family's self-test.
///
/// # Errors
/// One of them can't be made.
pub fn of_pack(pack: &Pack) -> Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for (name, config, tensors) in synthetic::checkpoints(pack)? {
        let source: Arc<dyn Source> = Arc::new(MemorySource::new(tensors)?);
        let books = close_books(&config, source.as_ref(), &BTreeSet::new(), &pack.and_embedded(), &[]);
        let plan = books.plan.filter(|_| books.problems.is_empty());
        let plan = plan.with_context(|| format!("{name}: {}", sentences(&books.problems)))?;
        let own = vec![Probe::new("self-test", pack.self_test.tokens.clone())];
        subjects.push(Subject { name, plan, source, own });
    }
    Ok(subjects)
}
