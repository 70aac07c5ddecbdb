//! The rotary table: base, scaling, and the divisors of frequencies that a file holds as tensors.

use super::config::Making;
use crate::checkpoint::gguf::Value;
use crate::checkpoint::{Dtype, Source};
use crate::model::schema;
use serde_json::{Map, json};

/// Divisors of each frequency: of llama3's scaling, worked out by the converter.
const FREQUENCIES: &str = "rope_freqs.weight";
/// LongRoPE's.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";
/// Pairs of a head, at most.
const MOST: usize = 1 << 16;

/// Tensors that become config keys.
pub(super) const TABLES: [&str; 3] = [FREQUENCIES, SHORT, LONG];

const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";
const ATTENTION: &str = "rope.scaling.attn_factor";

pub(super) fn translate(making: &mut Making<'_>) {
    let rule = making.reading.pack.fields.get("rope").and_then(|field| field.rule.as_deref());
    let Some(rule) = rule else { return };
    making.pass("rope.freq_base", "rope_theta");
    if rule == schema::ROPE_LOCAL {
        making.pass("rope.freq_base_swa", "rope_local_base_freq");
    }
    dimensions(making);
    let mut scaling = scaling(making, rule);
    if scaling.is_empty() {
        making.root.remove("rope_scaling");
    } else {
        // Beside what the architecture means.
        if let Some(serde_json::Value::Object(meant)) = making.root.remove("rope_scaling") {
            scaling.extend(meant);
        }
        making.write("rope_scaling", scaling.into());
    }
}

/// The rotated part of a head.
fn dimensions(making: &mut Making<'_>) {
    const KEY: &str = "rope.dimension_count";
    let reading = making.reading;
    if making.has("qk_rope_head_dim") {
        return;
    }
    let Some(rotated) = reading.count(KEY) else { return };
    let share = match (reading.count("embedding_length"), reading.count("attention.head_count")) {
        (Some(width), Some(heads)) if heads > 0 && width % heads == 0 => Some(width / heads),
        _ => None,
    };
    let Some(head_dim) = reading.count("attention.key_length").or(share) else { return };
    let field = reading.pack.fields.get("partial_rotary_factor");
    let key = field.and_then(|field| field.keys.first());
    match key {
        _ if field.and_then(|field| field.rule.as_deref()) == Some(schema::ROTARY_DIM) => {
            making.pass(KEY, "rotary_dim");
        }
        Some(key) if rotated <= head_dim => {
            making.take(KEY);
            // Such that the product is cut to the same number again.
            let mut factor = rotated as f64 / head_dim as f64;
            if ((head_dim as f64 * factor) as u64) < rotated {
                factor = factor.next_up();
            }
            making.write(key, json!(factor));
            making.came_from(key, KEY);
        }
        None if rotated == head_dim => {
            making.take(KEY);
        }
        _ => making.wrong(KEY, &format!("{head_dim}, the width of a head")),
    }
}

fn scaling(making: &mut Making<'_>, rule: &str) -> Map<String, serde_json::Value> {
    let mut object = Map::new();
    let kind = making.take(TYPE);
    let kind = match kind {
        None => "none",
        Some(value) => match value.as_text() {
            Some(kind @ ("none" | "linear" | "yarn" | "longrope")) => kind,
            _ => {
                making.wrong(TYPE, "none, linear, yarn or longrope");
                return object;
            }
        },
    };
    let frequencies = divisors(making, FREQUENCIES);
    let (short, long) = (divisors(making, SHORT), divisors(making, LONG));
    match (frequencies, short, long, kind) {
        (None, None, None, "none" | "linear" | "yarn") => plain(making, &mut object, kind),
        (Some(divisors), None, None, "none") => llama3(making, &mut object, &divisors),
        (None, Some(short), Some(long), "none" | "longrope") => {
            object.insert("rope_type".into(), json!("longrope"));
            object.insert("short_factor".into(), json!(short));
            object.insert("long_factor".into(), json!(long));
            longrope(making, &mut object, rule);
        }
        (frequencies, short, _, _) => {
            let found = match (frequencies, short) {
                (Some(_), _) => FREQUENCIES,
                (None, Some(_)) => SHORT,
                _ => LONG,
            };
            let message = "expected divisors of frequencies to be rope_freqs.weight alone, or rope_factors_short.weight and \
                           rope_factors_long.weight with no other scaling";
            making.tensor_problem(found, message.into());
        }
    }
    object
}

/// Scalings that the keys alone describe.
fn plain(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>, kind: &str) {
    match kind {
        "none" => {
            // One is no scaling; without a type another one is nothing that could be known.
            if making.reading.get(FACTOR).and_then(as_number) == Some(1.0) {
                making.take(FACTOR);
            }
            making.take(ORIGINAL);
        }
        _ => {
            object.insert("rope_type".into(), json!(kind));
            if let Some(factor) = making.take(FACTOR) {
                object.insert("factor".into(), factor.to_json());
                making.came_from("rope_scaling.factor", FACTOR);
            }
            if kind == "linear" {
                return;
            }
            for (key, name) in [
                (ORIGINAL, "original_max_position_embeddings"),
                ("rope.scaling.yarn_beta_fast", "beta_fast"),
                ("rope.scaling.yarn_beta_slow", "beta_slow"),
            ] {
                if let Some(value) = making.take(key) {
                    object.insert(name.into(), value.to_json());
                    making.came_from(&format!("rope_scaling.{name}"), key);
                }
            }
            log_multiplier(making, object);
            // What llama.cpp multiplies its own formula with.
            for key in [ATTENTION, "rope.scaling.yarn_attn_factor", "rope.scaling.yarn_ext_factor"] {
                if making.reading.get(key).and_then(as_number) == Some(1.0) {
                    making.take(key);
                }
            }
        }
    }
}

/// YaRN's temperature of the softmax, of which a file has a tenth; `mscale`, which it lacks, is the same in all models that
/// llama.cpp knows.
fn log_multiplier(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>) {
    const KEY: &str = "rope.scaling.yarn_log_multiplier";
    if !making.has("mscale_in_scale") {
        return;
    }
    let Some(tenth) = making.reading.get(KEY).and_then(as_number) else { return };
    making.take(KEY);
    let mscale = json!(shortest((tenth * 10.0) as f32));
    object.insert("mscale".into(), mscale.clone());
    object.insert("mscale_all_dim".into(), mscale);
    making.came_from("rope_scaling.mscale_all_dim", KEY);
}

/// The converter writes llama3's scaling as a divisor of each frequency. Where they are those of the published parameters
/// these stand in the config, as in the original; else the divisors themselves.
fn llama3(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>, divisors: &[f64]) {
    /// Of Llama 3.1 to 3.3 and everything made of them.
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    const TRAINED: f64 = 8192.0;
    /// float32, with what the converter's formula adds to it.
    const CLOSE: f64 = 1e-5;
    making.take(ORIGINAL);
    let base = making.root.get("rope_theta").and_then(serde_json::Value::as_f64).unwrap_or(10_000.0);
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    let expected = |i: usize| {
        let frequency = libm::pow(base, -(i as f64) / divisors.len() as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < TRAINED / HIGH {
            1.0
        } else if wavelength > TRAINED / LOW {
            factor
        } else {
            let smooth = (TRAINED / wavelength - LOW) / (HIGH - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    if divisors.iter().enumerate().all(|(i, &divisor)| (divisor / expected(i) - 1.0).abs() < CLOSE) {
        object.insert("rope_type".into(), json!("llama3"));
        object.insert("factor".into(), json!(factor));
        object.insert("low_freq_factor".into(), json!(LOW));
        object.insert("high_freq_factor".into(), json!(HIGH));
        object.insert("original_max_position_embeddings".into(), json!(TRAINED as u64));
        return;
    }
    // LongRoPE whose two tables are the same, without its factor of cos and sin.
    object.insert("rope_type".into(), json!("longrope"));
    object.insert("short_factor".into(), json!(divisors));
    object.insert("long_factor".into(), json!(divisors));
    object.insert("attention_factor".into(), json!(1.0));
    object.insert("original_max_position_embeddings".into(), json!(TRAINED as u64));
}

fn longrope(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>, rule: &str) {
    let Some(original) = making.take(ORIGINAL) else { return };
    if rule == schema::ROPE_LONG {
        making.pass(ORIGINAL, "original_max_position_embeddings");
    } else {
        object.insert("original_max_position_embeddings".into(), original.to_json());
    }
    let Some(stated) = making.reading.get(ATTENTION).and_then(as_number) else { return };
    let formula = match (making.reading.count("context_length"), original.as_count()) {
        (Some(max), Some(original)) if max > original && original > 1 => {
            let scale = max as f64 / original as f64;
            (1.0 + libm::log(scale) / libm::log(original as f64)).sqrt()
        }
        _ => 1.0,
    };
    // What the formula gives, the config leaves to it.
    if (stated / formula - 1.0).abs() < 1e-6 {
        making.take(ATTENTION);
    } else if rule == schema::ROPE_LONG {
        making.wrong(ATTENTION, &format!("{formula:.7}, which the two context lengths give"));
    } else {
        making.take(ATTENTION);
        object.insert("attention_factor".into(), json!(stated));
    }
}

fn as_number(value: &Value) -> Option<f64> {
    value.to_json().as_f64()
}

/// The shortest decimal number of which a float32 is the nearest.
fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

/// The float32 values of a small tensor, each as the shortest decimal number that it is the nearest float32 of.
fn divisors(making: &mut Making<'_>, name: &str) -> Option<Vec<f64>> {
    let info = making.reading.gguf.tensors().get(name)?;
    let [pairs] = info.shape[..] else {
        making.tensor_problem(name, format!("expected one dimension, found {:?}", info.shape));
        return None;
    };
    if info.dtype != Dtype::F32 || pairs > MOST {
        making
            .tensor_problem(name, format!("expected F32 and at most {MOST} values, found {} and {pairs}", info.dtype));
        return None;
    }
    match making.reading.gguf.read(info, 0..info.len) {
        Ok(bytes) => {
            let (words, _) = bytes.as_chunks::<4>();
            Some(words.iter().map(|word| shortest(f32::from_le_bytes(*word))).collect())
        }
        Err(error) => {
            making.tensor_problem(name, format!("{error:#}"));
            None
        }
    }
}
