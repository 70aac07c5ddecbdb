//! `quantization_config`: how a family's projections compute where a config says that they are quantised.

use super::fields::Fields;
use super::keys::{Keys, Reported, shown};
use crate::problem::quote;
use serde_json::Value;

/// How BitNet's projections come to their ternary weights and to the scale of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// Packed; a stored scale multiplies the result, bias included (`autobitlinear`, `offline`).
    Multiplies,
    /// Packed; a stored scale divides the result before the bias (`bitlinear`).
    Divides,
    /// Rounded on the way, by the mean of their magnitudes (`autobitlinear`, `online`).
    Online,
}

impl Quantization {
    pub fn packed(self) -> bool {
        self != Quantization::Online
    }
}

/// Reads the object that the field `quantization` names; nothing where there is none. All problems are in the keys when
/// this fails.
pub fn read(fields: &mut Fields<'_, '_, '_>) -> Result<Option<Quantization>, Reported> {
    if fields.field("quantization").is_none() {
        return Ok(None);
    }
    let key = fields.key("quantization");
    let Some(map) = fields.keys.object(&key)? else { return Ok(None) };
    let mut keys = fields.keys.nested(&key, map);
    let read = bitnet(&mut keys);
    fields.keys.add_problems(keys.close());
    read.map(Some)
}

/// As transformers' `BitNetQuantConfig` and its quantizer have it.
fn bitnet(keys: &mut Keys<'_>) -> Result<Quantization, Reported> {
    const METHOD: &str = "quant_method";
    match keys.text(METHOD) {
        Ok(Some("bitnet")) => {}
        other => {
            // What its keys mean can't be known.
            keys.read_all();
            return Err(match other {
                Ok(Some(other)) => {
                    let message = format!("expected bitnet, found {}, which is not supported here", quote(other));
                    keys.report("config-value", METHOD, message)
                }
                Ok(None) => keys.report("config-key-missing", METHOD, "missing; it says how weights are quantised"),
                Err(reported) => reported,
            });
        }
    }
    let class = word(keys, "linear_class", &["bitlinear", "autobitlinear"]);
    let mode = word(keys, "quantization_mode", &["offline", "online"]);
    let (left_out, norm) = (left_out(keys), norm(keys));
    let (class, mode) = (class?, mode?);
    left_out?;
    norm?;
    match (class, mode) {
        ("bitlinear", "online") => {
            let message = "online is for autobitlinear, but linear_class is bitlinear (also where it is absent)";
            Err(keys.report("config-contradiction", "quantization_mode", message))
        }
        ("bitlinear", _) => Ok(Quantization::Divides),
        (_, "online") => Ok(Quantization::Online),
        _ => Ok(Quantization::Multiplies),
    }
}

/// One of two words, the first where there is none.
fn word(keys: &mut Keys<'_>, key: &str, words: &'static [&'static str; 2]) -> Result<&'static str, Reported> {
    let known = |value: &Value| words.iter().find(|word| value.as_str() == Some(word)).copied();
    Ok(keys.read(key, &words.join(" or "), known)?.unwrap_or(words[0]))
}

/// `null` leaves the head as it is, and so does a list of it alone; an empty list would not.
fn left_out(keys: &mut Keys<'_>) -> Result<(), Reported> {
    const KEY: &str = "modules_to_not_convert";
    match keys.raw(KEY) {
        None | Some(Value::Null) => Ok(()),
        Some(list) if *list == serde_json::json!(["lm_head"]) => Ok(()),
        Some(other) => {
            let message = format!(
                "expected null or [\"lm_head\"], found {}: all projections of the layers are ternary here, and the head isn't",
                shown(other)
            );
            Err(keys.report("config-value", KEY, message))
        }
    }
}

/// The norm before each projection that isn't supported, and its epsilon, which has no effect then.
fn norm(keys: &mut Keys<'_>) -> Result<(), Reported> {
    keys.raw("rms_norm_eps");
    let norm = keys.flag("use_rms_norm")?.unwrap_or(false);
    if norm {
        let message = "expected false, found true: a further norm before every projection is not supported";
        return Err(keys.report("config-value", "use_rms_norm", message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: Value) -> Result<Quantization, String> {
        let mut keys = Keys::new("config.json", "quantization_config.", config.as_object().unwrap());
        let read = bitnet(&mut keys);
        let problems = keys.close();
        match (read, &problems[..]) {
            (Ok(found), []) => Ok(found),
            (_, [one]) => Err(one.to_string()),
            (read, _) => panic!("{read:?}, {problems:?}"),
        }
    }

    #[test]
    fn each_class_and_mode_is_told_apart() {
        let read = |more: Value| {
            let mut config = serde_json::json!({ "quant_method": "bitnet" });
            config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(config)
        };
        use serde_json::json;
        for (more, expected) in [
            (json!({}), Quantization::Divides),
            (json!({ "linear_class": "bitlinear", "quantization_mode": "offline" }), Quantization::Divides),
            (json!({ "linear_class": "autobitlinear" }), Quantization::Multiplies),
            (json!({ "linear_class": "autobitlinear", "quantization_mode": "offline" }), Quantization::Multiplies),
            (json!({ "linear_class": "autobitlinear", "quantization_mode": "online" }), Quantization::Online),
            (
                json!({ "modules_to_not_convert": null, "use_rms_norm": false, "rms_norm_eps": 1e-6 }),
                Quantization::Divides,
            ),
            (json!({ "modules_to_not_convert": ["lm_head"] }), Quantization::Divides),
        ] {
            assert_eq!(read(more.clone()), Ok(expected), "{more}");
        }
        for (more, wanted) in [
            (
                json!({ "linear_class": "linear" }),
                "key `quantization_config.linear_class`: expected bitlinear or autobitlinear",
            ),
            (
                json!({ "quantization_mode": "later" }),
                "quantization_mode`: expected offline or online, found \"later\"",
            ),
            (json!({ "quantization_mode": "online" }), "quantization_mode`: online is for autobitlinear"),
            (json!({ "use_rms_norm": true }), "use_rms_norm`: expected false, found true"),
            (
                json!({ "modules_to_not_convert": [] }),
                "modules_to_not_convert`: expected null or [\"lm_head\"], found []",
            ),
            (json!({ "modules_to_not_convert": ["lm_head", "q_proj"] }), "found [\"lm_head\",\"q_proj\"]"),
            (
                json!({ "quant_method": "fp8", "activation_scheme": "dynamic" }),
                "quant_method`: expected bitnet, found `fp8`",
            ),
            (json!({ "quant_method": null }), "quant_method`: missing"),
            (json!({ "num_bits": 8 }), "key `quantization_config.num_bits`: unknown key"),
        ] {
            let error = read(more.clone()).unwrap_err();
            assert!(error.contains(wanted), "{more}: {error}");
        }
    }
}
