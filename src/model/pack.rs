//! A pack: one model family as data.

use super::schema;
use crate::Problem;
use crate::checkpoint::files::read_small;
use crate::problem::quote;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

/// The packs in the binary, in the order in which they are listed. `like` may only refer to an earlier one.
const EMBEDDED: [&str; 4] = [
    include_str!("../../packs/llama.toml"),
    include_str!("../../packs/mistral.toml"),
    include_str!("../../packs/qwen2.toml"),
    include_str!("../../packs/qwen3.toml"),
];

/// What a family's configs and tensors mean.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    pub name: String,
    /// For a person: which published models these are.
    pub title: String,
    /// Another pack, whose fields and tensors hold where this one says nothing.
    pub like: Option<String>,
    /// Values of `model_type` that this pack answers for.
    pub model_types: Vec<String>,
    /// Values of `architectures` that this pack answers for.
    pub architectures: Vec<String>,
    /// Config keys that change nothing, beside those of packs/inert.toml.
    #[serde(default)]
    pub inert: Vec<String>,
    /// Where the fields of a plan come from.
    #[serde(default)]
    pub fields: BTreeMap<String, Field>,
    #[serde(default)]
    pub tensors: Tensors,
    #[serde(default)]
    pub self_test: SelfTest,
}

/// What `oracle self-test` runs for a pack.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SelfTest {
    /// The config of a tiny checkpoint, whose weights are made in code.
    pub config: toml::Table,
    pub tokens: Vec<u32>,
    /// Of the logits' bits (f32, little endian) at all positions: the same on every machine.
    pub logits_sha256: String,
    /// Further checkpoints by name, on which faults are tried (`oracle self-test --mutants`): config keys that replace
    /// those of `config`.
    #[serde(default)]
    pub further: BTreeMap<String, toml::Table>,
}

/// Where one field of a plan comes from.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "FieldText")]
pub struct Field {
    /// The config key.
    pub key: Option<String>,
    /// The value where the config has no such key.
    pub default: Option<toml::Value>,
    /// The field whose value holds where the config has no such key.
    pub default_from: Option<String>,
    /// The field whose value holds where the key is `null` (without it, `null` is as good as absent).
    pub null_from: Option<String>,
    /// The value for every model of the family.
    pub value: Option<toml::Value>,
    /// A named rule: `model::schema` lists them.
    pub rule: Option<String>,
}

/// As written: a key alone, or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a config key, or a table of key, default, default_from, null_from, value and rule"
)]
enum FieldText {
    Key(String),
    Table(FieldTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldTable {
    key: Option<String>,
    default: Option<toml::Value>,
    default_from: Option<String>,
    null_from: Option<String>,
    value: Option<toml::Value>,
    rule: Option<String>,
}

impl From<FieldText> for Field {
    fn from(text: FieldText) -> Self {
        match text {
            FieldText::Key(key) => Field { key: Some(key), ..Field::default() },
            FieldText::Table(FieldTable { key, default, default_from, null_from, value, rule }) => {
                Field { key, default, default_from, null_from, value, rule }
            }
        }
    }
}

/// Tensor names as templates: `{prefix}` is one of `prefixes`, `{layer}` a layer's index.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensors {
    /// The first one under which the checkpoint has the embedding is used for all names.
    #[serde(default)]
    pub prefixes: Vec<String>,
    #[serde(default)]
    pub embed: String,
    #[serde(default)]
    pub norm: String,
    #[serde(default)]
    pub head: String,
    /// Tensors that a text forward pass doesn't read.
    #[serde(default)]
    pub ignorable: Vec<String>,
    /// Per layer: the semantic name (that of the plan's field) and its template.
    #[serde(default)]
    pub layer: BTreeMap<String, String>,
}

/// Config keys without numeric effect in any family: packs/inert.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inert {
    /// Whatever their value.
    pub any: Vec<String>,
    /// With one of these values only.
    pub only: BTreeMap<String, Vec<serde_json::Value>>,
}

impl Inert {
    pub fn embedded() -> &'static Inert {
        static INERT: OnceLock<Inert> = OnceLock::new();
        INERT.get_or_init(|| toml::from_str(include_str!("../../packs/inert.toml")).expect("packs/inert.toml is sound"))
    }
}

impl Pack {
    /// The packs in the binary.
    pub fn embedded() -> &'static [Pack] {
        static PACKS: OnceLock<Vec<Pack>> = OnceLock::new();
        PACKS.get_or_init(|| {
            let mut packs: Vec<Pack> = Vec::new();
            for text in EMBEDDED {
                packs.push(Pack::parse(text, &packs).expect("an embedded pack is sound"));
            }
            packs
        })
    }

    /// Reads a pack of the user's.
    ///
    /// # Errors
    /// The file can't be read, isn't TOML, or isn't a pack.
    pub fn read(path: &Path) -> Result<Pack, Problem> {
        /// Ours take two kilobytes.
        const LIMIT: u64 = 1_000_000;
        let problem = |message: String| Problem::new("pack", path.display().to_string(), message);
        let text = String::from_utf8(read_small(path, LIMIT)?).map_err(|_| problem("is not UTF-8 text".into()))?;
        Pack::parse(&text, Pack::embedded()).map_err(problem)
    }

    /// `others` are the packs that `like` may name.
    fn parse(text: &str, others: &[Pack]) -> Result<Pack, String> {
        let mut pack: Pack = toml::from_str(text).map_err(|error| {
            let place = error.span().map_or(String::new(), |span| {
                let line = text.bytes().take(span.start).filter(|&b| b == b'\n').count();
                let entry = text.lines().nth(line).unwrap_or_default().trim();
                if entry.is_empty() {
                    format!("line {}: ", line + 1)
                } else {
                    format!("line {}, {}: ", line + 1, quote(entry))
                }
            });
            format!("{place}{}", error.message())
        })?;
        if let Some(like) = &pack.like {
            let base = others.iter().find(|p| p.name == *like).ok_or_else(|| {
                let known: Vec<&str> = others.iter().map(|p| p.name.as_str()).collect();
                format!("like = \"{like}\": there is no such pack; there are {}", known.join(", "))
            })?;
            pack.inherit(base);
        }
        schema::check(&pack)?;
        Ok(pack)
    }

    fn inherit(&mut self, base: &Pack) {
        fn fill<V: Clone>(own: &mut BTreeMap<String, V>, base: &BTreeMap<String, V>) {
            for (name, value) in base {
                own.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
        fill(&mut self.fields, &base.fields);
        fill(&mut self.tensors.layer, &base.tensors.layer);
        let (own, base) = (&mut self.tensors, &base.tensors);
        for (own, base) in [(&mut own.prefixes, &base.prefixes), (&mut own.ignorable, &base.ignorable)] {
            if own.is_empty() {
                own.clone_from(base);
            }
        }
        for (own, base) in [(&mut own.embed, &base.embed), (&mut own.norm, &base.norm), (&mut own.head, &base.head)] {
            if own.is_empty() {
                own.clone_from(base);
            }
        }
    }
}
