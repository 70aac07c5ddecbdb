//! Text to token ids and back, by a checkpoint's own tokenizer: its tokenizer.json, or what its GGUF file holds.

mod bpe;
mod pre;
mod spm;
mod vocabulary;

use super::Tokenized;
use crate::checkpoint::gguf;
use anyhow::{Result, anyhow, ensure};
use std::path::{Path, PathBuf};
use vocabulary::Vocabulary;

/// The file beside config.json that describes a tokenizer.
pub const FILE: &str = "tokenizer.json";

/// A tokenizer as the checkpoint describes it.
pub struct Tokenizer {
    described: Described,
    /// The file that describes it, for messages.
    path: PathBuf,
}

enum Described {
    Json(Box<tokenizers::Tokenizer>),
    Gguf(Box<Vocabulary>),
}

impl Tokenizer {
    /// The tokenizer of a checkpoint: a GGUF model's own, or the tokenizer.json in a folder.
    ///
    /// # Errors
    /// There is none, it is of a kind that is not read here, or it contradicts itself.
    pub fn of(checkpoint: &Path) -> Result<Self> {
        match gguf::find(checkpoint).map_err(|problem| anyhow!("{problem}"))? {
            Some(path) => Ok(Self { described: Described::Gguf(Box::new(Vocabulary::read(&path)?)), path }),
            None => Self::beside(checkpoint),
        }
    }

    fn beside(checkpoint: &Path) -> Result<Self> {
        let path = checkpoint.join(FILE);
        ensure!(
            path.is_file(),
            "{}: expected a tokenizer's description here, found no such file; give token ids instead of text",
            path.display()
        );
        let mut inner = tokenizers::Tokenizer::from_file(&path)
            .map_err(|e| anyhow!("{}: describes no tokenizer: {e}", path.display()))?;
        // A file may carry what its maker used for training batches; a prompt is neither cut nor filled up.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| anyhow!("{}: {e}", path.display()))?;
        Ok(Self { described: Described::Json(Box::new(inner)), path })
    }

    /// The ids of a text, with the special tokens that the file says to add. Special tokens in the text are themselves.
    ///
    /// # Errors
    /// The tokenizer can't, or nothing comes out.
    pub fn tokenize(&self, text: &str) -> Result<Tokenized> {
        let (tokens, added_bos) = match &self.described {
            Described::Json(inner) => by_json(inner, text),
            Described::Gguf(vocabulary) => vocabulary.tokenize(text),
        }
        .map_err(|e| self.says(&e))?;
        ensure!(!tokens.is_empty(), "{}: the text gives no token", self.path.display());
        Ok(Tokenized { tokens, added_bos })
    }

    /// The text of ids, special tokens included.
    ///
    /// # Errors
    /// An id that the tokenizer doesn't have.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        match &self.described {
            Described::Json(inner) => text_by_json(inner, tokens),
            Described::Gguf(vocabulary) => vocabulary.detokenize(tokens),
        }
        .map_err(|e| self.says(&e))
    }

    fn says(&self, error: &anyhow::Error) -> anyhow::Error {
        anyhow!("{}: {error:#}", self.path.display())
    }
}

fn by_json(inner: &tokenizers::Tokenizer, text: &str) -> Result<(Vec<u32>, Option<u32>)> {
    let ids = |special| inner.encode(text, special).map(|e| e.get_ids().to_vec()).map_err(|e| anyhow!("{e}"));
    let (tokens, plain) = (ids(true)?, ids(false)?);
    let starts_later = tokens.len() > plain.len() && tokens.first() != plain.first();
    // A text that begins with the same token as is put before it.
    let twice = tokens.len() > plain.len() && tokens[1..].starts_with(&plain);
    let added_bos = tokens.first().copied().filter(|_| starts_later || twice);
    Ok((tokens, added_bos))
}

fn text_by_json(inner: &tokenizers::Tokenizer, tokens: &[u32]) -> Result<String> {
    for &token in tokens {
        ensure!(inner.id_to_token(token).is_some(), "there is no token {token} in the tokenizer's vocabulary");
    }
    inner.decode(tokens, false).map_err(|e| anyhow!("{e}"))
}
