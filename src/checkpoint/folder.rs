//! What lies in a checkpoint's folder, and what it looks like when it is not a checkpoint.

use crate::problem::{Problem, quote, quote_list};
use std::path::{Path, PathBuf};

/// The names in a folder, sorted.
pub(super) struct Listing {
    folder: PathBuf,
    names: Vec<String>,
}

impl Listing {
    /// # Errors
    /// There is no such folder, it is a file, or it can't be listed.
    pub(super) fn read(folder: &Path) -> Result<Self, Problem> {
        let problem = |code, message: String| Problem::new(code, folder.display().to_string(), message);
        let unreadable = |error: std::io::Error| problem("folder-unreadable", format!("can't be listed: {error}"));
        match std::fs::metadata(folder) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(problem("folder-is-file", file_hint(folder))),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(problem("folder-missing", "there is no such folder".into()));
            }
            Err(error) => return Err(unreadable(error)),
        }
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            names.push(entry.map_err(unreadable)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(Self { folder: folder.to_owned(), names })
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names.binary_search_by(|n| n.as_str().cmp(name)).is_ok()
    }

    pub(super) fn ending_in<'a>(&'a self, suffix: &'a str) -> impl Iterator<Item = &'a str> {
        self.names.iter().map(String::as_str).filter(move |name| name.ends_with(suffix))
    }

    /// Why there may be no config.json here: a clause to put after a colon.
    pub(super) fn config_hint(&self) -> String {
        if self.has("adapter_config.json") {
            return "holds adapter_config.json: a LoRA adapter, not a checkpoint; merge it into its base model".into();
        }
        if self.has("model_index.json") {
            return "holds model_index.json: a diffusers pipeline; give the folder of its language model".into();
        }
        if self.has("snapshots") && self.has("refs") {
            return "is a Hugging Face cache entry: give the folder below `snapshots` instead".into();
        }
        if self.has("params.json") || self.names.iter().any(|name| name.starts_with("consolidated.")) {
            return "holds the original Meta or Mistral layout (params.json, consolidated.*): convert it to the \
                    Hugging Face layout, or get that one"
                .into();
        }
        let nested = self.names.iter().find(|name| self.folder.join(name).join("config.json").is_file());
        if let Some(nested) = nested {
            return format!("the folder {} below it has one: is that the checkpoint?", quote(nested));
        }
        self.foreign_weights().unwrap_or_else(|| self.contents())
    }

    /// Why there may be no safetensors weights here: a clause to put after a colon.
    pub(super) fn weights_hint(&self) -> String {
        if self.has("adapter_model.safetensors") {
            return "holds adapter_model.safetensors: a LoRA adapter, not a checkpoint; merge it into its base model"
                .into();
        }
        let mut others = self.ending_in(".safetensors").peekable();
        if others.peek().is_some() {
            return format!(
                "holds {}: shards need their model.safetensors.index.json, a single file must be named \
                 model.safetensors",
                quote_list(others)
            );
        }
        self.foreign_weights().unwrap_or_else(|| self.contents())
    }

    fn foreign_weights(&self) -> Option<String> {
        if self.ending_in(".safetensors").next().is_some() {
            return None;
        }
        let pickles = self.names.iter().map(String::as_str);
        let mut pickles =
            pickles.filter(|name| [".bin", ".pth", ".pt"].iter().any(|end| name.ends_with(end))).peekable();
        if pickles.peek().is_some() {
            return Some(format!("holds PyTorch pickles only ({}): save it as safetensors", quote_list(pickles)));
        }
        let mut gguf = self.ending_in(".gguf").peekable();
        gguf.peek()?;
        Some(format!("holds GGUF files only ({}): give the file itself", quote_list(gguf)))
    }

    fn contents(&self) -> String {
        match self.names.as_slice() {
            [] => "the folder is empty".into(),
            names => format!("the folder holds {}", quote_list(names.iter().map(String::as_str))),
        }
    }
}

fn file_hint(path: &Path) -> String {
    let hint = match path.extension().and_then(|extension| extension.to_str()) {
        Some("gguf") => "a GGUF file is opened by itself, with the packs that know its names",
        Some("safetensors" | "json") => "give the folder that holds it",
        _ => "a checkpoint is a folder with config.json and safetensors files",
    };
    format!("expected a folder, found a file: {hint}")
}
