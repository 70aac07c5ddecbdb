//! The rotary table of a config, in both spellings: `rope_theta` beside `rope_scaling`, or `rope_parameters`.

use super::keys::{Found, Keys, Reported, positive};
use crate::ops::rope::{Rope, RopeScaling};
use crate::problem::{quote, visible};
use serde_json::{Map, Value};

/// The keys beside those of a RoPE object that [`read`] reads.
pub const KEYS: [&str; 4] = ["rope_theta", "rope_scaling", "rope_parameters", ORIGINAL];

const ORIGINAL: &str = "original_max_position_embeddings";

const KINDS: [&str; 6] = ["default", "linear", "dynamic", "llama3", "yarn", "longrope"];

/// Reads the table of a model whose heads rotate `dim` dimensions; all problems are in `keys` when this fails.
pub fn read(
    keys: &mut Keys<'_>,
    default_theta: f64,
    dim: usize,
    max_position_embeddings: usize,
) -> Result<Rope, Reported> {
    static EMPTY: std::sync::OnceLock<Map<String, Value>> = std::sync::OnceLock::new();
    let legacy = keys.object("rope_scaling")?.filter(|m| !m.is_empty());
    let modern = keys.object("rope_parameters")?.filter(|m| !m.is_empty());
    if let (Some(l), Some(m)) = (legacy, modern)
        && l != m
    {
        for key in KEYS {
            keys.raw(key);
        }
        return Err(keys.report(
            "config-contradiction",
            "rope_scaling",
            "differs from rope_parameters, which is also there",
        ));
    }
    let (name, map) = match (legacy, modern) {
        (Some(map), _) => ("rope_scaling", map),
        (None, Some(map)) => ("rope_parameters", map),
        (None, None) => ("rope_parameters", EMPTY.get_or_init(Map::new)),
    };
    let outer = Outer {
        theta: keys.read("rope_theta", "a number greater than one", theta),
        default_theta,
        dim,
        max_position_embeddings,
    };
    let mut inner = keys.nested(name, map);
    let rope = read_inner(&mut inner, keys, &outer);
    keys.add_problems(inner.close());
    rope
}

/// What stands outside the RoPE object.
struct Outer {
    theta: Found<f64>,
    default_theta: f64,
    dim: usize,
    max_position_embeddings: usize,
}

fn theta(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| n.is_finite() && *n > 1.0)
}

fn read_inner(keys: &mut Keys<'_>, top: &mut Keys<'_>, outer: &Outer) -> Result<Rope, Reported> {
    // Whatever is wrong, the other keys are read as well: so all problems are found, and none is made up.
    let inner_theta = keys.read("rope_theta", "a number greater than one", theta);
    let rope_theta = match (inner_theta, outer.theta) {
        (Ok(inner), Ok(outer)) => same(keys, "rope_theta", inner, outer),
        _ => Err(Reported),
    };
    let kind = match (keys.text("rope_type"), keys.text("type")) {
        (Ok(new), Ok(old)) => same(keys, "rope_type", new, old).map(|kind| kind.unwrap_or("default")),
        _ => Err(Reported),
    };
    let kind = kind.and_then(|kind| {
        if KINDS.contains(&kind) {
            return Ok(kind);
        }
        let message = format!("unknown kind {}; known are {}", quote(kind), KINDS.join(", "));
        Err(keys.report("rope-type", "rope_type", message))
    });
    let scaling = match kind {
        Ok(kind) => read_scaling(keys, top, outer, kind),
        Err(Reported) => {
            // The keys of an unknown kind can't be judged.
            keys.read_all();
            top.raw(ORIGINAL);
            Err(Reported)
        }
    };
    let rope_theta = rope_theta?.unwrap_or(outer.default_theta);
    Ok(Rope { dim: outer.dim, rope_theta, interleaved: false, scaling: scaling? })
}

fn read_scaling(keys: &mut Keys<'_>, top: &mut Keys<'_>, outer: &Outer, kind: &str) -> Result<RopeScaling, Reported> {
    let (dim, max) = (outer.dim, outer.max_position_embeddings);
    Ok(match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: required(keys.positive("factor"), keys, "factor")? },
        "dynamic" => {
            let factor = required(keys.positive("factor"), keys, "factor")?;
            if dim <= 2 {
                return Err(keys.report(
                    "rope-value",
                    "rope_type",
                    "dynamic scaling needs heads of more than 2 dimensions",
                ));
            }
            RopeScaling::Dynamic { factor, max_position_embeddings: max }
        }
        "llama3" => {
            let (factor, low, high) = (
                required(keys.positive("factor"), keys, "factor"),
                required(keys.positive("low_freq_factor"), keys, "low_freq_factor"),
                required(keys.positive("high_freq_factor"), keys, "high_freq_factor"),
            );
            let original = original(keys, top, max);
            let (factor, low_freq_factor, high_freq_factor) = (factor?, low?, high?);
            if high_freq_factor <= low_freq_factor {
                let message =
                    format!("expected more than low_freq_factor ({low_freq_factor}), found {high_freq_factor}");
                return Err(keys.report("rope-value", "high_freq_factor", message));
            }
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: original?,
            }
        }
        "yarn" => {
            let (factor, given) = (keys.positive("factor"), keys.non_negative("attention_factor"));
            let (fast, slow) = (keys.non_negative("beta_fast"), keys.non_negative("beta_slow"));
            let (mscale, mscale_all_dim) = (keys.non_negative("mscale"), keys.non_negative("mscale_all_dim"));
            let (truncate, original) = (keys.flag("truncate"), original(keys, top, max));
            let original = original?;
            let factor = factor?.unwrap_or(max as f64 / original as f64);
            // transformers takes zero for absent in these four.
            let set = |found: Found<f64>| found.map(|v| v.filter(|&n| n != 0.0));
            let attention_factor = match (given?, set(mscale)?, set(mscale_all_dim)?) {
                (Some(given), ..) => given,
                (None, Some(m), Some(all)) => yarn_mscale(factor, m) / yarn_mscale(factor, all),
                (None, ..) => yarn_mscale(factor, 1.0),
            };
            RopeScaling::Yarn {
                factor,
                original_max_position_embeddings: original,
                attention_factor,
                beta_fast: set(fast)?.unwrap_or(32.0),
                beta_slow: set(slow)?.unwrap_or(1.0),
                truncate: truncate?.unwrap_or(true),
            }
        }
        _ => {
            let (short, long) = (divisors(keys, "short_factor", dim), divisors(keys, "long_factor", dim));
            let (factor, given, original) =
                (keys.positive("factor"), keys.non_negative("attention_factor"), original(keys, top, max));
            let original = original?;
            let factor = factor?.unwrap_or(max as f64 / original as f64);
            let attention_factor = match given? {
                Some(given) => given,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + libm::log(factor) / libm::log(original as f64)).sqrt(),
            };
            RopeScaling::Longrope {
                short_factor: short?,
                long_factor: long?,
                original_max_position_embeddings: original,
                attention_factor,
            }
        }
    })
}

/// YaRN's temperature: `0.1 mscale ln(factor) + 1`.
fn yarn_mscale(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * libm::log(factor) + 1.0 }
}

fn required<T>(found: Found<T>, keys: &mut Keys<'_>, key: &str) -> Result<T, Reported> {
    match found? {
        Some(value) => Ok(value),
        None => Err(keys.report("rope-value", key, "missing; this kind of RoPE needs it")),
    }
}

/// The trained length: beside the RoPE object (as Phi-3 writes it), inside it, or `max_position_embeddings`.
fn original(keys: &mut Keys<'_>, top: &mut Keys<'_>, max: usize) -> Result<usize, Reported> {
    let (inner, outer) = (keys.count(ORIGINAL), top.count(ORIGINAL));
    let original = same(keys, ORIGINAL, inner?, outer?)?.unwrap_or(max);
    if original < 2 {
        return Err(keys.report("rope-value", ORIGINAL, format!("expected at least 2, found {original}")));
    }
    Ok(original)
}

fn divisors(keys: &mut Keys<'_>, key: &str, dim: usize) -> Result<Vec<f64>, Reported> {
    let expected = format!("a list of {} numbers greater than zero (one per pair of a head)", dim / 2);
    let list = keys.read(key, &expected, |value| {
        let list: Option<Vec<f64>> = value.as_array()?.iter().map(positive).collect();
        list.filter(|l| l.len() == dim / 2)
    });
    required(list, keys, key)
}

/// The value of a key that may stand in two places: where both have it, they must agree.
fn same<T: PartialEq + std::fmt::Display>(keys: &mut Keys<'_>, key: &str, a: Option<T>, b: Option<T>) -> Found<T> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(keys.report(
            "config-contradiction",
            key,
            format!(
                "stands in two places with different values, {} and {}",
                visible(&a.to_string()),
                visible(&b.to_string())
            ),
        )),
        (a, b) => Ok(a.or(b)),
    }
}
