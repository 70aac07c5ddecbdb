//! A pack: one model family as data.

use super::gguf;
use super::schema;
use crate::Problem;
use crate::checkpoint::files::read_small;
use crate::problem::{self, quote};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

// Name and text of each file in packs/, by name.
include!(concat!(env!("OUT_DIR"), "/packs.rs"));

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
    /// Why a checkpoint of this type can't be run: one sentence, which is all that the pack has to say then.
    pub refuse: Option<String>,
    /// Config keys that change nothing, beside those of packs/inert.toml.
    #[serde(default)]
    pub inert: Vec<String>,
    /// Config keys that change nothing with one of these values, or a list of such, and something with any other.
    #[serde(default)]
    pub only: BTreeMap<String, Vec<serde_json::Value>>,
    /// Keys of token ids that stand for an image, a sound or a film: a text run refuses them.
    #[serde(default)]
    pub placeholder_tokens: Vec<String>,
    /// For a folder of several models: where its language model's keys stand.
    pub text: Option<Text>,
    /// Where the fields of a plan come from.
    #[serde(default)]
    pub fields: BTreeMap<String, Field>,
    #[serde(default)]
    pub tensors: Tensors,
    /// How a GGUF file of the family is read; without it there is none.
    pub gguf: Option<gguf::Table>,
    /// Fixtures (fixtures/NAME) whose logits transformers computed: what the family is verified with.
    #[serde(default)]
    pub fixtures: Vec<String>,
    #[serde(default)]
    pub self_test: SelfTest,
}

/// The language model inside a folder of several models: another pack reads its config.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// The key under which its config stands.
    pub config: String,
    /// Its `model_type` where its config has none.
    pub model_type: String,
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
    /// The config key, with its older spellings; `a.b` is key b of object a.
    pub keys: Vec<String>,
    /// The value where the config has no such key.
    pub default: Option<toml::Value>,
    /// The field whose value holds where the config has no such key.
    pub default_from: Option<String>,
    /// The field whose value holds where the key is `null` (without it, `null` is as good as absent).
    pub null_from: Option<String>,
    /// `null` means that the model has no such thing, whatever holds where the key is absent.
    pub null_is_none: bool,
    /// The value for every model of the family.
    pub value: Option<toml::Value>,
    /// A named rule: `model::schema` lists them.
    pub rule: Option<String>,
}

/// As written: a key alone, or a table.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected the name of a config key, or a table of key, default, default_from, null_from, null_is_none, value and rule"
)]
enum FieldText {
    Key(String),
    Table(FieldTable),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldTable {
    key: Option<OneOrMore>,
    default: Option<toml::Value>,
    default_from: Option<String>,
    null_from: Option<String>,
    #[serde(default)]
    null_is_none: bool,
    value: Option<toml::Value>,
    rule: Option<String>,
}

/// The name of a tensor as a template, or several: the first one that the checkpoint has, else the first.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "OneOrMore")]
pub struct Names(pub Vec<String>);

impl From<OneOrMore> for Names {
    fn from(text: OneOrMore) -> Self {
        Self(text.into())
    }
}

impl Names {
    /// An empty name takes a part away that another pack has.
    fn is_empty(&self) -> bool {
        self.0.iter().all(String::is_empty)
    }
}

/// A text, or a list of them.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of texts")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl From<OneOrMore> for Vec<String> {
    fn from(text: OneOrMore) -> Self {
        match text {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }
}

impl From<FieldText> for Field {
    fn from(text: FieldText) -> Self {
        match text {
            FieldText::Key(key) => Field { keys: vec![key], ..Field::default() },
            FieldText::Table(FieldTable { key, default, default_from, null_from, null_is_none, value, rule }) => {
                let keys = key.map_or_else(Vec::new, Vec::from);
                Field { keys, default, default_from, null_from, null_is_none, value, rule }
            }
        }
    }
}

/// Tensor names as templates: `{prefix}` is one of `prefixes`, `{layer}` a layer's index, `{expert}` an expert's, `{head}`
/// an attention head's.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Tensors {
    /// The first one under which the checkpoint has the embedding is used for all names.
    #[serde(default)]
    pub prefixes: Vec<String>,
    /// Outside the layers: the semantic name and its template.
    #[serde(flatten)]
    pub model: BTreeMap<String, Names>,
    /// Tensors that a text forward pass doesn't read: what they are, and their templates. `{layer}` is any number,
    /// `{beyond}` that of one of the `num_mtp_layers` layers after the last, a final `*` anything.
    #[serde(default)]
    pub ignorable: BTreeMap<String, Vec<String>>,
    /// Per layer: the semantic name (that of the plan's field) and its template.
    #[serde(default)]
    pub layer: BTreeMap<String, Names>,
}

impl Tensors {
    /// These names in a folder of several models: the folder's own where it has some.
    pub fn under(&self, folder: &Tensors) -> Tensors {
        let mut all = self.clone();
        if !folder.prefixes.is_empty() {
            all.prefixes.clone_from(&folder.prefixes);
        }
        all.model.extend(folder.model.clone());
        all.ignorable.extend(folder.ignorable.clone());
        all
    }
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

/// "; the nearest are a, b, c (oracle packs lists all)"
fn nearest(name: &str, packs: &[Pack]) -> String {
    let known = packs.iter().map(|pack| pack.name.as_str());
    format!("{} (oracle packs lists all)", problem::nearest(name, known))
}

impl Pack {
    /// The packs in the binary.
    pub fn embedded() -> &'static [Pack] {
        static PACKS: OnceLock<Vec<Pack>> = OnceLock::new();
        PACKS.get_or_init(|| {
            let mut packs: Vec<Pack> = Vec::new();
            // A pack is ready once the one that it is like is: every round gets on, since no two are like each other.
            let mut waiting = EMBEDDED.to_vec();
            while !waiting.is_empty() {
                let before = waiting.len();
                waiting.retain(|(name, text)| match Pack::parse(text, &packs) {
                    Ok(pack) => {
                        assert_eq!(pack.name, *name, "an embedded pack is called as its file");
                        packs.push(pack);
                        false
                    }
                    Err(_) => true,
                });
                if waiting.len() == before {
                    let (name, text) = waiting[0];
                    panic!("packs/{name}.toml: {}", Pack::parse(text, &packs).expect_err("it has just failed"));
                }
            }
            packs.sort_by(|a, b| a.name.cmp(&b.name));
            packs
        })
    }

    /// This pack, then those in the binary: of a folder of several models another pack reads the language model's config.
    pub fn and_embedded(&self) -> Vec<Pack> {
        [std::slice::from_ref(self), Pack::embedded()].concat()
    }

    /// The built-in pack of this name.
    ///
    /// # Errors
    /// There is none; a sentence with the nearest names.
    pub fn named(name: &str) -> Result<&'static Pack, String> {
        let found = Self::embedded().iter().find(|pack| pack.name == name);
        found.ok_or_else(|| format!("no pack {}{}", quote(name), nearest(name, Self::embedded())))
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
            let base = others
                .iter()
                .find(|p| p.name == *like)
                .ok_or_else(|| format!("like = \"{like}\": there is no such pack{}", nearest(like, others)))?;
            let base = base.clone();
            pack.inherit(&base);
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
        // An empty key takes a field away that the other pack has.
        self.fields.retain(|_, field| !(field.keys.len() == 1 && field.keys[0].is_empty()));
        fill(&mut self.only, &base.only);
        let (own, base) = (&mut self.tensors, &base.tensors);
        fill(&mut own.model, &base.model);
        fill(&mut own.layer, &base.layer);
        fill(&mut own.ignorable, &base.ignorable);
        own.model.retain(|_, names| !names.is_empty());
        own.layer.retain(|_, names| !names.is_empty());
        if own.prefixes.is_empty() {
            own.prefixes.clone_from(&base.prefixes);
        }
    }
}
