//! The rotary table: base, scaling, and the divisors of frequencies that a file holds as tensors.

use super::config::Making;
use crate::checkpoint::gguf::Value;
use crate::checkpoint::{Dtype, Source};
use crate::model::{rope, schema};
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

const BASE: &str = "rope.freq_base";
const LOCAL: &str = "rope.freq_base_swa";
const TYPE: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
const ORIGINAL: &str = "rope.scaling.original_context_length";
const ATTENTION: &str = "rope.scaling.attn_factor";

pub(super) fn translate(making: &mut Making<'_>) {
    let rule = making.reading.pack.fields.get("rope").and_then(|field| field.rule.as_deref());
    let Some(rule) = rule else { return };
    if rule == schema::ROPE_BY_TYPE {
        return by_type(making);
    }
    making.pass(BASE, "rope_theta");
    if rule == schema::ROPE_LOCAL {
        making.pass(LOCAL, "rope_local_base_freq");
    } else if making.reading.get(LOCAL) == making.reading.get(BASE) {
        making.take(LOCAL);
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

/// A table for layers that see everything, of which some pairs don't turn (their frequencies are divided by something huge),
/// and one for sliding ones.
fn by_type(making: &mut Making<'_>) {
    /// What the converter divides by.
    const STILL: f64 = 1e30;
    const ROTATED: &str = "rope.dimension_count";
    const ROTATED_SLIDING: &str = "rope.dimension_count_swa";
    let (mut full, mut sliding) = (Map::new(), Map::new());
    full.insert("rope_type".into(), json!("default"));
    sliding.insert("rope_type".into(), json!("default"));
    for (object, key) in [(&mut full, BASE), (&mut sliding, LOCAL)] {
        if let Some(base) = making.take(key) {
            object.insert("rope_theta".into(), base.to_json());
        }
    }
    let width = making.reading.count("attention.key_length");
    if making.reading.count(ROTATED) == width {
        making.take(ROTATED);
    }
    if let Some(divisors) = divisors(making, FREQUENCIES) {
        let turning = divisors.iter().take_while(|&&n| n == 1.0).count();
        let pairs = divisors.len();
        if turning > 0 && divisors[turning..].iter().all(|&n| n == STILL) && width == Some(2 * pairs as u64) {
            full.insert("rope_type".into(), json!("proportional"));
            full.insert("partial_rotary_factor".into(), json!(factor(turning, pairs)));
        } else {
            let message = "expected a divisor of one for the first pairs of a head and of 1e30 for the others";
            making.tensor_problem(FREQUENCIES, message.into());
        }
    }
    let swa = making.reading.count("attention.key_length_swa").and_then(|n| usize::try_from(n).ok());
    match (making.reading.count(ROTATED_SLIDING).and_then(|n| usize::try_from(n).ok()), swa) {
        (Some(rotated), Some(width)) if rotated == width => {
            making.take(ROTATED_SLIDING);
        }
        (Some(rotated), Some(width)) if rotated < width => {
            making.take(ROTATED_SLIDING);
            sliding.insert("partial_rotary_factor".into(), json!(factor(rotated, width)));
        }
        _ => {}
    }
    making.write("rope_parameters", json!({ "full_attention": full, "sliding_attention": sliding }));
}

/// Such that the product with the whole is cut to the part again.
fn factor(part: usize, whole: usize) -> f64 {
    let factor = part as f64 / whole as f64;
    if rope::rotated(whole, factor) < part { factor.next_up() } else { factor }
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
            making.write(key, json!(factor(rotated as usize, head_dim as usize)));
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
            const GROWTH: &str = "attention.temperature_scale";
            if let Some(growth) = making.take(GROWTH) {
                object.insert("llama_4_scaling_beta".into(), growth.to_json());
                making.came_from("rope_scaling.llama_4_scaling_beta", GROWTH);
            }
            yarn_attention(making, object);
            // What llama.cpp multiplies its own formula with.
            for key in [ATTENTION, "rope.scaling.yarn_ext_factor"] {
                if making.reading.get(key).and_then(as_number) == Some(1.0) {
                    making.take(key);
                }
            }
        }
    }
}

/// YaRN's factor of cos and sin: what the formula gives, the config leaves to it.
fn yarn_attention(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>) {
    const KEY: &str = "rope.scaling.yarn_attn_factor";
    let Some(stated) = making.reading.get(KEY).and_then(as_number) else { return };
    let factor = making.reading.get(FACTOR).and_then(as_number).unwrap_or(1.0);
    making.take(KEY);
    if (stated / (0.1 * libm::log(factor.max(1.0)) + 1.0) - 1.0).abs() >= 1e-6 {
        object.insert("attention_factor".into(), json!(stated));
        making.came_from("rope_scaling.attention_factor", KEY);
    }
}

/// `mscale_all_dim`: for latent attention a file has a tenth of it, and the models have the same `mscale`, which a file lacks;
/// for others that is one, as in llama.cpp.
fn log_multiplier(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>) {
    const KEY: &str = "rope.scaling.yarn_log_multiplier";
    let Some(stated) = making.reading.get(KEY).and_then(as_number) else { return };
    making.take(KEY);
    let latent = making.has("kv_lora_rank");
    let all_dim = if latent { shortest((stated * 10.0) as f32) } else { stated };
    object.insert("mscale".into(), json!(if latent { all_dim } else { 1.0 }));
    object.insert("mscale_all_dim".into(), json!(all_dim));
    making.came_from("rope_scaling.mscale_all_dim", KEY);
}

/// The converter writes llama3's scaling as a divisor of each frequency. Where they are those of the published parameters
/// these stand in the config, as in the original; else the divisors themselves.
fn llama3(making: &mut Making<'_>, object: &mut Map<String, serde_json::Value>, divisors: &[f64]) {
    const LOW: f64 = 1.0;
    /// Of Llama 3.1 to 3.3 and everything made of them; of Llama 4 Scout.
    const HIGH: [f64; 2] = [4.0, 1.0];
    const TRAINED: f64 = 8192.0;
    /// float32, with what the converter's formula adds to it.
    const CLOSE: f64 = 1e-5;
    making.take(ORIGINAL);
    let base = making.root.get("rope_theta").and_then(serde_json::Value::as_f64).unwrap_or(10_000.0);
    let factor = divisors.iter().copied().fold(1.0, f64::max);
    let expected = |i: usize, high: f64| {
        let frequency = libm::pow(base, -(i as f64) / divisors.len() as f64);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < TRAINED / high {
            1.0
        } else if wavelength > TRAINED / LOW {
            factor
        } else {
            let smooth = (TRAINED / wavelength - LOW) / (high - LOW);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    let fits = |high: f64| divisors.iter().enumerate().all(|(i, n)| (n / expected(i, high) - 1.0).abs() < CLOSE);
    if let Some(high) = HIGH.into_iter().find(|&high| fits(high)) {
        object.insert("rope_type".into(), json!("llama3"));
        object.insert("factor".into(), json!(factor));
        object.insert("low_freq_factor".into(), json!(LOW));
        object.insert("high_freq_factor".into(), json!(high));
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
