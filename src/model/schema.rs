//! What a pack may say, so that nothing in it goes unread: a field, a rule or a tensor under a name that no code reads
//! is refused when the pack is loaded, not passed over when it is used.

use super::pack::{Field, Pack};
use crate::ops::Activation;
use std::collections::BTreeMap;

/// `head_dim`: `hidden_size / num_attention_heads` where the config has no such key.
pub const HEAD_DIM: &str = "hidden_size / num_attention_heads";
/// `sliding_window`: see [`super::rules::window_everywhere`].
pub const WINDOW_EVERYWHERE: &str = "sliding_window everywhere";
/// `sliding_window`: see [`super::rules::window_by_layer`].
pub const WINDOW_BY_LAYER: &str = "sliding_window by layer";
/// `rope`: see [`super::rope::read`].
pub const ROPE: &str = "rope_parameters";

/// What a field's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Count,
    Number,
    Flag,
    Activation,
    Window,
    Rope,
}

/// Every field of a plan, and whether a pack must say where it comes from.
const FIELDS: [(&str, Kind, bool); 17] = [
    ("vocab_size", Kind::Count, true),
    ("hidden_size", Kind::Count, true),
    ("intermediate_size", Kind::Count, true),
    ("num_hidden_layers", Kind::Count, true),
    ("num_attention_heads", Kind::Count, true),
    ("num_key_value_heads", Kind::Count, true),
    ("head_dim", Kind::Count, true),
    ("max_position_embeddings", Kind::Count, true),
    ("norm_eps", Kind::Number, true),
    ("hidden_act", Kind::Activation, true),
    ("qkv_bias", Kind::Flag, false),
    ("o_bias", Kind::Flag, false),
    ("mlp_bias", Kind::Flag, false),
    ("qk_norm", Kind::Flag, false),
    ("tie_word_embeddings", Kind::Flag, true),
    ("sliding_window", Kind::Window, false),
    ("rope", Kind::Rope, true),
];

/// The parts of a layer, and whether every plan has them.
const ROLES: [(&str, bool); 18] = [
    ("mixer_norm", true),
    ("q", true),
    ("q_bias", false),
    ("k", true),
    ("k_bias", false),
    ("v", true),
    ("v_bias", false),
    ("o", true),
    ("o_bias", false),
    ("q_norm", false),
    ("k_norm", false),
    ("mlp_norm", true),
    ("gate", true),
    ("gate_bias", false),
    ("up", true),
    ("up_bias", false),
    ("down", true),
    ("down_bias", false),
];

/// Checks a pack, with everything that it inherits.
///
/// # Errors
/// One sentence that names the entry.
pub fn check(pack: &Pack) -> Result<(), String> {
    if pack.model_types.is_empty() && pack.architectures.is_empty() {
        return Err("model_types and architectures are empty: the pack answers for no checkpoint".into());
    }
    for (name, field) in &pack.fields {
        let (_, kind, _) = FIELDS.iter().find(|(known, ..)| known == name).ok_or_else(|| {
            let known = FIELDS.map(|(name, ..)| name).join(", ");
            format!("fields.{name}: nothing reads this field; the fields of a plan are {known}")
        })?;
        check_field(name, field, *kind, &pack.fields).map_err(|message| format!("fields.{name}: {message}"))?;
    }
    for (name, _, required) in FIELDS {
        if required && !pack.fields.contains_key(name) {
            return Err(format!("fields.{name}: missing, every plan needs it"));
        }
    }
    check_tensors(pack)
}

fn check_field(name: &str, field: &Field, kind: Kind, fields: &BTreeMap<String, Field>) -> Result<(), String> {
    let Field { key, default, default_from, null_from, value, rule } = field;
    if let Some(rule) = rule {
        let rules: &[&str] = match kind {
            Kind::Count if name == "head_dim" => &[HEAD_DIM],
            Kind::Window => &[WINDOW_EVERYWHERE, WINDOW_BY_LAYER],
            Kind::Rope => &[ROPE],
            _ => &[],
        };
        if !rules.contains(&rule.as_str()) {
            let known = if rules.is_empty() { "none".to_owned() } else { rules.join(", ") };
            return Err(format!("unknown rule \"{rule}\"; rules for this field: {known}"));
        }
    }
    // A rule reads keys of its own, except that of head_dim, which stands in for a default.
    let (has_key, has_rule) = (key.is_some(), rule.is_some() && name != "head_dim");
    if [has_key, has_rule, value.is_some()].into_iter().filter(|&given| given).count() != 1 {
        return Err("exactly one of key, value and rule says where it comes from".into());
    }
    if matches!(kind, Kind::Window | Kind::Rope) && !has_rule {
        return Err("only a rule can give this field".into());
    }
    let fallbacks = [default.is_some(), default_from.is_some(), has_key && rule.is_some()];
    let fallbacks = fallbacks.into_iter().filter(|&given| given).count();
    if fallbacks > 1 {
        return Err("at most one of default, default_from and rule says what holds without the key".into());
    }
    if value.is_some() && (fallbacks > 0 || null_from.is_some()) {
        return Err("a value for the whole family leaves nothing to default, default_from and null_from".into());
    }
    for (entry, other) in [("default_from", default_from), ("null_from", null_from)] {
        let Some(other) = other else { continue };
        let is_count = FIELDS.iter().any(|&(known, kind, _)| known == other && kind == Kind::Count);
        let ends = fields.get(other).is_some_and(|f| f.default_from.is_none() && f.null_from.is_none());
        if kind != Kind::Count || !is_count || !ends || other == name {
            return Err(format!("{entry} = \"{other}\": expected, for a count, another count that has a value itself"));
        }
    }
    for (entry, value) in [("default", default), ("value", value)] {
        if let Some(value) = value {
            judge(kind, value).map_err(|expected| format!("{entry}: expected {expected}, found {value}"))?;
        }
    }
    match kind {
        Kind::Window if default.is_none() => Err("default: missing, the rule needs it".into()),
        _ => Ok(()),
    }
}

/// Whether `value` is of the kind; else what was expected.
fn judge(kind: Kind, value: &toml::Value) -> Result<(), &'static str> {
    let number = |sound: fn(f64) -> bool| number(value).is_some_and(|n| n.is_finite() && sound(n));
    let (sound, expected) = match kind {
        Kind::Count | Kind::Window => (
            value.as_integer().is_some_and(|n| (1..=i64::from(i32::MAX)).contains(&n)),
            "a whole number from 1 to 2147483647",
        ),
        Kind::Number => (number(|n| (0.0..=1.0).contains(&n)), "a number from 0 to 1"),
        Kind::Rope => (number(|n| n > 1.0), "a number greater than one"),
        Kind::Flag => (value.is_bool(), "true or false"),
        Kind::Activation => (
            value.as_str().is_some_and(|name| Activation::parse(name).is_some()),
            "one of silu, gelu, gelu_pytorch_tanh and relu, or another spelling of them",
        ),
    };
    if sound { Ok(()) } else { Err(expected) }
}

/// A number of a pack: `500000` is as good as `500000.0`.
pub fn number(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|n| n as f64))
}

fn check_tensors(pack: &Pack) -> Result<(), String> {
    let tensors = &pack.tensors;
    if tensors.prefixes.is_empty() {
        return Err("tensors.prefixes: at least one is needed (it may be empty text)".into());
    }
    let outer = [("embed", &tensors.embed), ("norm", &tensors.norm), ("head", &tensors.head)];
    for (role, template) in outer {
        if template.is_empty() {
            return Err(format!("tensors.{role}: missing"));
        }
        placeholders(template, false).map_err(|message| format!("tensors.{role}: {message}"))?;
    }
    for (role, template) in &tensors.layer {
        if !ROLES.iter().any(|(known, _)| known == role) {
            let known = ROLES.map(|(role, _)| role).join(", ");
            return Err(format!("tensors.layer.{role}: nothing reads this tensor; the parts of a layer are {known}"));
        }
        placeholders(template, true).map_err(|message| format!("tensors.layer.{role}: {message}"))?;
    }
    for (role, required) in ROLES {
        if required && !tensors.layer.contains_key(role) {
            return Err(format!("tensors.layer.{role}: missing, every plan needs it"));
        }
    }
    // With these, each tensor plays one part only.
    let layer = tensors.layer.iter().map(|(role, template)| (role.as_str(), template));
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    for (role, template) in outer.into_iter().chain(layer) {
        if let Some(other) = seen.insert(template, role) {
            return Err(format!("tensors: {other} and {role} have the same name, \"{template}\""));
        }
    }
    for template in &tensors.ignorable {
        let in_layer = template.contains("{layer}");
        placeholders(template, in_layer).map_err(|message| format!("tensors.ignorable: {message}"))?;
    }
    Ok(())
}

/// A template holds `{prefix}` and `{layer}` at most once each, the latter exactly where it stands for a tensor of a
/// layer, and no other braces.
fn placeholders(template: &str, in_layer: bool) -> Result<(), String> {
    let rest = template.replacen("{prefix}", "", 1);
    let bare = rest.replacen("{layer}", "", 1);
    if (bare != rest) != in_layer {
        let expected = if in_layer { "{layer} for the layer's index" } else { "no {layer} outside the layers" };
        return Err(format!("expected {expected}, found \"{template}\""));
    }
    if bare.contains(['{', '}']) {
        return Err(format!(
            "expected {{prefix}} and {{layer}} at most once and no other braces, found \"{template}\""
        ));
    }
    Ok(())
}
