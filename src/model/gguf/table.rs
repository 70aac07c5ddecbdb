//! The `[gguf]` table of a pack, and what holds for all of them: packs/gguf.toml.

use crate::model::pack::{Names, Tensors};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What a pack says about GGUF files of its family.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Values of `general.architecture` that the pack answers for.
    pub architectures: Vec<String>,
    /// Keys (without the architecture in front) without which, or where they are zero, another pack answers; with `=N`
    /// behind it that is all but this number. Of two packs the one answers that needs more.
    #[serde(default)]
    pub needs: Vec<String>,
    /// What the converter does to tensors.
    #[serde(default)]
    pub undo: Vec<Undo>,
    /// Config keys whose values the architecture means, without the file saying so.
    #[serde(default)]
    pub set: toml::Table,
    /// Config keys and their values where the file doesn't say otherwise.
    #[serde(default)]
    pub absent: toml::Table,
    /// Config keys that are `null` where the file doesn't say otherwise.
    #[serde(default)]
    pub null: Vec<String>,
    /// Keys (without the architecture in front) and the config keys that they give, before those of packs/gguf.toml.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// What a layer without key/value heads is, or one that the file calls recurrent, as `layer_types` says it.
    pub other_layers: Option<String>,
    /// Keys (without the architecture in front) that change nothing in this family.
    #[serde(default)]
    pub inert: Vec<String>,
    /// Keys (without the architecture in front) that change nothing in this family with one of these values.
    #[serde(default)]
    pub only: BTreeMap<String, Vec<serde_json::Value>>,
    /// Stored tensors and the parts that they play in this family, before those of packs/gguf.toml.
    #[serde(default)]
    pub tensors: BTreeMap<String, String>,
    /// `query_pre_attn_scalar` isn't in a file: it is `hidden_size / num_attention_heads` in the family's model with so
    /// many layers, `head_dim` in all others.
    pub query_scalar_of_heads: Option<u64>,
    /// What the architecture means in a model of a certain size.
    #[serde(default)]
    pub when: Vec<When>,
}

/// Config keys and values that hold where a key (without the architecture in front) has a number.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    pub key: String,
    pub is: u64,
    pub set: toml::Table,
}

/// What a converter did, and reading undoes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub enum Undo {
    /// Of each head of q and k, the rows of the two halves in turn: for RoPE on neighbouring pairs.
    #[serde(rename = "q and k by pairs")]
    Pairs,
    /// Weights of norms, plus one.
    #[serde(rename = "norms plus one")]
    PlusOne,
    /// `[channels, kernel]` for `[channels, 1, kernel]`.
    #[serde(rename = "convolutions squeezed")]
    Squeezed,
    /// Of the delta rule, the first value head of each key head, then the second of each, and so on.
    #[serde(rename = "value heads by turns")]
    Turns,
}

/// packs/gguf.toml.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Common {
    pub inert: Vec<String>,
    pub inert_of_architecture: Vec<String>,
    pub only: BTreeMap<String, Vec<serde_json::Value>>,
    /// Architectures whose files lack something, and the sentence that says what.
    pub refuse: BTreeMap<String, String>,
    pub fields: BTreeMap<String, Vec<String>>,
    pub flags: BTreeMap<String, Vec<String>>,
    pub rows: BTreeMap<String, String>,
    pub model: BTreeMap<String, Vec<String>>,
    pub layer: BTreeMap<String, Vec<String>>,
}

impl Common {
    pub fn embedded() -> &'static Common {
        static COMMON: OnceLock<Common> = OnceLock::new();
        COMMON
            .get_or_init(|| toml::from_str(include_str!("../../../packs/gguf.toml")).expect("packs/gguf.toml is sound"))
    }

    /// Whether a stored tensor plays a part in a family.
    pub fn plays(&self, stored: &str, family: &Tensors) -> bool {
        let of = |table: &BTreeMap<String, Vec<String>>, names: &BTreeMap<String, Names>| {
            let (stem, suffix) = match stored.rsplit_once('.') {
                _ if table.contains_key(stored) => (stored, ""),
                Some((stem, "bias")) => (stem, "_bias"),
                Some((stem, _)) => (stem, ""),
                None => (stored, ""),
            };
            table.get(stem).is_some_and(|roles| roles.iter().any(|role| names.contains_key(&format!("{role}{suffix}"))))
        };
        of(&self.layer, &family.layer) || of(&self.model, &family.model)
    }

    /// Whether a key changes nothing, whatever its value.
    pub fn is_inert(&self, key: &str) -> bool {
        self.inert.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(start) => key.starts_with(start),
            None => key == pattern,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::schema;

    #[test]
    fn the_common_table_speaks_of_fields_and_parts_that_there_are() {
        let common = Common::embedded();
        let fields = common.fields.values().flatten().chain(common.flags.keys()).chain(common.rows.keys());
        fields.for_each(|name| assert!(schema::is_field(name), "{name}"));
        common.model.values().flatten().for_each(|role| assert!(schema::is_model_role(role), "{role}"));
        common.layer.values().flatten().for_each(|role| assert!(schema::is_role(role), "{role}"));
    }

    #[test]
    fn a_key_is_inert_by_its_name_or_its_start() {
        let common = Common::embedded();
        assert!(common.is_inert("general.name") && common.is_inert("tokenizer.ggml.tokens"));
        assert!(!common.is_inert("llama.block_count") && !common.is_inert("generally"));
    }
}
