//! The tokenizer inside a GGUF file, with llama.cpp's meaning of its keys (src/llama-vocab.cpp).

use super::bpe::{Bpe, SPACE};
use super::pre::{self, Pre};
use super::spm::Spm;
use crate::checkpoint::gguf::{self, Value};
use crate::problem::quote;
use anyhow::{Context, Result, anyhow};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const SPACE_PREFIX: &str = "tokenizer.ggml.add_space_prefix";

/// `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Undefined,
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// Tokens that end a turn or a document: a control token whatever its type says.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>",
    "[e~[",
];
/// Tokens of gpt-oss that are special in the same way.
const CHANNELS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];
/// Tokens for filling in the middle, which are control tokens where no key says which one it is.
const FILLS: &[(&[&str], &[&str])] = &[
    (
        &["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<\u{ff5c}fim\u{2581}begin\u{ff5c}>",
            "<PRE>",
            "\u{2581}<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        &["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<\u{ff5c}fim\u{2581}hole\u{ff5c}>",
            "<SUF>",
            "\u{2581}<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        &["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<\u{ff5c}fim\u{2581}end\u{ff5c}>",
            "<MID>",
            "\u{2581}<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (&["tokenizer.ggml.fim_pad_token_id"], &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"]),
    (&["tokenizer.ggml.fim_rep_token_id"], &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"]),
    (&["tokenizer.ggml.fim_sep_token_id"], &["<|file_sep|>"]),
];

/// How text becomes tokens.
enum Scheme {
    Bpe(Box<Bpe>),
    Spm(Spm),
}

/// The tokens of a GGUF file, and how it makes them.
pub(super) struct Vocabulary {
    /// By id.
    tokens: Vec<String>,
    kinds: Vec<Kind>,
    ids: HashMap<String, u32>,
    /// Tokens that are found in a text before anything else, the longest first.
    special: Vec<u32>,
    /// Those of them that take the white space behind them.
    strip: BTreeSet<u32>,
    /// What comes before and after a text.
    bos: Option<u32>,
    eos: Option<u32>,
    scheme: Scheme,
}

/// Part of a text, or a special token in it.
enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

impl Vocabulary {
    /// Reads the tokenizer of the model whose first file is `path`.
    ///
    /// # Errors
    /// The file has no tokenizer, one of a kind that is not read here, or one that contradicts itself.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let keys = gguf::metadata(path, &[TOKENS, TYPES, SCORES, MERGES]).map_err(|problem| anyhow!("{problem}"))?;
        let keys = Keys { path, keys };
        let model = keys.text(MODEL)?.with_context(|| {
            format!("{}: has no tokenizer (no key {}); give token ids instead of text", path.display(), quote(MODEL))
        })?;
        let pre = match model {
            "llama" => None,
            "gpt2" => Some(way_to_cut(&keys, keys.text(PRE)?)?),
            "gemma4" => Some(way_to_cut(&keys, Some("gemma4"))?),
            other => return Err(keys.wrong(MODEL, &not_read(other))),
        };
        let (tokens, ids) = tokens(&keys)?;
        let kinds = kinds(&keys, tokens.len())?;
        let scheme = match pre {
            None => Scheme::Spm(spm(&keys, tokens.len())?),
            Some(pre) => Scheme::Bpe(Box::new(bpe(&keys, pre, &ids)?)),
        };
        let special = special(&keys, &tokens, &kinds, &ids);
        let strip = strip(&keys, &tokens, &special);
        // What the format means for SentencePiece where the file doesn't say.
        let (add_bos, bos, eos) = pre.map_or((true, Some(1), Some(2)), |pre| (pre.add_bos, None, None));
        let always = pre.is_some_and(|pre| pre.always_bos);
        let add_bos = keys.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(add_bos) || always;
        let add_eos = keys.flag("tokenizer.ggml.add_eos_token")?.unwrap_or(false);
        let bos = keys.added("bos", add_bos, bos, &tokens)?;
        let eos = keys.added("eos", add_eos, eos, &tokens)?;
        Ok(Self { tokens, kinds, ids, special, strip, bos, eos, scheme })
    }

    /// The ids of a text, with what the file says to add, and the id that is added at the beginning.
    ///
    /// # Errors
    /// A part of the text has no token.
    pub(super) fn tokenize(&self, text: &str) -> Result<(Vec<u32>, Option<u32>)> {
        let mut tokens: Vec<u32> = self.bos.into_iter().collect();
        let mut first = true;
        for part in self.parts(text) {
            match part {
                Part::Token(id) => tokens.push(id),
                Part::Text(text) => match &self.scheme {
                    Scheme::Bpe(bpe) => bpe.tokenize(text, &self.ids, &mut tokens)?,
                    Scheme::Spm(spm) => spm.tokenize(text, first, &self.ids, &mut tokens)?,
                },
            }
            first = matches!(part, Part::Token(_));
        }
        tokens.extend(self.eos);
        Ok((tokens, self.bos))
    }

    /// A text cut at its special tokens: every place of the longest, then those of the next in what is left.
    fn parts<'t>(&self, text: &'t str) -> Vec<Part<'t>> {
        let mut parts = if text.is_empty() { vec![] } else { vec![Part::Text(text)] };
        for &id in &self.special {
            let token = self.tokens[id as usize].as_str();
            if !text.contains(token) {
                continue;
            }
            let mut cut = Vec::new();
            for part in parts {
                let Part::Text(mut text) = part else {
                    cut.push(part);
                    continue;
                };
                while let Some((before, after)) = text.split_once(token) {
                    cut.extend([Part::Text(before), Part::Token(id)]);
                    let white = |c| matches!(c, ' ' | '\t'..='\r');
                    text = if self.strip.contains(&id) { after.trim_start_matches(white) } else { after };
                }
                cut.push(Part::Text(text));
            }
            cut.retain(|part| !matches!(part, Part::Text("")));
            parts = cut;
        }
        parts
    }

    /// The text of ids, special tokens included; bytes that are no UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id that there is no token for.
    pub(super) fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let mut bytes = Vec::new();
        for (at, &id) in tokens.iter().enumerate() {
            let token = self.tokens.get(id as usize);
            let token = token.with_context(|| format!("there is no token {id} in the tokenizer's vocabulary"))?;
            let mut own = match (self.kinds[id as usize], &self.scheme) {
                _ if self.special.contains(&id) => token.clone().into_bytes(),
                (Kind::Byte, _) => of_byte_token(token).map_or(token.clone().into_bytes(), |byte| vec![byte]),
                (_, Scheme::Bpe(bpe)) => bpe.bytes(token),
                (_, Scheme::Spm(_)) => token.replace(SPACE, " ").into_bytes(),
            };
            let prefixed = matches!(&self.scheme, Scheme::Spm(spm) if spm.space_prefix);
            if prefixed && at == 0 && own.first() == Some(&b' ') {
                own.remove(0);
            }
            bytes.extend(own);
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// The byte of a token like `<0x0A>`.
fn of_byte_token(token: &str) -> Option<u8> {
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

/// The keys of a file.
struct Keys<'p> {
    path: &'p Path,
    keys: BTreeMap<String, Value>,
}

impl Keys<'_> {
    fn wrong(&self, key: &str, message: &str) -> anyhow::Error {
        anyhow!("{}, key {}: {message}", self.path.display(), quote(key))
    }

    fn text(&self, key: &str) -> Result<Option<&str>> {
        let Some(value) = self.keys.get(key) else { return Ok(None) };
        let text = value.as_text().ok_or_else(|| self.wrong(key, &format!("expected a text, found {value}")))?;
        Ok(Some(text))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(*flag)),
            Some(value) => Err(self.wrong(key, &format!("expected true or false, found {value}"))),
        }
    }

    fn list(&self, key: &str) -> Result<Option<&[Value]>> {
        match self.keys.get(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(value) => Err(self.wrong(key, &format!("expected an array, found {value}"))),
        }
    }

    fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(list) = self.list(key)? else { return Ok(None) };
        let text = |(i, value): (usize, &'_ Value)| match value {
            Value::Text(_) => Ok(()),
            Value::LongText(_) => {
                Err(self.wrong(key, &format!("value {i}: expected a short text in UTF-8, found {value}")))
            }
            _ => Err(self.wrong(key, &format!("value {i}: expected a text, found {value}"))),
        };
        list.iter().enumerate().try_for_each(text)?;
        Ok(Some(list.iter().filter_map(Value::as_text).collect()))
    }

    /// An array of one value per token.
    fn per_token(&self, key: &str, tokens: usize) -> Result<Option<&[Value]>> {
        let list = self.list(key)?;
        match list.map(<[Value]>::len) {
            Some(found) if found != tokens => {
                Err(self.wrong(key, &format!("expected one value for each of the {tokens} tokens, found {found}")))
            }
            _ => Ok(list),
        }
    }

    /// The token that is put before or after a text (`which` is bos or eos), if one is.
    fn added(&self, which: &str, add: bool, default: Option<u32>, tokens: &[String]) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{which}_token_id");
        let id = match self.keys.get(&key) {
            None => default,
            Some(value) => match value.as_count().and_then(|id| u32::try_from(id).ok()) {
                Some(id) if (id as usize) < tokens.len() => Some(id),
                _ => {
                    let message = format!("expected the id of one of the {} tokens, found {value}", tokens.len());
                    return Err(self.wrong(&key, &message));
                }
            },
        };
        if !add {
            return Ok(None);
        }
        match id.filter(|&id| (id as usize) < tokens.len()) {
            Some(id) => Ok(Some(id)),
            None => Err(self.wrong(&key, "missing; the tokenizer adds this token to every text")),
        }
    }
}

/// The tokens by id, and the ids by token.
fn tokens(keys: &Keys<'_>) -> Result<(Vec<String>, HashMap<String, u32>)> {
    let texts = keys.texts(TOKENS)?.ok_or_else(|| keys.wrong(TOKENS, "missing; it lists the tokens"))?;
    let mut tokens = Vec::with_capacity(texts.len());
    let mut ids = HashMap::with_capacity(texts.len());
    for (id, text) in texts.into_iter().enumerate() {
        let token = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
        if let Some(first) = ids.insert(token.clone(), id as u32) {
            let message = format!("expected each token once, found {} as token {first} and {id}", quote(&token));
            return Err(keys.wrong(TOKENS, &message));
        }
        tokens.push(token);
    }
    Ok((tokens, ids))
}

/// What each token is; normal where the file doesn't say.
fn kinds(keys: &Keys<'_>, tokens: usize) -> Result<Vec<Kind>> {
    let Some(list) = keys.per_token(TYPES, tokens)? else { return Ok(vec![Kind::Normal; tokens]) };
    let kind = |(id, value): (usize, &Value)| match value.as_count() {
        Some(0) => Ok(Kind::Undefined),
        Some(1) => Ok(Kind::Normal),
        Some(2) => Ok(Kind::Unknown),
        Some(3) => Ok(Kind::Control),
        Some(4) => Ok(Kind::UserDefined),
        Some(5) => Ok(Kind::Unused),
        Some(6) => Ok(Kind::Byte),
        _ => Err(keys.wrong(TYPES, &format!("token {id}: expected a type from 0 to 6, found {value}"))),
    };
    list.iter().enumerate().map(kind).collect()
}

fn spm(keys: &Keys<'_>, tokens: usize) -> Result<Spm> {
    let list = keys.per_token(SCORES, tokens)?;
    let list = list.ok_or_else(|| keys.wrong(SCORES, "missing; it says what is joined first"))?;
    let score = |(id, value): (usize, &Value)| match value {
        Value::Float32(score) if score.is_finite() => Ok(*score),
        Value::Whole(score) if i32::try_from(*score).is_ok() => Ok(*score as f32),
        _ => Err(keys.wrong(SCORES, &format!("token {id}: expected a finite number, found {value}"))),
    };
    let scores: Result<Vec<f32>> = list.iter().enumerate().map(score).collect();
    Ok(Spm { scores: scores?, space_prefix: keys.flag(SPACE_PREFIX)?.unwrap_or(true) })
}

/// Why a value of `tokenizer.ggml.model` is refused.
fn not_read(model: &str) -> String {
    let what = match model {
        "bert" => " (WordPiece)",
        "t5" => " (SentencePiece's Unigram)",
        "rwkv" | "plamo2" | "hybriddna" | "whitespace" => " (a tokenizer of one family)",
        "none" | "no_vocab" => " (no tokenizer)",
        _ => "",
    };
    format!("expected gpt2, llama or gemma4, found {}{what}; give token ids instead of text", quote(model))
}

/// The way to cut of that name.
fn way_to_cut(keys: &Keys<'_>, name: Option<&str>) -> Result<&'static Pre> {
    let name = name.ok_or_else(|| {
        keys.wrong(
            PRE,
            "missing; it says how a text is cut: convert the model again, or give token ids instead of text",
        )
    })?;
    pre::named(name).ok_or_else(|| {
        let known: Vec<&str> = pre::names().collect();
        let message = format!(
            "expected a way to cut a text that is known here, found {}; give token ids instead of text. Known: {}",
            quote(name),
            known.join(", ")
        );
        keys.wrong(PRE, &message)
    })
}

fn bpe(keys: &Keys<'_>, pre: &Pre, ids: &HashMap<String, u32>) -> Result<Bpe> {
    let merges = keys.texts(MERGES)?.ok_or_else(|| keys.wrong(MERGES, "missing; it says what is joined first"))?;
    Bpe::new(pre, ids, merges.into_iter()).map_err(|e| keys.wrong(MERGES, &format!("{e:#}")))
}

/// The ids of special tokens, the longest first.
fn special(keys: &Keys<'_>, tokens: &[String], kinds: &[Kind], ids: &HashMap<String, u32>) -> Vec<u32> {
    let mut names: BTreeSet<&str> = ENDS.iter().chain(CHANNELS).copied().collect();
    for (said, fills) in FILLS {
        if !said.iter().any(|key| keys.keys.contains_key(*key)) {
            names.extend(*fills);
        }
    }
    // Beside these `</s>` is a tag of HTML.
    let tag = ["<|tool_response>", "<|plamo:eos|>"].iter().any(|token| ids.contains_key(*token));
    let is_special = |&id: &u32| {
        let (token, kind) = (tokens[id as usize].as_str(), kinds[id as usize]);
        let typed = matches!(kind, Kind::Unknown | Kind::Control | Kind::UserDefined);
        if token == "</s>" && tag { false } else { typed || names.contains(token) }
    };
    let mut special: Vec<u32> = (0..tokens.len() as u32).filter(is_special).collect();
    special.sort_by_key(|&id| std::cmp::Reverse(tokens[id as usize].len()));
    special
}

/// The special tokens of Phi-3 that take the white space behind them: no key says so.
fn strip(keys: &Keys<'_>, tokens: &[String], special: &[u32]) -> BTreeSet<u32> {
    let name = keys.keys.get("general.name").and_then(Value::as_text).unwrap_or_default().to_lowercase();
    if !["phi-3", "phi3"].iter().any(|phi| name.contains(phi)) {
        return BTreeSet::new();
    }
    let kept = |id: &u32| !["<unk>", "<s>", "<|endoftext|>"].contains(&tokens[*id as usize].as_str());
    special.iter().copied().filter(kept).collect()
}
