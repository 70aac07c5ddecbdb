//! The rotary table of a config, in both spellings: `rope_theta` beside `rope_scaling`, or `rope_parameters`.

use super::keys::{Found, Keys, Reported, positive};
use crate::ops::rope::{Rope, RopeScaling};
use crate::problem::{quote, visible};
use serde_json::{Map, Value};

/// The keys beside those of a RoPE object that [`read`] reads.
pub const KEYS: [&str; 5] = ["rope_theta", "rope_scaling", "rope_parameters", ORIGINAL, LOCAL];

const ORIGINAL: &str = "original_max_position_embeddings";

const KINDS: [&str; 7] = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"];

/// Inside a RoPE object, what changes nothing for text: the sections of Qwen-VL's three-part positions, which are all the
/// same for text, and a copy of the outer key.
const INERT: [&str; 3] = ["mrope_section", "mrope_interleaved", "max_position_embeddings"];

/// What a pack and other keys say about a table.
#[derive(Debug, Clone)]
pub struct Expected<'a> {
    /// Keys beside the RoPE object that may give the base.
    pub theta_keys: &'a [String],
    pub default_theta: f64,
    /// Columns of a head.
    pub head_dim: usize,
    /// The rotated part of a head, as keys beside the object or the family give it.
    pub partial_rotary_factor: Option<f64>,
    /// Where no key says it.
    pub default_partial_rotary_factor: f64,
    pub max_position_embeddings: usize,
    pub interleaved: bool,
    /// Only `default` and `longrope` are known, `su` and `yarn` mean the latter, and the trained length stands beside the
    /// object (Phi-3).
    pub longrope: bool,
    /// `dynamic` may have an `alpha` (Hunyuan).
    pub alpha: bool,
    /// There may be a `llama_4_scaling_beta` (Ministral 3, Mistral 4).
    pub beta: bool,
    /// Latent attention rotates this part of a head, as `qk_rope_head_dim` says.
    pub latent: Option<usize>,
}

/// A table, and what a RoPE object says about attention beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    pub rope: Rope,
    /// YaRN's temperature of the softmax, `0.1 mscale_all_dim ln(factor) + 1`: one where there is none.
    pub mscale: f64,
    /// `llama_4_scaling_beta` and the length that it counts in.
    pub temperature: Option<(f64, usize)>,
}

/// Reads the table of a model; all problems are in `keys` when this fails.
pub fn read(keys: &mut Keys<'_>, expected: &Expected<'_>) -> Result<Table, Reported> {
    let (name, map) = object(keys)?;
    read_object(keys, name, map, expected)
}

/// What one RoPE object, or none, means where there are two kinds of layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flat {
    /// Nothing: there must be an object for each.
    Refused,
    /// The sliding layers have the same base and no scaling.
    Unscaled,
    /// The sliding layers have `rope_local_base_freq` and no scaling.
    Local,
}

/// Reads two tables, for full attention and for sliding layers: from an object for each inside `rope_parameters`, or from
/// one object. Nothing for a type whose object is `null`.
pub fn read_pair(
    keys: &mut Keys<'_>,
    full: &Expected<'_>,
    sliding: &Expected<'_>,
    flat: Flat,
) -> Result<(Option<Table>, Option<Table>), Reported> {
    let (name, map) = object(keys)?;
    if map.values().any(Value::is_object) {
        for key in full.theta_keys.iter().map(String::as_str).chain(["rope_theta", LOCAL]) {
            if keys.raw(key).is_some_and(|value| !value.is_null()) {
                return Err(keys.report(
                    "config-contradiction",
                    key,
                    format!("stands beside {name}, which has one for each layer type"),
                ));
            }
        }
        let mut inner = keys.nested(name, map);
        let mut one = |kind: &str, expected: &Expected<'_>| {
            let null = inner.is_null(kind);
            match inner.object(kind)? {
                None if null => Ok(None),
                Some(object) if object.get("truncate").is_some_and(|truncate| *truncate != Value::Bool(true)) => {
                    let message =
                        "truncate has no effect in an object of one layer type, so what is meant can't be known";
                    Err(inner.report("rope-value", kind, message))
                }
                Some(object) => read_object(&mut inner, kind, object, expected).map(Some),
                None => Err(inner.report("rope-value", kind, "missing; the layers of this type need it")),
            }
        };
        let tables = (one("full_attention", full), one("sliding_attention", sliding));
        keys.add_problems(inner.close());
        return Ok((tables.0?, tables.1?));
    }
    if flat == Flat::Refused {
        keys.read_all_of(&KEYS);
        let message = "expected an object with one for full_attention and one for sliding_attention";
        return Err(keys.report("rope-value", "rope_parameters", message));
    }
    let table = read_object(keys, name, map, full)?;
    let base = match flat {
        Flat::Local => keys.read(LOCAL, "a number greater than one", theta)?.unwrap_or(10_000.0),
        _ => table.rope.rope_theta,
    };
    let rope = Rope {
        dim: sliding.head_dim,
        rope_theta: base,
        interleaved: sliding.interleaved,
        scaling: RopeScaling::Default,
    };
    Ok((Some(table), Some(Table { rope, mscale: 1.0, temperature: None })))
}

const LOCAL: &str = "rope_local_base_freq";

/// The RoPE object, in one of its two spellings.
fn object<'c>(keys: &mut Keys<'c>) -> Result<(&'static str, &'c Map<String, Value>), Reported> {
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
    Ok(match (legacy, modern) {
        (Some(map), _) => ("rope_scaling", map),
        (None, Some(map)) => ("rope_parameters", map),
        (None, None) => ("rope_parameters", EMPTY.get_or_init(Map::new)),
    })
}

fn read_object(
    keys: &mut Keys<'_>,
    path: &str,
    map: &Map<String, Value>,
    expected: &Expected<'_>,
) -> Result<Table, Reported> {
    let mut theta_outside = Ok(None);
    for key in std::iter::once("rope_theta").chain(expected.theta_keys.iter().map(String::as_str)) {
        let found = keys.read(key, "a number greater than one", theta);
        theta_outside = match (theta_outside, found) {
            (Ok(a), Ok(b)) => same(keys, key, a, b),
            _ => Err(Reported),
        };
    }
    let outer = Outer { theta: theta_outside, expected };
    let mut inner = keys.nested(path, map);
    let table = read_inner(&mut inner, keys, &outer);
    keys.add_problems(inner.close());
    table
}

/// What stands outside the RoPE object.
struct Outer<'a> {
    theta: Found<f64>,
    expected: &'a Expected<'a>,
}

fn theta(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| n.is_finite() && *n > 1.0)
}

fn read_inner(keys: &mut Keys<'_>, top: &mut Keys<'_>, outer: &Outer<'_>) -> Result<Table, Reported> {
    // Whatever is wrong, the other keys are read as well: so all problems are found, and none is made up.
    let inner_theta = keys.read("rope_theta", "a number greater than one", theta);
    let rope_theta = match (inner_theta, outer.theta) {
        (Ok(inner), Ok(outer)) => same(keys, "rope_theta", inner, outer),
        _ => Err(Reported),
    };
    for key in INERT {
        keys.raw(key);
    }
    let kind = match (keys.text("rope_type"), keys.text("type")) {
        // Qwen-VL's old spelling of the default kind.
        (Ok(new), Ok(Some("mrope"))) => Ok(new.unwrap_or("default")),
        (Ok(new), Ok(old)) => same(keys, "rope_type", new, old).map(|kind| kind.unwrap_or("default")),
        _ => Err(Reported),
    };
    let longrope = outer.expected.longrope;
    if longrope {
        top.raw(ORIGINAL);
    }
    let kind = kind.and_then(|kind| {
        let known: &[&str] = if longrope { &["default", "longrope", "su", "yarn"] } else { &KINDS };
        if known.contains(&kind) {
            return Ok(if longrope && kind != "default" { "longrope" } else { kind });
        }
        let message = format!("unknown kind {}; known are {}", quote(kind), known.join(", "));
        Err(keys.report("rope-type", "rope_type", message))
    });
    let partial = partial(keys, outer.expected, kind == Ok("proportional"));
    let beta = if outer.expected.beta { keys.non_negative("llama_4_scaling_beta") } else { Ok(None) };
    let scaling = match (kind, partial) {
        (Ok(kind), Ok((dim, proportion))) => read_scaling(keys, top, outer, kind, dim, proportion),
        _ => {
            // The keys of an unknown kind can't be judged.
            keys.read_all();
            top.raw(ORIGINAL);
            Err(Reported)
        }
    };
    let rope_theta = rope_theta?.unwrap_or(outer.expected.default_theta);
    let (scaling, mscale, original) = scaling?;
    let (dim, _) = partial?;
    let temperature = match (beta?, original) {
        (Some(beta), Some(original)) => Some((beta, original)),
        (Some(_), None) => {
            return Err(keys.report("rope-value", "llama_4_scaling_beta", "needs original_max_position_embeddings"));
        }
        (None, _) => None,
    };
    let rope = Rope { dim, rope_theta, interleaved: outer.expected.interleaved, scaling };
    Ok(Table { rope, mscale, temperature })
}

/// Columns of a head that have a frequency, and the factor that gives them. Where that is `proportional` all have one, which
/// is zero for some.
fn partial(keys: &mut Keys<'_>, expected: &Expected<'_>, proportional: bool) -> Result<(usize, f64), Reported> {
    let inner = keys.read("partial_rotary_factor", SHARE, share)?;
    let given = same(keys, "partial_rotary_factor", inner, expected.partial_rotary_factor)?;
    if let Some(dim) = expected.latent {
        return match given {
            Some(factor) if (expected.head_dim as f64 * factor).round() as usize != dim => {
                let message = format!("expected what gives qk_rope_head_dim ({dim}), found {factor}");
                Err(keys.report("config-contradiction", "partial_rotary_factor", message))
            }
            _ if dim.is_multiple_of(2) => Ok((dim, 1.0)),
            _ => Err(keys.report(
                "config-value",
                "partial_rotary_factor",
                format!("RoPE rotates pairs: expected an even qk_rope_head_dim, found {dim}"),
            )),
        };
    }
    let factor = given.unwrap_or(expected.default_partial_rotary_factor);
    let dim = if proportional { expected.head_dim } else { rotated(expected.head_dim, factor) };
    if dim >= 2 && dim.is_multiple_of(2) {
        return Ok((dim, factor));
    }
    let message = format!("RoPE rotates pairs: expected an even part of {} columns, found {dim}", expected.head_dim);
    Err(keys.report("config-value", "partial_rotary_factor", message))
}

/// Columns of a head that are rotated: cut to a whole number, as transformers does.
pub fn rotated(head_dim: usize, factor: f64) -> usize {
    (head_dim as f64 * factor) as usize
}

/// What a share may be, for messages.
pub const SHARE: &str = "a number above 0 and up to 1";

/// A share of a whole.
pub fn share(value: &Value) -> Option<f64> {
    value.as_f64().filter(|n| *n > 0.0 && *n <= 1.0)
}

/// How the frequencies are scaled, YaRN's temperature of the softmax, and the trained length where the kind has one.
fn read_scaling(
    keys: &mut Keys<'_>,
    top: &mut Keys<'_>,
    outer: &Outer<'_>,
    kind: &str,
    dim: usize,
    proportion: f64,
) -> Result<(RopeScaling, f64, Option<usize>), Reported> {
    let max = outer.expected.max_position_embeddings;
    let mut softmax = 1.0;
    let mut trained = None;
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "proportional" => RopeScaling::Proportional {
            factor: keys.positive("factor")?.unwrap_or(1.0),
            rotated: (proportion * outer.expected.head_dim as f64 / 2.0).floor() as usize,
        },
        "linear" => RopeScaling::Linear { factor: required(keys.positive("factor"), keys, "factor")? },
        // Hunyuan's: `alpha` stretches the base for every length, and nothing else counts.
        "dynamic" if outer.expected.alpha && keys.raw("alpha").is_some_and(|alpha| !alpha.is_null()) => {
            keys.read_all_of(&["factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", ORIGINAL]);
            RopeScaling::NtkAlpha { alpha: required(keys.positive("alpha"), keys, "alpha")? }
        }
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
            let original = original(keys, top, outer);
            let (factor, low_freq_factor, high_freq_factor) = (factor?, low?, high?);
            // Llama 4 Scout has one for both: no wavelength lies between.
            if high_freq_factor < low_freq_factor {
                let message =
                    format!("expected at least low_freq_factor ({low_freq_factor}), found {high_freq_factor}");
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
            let (truncate, original) = (keys.flag("truncate"), original(keys, top, outer));
            let original = original?;
            trained = Some(original);
            let factor = factor?.unwrap_or(max as f64 / original as f64);
            // transformers takes zero for absent in these four.
            let set = |found: Found<f64>| found.map(|v| v.filter(|&n| n != 0.0));
            let (mscale, mscale_all_dim) = (set(mscale)?, set(mscale_all_dim)?);
            softmax = mscale_all_dim.map_or(1.0, |all| yarn_mscale(factor, all));
            let attention_factor = match (given?, mscale, mscale_all_dim) {
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
                (keys.positive("factor"), keys.non_negative("attention_factor"), original(keys, top, outer));
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
    };
    Ok((scaling, softmax, trained))
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
fn original(keys: &mut Keys<'_>, top: &mut Keys<'_>, expected: &Outer<'_>) -> Result<usize, Reported> {
    /// Phi-3's, which counts before one inside.
    const LONGROPE: usize = 4096;
    let (inner, outer) = (keys.count(ORIGINAL), top.count(ORIGINAL));
    let outer = outer?.or(expected.expected.longrope.then_some(LONGROPE));
    let original = same(keys, ORIGINAL, inner?, outer)?.unwrap_or(expected.expected.max_position_embeddings);
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

/// The beginning of a text, for messages.
fn shortened(text: &str) -> String {
    visible(&text.chars().take(60).collect::<String>())
}

/// The value of a key that may stand in two places: where both have it, they must agree.
fn same<T: PartialEq + std::fmt::Display>(keys: &mut Keys<'_>, key: &str, a: Option<T>, b: Option<T>) -> Found<T> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(keys.report(
            "config-contradiction",
            key,
            format!(
                "stands in two places with different values, {} and {}",
                shortened(&a.to_string()),
                shortened(&b.to_string())
            ),
        )),
        (a, b) => Ok(a.or(b)),
    }
}
