//! Text to token ids and back, by a checkpoint's tokenizer.json.

use super::Tokenized;
use anyhow::{Result, anyhow, ensure};
use std::path::{Path, PathBuf};

/// The file beside config.json that describes a tokenizer.
pub const FILE: &str = "tokenizer.json";

/// A tokenizer as tokenizer.json describes it.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
}

impl Tokenizer {
    /// The tokenizer of a checkpoint's folder.
    ///
    /// # Errors
    /// There is no tokenizer.json, or it describes no tokenizer.
    pub fn beside(checkpoint: &Path) -> Result<Self> {
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
        Ok(Self { inner, path })
    }

    /// The ids of a text, with the special tokens that the file says to add.
    ///
    /// # Errors
    /// The tokenizer can't, or nothing comes out.
    pub fn tokenize(&self, text: &str) -> Result<Tokenized> {
        let ids = |special| {
            let encoding = self.inner.encode(text, special);
            encoding.map(|e| e.get_ids().to_vec()).map_err(|e| anyhow!("{}: {e}", self.path.display()))
        };
        let (tokens, plain) = (ids(true)?, ids(false)?);
        ensure!(!tokens.is_empty(), "{}: the text gives no token", self.path.display());
        let starts_later = tokens.len() > plain.len() && tokens.first() != plain.first();
        // A text that begins with the same token as is put before it.
        let twice = tokens.len() > plain.len() && tokens[1..].starts_with(&plain);
        let added_bos = tokens.first().copied().filter(|_| starts_later || twice);
        Ok(Tokenized { tokens, added_bos })
    }

    /// The text of ids, special tokens included.
    ///
    /// # Errors
    /// An id that the tokenizer doesn't have.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        for &token in tokens {
            ensure!(
                self.inner.id_to_token(token).is_some(),
                "{}: there is no token {token} in the tokenizer's vocabulary",
                self.path.display()
            );
        }
        self.inner.decode(tokens, false).map_err(|e| anyhow!("{}: {e}", self.path.display()))
    }
}
