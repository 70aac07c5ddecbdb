//! What to run: one sequence from the command line, or many from a file.

use crate::cli::prompt::{OnePrompt, OnePromptArgs, per_token};
use crate::model::Plan;
use crate::problem::quote;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct PromptArgs {
    #[command(flatten)]
    one: OnePromptArgs,

    /// Many prompts in one pass over the weights, one JSON object a line (`-`: standard input):
    /// {"id": "a", "tokens": [1, 2], "positions": [0, 1]}. The output is a folder, with one file ID.tsv each
    #[arg(
        long, value_name = "FILE", requires = "output",
        conflicts_with_all = ["tokens", "tokens_file", "text", "positions"]
    )]
    pub prompts: Option<PathBuf>,
}

impl PromptArgs {
    /// The files that prompts are read from.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.prompts.iter().chain(&self.one.tokens_file)
    }
}

/// One sequence: one position per token.
#[derive(Debug, PartialEq)]
pub struct Prompt {
    /// Its name in a file of prompts.
    pub id: Option<String>,
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
}

/// What a line of a file of prompts looks like, for messages.
const LINE: &str = "{\"id\": text, \"tokens\": [...], \"positions\": [...]}";

/// A line of a file of prompts.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    id: String,
    tokens: Vec<u32>,
    positions: Option<Vec<u32>>,
}

/// The prompts of the command line, at least one; `checkpoint` is where a tokenizer for text is.
///
/// # Errors
/// No token, something that is not a number, positions of another count, an unreadable file, no tokenizer.
pub fn prompts(args: &PromptArgs, checkpoint: &Path, quiet: bool) -> Result<Vec<Prompt>> {
    match &args.prompts {
        Some(path) => many(&text_of(path)?).with_context(|| path.display().to_string()),
        None => {
            let OnePrompt { tokens, positions } = args.one.read(checkpoint, quiet)?;
            Ok(vec![Prompt { id: None, tokens, positions }])
        }
    }
}

impl Prompt {
    /// One more than the largest position.
    pub fn length(&self) -> usize {
        self.positions.iter().max().map_or(0, |&p| p as usize + 1)
    }

    /// # Errors
    /// A token beyond the vocabulary, or one that stands for something else than text.
    pub fn check_tokens(&self, plan: &Plan) -> Result<()> {
        let vocab_size = plan.vocab_size;
        let beyond = self.tokens.iter().enumerate().find(|&(_, &t)| t as usize >= vocab_size).map(|(at, t)| {
            format!("token {at}: {t} is beyond the vocabulary of {vocab_size} (0 to {})", vocab_size - 1)
        });
        let Some(problem) = beyond.or_else(|| plan.placeholder(&self.tokens)) else { return Ok(()) };
        let prompt = self.id.as_ref().map_or(String::new(), |id| format!("prompt {}, ", quote(id)));
        bail!("{prompt}{problem}")
    }
}

fn many(text: &str) -> Result<Vec<Prompt>> {
    if let Ok(Value::Object(whole)) = serde_json::from_str(text)
        && whole.get("prompts").is_some_and(Value::is_array)
    {
        bail!(
            "expected one object a line, {LINE}; found a single object with a list of prompts, as the fixtures have it: \
             each entry of that list has to be a line (jq -c '.prompts[]' makes them)"
        );
    }
    let mut prompts = Vec::new();
    // Some file systems take names that differ in case only for the same.
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let number = number + 1;
        let mut read = || -> Result<Prompt> {
            let line: Line = serde_json::from_str(line).map_err(|e| anyhow::anyhow!("expected {LINE}: {e}"))?;
            file_name(&line.id)?;
            ensure!(!line.tokens.is_empty(), "prompt {} has no tokens", quote(&line.id));
            if let Some(other) = seen.insert(line.id.to_lowercase(), number) {
                bail!("id {} stands in line {other} already", quote(&line.id));
            }
            let shown = quote(&line.id);
            let positions = per_token(&line.tokens, line.positions).with_context(|| format!("prompt {shown}"))?;
            Ok(Prompt { id: Some(line.id), tokens: line.tokens, positions })
        };
        prompts.push(read().with_context(|| format!("line {number}"))?);
    }
    ensure!(!prompts.is_empty(), "holds no prompt");
    Ok(prompts)
}

/// # Errors
/// `id` is no name of a file on every system.
fn file_name(id: &str) -> Result<()> {
    let allowed = |c: char| c.is_alphanumeric() || "-_.+=@ ".contains(c);
    let sound = !id.is_empty() && id.len() <= 200 && id.chars().all(allowed) && !id.starts_with(['.', ' ', '-']);
    ensure!(
        sound && !id.ends_with(' '),
        "id {} can't name a file: expected 1 to 200 letters, digits and -_.+=@, not starting with - or a point",
        quote(id)
    );
    Ok(())
}

/// The text of a file, `-` being standard input.
///
/// # Errors
/// It can't be read as text, or is too long.
pub(in crate::cli) fn text_of(path: &Path) -> Result<String> {
    /// Ten million tokens take less.
    const LIMIT: u64 = 64_000_000;
    let mut text = String::new();
    let mut reader: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).with_context(|| format!("{}: can't be opened", path.display()))?)
    };
    let n = reader.by_ref().take(LIMIT).read_to_string(&mut text);
    let n = n.with_context(|| format!("{}: can't be read as text", path.display()))?;
    ensure!((n as u64) < LIMIT, "{}: expected less than {LIMIT} bytes", path.display());
    Ok(text)
}

/// Numbers separated by white space, commas or both; `what` is what they are, for a message.
///
/// # Errors
/// Something that is no number, or none before a comma.
pub(in crate::cli) fn numbers(text: &str, what: &str) -> Result<Vec<u32>> {
    let mut numbers = Vec::new();
    let mut pieces = text.split(',').peekable();
    while let Some(piece) = pieces.next() {
        let before = numbers.len();
        for word in piece.split_whitespace() {
            let number = if word.bytes().all(|b| b.is_ascii_digit()) { word.parse().ok() } else { None };
            numbers.push(number.with_context(|| {
                let (at, shown) = (numbers.len(), quote(word));
                format!("{what} {at}: expected a whole number from 0 to {}, found {shown}", u32::MAX)
            })?);
        }
        // Nothing but a trailing comma may stand alone.
        ensure!(numbers.len() > before || pieces.peek().is_none(), "{what} {before}: there is none before a comma");
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_as_words_or_with_commas() {
        for text in ["1 2 3", "1,2,3", " 1, 2,3\n", "1,\n2,\t3,", "1 , 2 ,3", "1 2,3"] {
            assert_eq!(numbers(text, "token").unwrap(), [1, 2, 3], "{text:?}");
        }
        for text in ["1,,2", "-1", "+1", "1.5", "x", "4294967296", "0x10", ",1", ",", "1,,", "\u{664}"] {
            assert!(numbers(text, "token").is_err(), "{text:?}");
        }
        assert!(numbers(" \n", "token").unwrap().is_empty());
    }

    #[test]
    fn a_file_of_prompts_is_read_line_by_line() {
        let text = "{\"id\": \"a\", \"tokens\": [1, 2]}\n\n{\"id\": \"b\", \"tokens\": [3], \"positions\": [9]}\n";
        let expected = [
            Prompt { id: Some("a".into()), tokens: vec![1, 2], positions: vec![0, 1] },
            Prompt { id: Some("b".into()), tokens: vec![3], positions: vec![9] },
        ];
        assert_eq!(many(text).unwrap(), expected);
        for (line, wanted) in [
            ("", "holds no prompt"),
            ("[1]", "line 1: expected {"),
            ("{\n  \"prompts\": [\n    {\"id\": \"a\", \"tokens\": [1]}\n  ]\n}\n", "jq -c '.prompts[]'"),
            ("{\n  \"prompt\": []\n}", "line 1: expected {"),
            ("{\"id\": \"a\", \"tokens\": []}", "no tokens"),
            ("{\"id\": \"a\", \"tokens\": [1], \"position\": [0]}", "unknown field"),
            ("{\"id\": \"a\", \"tokens\": [-1]}", "line 1"),
            ("{\"id\": \"a\", \"tokens\": [1], \"positions\": [0, 1]}", "one position per token (1), found 2"),
            ("{\"id\": \"../a\", \"tokens\": [1]}", "can't name a file"),
            ("{\"id\": \"a\", \"tokens\": [1]}\n{\"id\": \"A\", \"tokens\": [1]}", "line 2: id `A` stands in line 1"),
        ] {
            let error = format!("{:#}", many(line).unwrap_err());
            assert!(error.contains(wanted), "{error}");
        }
    }
}
