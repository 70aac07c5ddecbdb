//! Named rules: what a family derives from more than one config key, or layer by layer. A pack refers to them by name.

use super::fields::{Fields, layer_expected};
use super::keys::{Keys, Reported};
use super::rope;
use super::schema;
use serde_json::Value;

/// What a layer's mixer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    /// Attention to everything before.
    Full,
    /// Attention with a sliding window.
    Sliding,
    /// Attention within a chunk of the sequence.
    Chunked,
    /// The gated delta rule.
    Linear,
    /// A short convolution.
    Conv,
    Mamba,
}

/// The words of `layer_types`.
pub const KINDS: [&str; 7] =
    ["full_attention", "sliding_attention", "chunked_attention", "linear_attention", "conv", "mamba", "attention"];

impl LayerType {
    fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "full_attention" | "attention" => LayerType::Full,
            "sliding_attention" => LayerType::Sliding,
            "chunked_attention" => LayerType::Chunked,
            "linear_attention" => LayerType::Linear,
            "conv" => LayerType::Conv,
            "mamba" => LayerType::Mamba,
            _ => return None,
        })
    }

    /// The key of its RoPE table, where types have tables of their own.
    pub fn rope_key(self) -> &'static str {
        match self {
            LayerType::Sliding => "sliding_attention",
            _ => "full_attention",
        }
    }
}

/// A list of layer types.
pub fn pattern(value: &Value) -> Option<Vec<LayerType>> {
    let list = value.as_array()?.iter().map(|word| LayerType::parse(word.as_str()?)).collect::<Option<Vec<_>>>();
    list.filter(|list| !list.is_empty())
}

/// `layer_types`: the key of that name (or the field's first key); without it the pack's default, a list that repeats.
/// The field's further keys are names of the length of the period (`sliding_window_pattern`): all but its last layer are of
/// the default's first type, the last one of the default's last. EXAONE 4 writes the period as `LLLG`. Where the default has
/// Mamba layers, `linear_attention` means them.
pub const TYPES: &str = "layer_types";
/// `layer_types`: as before, and the last layer is one of full attention whatever they say (Gemma 4).
pub const LAST_FULL: &str = "layer_types, the last one full";
/// `layer_types`: those of `full_attn_idxs` are full attention, the others are of the default's first type.
const FULL_ATTN_IDXS: &str = "full_attn_idxs";
/// `layer_types`: lists inside `linear_attn_config`, counted from one.
const KDA_LAYERS: &str = "kda_layers";
/// `layer_types`: chunked attention where `no_rope_layers` says that there is RoPE, full attention elsewhere.
const CHUNKED_WITH_ROPE: &str = "chunked where no_rope_layers is 1";

/// `sliding_window`: one window for all layers (`null`: none).
pub const EVERYWHERE: &str = "sliding_window everywhere";
/// `sliding_window`: a window where `use_sliding_window` is true, on the layers that `layer_types` calls
/// `sliding_attention`; without `layer_types`, on those from `max_window_layers` on.
const BY_LAYER: &str = "sliding_window by layer";
/// `sliding_window`: on the layers whose type is sliding attention.
pub const OF_SLIDING: &str = "sliding_window of sliding layers";
/// `sliding_window`: as `by layer`; without `layer_types`, on those without RoPE.
const WITHOUT_ROPE: &str = "sliding_window of layers without RoPE";

/// `sliding_window`: as `by layer`; without `layer_types`, on every other layer below `max_window_layers`, the first among
/// them.
const EVERY_OTHER: &str = "sliding_window of every other layer";
/// `sliding_window`: on all layers where `use_sliding_window` is true.
const SWITCHED: &str = "sliding_window by use_sliding_window";

/// `moe_layers`: all, or none where there are no experts.
const ALL: &str = "every layer";
/// `moe_layers`: all but the first so many; a list `mlp_layer_types` of `dense` and `sparse` says the same.
pub const FIRST_DENSE: &str = "first_k_dense_replace";
/// `moe_layers`: all but the first so many.
pub const NUM_DENSE: &str = "num_dense_layers";
/// `moe_layers`: every `decoder_sparse_step`th, but those of `mlp_only_layers`.
const SPARSE_STEP: &str = "decoder_sparse_step";
/// `moe_layers`: the list of that name; without it every `interleave_moe_layer_step`th.
pub const INTERLEAVED: &str = "interleave_moe_layer_step";

/// `moe_layers`: all where the key of that name is true, else none.
pub const ENABLED: &str = "enable_moe_block";

/// `rope_layers`: where the list of that name has a 1; without it all but every `no_rope_layer_interval`th.
const NO_ROPE_LAYERS: &str = "no_rope_layers";
/// `rope_layers`: sliding layers alone.
const SLIDING_ONLY: &str = "sliding layers";
/// `rope_layers`: sliding layers alone, or all where there is no window.
const SLIDING_OR_ALL: &str = "sliding layers, or all without a window";
/// `rope_layers`: all where `position_embedding_type` is `rope`, none where it is `nope` or absent.
pub const POSITION_TYPE: &str = "position_embedding_type";
/// `rope_layers`: none.
const NONE: &str = "none";

/// A named rule.
#[derive(Debug)]
pub struct Rule {
    /// The field that it gives.
    pub field: &'static str,
    pub name: &'static str,
    /// The keys that it reads beside the field's own.
    pub keys: &'static [&'static str],
    pub reads: Reads,
}

/// What a rule reads of its field's entry: anything else there is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reads {
    Nothing,
    Key,
    Default,
    Both,
}

impl Reads {
    pub fn key(self) -> bool {
        matches!(self, Reads::Key | Reads::Both)
    }

    pub fn default(self) -> bool {
        matches!(self, Reads::Default | Reads::Both)
    }
}

/// Every rule; docs/packs.md has the same list.
#[rustfmt::skip]
pub const RULES: &[Rule] = {
    const fn rule(field: &'static str, name: &'static str, reads: Reads, keys: &'static [&'static str]) -> Rule {
        Rule { field, name, keys, reads }
    }
    use Reads::{Both, Default, Key, Nothing};
    &[
        rule("layer_types", TYPES, Both, &["layer_types"]),
        rule("layer_types", LAST_FULL, Both, &["layer_types"]),
        rule("layer_types", FULL_ATTN_IDXS, Both, &["layer_types", "full_attn_idxs"]),
        rule("layer_types", KDA_LAYERS, Key, &["layer_types", "linear_attn_config.kda_layers", "linear_attn_config.full_attn_layers"]),
        rule("layer_types", CHUNKED_WITH_ROPE, Key, &["layer_types", "no_rope_layers", "no_rope_layer_interval"]),
        rule("sliding_window", EVERYWHERE, Default, &["sliding_window"]),
        rule("sliding_window", BY_LAYER, Default, SWITCHED_LAYERS),
        rule("sliding_window", OF_SLIDING, Default, &["sliding_window"]),
        rule("sliding_window", WITHOUT_ROPE, Default, SWITCHED_LAYERS),
        rule("sliding_window", EVERY_OTHER, Default, SWITCHED_LAYERS),
        rule("sliding_window", SWITCHED, Default, &["sliding_window", "use_sliding_window"]),
        rule("moe_layers", ALL, Nothing, &[]),
        rule("moe_layers", FIRST_DENSE, Default, &["first_k_dense_replace", "mlp_layer_types"]),
        rule("moe_layers", NUM_DENSE, Default, &["num_dense_layers"]),
        rule("moe_layers", SPARSE_STEP, Nothing, &["decoder_sparse_step", "mlp_only_layers"]),
        rule("moe_layers", INTERLEAVED, Nothing, &["interleave_moe_layer_step", "moe_layers"]),
        rule("moe_layers", ENABLED, Nothing, &["enable_moe_block"]),
        rule("rope_layers", NO_ROPE_LAYERS, Nothing, &["no_rope_layers", "no_rope_layer_interval"]),
        rule("rope_layers", SLIDING_ONLY, Nothing, &[]),
        rule("rope_layers", SLIDING_OR_ALL, Nothing, &[]),
        rule("rope_layers", POSITION_TYPE, Nothing, &["position_embedding_type"]),
        rule("rope_layers", NONE, Nothing, &[]),
        rule("rope", schema::ROPE, Both, &rope::KEYS),
        rule("rope", schema::ROPE_ALPHA, Both, &rope::KEYS),
        rule("rope", schema::ROPE_NEEDED, Both, &rope::KEYS),
        rule("rope", schema::ROPE_BETA, Both, &rope::KEYS),
        rule("rope", schema::ROPE_LONG, Both, &rope::KEYS),
        rule("rope", schema::ROPE_BY_TYPE, Both, &rope::KEYS),
        rule("rope", schema::ROPE_UNSCALED, Both, &rope::KEYS),
        rule("rope", schema::ROPE_LOCAL, Both, &rope::KEYS),
        rule("quantization", schema::BITNET, Key, &[]),
        rule("head_dim", schema::HEAD_DIM, Both, &[]),
        rule("full_head_dim", schema::PER_LAYER_CONFIG, Both, &["per_layer_config"]),
        rule("num_key_value_heads", schema::MULTI_QUERY, Key, &["multi_query", "new_decoder_architecture"]),
        rule("partial_rotary_factor", schema::ROTARY_DIM, Both, &["rotary_dim"]),
        rule("parallel", schema::NEW_DECODER, Both, &["new_decoder_architecture"]),
        rule("shared_branch_norm", schema::NUM_LN, Nothing, &["num_ln_in_parallel_attn", "new_decoder_architecture"]),
        rule("tie_word_embeddings", schema::UNLESS_STORED, Key, &[]),
        rule("embed_scale", schema::ROOT, Nothing, &[]),
        rule("intermediate_size", schema::FOUR_TIMES, Key, &[]),
        rule("intermediate_size", schema::AUTO_ADJUSTED, Key, &[schema::AUTO_ADJUSTED, "block_ffn_dim_multiplier", "block_multiple_of"]),
        rule("activation_sparsity_pattern", schema::TEN_SPARSE, Key, &[]),
        rule("state_head_dim", schema::EXPANDED, Key, &[]),
    ]
};

/// What the windows of some layers hang on.
const SWITCHED_LAYERS: &[&str] = &["sliding_window", "use_sliding_window", "max_window_layers", "layer_types"];

/// The rules that may give a field.
pub fn of_field(field: &str) -> impl Iterator<Item = &'static Rule> {
    RULES.iter().filter(move |rule| rule.field == field)
}

/// The keys that a rule reads beside its field's own.
pub fn keys(rule: Option<&str>) -> &'static [&'static str] {
    RULES.iter().find(|known| Some(known.name) == rule).map_or(&[], |rule| rule.keys)
}

/// Reads the layers' types: full attention where the pack says nothing.
pub fn layer_types(fields: &mut Fields<'_, '_, '_>, layers: usize) -> Result<Vec<LayerType>, Reported> {
    let Some(rule) = fields.rule("layer_types") else { return Ok(vec![LayerType::Full; layers]) };
    let default = fields.default("layer_types").and_then(|value| pattern(&value)).unwrap_or(vec![LayerType::Full]);
    let field_keys = fields.field("layer_types").map_or(&[][..], |field| &field.keys);
    let key = field_keys.first().map_or("layer_types", String::as_str);
    let keys = &mut *fields.keys;
    let given = types(keys, key, layers)?;
    let derived = match rule {
        TYPES | LAST_FULL => {
            let period = period(keys, field_keys.get(1..).unwrap_or_default())?;
            let (first, last) = (default[0], default[default.len() - 1]);
            match period {
                Some(period) => (0..layers).map(|i| if (i + 1) % period == 0 { last } else { first }).collect(),
                None => default.iter().copied().cycle().take(layers).collect(),
            }
        }
        FULL_ATTN_IDXS => {
            let full = indices(keys, "full_attn_idxs", layers, 0)?;
            let full = full.unwrap_or_else(|| vec![true; layers]);
            full.into_iter().map(|full| if full { LayerType::Full } else { default[0] }).collect()
        }
        KDA_LAYERS => {
            let linear = indices(keys, "linear_attn_config.kda_layers", layers, 1)?;
            let linear = linear.unwrap_or_else(|| vec![false; layers]);
            let full = indices(keys, "linear_attn_config.full_attn_layers", layers, 1)?;
            if full.is_none() && given.is_none() {
                let message = "missing; it says which layers are attention, as layer_types would";
                return Err(keys.report("config-key-missing", "linear_attn_config.full_attn_layers", message));
            }
            if let Some(full) = full
                && given.is_none()
                && full.iter().zip(&linear).any(|(full, linear)| full == linear)
            {
                let message = format!("expected each of {layers} layers in kda_layers or in full_attn_layers");
                return Err(keys.report("config-value", "linear_attn_config.full_attn_layers", message));
            }
            linear.into_iter().map(|linear| if linear { LayerType::Linear } else { LayerType::Full }).collect()
        }
        _ => {
            let rope = no_rope_layers(keys, layers)?;
            rope.into_iter().map(|rope| if rope { LayerType::Chunked } else { LayerType::Full }).collect()
        }
    };
    let mut types = given.unwrap_or(derived);
    if default.contains(&LayerType::Mamba) {
        types.iter_mut().filter(|kind| **kind == LayerType::Linear).for_each(|kind| *kind = LayerType::Mamba);
    }
    if rule == LAST_FULL {
        types.iter_mut().rev().take(1).for_each(|kind| *kind = LayerType::Full);
    }
    Ok(types)
}

/// The length of the period under any of its names.
fn period(keys: &mut Keys<'_>, names: &[String]) -> Result<Option<usize>, Reported> {
    let length = |value: &Value| match value.as_str() {
        // `LLLG`: local layers, then a global one.
        Some(word) => word.strip_suffix('G').filter(|local| local.chars().all(|c| c == 'L')).map(|_| word.len()),
        None => super::keys::count(value),
    };
    let mut found = None;
    for name in names {
        let expected = format!("{}, or a text like LLLG", schema::COUNT);
        let Some(period) = keys.read(name, &expected, length)? else { continue };
        if found.is_some_and(|other| other != period) {
            let message = format!("differs from {}, which means the same", names[0]);
            return Err(keys.report("config-contradiction", name, message));
        }
        found = Some(period);
    }
    Ok(found)
}

/// A list of layer types, one per layer.
fn types(keys: &mut Keys<'_>, key: &str, layers: usize) -> Result<Option<Vec<LayerType>>, Reported> {
    let list =
        keys.read(key, "a list of texts", |v| v.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<&str>>>())?;
    let Some(list) = list else { return Ok(None) };
    if list.len() != layers {
        let message = format!("expected one entry per layer ({layers}), found {}", list.len());
        return Err(keys.report("config-value", key, message));
    }
    let mut types = Vec::with_capacity(layers);
    for (i, word) in list.into_iter().enumerate() {
        match LayerType::parse(word) {
            Some(kind) => types.push(kind),
            None => {
                let expected = format!("one of {}", KINDS.join(", "));
                return Err(keys.report("config-value", key, layer_expected(i, &expected, &Value::from(word))));
            }
        }
    }
    Ok(Some(types))
}

/// A list of layers, counted from `base`: for each layer whether it is there.
fn indices(keys: &mut Keys<'_>, key: &str, layers: usize, base: usize) -> Result<Option<Vec<bool>>, Reported> {
    let expected = format!("a list of layers from {base} to {}", layers + base - 1);
    keys.read(key, &expected, |value| {
        let mut listed = vec![false; layers];
        for index in value.as_array()? {
            *listed.get_mut((index.as_u64()? as usize).checked_sub(base)?)? = true;
        }
        Some(listed)
    })
}

/// Reads the window of each layer, `types` being the layers' types.
pub fn windows(
    fields: &mut Fields<'_, '_, '_>,
    types: &[LayerType],
    rope_layers: &[bool],
) -> Result<Vec<Option<usize>>, Reported> {
    let Some(rule) = fields.rule("sliding_window") else { return Ok(vec![None; types.len()]) };
    let default = fields.default("sliding_window").and_then(|value| super::keys::count(&value));
    let keys = &mut *fields.keys;
    let none = keys.is_null("sliding_window");
    // transformers writes zero where no layer has one.
    let switched = !matches!(rule, EVERYWHERE | OF_SLIDING);
    let off = switched && keys.flag("use_sliding_window") != Ok(Some(true));
    let zero = keys.raw("sliding_window").and_then(serde_json::Value::as_u64) == Some(0);
    let window = if off && zero { Ok(None) } else { keys.count("sliding_window") };
    match rule {
        EVERYWHERE => Ok(vec![if none { None } else { window?.or(default) }; types.len()]),
        OF_SLIDING => {
            let window = if none { None } else { window?.or(default) };
            if let (None, Some(layer)) = (window, types.iter().position(|kind| *kind == LayerType::Sliding)) {
                let message = format!("layer {layer} is sliding_attention, but there is no window");
                return Err(keys.report("config-contradiction", "sliding_window", message));
            }
            Ok(types.iter().map(|kind| window.filter(|_| *kind == LayerType::Sliding)).collect())
        }
        SWITCHED => {
            let on = keys.flag("use_sliding_window")?.unwrap_or(false);
            let window = if none { None } else { window?.or(default) };
            Ok(vec![window.filter(|_| on); types.len()])
        }
        _ => {
            let first = if rule == WITHOUT_ROPE { Some(rope_layers) } else { None };
            let window = if none { Ok(None) } else { window.map(|w| w.or(default)) };
            by_layer(keys, window, types.len(), first, rule == EVERY_OTHER)
        }
    }
}

/// Where `use_sliding_window` is true: the layers that `layer_types` calls sliding; without it those without RoPE where
/// `rope_layers` are given, else those from `max_window_layers` on, or every other one below it.
fn by_layer(
    keys: &mut Keys<'_>,
    window: Result<Option<usize>, Reported>,
    layers: usize,
    rope_layers: Option<&[bool]>,
    every_other: bool,
) -> Result<Vec<Option<usize>>, Reported> {
    /// transformers' default of `max_window_layers`.
    const MAX_WINDOW_LAYERS: usize = 28;
    let on = keys.flag("use_sliding_window");
    let first = match rope_layers {
        None => keys.read("max_window_layers", "a whole number", |v| v.as_u64().map(|n| n as usize)),
        Some(_) => Ok(None),
    };
    let types = types(keys, "layer_types", layers);
    let (on, window, first, types) = (on?.unwrap_or(false), window?, first?.unwrap_or(MAX_WINDOW_LAYERS), types?);
    let window = window.filter(|_| on);
    let Some(types) = types else {
        let slides = |i: usize| match rope_layers {
            Some(rope) => !rope[i],
            None if every_other => i < first && i.is_multiple_of(2),
            None => i >= first,
        };
        return Ok((0..layers).map(|i| window.filter(|_| slides(i))).collect());
    };
    let mut windows = Vec::with_capacity(layers);
    for (i, kind) in types.into_iter().enumerate() {
        windows.push(match (kind, window) {
            (LayerType::Full, _) => None,
            (LayerType::Sliding, Some(w)) => Some(w),
            (LayerType::Sliding, None) => {
                let message =
                    format!("layer {i} is sliding_attention, but use_sliding_window and sliding_window give no window");
                return Err(keys.report("config-contradiction", "layer_types", message));
            }
            _ => {
                let found = keys.raw("layer_types").and_then(|list| list.get(i)).cloned().unwrap_or_default();
                let message = layer_expected(i, "full_attention or sliding_attention", &found);
                return Err(keys.report("config-value", "layer_types", message));
            }
        });
    }
    Ok(windows)
}

/// Which layers have experts.
pub fn moe_layers(fields: &mut Fields<'_, '_, '_>, layers: usize) -> Result<Vec<bool>, Reported> {
    let Some(rule) = fields.rule("moe_layers") else { return Ok(vec![false; layers]) };
    let default = fields.default("moe_layers").and_then(|value| schema::count_or_zero(&value));
    let keys = &mut *fields.keys;
    let count = |v: &Value| v.as_u64().map(|n| n as usize);
    match rule {
        ALL => Ok(vec![true; layers]),
        ENABLED => Ok(vec![keys.flag(ENABLED)?.unwrap_or(false); layers]),
        FIRST_DENSE | NUM_DENSE => {
            let listed = match rule {
                FIRST_DENSE => mlp_layer_types(keys, layers)?,
                _ => None,
            };
            let dense = keys.read(rule, schema::COUNT_OR_ZERO, count)?.or(default);
            match (listed, dense) {
                (Some(listed), _) => Ok(listed),
                (None, Some(dense)) => Ok((0..layers).map(|i| i >= dense).collect()),
                (None, None) => {
                    Err(keys.report("config-key-missing", rule, "missing; it says which layers have experts"))
                }
            }
        }
        SPARSE_STEP => {
            let step = keys.count("decoder_sparse_step")?.unwrap_or(1);
            let dense = indices(keys, "mlp_only_layers", layers, 0)?;
            let dense = dense.unwrap_or_else(|| vec![false; layers]);
            Ok((0..layers).map(|i| (i + 1) % step == 0 && !dense[i]).collect())
        }
        _ => {
            let step = keys.count("interleave_moe_layer_step")?.unwrap_or(1);
            let listed = indices(keys, "moe_layers", layers, 0)?;
            Ok(listed.unwrap_or_else(|| (0..layers).map(|i| (i + 1) % step == 0).collect()))
        }
    }
}

/// `mlp_layer_types`: `dense` or `sparse`, one per layer.
fn mlp_layer_types(keys: &mut Keys<'_>, layers: usize) -> Result<Option<Vec<bool>>, Reported> {
    keys.read("mlp_layer_types", &format!("a list of dense and sparse, one per layer ({layers})"), |value| {
        let list = value.as_array().filter(|list| list.len() == layers)?;
        let sparse = |word: &Value| match word.as_str()? {
            "sparse" => Some(true),
            "dense" => Some(false),
            _ => None,
        };
        list.iter().map(sparse).collect()
    })
}

/// Which layers rotate queries and keys.
pub fn rope_layers(fields: &mut Fields<'_, '_, '_>, types: &[LayerType]) -> Result<Vec<bool>, Reported> {
    let layers = types.len();
    let keys = &mut *fields.keys;
    let sliding = |kind: &LayerType| *kind == LayerType::Sliding;
    match fields.pack.fields.get("rope_layers").and_then(|field| field.rule.as_deref()) {
        None => Ok(vec![true; layers]),
        Some(NO_ROPE_LAYERS) => no_rope_layers(keys, layers),
        Some(SLIDING_ONLY) => Ok(types.iter().map(sliding).collect()),
        Some(SLIDING_OR_ALL) => {
            let windowed = !keys.is_null("sliding_window");
            Ok(types.iter().map(|kind| !windowed || sliding(kind)).collect())
        }
        Some(POSITION_TYPE) => {
            let words = "rope or nope";
            let rope = keys.read("position_embedding_type", words, |v| match v.as_str()? {
                "rope" => Some(true),
                "nope" => Some(false),
                _ => None,
            })?;
            Ok(vec![rope.unwrap_or(false); layers])
        }
        Some(_) => Ok(vec![false; layers]),
    }
}

/// `no_rope_layers`: one number per layer, 1 for RoPE, 0 for none; without it every `no_rope_layer_interval`th has none.
fn no_rope_layers(keys: &mut Keys<'_>, layers: usize) -> Result<Vec<bool>, Reported> {
    /// transformers' default.
    const INTERVAL: usize = 4;
    let interval = keys.count("no_rope_layer_interval")?.unwrap_or(INTERVAL);
    let listed = keys.read("no_rope_layers", &format!("a list of 0 and 1, one per layer ({layers})"), |value| {
        let list = value.as_array().filter(|list| list.len() == layers || list.is_empty())?;
        let flag = |v: &Value| v.as_u64().filter(|n| *n < 2).map(|n| n == 1);
        list.iter().map(flag).collect::<Option<Vec<bool>>>()
    })?;
    let listed = listed.filter(|list| list.len() == layers);
    Ok(listed.unwrap_or_else(|| (0..layers).map(|i| (i + 1) % interval != 0).collect()))
}
