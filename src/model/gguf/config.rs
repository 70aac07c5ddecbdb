//! Metadata to config keys.

use super::Reading;
use super::rope;
use super::table::Common;
use crate::checkpoint::Source;
use crate::checkpoint::gguf::Value;
use crate::model::{rules, schema};
use crate::problem::{Problem, quote};
use serde_json::{Map, json};
use std::collections::{BTreeMap, BTreeSet};

type Json = serde_json::Value;

const HEADS_KV: &str = "attention.head_count_kv";

/// The config that is being made, and which keys of the file are in it.
pub(super) struct Making<'a> {
    pub reading: &'a Reading<'a>,
    pub root: Map<String, Json>,
    /// Config keys and the file's keys that gave them.
    origins: BTreeMap<String, String>,
    /// Keys without the architecture in front.
    used: BTreeSet<String>,
    pub problems: &'a mut Vec<Problem>,
    pub notes: &'a mut Vec<Problem>,
}

/// Makes a config of a file's metadata. A key that isn't understood is in it under the file's own name.
pub(super) fn translate(
    reading: &Reading<'_>,
    problems: &mut Vec<Problem>,
    notes: &mut Vec<Problem>,
) -> (Map<String, Json>, BTreeMap<String, String>) {
    let mut making =
        Making { reading, root: Map::new(), origins: BTreeMap::new(), used: BTreeSet::new(), problems, notes };
    if let Some(model_type) = reading.pack.model_types.first() {
        making.root.insert("model_type".into(), json!(model_type));
    }
    let sized = reading.table.when.iter().filter(|when| reading.count(&when.key) == Some(when.is));
    for (key, value) in reading.table.set.iter().chain(sized.flat_map(|when| &when.set)) {
        making.write(key, serde_json::to_value(value).unwrap_or_default());
    }
    making.vocabulary();
    making.layers();
    making.latent();
    making.mixers();
    making.state();
    making.heads();
    making.switches();
    making.rows();
    making.windows();
    making.experts();
    making.sparsity();
    making.positions();
    rope::translate(&mut making);
    making.fields();
    for (key, value) in &reading.table.absent {
        let value = serde_json::to_value(value).unwrap_or_default();
        making.root.entry(key.clone()).or_insert(value);
    }
    for key in &reading.table.null {
        making.root.entry(key.clone()).or_insert(Json::Null);
    }
    making.rest();
    (making.root, making.origins)
}

impl<'a> Making<'a> {
    /// The value of a key, which counts as used from now on.
    pub fn take(&mut self, key: &str) -> Option<&'a Value> {
        let value = self.reading.get(key)?;
        self.used.insert(key.to_owned());
        Some(value)
    }

    /// Says that what a key's value is can't be.
    pub fn wrong(&mut self, key: &str, expected: &str) {
        if let Some(value) = self.take(key) {
            let key = format!("{}.{key}", self.reading.architecture);
            let problem = self.reading.problem("gguf-key", &key, format!("expected {expected}, found {value}"));
            self.problems.push(problem);
        }
    }

    /// Takes a key's value as that of a config key.
    pub fn pass(&mut self, key: &str, name: &str) {
        if let Some(value) = self.take(key) {
            self.write(name, value.to_json());
            self.came_from(name, key);
        }
    }

    pub fn came_from(&mut self, name: &str, key: &str) {
        self.origins.insert(name.to_owned(), format!("{}.{key}", self.reading.architecture));
    }

    /// Writes a config key; `a.b` is key b of object a.
    pub fn write(&mut self, key: &str, value: Json) {
        match key.split_once('.') {
            Some((object, key)) => {
                if let Json::Object(object) = self.root.entry(object).or_insert_with(|| json!({})) {
                    object.insert(key.to_owned(), value);
                }
            }
            None => {
                self.root.insert(key.to_owned(), value);
            }
        }
    }

    /// What a config key has so far; `a.b` is key b of object a.
    fn value(&self, key: &str) -> Option<&Json> {
        match key.split_once('.') {
            Some((object, key)) => self.root.get(object)?.get(key),
            None => self.root.get(key),
        }
    }

    /// Gives a field of the plan its value, from `key`. Returns whether the pack has that field.
    fn give(&mut self, field: &str, value: Json, key: &str) -> bool {
        let Some(described) = self.reading.pack.fields.get(field) else { return false };
        if let Some(name) = described.keys.first() {
            let other = self.value(name).filter(|other| !same(other, &value)).cloned();
            match other {
                // `set` of the pack's table: the file says something else.
                Some(other) => self.wrong(key, &other.to_string()),
                None => {
                    self.write(name, value);
                    self.came_from(name, key);
                }
            }
            return true;
        }
        let Some(constant) = &described.value else { return false };
        let constant = serde_json::to_value(constant).unwrap_or_default();
        if !same(&constant, &value) {
            self.wrong(key, &format!("{constant}, as in every model of this family"));
        }
        true
    }

    /// The number of tokens: of rows of the embedding, as far as they have a token.
    fn vocabulary(&mut self) {
        const TOKENS: &str = "tokenizer.ggml.tokens";
        let Some(rows) = self.reading.gguf.tensors().get("token_embd.weight").and_then(|t| t.shape.first()) else {
            return;
        };
        let rows = *rows as u64;
        let tokens = self.reading.gguf.metadata().get(TOKENS).and_then(Value::list_len);
        let path = self.reading.gguf.path().display();
        if let Some(tokens) = tokens.filter(|&tokens| tokens > rows) {
            let message = format!("expected one for each of the {rows} rows of token_embd.weight, found {tokens}");
            self.problems.push(self.reading.problem("gguf-key", TOKENS, message));
        }
        if let Some(tokens) = tokens.filter(|&tokens| tokens < rows) {
            let message = format!("has {rows} rows for {tokens} tokens: those beyond the last token are not used");
            self.notes.push(Problem::new("gguf-padded", format!("{path}, tensor `token_embd.weight`"), message));
        }
        if let Some(stated) = self.reading.count("vocab_size") {
            if stated == rows || Some(stated) == tokens {
                self.take("vocab_size");
            } else {
                self.wrong("vocab_size", &format!("{rows}, the rows of token_embd.weight"));
            }
        }
        let vocabulary = tokens.map_or(rows, |tokens| tokens.min(rows));
        self.give("vocab_size", json!(vocabulary), "vocab_size");
    }

    /// The number of layers, without those that predict further tokens.
    fn layers(&mut self) {
        const FURTHER: &str = "nextn_predict_layers";
        let Some(count) = self.reading.layers() else { return };
        self.take("block_count");
        self.give("num_hidden_layers", json!(count), "block_count");
        if !self.has("num_mtp_layers") && self.reading.further().is_some() {
            self.take(FURTHER);
        }
    }

    /// What each layer is, where a file says which ones have no attention.
    fn mixers(&mut self) {
        const RECURRENT: &str = "attention.recurrent_layers";
        let Some(other) = &self.reading.table.other_layers else { return };
        let layers = self.reading.layers().and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let of = |kinds: Vec<bool>| -> Json {
            let kind = |&full: &bool| if full { "full_attention" } else { other.as_str() };
            kinds.iter().take(layers).map(kind).collect()
        };
        if let Some(Value::List(list)) = self.reading.get(RECURRENT)
            && list.iter().all(|value| matches!(value, Value::Flag(_)))
        {
            self.take(RECURRENT);
            self.write("layer_types", of(list.iter().map(|value| *value == Value::Flag(false)).collect()));
            self.came_from("layer_types", RECURRENT);
            self.take("full_attention_interval");
        } else if self.reading.get("full_attention_interval").is_some() {
            self.pass("full_attention_interval", "full_attention_interval");
        }
        // Zero key/value heads are a layer without attention.
        let Some(Value::List(list)) = self.reading.get(HEADS_KV) else { return };
        let heads: BTreeSet<Option<u64>> = list.iter().map(Value::as_count).filter(|n| *n != Some(0)).collect();
        match heads.first() {
            Some(Some(heads_kv)) if heads.len() == 1 => {
                self.take(HEADS_KV);
                self.write("layer_types", of(list.iter().map(|value| value.as_count() != Some(0)).collect()));
                self.came_from("layer_types", HEADS_KV);
                if !self.has("kv_lora_rank") {
                    self.give("num_key_value_heads", json!(heads_kv), HEADS_KV);
                }
            }
            _ => self.wrong(HEADS_KV, "zeros and one other number"),
        }
    }

    /// Layers with a state: how wide their heads are.
    fn state(&mut self) {
        const INNER: &str = "ssm.inner_size";
        let reading = self.reading;
        let (Some(inner), Some(heads)) = (reading.count(INNER), reading.count("ssm.time_step_rank")) else { return };
        if !self.has("state_head_dim") || heads == 0 || !inner.is_multiple_of(heads) {
            return;
        }
        self.take(INNER);
        self.give("state_head_dim", json!(inner / heads), INNER);
        if let Some(width) = reading.count("embedding_length").filter(|&n| n > 0 && inner.is_multiple_of(n))
            && self.has("expand")
        {
            self.give("expand", json!(inner / width), INNER);
        }
    }

    /// What only the shape of a tensor says.
    fn rows(&mut self) {
        for (field, tensor) in &Common::embedded().rows {
            let is_it = |name: &str| {
                let inside = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
                name == tensor || inside.is_some_and(|(_, rest)| rest == tensor)
            };
            let stored = self.reading.gguf.tensors().values().find(|info| is_it(&info.name));
            let Some(rows) = stored.and_then(|info| info.shape.first()) else { continue };
            let Some(key) = self.reading.pack.fields.get(field).and_then(|field| field.keys.first()) else { continue };
            if self.value(key).is_none() {
                self.write(key, json!(rows));
            }
        }
    }

    /// Whether the pack has a field.
    pub fn has(&self, field: &str) -> bool {
        self.reading.pack.fields.contains_key(field)
    }

    /// Latent attention: a file says how wide heads are once their keys are worked out, and calls what is stored of a
    /// token one key/value head. An older file has the first alone, under the usual keys.
    fn latent(&mut self) {
        const KEY: &str = "attention.key_length_mla";
        const ROTATED: &str = "rope.dimension_count";
        if !self.has("kv_lora_rank") {
            return;
        }
        let reading = self.reading;
        let (key, value) = match reading.get(KEY) {
            Some(_) => (KEY, "attention.value_length_mla"),
            None => ("attention.key_length", "attention.value_length"),
        };
        let (width, rotated) = (reading.count(key), reading.count(ROTATED));
        if let (Some(width), Some(rotated)) = (width, rotated) {
            match width.checked_sub(rotated).filter(|&rest| rest > 0) {
                Some(rest) => {
                    self.take(key);
                    self.take(ROTATED);
                    self.give("qk_nope_head_dim", json!(rest), key);
                    self.give("qk_rope_head_dim", json!(rotated), ROTATED);
                }
                None => self.wrong(key, &format!("more than {ROTATED}, {rotated}")),
            }
        }
        if let Some(width) = self.take(value) {
            self.give("v_head_dim", width.to_json(), value);
        }
        let rank = reading.count("attention.kv_lora_rank").unwrap_or(0);
        for (key, stored) in [
            (HEADS_KV, 1),
            ("attention.key_length", rank.saturating_add(rotated.unwrap_or(0))),
            ("attention.value_length", rank),
        ] {
            if reading.get(KEY).is_some() && reading.count(key) == Some(stored) {
                self.take(key);
            }
        }
    }

    fn heads(&mut self) {
        // A list of one number for all layers.
        if let Some(Value::List(list)) = self.reading.get(HEADS_KV)
            && let Some(heads) = list.first().and_then(Value::as_count).filter(|&n| n > 0)
            && list.iter().all(|value| value.as_count() == Some(heads))
            && !self.used.contains(HEADS_KV)
        {
            self.take(HEADS_KV);
            self.give("num_key_value_heads", json!(heads), HEADS_KV);
        }
        self.multi_query();
        self.two_widths();
        let (Some(width), Some(heads)) =
            (self.reading.count("embedding_length"), self.reading.count("attention.head_count"))
        else {
            return;
        };
        let share = if heads > 0 && width % heads == 0 { Some(width / heads) } else { None };
        let head_dim = self.reading.count("attention.key_length").or(share);
        let keyless = self.reading.pack.fields.get("head_dim").is_some_and(|field| field.keys.is_empty());
        if self.reading.get("attention.key_length").is_some() && keyless && head_dim == share {
            self.take("attention.key_length");
        }
        if self.reading.get("attention.value_length").is_some()
            && self.reading.count("attention.value_length") == head_dim
        {
            self.take("attention.value_length");
        }
        if let Some(layers) = self.reading.table.query_scalar_of_heads {
            let scalar = if self.reading.count("block_count") == Some(layers) { share } else { head_dim };
            self.give("query_pre_attn_scalar", json!(scalar), "attention.key_length");
        }
    }

    /// Layers that see everything have heads of another width than sliding ones, and perhaps another number of keys.
    fn two_widths(&mut self) {
        const FULL: &str = "attention.key_length";
        const SLIDING: &str = "attention.key_length_swa";
        if !self.has("full_head_dim") {
            return;
        }
        let reading = self.reading;
        for (field, key, value) in
            [("full_head_dim", FULL, "attention.value_length"), ("head_dim", SLIDING, "attention.value_length_swa")]
        {
            let Some(width) = self.take(key) else { continue };
            self.give(field, width.to_json(), key);
            if reading.get(value) == Some(width) {
                self.take(value);
            }
        }
        let tensors = reading.gguf.tensors();
        let without_values = |name: &String| {
            let layer = name.strip_suffix("attn_k.weight");
            layer.is_some_and(|layer| !tensors.contains_key(&format!("{layer}attn_v.weight")))
        };
        if let Some(key) = reading.pack.fields.get("attention_k_eq_v").and_then(|field| field.keys.first()) {
            self.write(key, json!(tensors.keys().any(without_values)));
        }
        if let (Some(Value::List(kv)), Some(Value::List(sliding))) =
            (reading.get(HEADS_KV), reading.get("attention.sliding_window_pattern"))
        {
            let of = |slides: bool| {
                let layers = kv.iter().zip(sliding).filter(|(_, slide)| **slide == Value::Flag(slides));
                let heads: BTreeSet<Option<u64>> = layers.map(|(n, _)| n.as_count()).collect();
                heads.first().copied().flatten().filter(|_| heads.len() == 1)
            };
            match (of(true), of(false), kv.len() == sliding.len()) {
                (Some(slides), Some(full), true) => {
                    self.take(HEADS_KV);
                    self.give("num_key_value_heads", json!(slides), HEADS_KV);
                    self.give("full_num_key_value_heads", json!(full), HEADS_KV);
                }
                _ => self.wrong(HEADS_KV, "one number for sliding layers and one for the others"),
            }
        }
        self.double_width();
        if reading.pack.fields.get("moe_layers").and_then(|field| field.rule.as_deref()) == Some(rules::ENABLED) {
            let experts = reading.count("expert_count").is_some_and(|n| n > 0);
            self.write(rules::ENABLED, json!(experts));
        }
    }

    /// Last layers, those that read others' keys and values, whose MLPs are twice as wide.
    fn double_width(&mut self) {
        const WIDTH: &str = "feed_forward_length";
        let Some(Value::List(list)) = self.reading.get(WIDTH).filter(|_| self.has("double_wide_shared")) else {
            return;
        };
        let widths: Vec<Option<u64>> = list.iter().map(Value::as_count).collect();
        let shared =
            self.reading.count("attention.shared_kv_layers").and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let Some(Some(narrow)) = widths.first().copied() else { return };
        let expected = |twice: bool| {
            (0..widths.len()).all(|i| {
                let wide = twice && i + shared >= widths.len();
                widths[i] == narrow.checked_mul(if wide { 2 } else { 1 })
            })
        };
        match (expected(false), expected(true)) {
            (false, false) => self.wrong(WIDTH, "one number, or twice it in the layers of attention.shared_kv_layers"),
            (same, _) => {
                self.take(WIDTH);
                self.give("intermediate_size", json!(narrow), WIDTH);
                self.give("double_wide_shared", json!(!same), WIDTH);
            }
        }
    }

    /// Falcon's two architectures: the new one has groups of heads, and often a norm for each branch.
    fn multi_query(&mut self) {
        let rule = self.reading.pack.fields.get("num_key_value_heads").and_then(|field| field.rule.as_deref());
        let (heads, kv) = (self.reading.count("attention.head_count"), self.reading.count(HEADS_KV));
        let (Some(schema::MULTI_QUERY), Some(heads), Some(kv)) = (rule, heads, kv) else { return };
        let two = self.reading.gguf.tensors().contains_key("blk.0.attn_norm_2.weight");
        self.write(schema::MULTI_QUERY, json!(kv == 1));
        self.write(schema::NEW_DECODER, json!(two || 1 < kv && kv < heads));
        self.write(schema::NUM_LN, json!(if two { 2 } else { 1 }));
    }

    /// Switches that the file sets by having tensors.
    fn switches(&mut self) {
        let tensors = self.reading.gguf.tensors();
        let tied = !tensors.contains_key("output.weight");
        if let Some(key) = self.reading.pack.fields.get("tie_word_embeddings").and_then(|field| field.keys.first()) {
            self.write(key, json!(tied));
        }
        let has = |name: &String| {
            let in_a_layer = |stored: &String| {
                let rest = stored.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
                rest.is_some_and(|(_, rest)| rest == name)
            };
            tensors.contains_key(name) || tensors.keys().any(in_a_layer)
        };
        let common = Common::embedded();
        for (field, names) in &common.flags {
            let Some(key) = self.reading.pack.fields.get(field).and_then(|field| field.keys.first()) else { continue };
            // A part that the family doesn't have says nothing.
            if !names.iter().any(|name| common.plays(name, &self.reading.pack.tensors)) {
                continue;
            }
            // One key for several switches: what the tensors don't agree on, the books find.
            let on = names.iter().any(has) || self.root.get(key) == Some(&Json::Bool(true));
            self.write(key, json!(on));
        }
    }

    /// The window, and which layers have it.
    fn windows(&mut self) {
        let rule = |name: &str| self.reading.pack.fields.get(name).and_then(|field| field.rule.as_deref());
        let (window, types) = (rule("sliding_window"), rule("layer_types"));
        let everywhere = window == Some(rules::EVERYWHERE);
        if everywhere || window == Some(rules::OF_SLIDING) {
            match self.reading.count("attention.sliding_window") {
                Some(1..) => {
                    self.pass("attention.sliding_window", "sliding_window");
                }
                Some(_) => {
                    self.take("attention.sliding_window");
                    self.write("sliding_window", Json::Null);
                }
                None if everywhere => {
                    let message = "gives no attention.sliding_window: every layer sees everything, as in llama.cpp, though the \
                                   original may have had a window";
                    let place = self.reading.gguf.path().display().to_string();
                    self.notes.push(Problem::new("gguf-window", place, message));
                    self.write("sliding_window", Json::Null);
                }
                None => {}
            }
        }
        if matches!(types, Some(rules::TYPES | rules::LAST_FULL)) {
            let keys = self.reading.pack.fields.get("layer_types").map_or(&[][..], |field| &field.keys);
            match self.reading.get("attention.sliding_window_pattern") {
                Some(Value::List(list)) if list.iter().all(|v| matches!(v, Value::Flag(_))) => {
                    self.take("attention.sliding_window_pattern");
                    let kind = |v: &Value| if *v == Value::Flag(true) { "sliding_attention" } else { "full_attention" };
                    let kinds: Vec<&str> = list.iter().map(kind).collect();
                    self.write("layer_types", json!(kinds));
                }
                Some(Value::Whole(_)) if keys.len() > 1 => self.pass("attention.sliding_window_pattern", &keys[1]),
                _ => {}
            }
        }
    }

    /// How sparse gates are: a file says how many standard deviations above the mean a value has to be, the config which
    /// share of them stays below.
    fn sparsity(&mut self) {
        const KEY: &str = "activation_sparsity_scale";
        let Some(Value::List(list)) = self.reading.get(KEY).filter(|_| self.has("activation_sparsity_pattern")) else {
            return;
        };
        let share = |value: &Value| match *value {
            // The shortest number that the float32 is the nearest of, as everywhere.
            Value::Float32(n) => Some((0.5 * libm::erfc(-f64::from(n) / std::f64::consts::SQRT_2)) as f32),
            _ => None,
        };
        match list.iter().map(share).collect::<Option<Vec<f32>>>() {
            Some(shares) => {
                self.take(KEY);
                let shares: Vec<Json> = shares.into_iter().map(|n| Value::Float32(n).to_json()).collect();
                self.give("activation_sparsity_pattern", json!(shares), KEY);
            }
            None => self.wrong(KEY, "a list of float32 numbers"),
        }
    }

    fn experts(&mut self) {
        /// `llama_expert_gating_func_type` of llama.cpp.
        const GATING: [&str; 3] = ["softmax", "sigmoid", "softmax of chosen"];
        const KEY: &str = "expert_gating_func";
        match self.reading.count(KEY) {
            None => {}
            Some(0) => {
                self.take(KEY);
            }
            Some(n) => {
                let word = usize::try_from(n - 1).ok().and_then(|i| GATING.get(i));
                match word {
                    Some(word) if self.give("scoring_func", json!(word), KEY) => {
                        self.take(KEY);
                    }
                    Some(_) => {}
                    None => self.wrong(KEY, "1 (softmax), 2 (sigmoid) or 3 (softmax of the chosen)"),
                }
            }
        }
        if self.reading.table.absent.contains_key("n_group")
            && self.reading.count("expert_count").is_some_and(|n| n > 0)
            && self.reading.get("expert_group_count").is_none()
        {
            let message = "gives no expert_group_count: each token chooses among all experts, as in llama.cpp, though the \
                           original may have had groups";
            let place = self.reading.gguf.path().display().to_string();
            self.notes.push(Problem::new("gguf-groups", place, message));
        }
        const DENSE: &str = "leading_dense_block_count";
        let rule = self.reading.pack.fields.get("moe_layers").and_then(|field| field.rule.as_deref());
        match (rule, self.reading.count(DENSE)) {
            (Some(rule @ (rules::FIRST_DENSE | rules::NUM_DENSE)), Some(_)) => self.pass(DENSE, rule),
            (_, Some(0)) => {
                self.take(DENSE);
            }
            _ => {}
        }
        if rule == Some(rules::INTERLEAVED) {
            self.pass("interleave_moe_layer_step", "interleave_moe_layer_step");
        }
    }

    /// Whether attention has RoPE at all.
    fn positions(&mut self) {
        let rule = self.reading.pack.fields.get("rope_layers").and_then(|field| field.rule.as_deref());
        if rule == Some(rules::POSITION_TYPE) {
            let rope = self.take("rope.scaling.finetuned") != Some(&Value::Flag(false));
            self.write(rules::POSITION_TYPE, json!(if rope { "rope" } else { "nope" }));
        }
    }

    /// Keys that the tables know.
    fn fields(&mut self) {
        let common = Common::embedded();
        let prefix = format!("{}.", self.reading.architecture);
        for (full, value) in self.reading.gguf.metadata() {
            let Some(key) = full.strip_prefix(&prefix).filter(|key| !self.used.contains(*key)) else { continue };
            let json = value.to_json();
            if let Some(name) = self.reading.table.keys.get(key) {
                self.pass(key, name);
                continue;
            }
            let candidates = common.fields.get(key).map_or(&[][..], Vec::as_slice);
            let known = candidates.iter().any(|field| self.give(field, json.clone(), key));
            let table = self.reading.table;
            let listed = |list: &[String]| list.iter().any(|inert| inert == key);
            let harmless = || match table.only.get(key).or(common.only.get(key)) {
                _ if listed(&table.inert) => true,
                Some(values) => values.contains(&json),
                None => listed(&common.inert_of_architecture),
            };
            if known || harmless() {
                self.used.insert(key.to_owned());
            }
        }
    }

    /// Everything else, under its own name.
    fn rest(&mut self) {
        let prefix = format!("{}.", self.reading.architecture);
        for (key, value) in self.reading.gguf.metadata() {
            let used = key.strip_prefix(&prefix).is_some_and(|key| self.used.contains(key));
            if !used && !Common::embedded().is_inert(key) {
                self.root.insert(key.clone(), value.to_json());
            }
        }
    }

    /// As a message names it.
    pub fn tensor_problem(&mut self, tensor: &str, message: String) {
        let place = format!("{}, tensor {}", self.reading.gguf.path().display(), quote(tensor));
        self.problems.push(Problem::new("gguf-tensor", place, message));
    }
}

/// Whether two values are the same; 1 and 1.0 are.
fn same(a: &Json, b: &Json) -> bool {
    a == b || (a.is_number() && a.as_f64() == b.as_f64())
}
