//! GGUF files in the terms of their family's pack: the config that the Hugging Face folder of the same model would have,
//! and its tensors under that folder's names, with what the converter did to them undone. So one pack makes one plan of
//! both, and the same books close.
//!
//! A key or a tensor that nothing here knows keeps the file's name, for the books to report.

mod config;
mod rope;
mod table;
mod tensors;

use table::Common;
pub use table::{Table, Undo};

use super::open::refused;
use super::pack::Pack;
use crate::checkpoint::gguf::Value;
use crate::checkpoint::{Config, Gguf, Opened, Presented};
use crate::problem::{Problem, quote};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

const ARCHITECTURE: &str = "general.architecture";

/// A file, and the pack that says what it means.
struct Reading<'a> {
    gguf: &'a Gguf,
    pack: &'a Pack,
    table: &'a Table,
    /// `general.architecture`.
    architecture: &'a str,
}

impl<'a> Reading<'a> {
    /// The value of a key behind the architecture's name.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.gguf.metadata().get(&format!("{}.{key}", self.architecture))
    }

    fn count(&self, key: &str) -> Option<u64> {
        self.get(key)?.as_count()
    }

    /// The number of layers, without those that predict further tokens.
    fn layers(&self) -> Option<u64> {
        Some(self.count("block_count")?.saturating_sub(self.count("nextn_predict_layers").unwrap_or(0)))
    }

    /// How the pack calls what predicts further tokens: a template with a `*` at the end.
    fn further(&self) -> Option<&'a str> {
        let templates = || self.pack.tensors.ignorable.values().flatten().map(String::as_str);
        let beyond = templates().find(|template| template.contains("{beyond}") && template.ends_with('*'));
        beyond.or_else(|| templates().find(|template| *template == "mtp.*"))
    }

    fn undoes(&self, undo: Undo) -> bool {
        self.table.undo.contains(&undo)
    }

    fn problem(&self, code: &'static str, key: &str, message: String) -> Problem {
        Problem::new(code, format!("{}, key {}", self.gguf.path().display(), quote(key)), message)
    }
}

/// Opens the GGUF model whose first file is `path`.
///
/// The codes of its problems beside those of [`crate::checkpoint::gguf`]: `gguf-architecture` where no pack answers,
/// `gguf-key`, `gguf-tensor` where a key or a tensor can't be what it should be.
pub fn open(path: &Path, packs: &[Pack]) -> Opened {
    let opened = Gguf::open(path);
    let gguf = match opened.gguf {
        Some(gguf) if opened.problems.is_empty() => gguf,
        // What isn't whole can't be translated.
        Some(gguf) => return Opened { source: Some(Arc::new(gguf)), ..refused(opened.problems) },
        None => return refused(opened.problems),
    };
    let (pack, table, architecture) = match choose(&gguf, packs) {
        Ok(chosen) => chosen,
        Err(problem) => return Opened { source: Some(Arc::new(gguf)), ..refused(vec![problem]) },
    };
    let reading = Reading { gguf: &gguf, pack, table, architecture: &architecture };
    let (mut problems, mut notes) = (Vec::new(), Vec::new());
    let (root, origins) = config::translate(&reading, &mut problems, &mut notes);
    let config = Config { path: path.to_owned(), sha256: gguf.header_sha256().to_owned(), root, origins };
    let tensors = tensors::translate(&reading, &mut problems);
    let source = Presented::new(Arc::new(gguf), tensors);
    Opened { config: Some(config), source: Some(Arc::new(source)), unavailable: BTreeSet::new(), problems, notes }
}

/// The pack that answers for a file's architecture.
fn choose<'p>(gguf: &Gguf, packs: &'p [Pack]) -> Result<(&'p Pack, &'p Table, String), Problem> {
    let place = || format!("{}, key {}", gguf.path().display(), quote(ARCHITECTURE));
    let Some(value) = gguf.metadata().get(ARCHITECTURE) else {
        return Err(Problem::new("gguf-architecture", place(), "missing; it says which family the model is of"));
    };
    if let Some(kind) = gguf.metadata().get("general.type")
        && kind.as_text() != Some("model")
    {
        let message = format!("expected a model, found general.type {kind}");
        return Err(Problem::new("gguf-architecture", gguf.path().display().to_string(), message));
    }
    let Some(architecture) = value.as_text() else {
        return Err(Problem::new("gguf-architecture", place(), format!("expected a text, found {value}")));
    };
    let has = |key: &String| {
        let (key, number) = key.split_once('=').map_or((key.as_str(), None), |(key, n)| (key, n.parse::<u64>().ok()));
        let value = gguf.metadata().get(&format!("{architecture}.{key}"));
        value.is_some_and(|value| match number {
            Some(number) => value.as_count() == Some(number),
            None => value.as_count() != Some(0),
        })
    };
    let answers = |(_, table): &(&Pack, &Table)| {
        table.architectures.iter().any(|known| known == architecture) && table.needs.iter().all(has)
    };
    let tables = packs.iter().filter_map(|pack| Some((pack, pack.gguf.as_ref()?)));
    // Of equals the first: the user's own.
    let best = tables.clone().filter(answers).rev().max_by_key(|(_, table)| table.needs.len());
    match best {
        Some((pack, table)) => Ok((pack, table, architecture.to_owned())),
        None if Common::embedded().refuse.contains_key(architecture) => {
            let message = format!("{}: {}", quote(architecture), Common::embedded().refuse[architecture]);
            Err(Problem::new("gguf-architecture", place(), message))
        }
        None => {
            let mut known: Vec<&str> = tables.flat_map(|(_, t)| &t.architectures).map(String::as_str).collect();
            known.sort_unstable();
            known.dedup();
            let message = format!(
                "no pack answers for {} in a GGUF file; those that do: {}",
                quote(architecture),
                known.join(", ")
            );
            Err(Problem::new("gguf-architecture", place(), message))
        }
    }
}
