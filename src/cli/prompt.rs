//! One prompt on the command line: token ids, a file of them, or text.

use super::run::prompts::{numbers, text_of};
use super::say;
use crate::engine::Tokenizer;
use anyhow::{Context, Result, ensure};
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct OnePromptArgs {
    /// Token ids, as words or separated by commas
    #[arg(value_name = "TOKEN", allow_negative_numbers = true)]
    tokens: Vec<String>,

    /// Read the token ids from a file (`-`: standard input), separated by white space or commas
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub tokens_file: Option<PathBuf>,

    /// Take the tokens of a text, by the checkpoint's tokenizer: tokenizer.json, or that of the GGUF file. Standard
    /// error shows their ids
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["tokens", "tokens_file"], allow_hyphen_values = true)]
    text: Option<String>,

    /// Positions of the tokens, separated by commas (0,1,2,... by default). RoPE uses them; causal masks and sliding
    /// windows count tokens
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub positions: Option<String>,
}

/// Tokens and one position each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OnePrompt {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
}

impl OnePromptArgs {
    /// # Errors
    /// No token, something that is no number, positions of another count, an unreadable file, no tokenizer.
    pub fn read(&self, checkpoint: &Path, quiet: bool) -> Result<OnePrompt> {
        let tokens = match (&self.tokens_file, &self.text) {
            (Some(path), _) => {
                let tokens = numbers(&text_of(path)?, "token").with_context(|| path.display().to_string())?;
                ensure!(!tokens.is_empty(), "{}: holds no token", path.display());
                tokens
            }
            (None, Some(text)) => tokens_of_text(checkpoint, text, quiet)?,
            (None, None) => numbers(&self.tokens.join(" "), "token")?,
        };
        ensure!(!tokens.is_empty(), "no tokens: give token ids after the checkpoint, or --tokens-file, or --text");
        let positions = self.positions.as_deref().map(|list| numbers(list, "position")).transpose()?;
        let positions = per_token(&tokens, positions).context("--positions")?;
        Ok(OnePrompt { tokens, positions })
    }
}

/// One position per token: those given, or 0, 1, 2, ...
///
/// # Errors
/// Another number of positions than of tokens.
pub fn per_token(tokens: &[u32], positions: Option<Vec<u32>>) -> Result<Vec<u32>> {
    let positions = positions.unwrap_or_else(|| (0..tokens.len() as u32).collect());
    let (expected, found) = (tokens.len(), positions.len());
    ensure!(expected == found, "expected one position per token ({expected}), found {found}");
    Ok(positions)
}

/// The ids of a text by the checkpoint's tokenizer, which standard error shows unless `quiet`.
///
/// # Errors
/// There is no tokenizer, it is broken or of a kind that is not read here, or the text gives no token.
pub fn tokens_of_text(checkpoint: &Path, text: &str, quiet: bool) -> Result<Vec<u32>> {
    let tokenized = Tokenizer::of(checkpoint)?.tokenize(text)?;
    if !quiet {
        let ids = tokenized.tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let bos = tokenized
            .added_bos
            .map_or(String::new(), |id| format!("; the first, {id}, is not of the text: the tokenizer adds it"));
        say(format_args!("tokens: {ids}{bos}"));
    }
    Ok(tokenized.tokens)
}
