//! What a pack may say, so that nothing in it goes unread: a field, a rule or a tensor under a name that no code reads
//! is refused when the pack is loaded, not passed over when it is used.

use super::keys;
use super::pack::{Field, Pack};
use super::rope;
use super::rules;
use crate::ops::Activation;
use serde_json::Value;
use std::collections::BTreeMap;

/// `head_dim`: `hidden_size / num_attention_heads` where the config has no such key.
pub const HEAD_DIM: &str = "hidden_size / num_attention_heads";
/// `num_key_value_heads`: the key counts with `new_decoder_architecture`; without it there is one where `multi_query` is true,
/// else one for each head (Falcon).
pub const MULTI_QUERY: &str = "multi_query";
/// `parallel`: as the key says, and never otherwise with `new_decoder_architecture` (Falcon).
pub const NEW_DECODER: &str = "new_decoder_architecture";
/// `shared_branch_norm`: but with `new_decoder_architecture`, where `num_ln_in_parallel_attn` isn't 1 (Falcon).
pub const NUM_LN: &str = "num_ln_in_parallel_attn";
/// `full_head_dim`: `per_layer_config` gives it together with `full_num_key_value_heads`, where the config has one (Gemma 4).
pub const PER_LAYER_CONFIG: &str = "per_layer_config";
/// `activation_sparsity_pattern`: 0.95 on the first ten layers of more where the config has no such key (Gemma 3n).
pub const TEN_SPARSE: &str = "0.95 on ten layers";
/// `state_head_dim`: the quotient where the config has no such key or says `auto`.
pub const EXPANDED: &str = "expand * hidden_size / state_heads";
/// `intermediate_size`: four times `hidden_size` where the config has no such key.
pub const FOUR_TIMES: &str = "4 * hidden_size";
/// `intermediate_size`: two thirds of the key's value, times `block_ffn_dim_multiplier`, rounded up to a multiple of
/// `block_multiple_of`; without `block_auto_adjust_ff_dim` the value as it is.
pub const AUTO_ADJUSTED: &str = "block_auto_adjust_ff_dim";
/// `partial_rotary_factor`: the quotient where the config has a `rotary_dim`.
pub const ROTARY_DIM: &str = "rotary_dim / head_dim";
/// `tie_word_embeddings`: without the key a head that is stored is used, and without that the embedding.
pub const UNLESS_STORED: &str = "where no head is stored";
/// `embed_scale`: the root of `hidden_size`.
pub const ROOT: &str = "sqrt(hidden_size)";
/// `quantization`: see [`super::quantization::read`].
pub const BITNET: &str = "bitnet";
/// `rope`: see [`super::rope::read`].
pub const ROPE: &str = "rope_parameters";
/// `rope`: as before; beside `dynamic` there may be an `alpha`, which stretches the base for every length (Hunyuan).
pub const ROPE_ALPHA: &str = "rope_parameters, dynamic with alpha";
/// `rope`: as `rope_parameters`, for a family whose default is not plain RoPE: a config without the object is refused.
pub const ROPE_NEEDED: &str = "rope_parameters, needed";
/// `rope`: as before; `llama_4_scaling_beta` makes queries grow with their position (Ministral 3, Mistral 4).
pub const ROPE_BETA: &str = "rope_parameters, needed, with llama_4_scaling_beta";
/// `rope`: as `rope_parameters`, where `su` and `yarn` mean `longrope` and no other kind is known, and
/// `original_max_position_embeddings` stands beside the object, 4096 without it (Phi-3).
pub const ROPE_LONG: &str = "rope_parameters, longrope under any name";
/// `rope`: a table for full attention and one for sliding layers, from an object for each inside `rope_parameters`.
pub const ROPE_BY_TYPE: &str = "rope_parameters by layer type";
/// `rope`: as before; in the old spelling the sliding layers have the base and no scaling.
pub const ROPE_UNSCALED: &str = "rope_parameters, sliding layers unscaled";
/// `rope`: as before; in the old spelling the sliding layers have `rope_local_base_freq` and no scaling.
pub const ROPE_LOCAL: &str = "rope_parameters and rope_local_base_freq";

/// What numbers may be, for messages.
pub const COUNT: &str = "a whole number from 1 to 2147483647";
pub const COUNT_OR_ZERO: &str = "a whole number from 0 to 2147483647";
pub const NUMBER: &str = "a number from -1e30 to 1e30";
pub const POSITIVE: &str = keys::POSITIVE;
pub const EPS: &str = "a number from 0 to 1";
pub const FLAG: &str = "true or false";

/// Whether a number that was computed is a [`COUNT`].
pub fn is_count(n: usize) -> bool {
    (1..=i32::MAX as usize).contains(&n)
}

pub fn count_or_zero(value: &Value) -> Option<usize> {
    value.as_u64().filter(|n| *n <= i32::MAX as u64).map(|n| n as usize)
}

pub fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| n.abs() <= keys::LARGEST)
}

pub fn eps(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| (0.0..=1.0).contains(n))
}

/// What a field's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Count,
    CountOrZero,
    Number,
    Positive,
    Eps,
    /// Above zero, at most one.
    Share,
    Flag,
    Activation,
    /// Two numbers, the first not above the second.
    Range,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// What kind each layer is; a rule reads it, and its default is a list that repeats.
    LayerTypes,
    /// Only a rule reads it; its default is a count.
    Window,
    /// Only a rule reads it; its default is the base.
    Rope,
    /// Only a rule reads it; its default is a count.
    Layers,
    /// Only a rule reads it; it has no default.
    Quantization,
}

/// How fused rows lie: one part after the other, or for each key/value head its queries, key and value.
const FUSED: &[&str] = &["one after another", "by key/value head"];
/// How experts in one tensor lie: `[experts, out, in]`, or `[experts, in, out]`, gate and up one after the other or in
/// turn; or in either way, as the shape tells.
const EXPERTS: &[&str] = &["out, in", "in, out", "in, out in turn", "in, out or out, in"];
const NORMS: &[&str] = &["rms", "layer"];
/// What a query/key norm sees together, and which weights it has.
const QK_NORMS: &[&str] = &["head", "head, own weights", "head, own tensors", "head, weightless", "all heads"];
/// How DeepSeek's routers choose.
const METHODS: &[&str] = &["greedy", "group_limited_greedy", "noaux_tc"];
const SCORINGS: &[&str] = &["softmax", "softmax of chosen", "sigmoid"];

/// The words of a field that has a choice.
pub fn words(name: &str) -> &'static [&'static str] {
    match FIELDS.iter().find(|(known, ..)| *known == name) {
        Some((_, Kind::Choice(words))) => words,
        _ => &[],
    }
}

/// Every field of a plan.
const FIELDS: &[(&str, Kind)] = &[
    // The model.
    ("vocab_size", Kind::Count),
    ("hidden_size", Kind::Count),
    ("num_hidden_layers", Kind::Count),
    ("num_mtp_layers", Kind::CountOrZero),
    ("max_position_embeddings", Kind::Count),
    ("tie_word_embeddings", Kind::Flag),
    ("embed_scale", Kind::Positive),
    ("head_bias", Kind::Flag),
    ("logit_scale", Kind::Positive),
    ("logits_scaling", Kind::Positive),
    ("final_logit_softcapping", Kind::Positive),
    ("norm", Kind::Choice(NORMS)),
    ("norm_eps", Kind::Eps),
    ("norm_bias", Kind::Flag),
    ("norm_plus_one", Kind::Flag),
    ("parallel", Kind::Flag),
    ("shared_branch_norm", Kind::Flag),
    ("residual_multiplier", Kind::Positive),
    ("layer_types", Kind::LayerTypes),
    ("transposed", Kind::Flag),
    ("quantization", Kind::Quantization),
    // Attention.
    ("num_attention_heads", Kind::Count),
    ("num_key_value_heads", Kind::Count),
    ("head_dim", Kind::Count),
    ("full_head_dim", Kind::Count),
    ("full_num_key_value_heads", Kind::Count),
    ("qkv_bias", Kind::Flag),
    ("o_bias", Kind::Flag),
    ("qkv_layout", Kind::Choice(FUSED)),
    ("attention_multiplier", Kind::Positive),
    ("query_pre_attn_scalar", Kind::Positive),
    ("scale_attn_weights", Kind::Flag),
    ("scale_attn_by_inverse_layer_idx", Kind::Flag),
    ("attn_logit_softcapping", Kind::Positive),
    ("sliding_window", Kind::Window),
    ("attention_chunk_size", Kind::Count),
    ("qk_norm", Kind::Flag),
    ("qk_norm_over", Kind::Choice(QK_NORMS)),
    ("qk_norm_after_rope", Kind::Flag),
    ("qk_norm_bias", Kind::Flag),
    ("qk_norm_plus_one", Kind::Flag),
    ("qk_norm_on_rope_layers", Kind::Flag),
    ("v_norm", Kind::Flag),
    ("attention_k_eq_v", Kind::Flag),
    ("num_kv_shared_layers", Kind::CountOrZero),
    ("attn_output_gate", Kind::Flag),
    ("sinks", Kind::Flag),
    ("clip_qkv", Kind::Positive),
    ("attn_temperature_tuning", Kind::Flag),
    ("floor_scale", Kind::Positive),
    ("attn_scale", Kind::Number),
    ("attn_sub_norm", Kind::Flag),
    ("rope", Kind::Rope),
    ("rope_layers", Kind::Layers),
    ("rope_interleaved", Kind::Flag),
    ("partial_rotary_factor", Kind::Share),
    ("learned_positions", Kind::Flag),
    // Latent attention.
    ("q_lora_rank", Kind::CountOrZero),
    ("kv_lora_rank", Kind::Count),
    ("qk_nope_head_dim", Kind::Count),
    ("qk_rope_head_dim", Kind::Count),
    ("v_head_dim", Kind::Count),
    ("latent_norm_eps", Kind::Eps),
    ("latent_bias", Kind::Flag),
    ("mscale_in_scale", Kind::Flag),
    // MLP.
    ("intermediate_size", Kind::Count),
    ("double_wide_shared", Kind::Flag),
    ("hidden_act", Kind::Activation),
    ("mlp_bias", Kind::Flag),
    ("ffn_sub_norm", Kind::Flag),
    ("activation_sparsity_pattern", Kind::Number),
    // Experts.
    ("moe_layers", Kind::Layers),
    ("num_experts", Kind::CountOrZero),
    ("num_experts_per_tok", Kind::Count),
    ("moe_intermediate_size", Kind::Count),
    ("shared_intermediate_size", Kind::CountOrZero),
    ("n_shared_experts", Kind::CountOrZero),
    ("shared_expert_gate", Kind::Flag),
    ("experts_layout", Kind::Choice(EXPERTS)),
    ("experts_bias", Kind::Flag),
    ("router_bias", Kind::Flag),
    ("scoring_func", Kind::Choice(SCORINGS)),
    ("selection_bias", Kind::Flag),
    ("topk_method", Kind::Choice(METHODS)),
    ("n_group", Kind::CountOrZero),
    ("topk_group", Kind::CountOrZero),
    ("group_sum_of_two", Kind::Flag),
    ("norm_topk_prob", Kind::Flag),
    ("norm_topk_eps", Kind::Eps),
    ("routed_scaling_factor", Kind::Positive),
    ("weights_input", Kind::Flag),
    ("swiglu_limit", Kind::Positive),
    ("swiglu_alpha", Kind::Positive),
    // Convolutions and recurrences.
    ("conv_kernel", Kind::Count),
    ("conv_bias", Kind::Flag),
    ("proj_bias", Kind::Flag),
    ("state_heads", Kind::Count),
    ("state_key_heads", Kind::Count),
    ("state_head_dim", Kind::Count),
    ("state_key_dim", Kind::Count),
    ("state_size", Kind::Count),
    ("state_groups", Kind::Count),
    ("state_norm_groups", Kind::Count),
    ("expand", Kind::Count),
    ("time_step_limit", Kind::Range),
    ("conv_act", Kind::Activation),
    ("gate_act", Kind::Activation),
    // Per-layer inputs, AltUp, Laurel.
    ("hidden_size_per_layer_input", Kind::CountOrZero),
    ("vocab_size_per_layer_input", Kind::Count),
    ("altup_num_inputs", Kind::CountOrZero),
    ("altup_active_idx", Kind::CountOrZero),
    ("altup_correct_scale", Kind::Flag),
    ("laurel_rank", Kind::Count),
];

/// What every plan needs.
const REQUIRED: [&str; 5] = ["vocab_size", "hidden_size", "num_hidden_layers", "norm_eps", "tie_word_embeddings"];

/// The parts of a model outside its layers.
const MODEL: [&str; 9] = [
    "embed",
    "norm",
    "head",
    "position_embed",
    "per_layer_embed",
    "per_layer_projection",
    "per_layer_norm",
    "altup_projection",
    "altup_unembed",
];

/// The parts of a layer.
const ROLES: &[&str] = &[
    "mixer_norm",
    "mixer_post_norm",
    "q",
    "k",
    "v",
    "qkv",
    "o",
    "q_norm",
    "k_norm",
    "sinks",
    "attn_sub_norm",
    "q_a",
    "q_a_norm",
    "q_b",
    "kv_a",
    "kv_a_norm",
    "kv_b",
    "conv_in",
    "conv",
    "conv_out",
    "mamba_in",
    "mamba_conv",
    "mamba_dt_bias",
    "mamba_a_log",
    "mamba_d",
    "mamba_norm",
    "mamba_out",
    "delta_q",
    "delta_k",
    "delta_v",
    "delta_qkv",
    "delta_z",
    "delta_qkvz",
    "delta_ba",
    "delta_a",
    "delta_b",
    "delta_conv",
    "delta_q_conv",
    "delta_k_conv",
    "delta_v_conv",
    "delta_dt_bias",
    "delta_a_log",
    "delta_f_a",
    "delta_f_b",
    "delta_g_a",
    "delta_g_b",
    "delta_norm",
    "delta_out",
    "mlp_norm",
    "mlp_post_norm",
    "gate",
    "up",
    "gate_up",
    "down",
    "ffn_sub_norm",
    "router",
    "selection_bias",
    "expert_gate",
    "expert_up",
    "expert_down",
    "experts_gate_up",
    "experts_down",
    "shared_gate",
    "shared_up",
    "shared_gate_up",
    "shared_down",
    "shared_expert_gate",
    "router_scale",
    "expert_scale",
    "experts_in_norm",
    "experts_out_norm",
    "dense_out_norm",
    "layer_scalar",
    "per_layer_gate",
    "per_layer_projection",
    "per_layer_post_norm",
    "altup_router",
    "altup_router_norm",
    "altup_prediction",
    "altup_correction",
    "altup_output_scale",
    "laurel_left",
    "laurel_right",
    "laurel_norm",
];

/// Whether a plan has a field of this name.
pub fn is_field(name: &str) -> bool {
    FIELDS.iter().any(|(known, _)| *known == name)
}

/// Whether a model has a part of this name outside its layers.
pub fn is_model_role(role: &str) -> bool {
    MODEL.contains(&role.strip_suffix("_bias").unwrap_or(role))
}

/// Whether a layer has a part of this name.
pub fn is_role(role: &str) -> bool {
    let known = |role: &str| ROLES.contains(&role);
    known(role) || role.strip_suffix("_bias").is_some_and(known) || is_scale(role)
}

/// The projections that a quantised family may have.
const QUANTIZED: [&str; 7] = ["q", "k", "v", "o", "gate", "up", "down"];

fn is_scale(role: &str) -> bool {
    role.strip_suffix("_scale").is_some_and(|role| QUANTIZED.contains(&role))
}

/// Checks a pack, with everything that it inherits.
///
/// # Errors
/// One sentence that names the entry.
pub fn check(pack: &Pack) -> Result<(), String> {
    if pack.model_types.is_empty() && pack.architectures.is_empty() {
        return Err("model_types and architectures are empty: the pack answers for no checkpoint".into());
    }
    for (name, field) in &pack.fields {
        let (_, kind) = FIELDS.iter().find(|(known, _)| known == name).ok_or_else(|| {
            let known = FIELDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            format!("fields.{name}: nothing reads this field; the fields of a plan are {known}")
        })?;
        check_field(name, field, *kind, &pack.fields).map_err(|message| format!("fields.{name}: {message}"))?;
    }
    if pack.refuse.is_some() {
        return Ok(());
    }
    if pack.text.is_none() {
        for name in REQUIRED {
            if !pack.fields.contains_key(name) {
                return Err(format!("fields.{name}: missing, every plan needs it"));
            }
        }
    }
    check_quantization(pack)?;
    check_tensors(pack)
}

/// Every matrix of a quantised family's layers is a whole tensor of the usual layout, and has a scale.
fn check_quantization(pack: &Pack) -> Result<(), String> {
    let layer = &pack.tensors.layer;
    if !pack.fields.contains_key("quantization") {
        return match layer.keys().find(|role| is_scale(role)) {
            Some(role) => Err(format!("tensors.layer.{role}: only a family with fields.quantization has scales")),
            None => Ok(()),
        };
    }
    if pack.fields.contains_key("transposed") {
        return Err("fields.quantization: not with fields.transposed".into());
    }
    let norm = |role: &str| role.ends_with("norm");
    for role in layer.keys().filter(|role| !role.ends_with("_bias") && !is_scale(role) && !norm(role)) {
        if !QUANTIZED.contains(&role.as_str()) {
            let known = QUANTIZED.join(", ");
            return Err(format!("tensors.layer.{role}: with fields.quantization there are {known} and norms"));
        }
        if !layer.contains_key(&format!("{role}_scale")) {
            return Err(format!("tensors.layer.{role}_scale: missing, fields.quantization needs it"));
        }
    }
    Ok(())
}

fn check_field(name: &str, field: &Field, kind: Kind, fields: &BTreeMap<String, Field>) -> Result<(), String> {
    let Field { keys, default, default_from, null_from, null_is_none, value, rule } = field;
    let has_key = !keys.is_empty();
    let only_rule = matches!(kind, Kind::Window | Kind::Rope | Kind::LayerTypes | Kind::Layers | Kind::Quantization);
    let known = || rules::of_field(name).map(|rule| format!("\"{}\"", rule.name)).collect::<Vec<_>>().join(", ");
    if only_rule && (rule.is_none() || value.is_some()) {
        return Err(format!("only a rule can give this field: {}", known()));
    }
    // A rule stands in for a default where there is a key, and for the key where there is none.
    let sources = [has_key && !only_rule, rule.is_some() && (only_rule || !has_key), value.is_some()];
    if sources.into_iter().filter(|&given| given).count() != 1 {
        return Err("exactly one of key, value and rule says where it comes from".into());
    }
    if let Some(given) = rule {
        let Some(rule) = rules::of_field(name).find(|rule| rule.name == given) else {
            let known = known();
            let known = if known.is_empty() { "none" } else { &known };
            return Err(format!("unknown rule \"{given}\"; rules for this field: {known}"));
        };
        let unread = [
            ("key", has_key && !rule.reads.key()),
            ("default", default.is_some() && !rule.reads.default()),
            ("default_from", default_from.is_some() && (only_rule || !rule.reads.default())),
            ("null_from", null_from.is_some() && (only_rule || !rule.reads.key())),
            ("null_is_none", *null_is_none && (only_rule || !rule.reads.key())),
        ];
        if let Some((entry, _)) = unread.into_iter().find(|(_, unread)| *unread) {
            return Err(format!("{entry}: not beside the rule \"{given}\""));
        }
    }
    if default.is_some() && default_from.is_some() {
        return Err("at most one of default and default_from says what holds without the key".into());
    }
    if *null_is_none && (null_from.is_some() || !has_key || matches!(kind, Kind::Count | Kind::Flag)) {
        return Err("null_is_none: the plan needs a value, or none can come from a key".into());
    }
    if value.is_some() && (default.is_some() || default_from.is_some() || null_from.is_some()) {
        return Err("a value for the whole family leaves nothing to default, default_from and null_from".into());
    }
    for (entry, other) in [("default_from", default_from), ("null_from", null_from)] {
        let Some(other) = other else { continue };
        let alike = FIELDS.iter().any(|&(known, other_kind)| known == other && other_kind == kind);
        let ends = fields.get(other).is_some_and(|f| f.default_from.is_none() && f.null_from.is_none());
        if !alike || !ends || other == name {
            return Err(format!("{entry} = \"{other}\": expected a field of the same kind that has a value itself"));
        }
    }
    for (entry, value) in [("default", default), ("value", value)] {
        if let Some(value) = value {
            judge(kind, value).map_err(|expected| format!("{entry}: expected {expected}, found {value}"))?;
        }
    }
    Ok(())
}

/// Whether `value` is of the kind; else what was expected.
fn judge(kind: Kind, value: &toml::Value) -> Result<(), String> {
    let json = serde_json::to_value(value).unwrap_or(Value::Null);
    // One value may also be a list of one per layer.
    let each =
        |sound: &dyn Fn(&Value) -> bool| json.as_array().map_or_else(|| sound(&json), |list| list.iter().all(sound));
    let (sound, expected): (bool, String) = match kind {
        Kind::Count | Kind::Window => (each(&|v| keys::count(v).is_some()), COUNT.into()),
        Kind::CountOrZero => (each(&|v| count_or_zero(v).is_some()), COUNT_OR_ZERO.into()),
        Kind::Number => (each(&|v| number(v).is_some()), NUMBER.into()),
        Kind::Positive => (each(&|v| keys::positive(v).is_some()), POSITIVE.into()),
        Kind::Eps => (eps(&json).is_some(), EPS.into()),
        Kind::Share => (rope::share(&json).is_some(), rope::SHARE.into()),
        Kind::Rope => (number(&json).is_some_and(|n| n > 1.0), "a number greater than one".into()),
        Kind::Flag => (json.is_boolean(), FLAG.into()),
        Kind::Choice(words) => {
            (json.as_str().is_some_and(|w| words.contains(&w)), format!("one of {}", words.join(", ")))
        }
        Kind::LayerTypes => (rules::pattern(&json).is_some(), format!("a list of {}", rules::KINDS.join(", "))),
        Kind::Range => (json.as_array().is_some_and(|list| list.len() == 2), "a list of two numbers".into()),
        Kind::Quantization => (false, "no value".into()),
        Kind::Layers => (count_or_zero(&json).is_some(), COUNT_OR_ZERO.into()),
        Kind::Activation => (
            json.as_str().is_some_and(|name| Activation::parse(name).is_some()),
            format!("one of {}", Activation::NAMES.map(|(name, _)| name).join(", ")),
        ),
    };
    if sound { Ok(()) } else { Err(expected) }
}

fn check_tensors(pack: &Pack) -> Result<(), String> {
    let tensors = &pack.tensors;
    if tensors.prefixes.is_empty() && pack.text.is_none() {
        return Err("tensors.prefixes: at least one is needed (it may be empty text)".into());
    }
    for (role, names) in &tensors.model {
        let bare = role.strip_suffix("_bias").unwrap_or(role);
        if !MODEL.contains(&bare) {
            let known = MODEL.join(", ");
            return Err(format!("tensors.{role}: nothing reads this tensor; the parts of a model are {known}"));
        }
        let marks: &[&str] = if role.starts_with("altup") { &["{copy}"] } else { &[] };
        for template in &names.0 {
            placeholders(template, marks).map_err(|message| format!("tensors.{role}: {message}"))?;
        }
    }
    for role in ["embed", "norm", "head"] {
        if pack.text.is_none() && !tensors.model.contains_key(role) {
            return Err(format!("tensors.{role}: missing"));
        }
    }
    for (role, names) in &tensors.layer {
        if !is_role(role) {
            let known = ROLES.join(", ");
            return Err(format!(
                "tensors.layer.{role}: nothing reads this tensor; the parts of a layer are {known}, and the same with _bias"
            ));
        }
        let marks: &[&str] = match role.as_str() {
            "expert_gate" | "expert_up" | "expert_down" | "expert_gate_bias" | "expert_up_bias"
            | "expert_down_bias" => &["{layer}", "{expert}"],
            "q_norm" | "k_norm" if names.0.iter().any(|name| name.contains("{head}")) => &["{layer}", "{head}"],
            _ => &["{layer}"],
        };
        for template in &names.0 {
            placeholders(template, marks).map_err(|message| format!("tensors.layer.{role}: {message}"))?;
        }
    }
    // With these, each tensor plays one part only, but for those of mixers of which a layer has one.
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let all = tensors.model.iter().chain(&tensors.layer);
    for (role, template) in all.flat_map(|(role, names)| names.0.iter().map(move |template| (role, template))) {
        if let Some(other) = seen.insert(template, role)
            && !of_different_mixers(role, other)
        {
            return Err(format!("tensors: {other} and {role} have the same name, \"{template}\""));
        }
    }
    for template in tensors.ignorable.values().flatten() {
        let bare = template.strip_suffix('*').unwrap_or(template);
        let rest = ["{prefix}", "{layer}", "{beyond}"].iter().fold(bare.to_owned(), |t, mark| t.replacen(mark, "", 1));
        if rest.contains(['{', '}', '*']) {
            return Err(format!(
                "tensors.ignorable: expected {{prefix}}, {{layer}} or {{beyond}} at most once and * at the end only, found \"{template}\""
            ));
        }
    }
    Ok(())
}

/// Parts that may have one name, since no layer has both: `self_attn.q_proj` of attention and of Kimi delta attention,
/// Granite 4's `shared_mlp` beside experts and without any.
fn of_different_mixers(a: &str, b: &str) -> bool {
    let family = |role: &str| {
        ["delta_", "mamba_", "conv_"].iter().position(|prefix| role.starts_with(prefix)).map_or(0, |i| i + 1)
    };
    let experts = |role: &str| role.starts_with("expert") || role.starts_with("shared_");
    family(a) != family(b) || experts(a) != experts(b)
}

/// A template holds `{prefix}` at most once, each of `marks` exactly once, and no other braces.
fn placeholders(template: &str, marks: &[&str]) -> Result<(), String> {
    let mut rest = template.replacen("{prefix}", "", 1);
    for mark in marks {
        let without = rest.replacen(mark, "", 1);
        if without == rest {
            let expected =
                if *mark == "{layer}" { "{layer} for the layer's index".to_owned() } else { (*mark).to_owned() };
            return Err(format!("expected {expected}, found \"{template}\""));
        }
        rest = without;
    }
    if rest.contains("{layer}") && !marks.contains(&"{layer}") {
        return Err(format!("expected no {{layer}} outside the layers, found \"{template}\""));
    }
    if rest.contains(['{', '}']) {
        return Err(format!(
            "expected {{prefix}} and {{layer}} at most once and no other braces, found \"{template}\""
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/packs.md has every field and every part in code quotes, and every key of a field's entry.
    #[test]
    fn docs_name_everything() {
        let docs = include_str!("../../docs/packs.md");
        let entries = ["key", "default", "default_from", "null_from", "null_is_none", "value", "rule"];
        let fields = FIELDS.iter().map(|(name, _)| *name).chain(entries);
        let all = fields.chain(MODEL).chain(ROLES.iter().copied());
        let missing: Vec<&str> = all.filter(|name| !docs.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/packs.md doesn't name {missing:?}");
        assert!(!docs.contains("`nothing_of_the_kind`"));
    }

    /// The table of rules in docs/packs.md has each rule of each field with what it reads, and no others.
    #[test]
    fn docs_have_the_rules() {
        let docs = include_str!("../../docs/packs.md");
        let table =
            docs.split("Rules, by field").nth(1).expect("it is there").split("\n### ").next().unwrap_or_default();
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<String>>();
        let mut found = Vec::new();
        for row in table.lines().filter(|line| line.starts_with("| `")) {
            let cells: Vec<&str> = row.split('|').collect();
            let field = quoted(cells[1]).remove(0);
            let reads = cells[3].trim().to_owned();
            found.extend(quoted(cells[2]).into_iter().map(|rule| (field.clone(), rule, reads.clone())));
        }
        let known = rules::RULES.iter().map(|rule| {
            let reads = match (rule.reads.key(), rule.reads.default()) {
                (true, true) => "key, default",
                (true, false) => "key",
                (false, true) => "default",
                (false, false) => "nothing",
            };
            (rule.field.to_owned(), rule.name.to_owned(), reads.to_owned())
        });
        let mut known: Vec<(String, String, String)> = known.collect();
        found.sort();
        known.sort();
        assert_eq!(found, known);
    }

    #[test]
    fn every_rule_is_of_a_field_and_has_a_name_of_its_own() {
        for (i, rule) in rules::RULES.iter().enumerate() {
            assert!(is_field(rule.field), "{rule:?}");
            assert!(rules::RULES[..i].iter().all(|other| other.name != rule.name), "{rule:?}");
        }
    }
}
