//! compressed-tensors: groups of modules, each with a scheme of its own.

use super::float4::{self, Second};
use super::float8::{self, Form, block, ignore_activations, is_float8};
use super::gptq::none;
use super::taking::{Failed, Taking, whole};
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::checkpoint::{Decoder, TensorInfo};
use crate::model::keys::{Keys, Reported};
use crate::problem::quote;
use fancy_regex::Regex;

const INERT: [&str; 8] = [
    "quant_method",
    "ignore",
    "kv_cache_scheme",
    "quantization_status",
    "global_compression_ratio",
    "version",
    "producer",
    "run_compressed",
];

const FORMATS: [&str; 9] = [
    "dense",
    "pack-quantized",
    "int-quantized",
    "naive-quantized",
    "float-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
    "mixed-precision",
];

/// How the weights of some modules are quantised.
struct Scheme {
    targets: Vec<Target>,
    bits: usize,
    symmetric: bool,
    group_size: Option<usize>,
    block: Option<[usize; 2]>,
}

impl Scheme {
    fn float8(&self) -> Form {
        Form { block: self.block.or(self.group_size.map(|size| [1, size])), outputs_last: false }
    }
}

/// Which modules a scheme is for, as compressed-tensors ranks them.
enum Target {
    Name(String),
    Pattern(Box<Regex>),
    /// All of a class: linear layers or embeddings, which are the ones that have such weights.
    Class,
}

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    formats(keys)?;
    none(keys, "transform_config", "weights are transformed then, in a way that is not known here")?;
    for key in ["sparsity_config", "moe_sparsity_config"] {
        sparsity(keys, key)?;
    }
    let schemes = schemes(keys, taking)?;
    for (module, codes) in taking.ending(".weight_packed") {
        let _ = match codes.dtype.name() {
            "U8" => four_bits(module, codes, taking),
            _ => packed(module, codes, &schemes, taking),
        };
    }
    for (module, codes) in taking.ending(".weight") {
        let known = codes.dtype.name() == "I8" || is_float8(codes);
        if taking.is_taken(codes) || !known {
            continue;
        }
        let _ = match scheme(&schemes, module, codes, taking) {
            Ok(scheme) if is_float8(codes) => float8::one(codes, scheme.float8(), taking),
            Ok(scheme) => integers(module, codes, scheme, taking),
            Err(failed) => Err(failed),
        };
    }
    ignore_activations(taking);
    Ok(())
}

fn formats(keys: &mut Keys<'_>) -> Result<(), Reported> {
    let format = keys.read("format", "a text", |value| value.as_str())?;
    match format {
        Some(format) if !FORMATS.contains(&format) => {
            let message = format!("{} can't be decoded; those that can: {}", quote(format), FORMATS.join(", "));
            Err(keys.report("config-value", "format", message))
        }
        _ => Ok(()),
    }
}

/// Nothing, or an object that says that nothing is left out.
fn sparsity(keys: &mut Keys<'_>, key: &str) -> Result<(), Reported> {
    let Some(map) = keys.object(key)? else { return Ok(()) };
    match map.get("format").and_then(|format| format.as_str()) {
        Some("dense") => Ok(()),
        None if map.is_empty() => Ok(()),
        other => {
            let message = format!(
                "expected dense, found {}: weights without their zeros can't be decoded",
                quote(other.unwrap_or("no format"))
            );
            Err(keys.report("config-value", key, message))
        }
    }
}

fn schemes(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<Vec<Scheme>, Reported> {
    const KEY: &str = "config_groups";
    let Some(groups) = keys.object(KEY)? else {
        return Err(keys.report("config-key-missing", KEY, "missing; it says how weights are quantised"));
    };
    let mut schemes = Vec::new();
    for (name, group) in groups {
        let Some(group) = group.as_object() else {
            return Err(keys.report("config-value", KEY, format!("expected an object for {}", quote(name))));
        };
        let mut inner = keys.nested(&format!("{KEY}.{name}"), group);
        let read = one_scheme(&mut inner, taking);
        keys.add_problems(inner.close());
        schemes.extend(read?);
    }
    Ok(schemes)
}

/// Nothing where the weights of a group are not quantised.
fn one_scheme(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<Option<Scheme>, Reported> {
    formats(keys)?;
    keys.raw("output_activations");
    let targets = keys.read("targets", "a list of texts", |value| {
        value.as_array()?.iter().map(|target| target.as_str().map(str::to_owned)).collect::<Option<Vec<String>>>()
    })?;
    let targets = targets.unwrap_or_default().into_iter().map(|target| match target.strip_prefix("re:") {
        Some(pattern) => {
            // From the start on, as Python's `re.match`.
            let compiled = Regex::new(&format!("^(?:{pattern})"));
            let compiled = compiled.map_err(|error| {
                keys.report(
                    "config-value",
                    "targets",
                    format!("{} can't be read as a pattern: {error}", quote(pattern)),
                )
            })?;
            Ok(Target::Pattern(Box::new(compiled)))
        }
        // A class's name has no dot and starts in upper case.
        None if target.starts_with(|c: char| c.is_ascii_uppercase()) && !target.contains('.') => Ok(Target::Class),
        None => Ok(Target::Name(target)),
    });
    let targets = targets.collect::<Result<Vec<Target>, Reported>>()?;
    if let Some(activations) = keys.object("input_activations")? {
        let text = |key: &str| activations.get(key).map_or(String::new(), |value| value.to_string().replace('"', ""));
        let dynamic = if text("dynamic") == "false" { "static" } else { "dynamic" };
        taking.activations(format!(
            "{} of {} bits for each {}, {dynamic}",
            text("type"),
            text("num_bits"),
            text("strategy")
        ));
    }
    let Some(map) = keys.object("weights")? else { return Ok(None) };
    let mut weights = keys.nested("weights", map);
    let read = weight_scheme(&mut weights, targets);
    keys.add_problems(weights.close());
    read.map(Some)
}

fn weight_scheme(keys: &mut Keys<'_>, targets: Vec<Target>) -> Result<Scheme, Reported> {
    keys.read_all_of(&[
        "type",
        "strategy",
        "dynamic",
        "actorder",
        "observer",
        "observer_kwargs",
        "scale_dtype",
        "zp_dtype",
    ]);
    let bits = keys.read("num_bits", "a number from 1 to 8", |value| value.as_u64().filter(|n| (1..=8).contains(n)))?;
    let symmetric = keys.flag("symmetric")?.unwrap_or(true);
    let group_size = super::gptq::group_size(keys, "group_size")?;
    let block = block(keys, "block_structure")?;
    Ok(Scheme { targets, bits: bits.unwrap_or(8) as usize, symmetric, group_size, block })
}

/// The scheme that a module is meant by: by its name before by a pattern, by that before by its class.
fn scheme<'s>(
    schemes: &'s [Scheme],
    module: &str,
    codes: &TensorInfo,
    taking: &mut Taking<'_>,
) -> Result<&'s Scheme, Failed> {
    let rank = |target: &Target| match target {
        Target::Name(name) => (name == module).then_some(0),
        Target::Pattern(pattern) => pattern.is_match(module).unwrap_or(false).then_some(1),
        Target::Class => Some(2),
    };
    let ranked = schemes.iter().filter_map(|scheme| Some((scheme.targets.iter().filter_map(rank).min()?, scheme)));
    match ranked.min_by_key(|(rank, _)| *rank) {
        Some((_, scheme)) => Ok(scheme),
        None => Err(taking.fail("tensor-dtype", codes, "none of config_groups is for this module")),
    }
}

/// `weight_packed` of bytes: NVFP4 where there is a second scale, of which the first is the multiple, MXFP4 elsewhere.
fn four_bits<'a>(module: &str, codes: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let (name, scale) = (format!("{module}.weight"), format!("{module}.weight_scale"));
    let second = format!("{module}.weight_global_scale");
    let powers = taking.find(&scale).is_some_and(|info| matches!(info.dtype.name(), "U8" | "F8_E8M0"));
    if powers && taking.find(&second).is_none() {
        return float4::mxfp4_matrix(codes, name, &scale, taking);
    }
    float4::nvfp4(codes, name, &scale, &second, Second::Divides, taking)
}

/// `weight_packed` of words, `weight_shape` with rows and columns, `weight_scale`, and where they are not symmetric
/// `weight_zero_point`, packed along the rows. A code is its number less half of all.
fn packed<'a>(module: &str, codes: &'a TensorInfo, schemes: &[Scheme], taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scheme = scheme(schemes, module, codes, taking)?;
    let shape = taking.need(&format!("{module}.weight_shape"), codes)?;
    let scales = taking.need(&format!("{module}.weight_scale"), codes)?;
    taking.dtype(codes, &["I32", "U32"])?;
    taking.dtype(shape, &["I64", "I32"])?;
    taking.shape(shape, &[&[2]])?;
    let size = shape.len as usize / 2;
    let numbers = taking.peek(shape)?;
    let at = |i: usize| {
        let mut word = [0; 8];
        word[..size].copy_from_slice(&numbers[i * size..(i + 1) * size]);
        usize::try_from(u64::from_le_bytes(word)).ok().filter(|n| (1..=i32::MAX as usize).contains(n))
    };
    let (Some(rows), Some(cols)) = (at(0), at(1)) else {
        return Err(taking.fail("tensor-value", shape, "expected two numbers greater than zero"));
    };
    let bits = scheme.bits as u32;
    let words = Packing::Words { bits };
    let stream = Packing::Stream { bits, align: 32 };
    // Codes that don't fill words: earlier versions left the rest of a word empty.
    let packing = if words.bytes(rows, cols) == Some(codes.len) { words } else { stream };
    let half = 1i32 << (bits - 1);
    let map = group_map(module, cols, taking)?;
    let groups = groups(scales, scheme, [rows, cols], map, taking)?;
    let count = scales.shape.last().copied().unwrap_or(1);
    let offset = match zero_point(module, codes, scheme, taking)? {
        None => Offset::None,
        Some(zeros) => {
            taking.dtype(zeros, &["I32", "U32"])?;
            // They are packed along the rows: each has its own.
            taking.shape(scales, &[&[rows, count]])?;
            let packing = Packing::Down { bits };
            let codes = taking.codes(zeros, [count, rows], packing, Values::less(half))?;
            Offset::Packed { codes, by_group: true }
        }
    };
    let matrix = Quantized {
        rows,
        cols,
        codes: taking.codes(codes, [rows, cols], packing, Values::less(half))?,
        groups,
        scale: scale(scales, taking)?,
        offset,
        transposed: false,
    };
    taking.make(format!("INT{bits}"), format!("{module}.weight"), codes, vec![rows, cols], vec![matrix]);
    Ok(())
}

fn scale(scales: &TensorInfo, taking: &mut Taking<'_>) -> Result<Scale, Failed> {
    let numbers = taking.numbers(scales, &["BF16", "F16", "F32"])?;
    Ok(Scale { numbers, further: Further::Nothing, sign: Sign::Positive })
}

/// `weight_zero_point`, which only a symmetric scheme can do without.
fn zero_point<'a>(
    module: &str,
    codes: &'a TensorInfo,
    scheme: &Scheme,
    taking: &mut Taking<'a>,
) -> Result<Option<&'a TensorInfo>, Failed> {
    let name = format!("{module}.weight_zero_point");
    if scheme.symmetric { Ok(taking.take(&name)) } else { taking.need(&name, codes).map(Some) }
}

/// `weight_g_idx` `[in]`: each input's group, or -1 for all where they are in order.
fn group_map<'a>(module: &str, cols: usize, taking: &mut Taking<'a>) -> Result<Option<&'a TensorInfo>, Failed> {
    let Some(map) = taking.take(&format!("{module}.weight_g_idx")) else { return Ok(None) };
    taking.dtype(map, &["I32"])?;
    taking.shape(map, &[&[cols]])?;
    let unset = taking.peek(map)?.iter().all(|&byte| byte == 0xff);
    Ok((!unset).then_some(map))
}

/// Whose each scale is: of all, of each row, of some inputs of each row, or of each block.
fn groups(
    scales: &TensorInfo,
    scheme: &Scheme,
    [rows, cols]: [usize; 2],
    map: Option<&TensorInfo>,
    taking: &mut Taking<'_>,
) -> Result<Groups, Failed> {
    let mut forms = vec![
        (vec![], Groups::Blocks { rows, cols, across: 1 }),
        (vec![1], Groups::Blocks { rows, cols, across: 1 }),
        (vec![rows, 1], Groups::Blocks { rows: 1, cols, across: 1 }),
    ];
    if let Some(size) = scheme.group_size {
        let across = cols.div_ceil(size);
        let grouped = match map {
            Some(map) => Groups::Mapped { map: whole(map), groups: across, below: false },
            None => Groups::Blocks { rows: 1, cols: size, across },
        };
        forms = vec![(vec![rows, across], grouped)];
    }
    if let Some([high, wide]) = scheme.block {
        let across = cols.div_ceil(wide);
        forms = vec![(vec![rows.div_ceil(high), across], Groups::Blocks { rows: high, cols: wide, across })];
    }
    let shapes: Vec<&[usize]> = forms.iter().map(|(shape, _)| shape.as_slice()).collect();
    let which = taking.shape(scales, &shapes)?;
    Ok(forms.swap_remove(which).1)
}

/// `weight` of I8, `weight_scale`, and where they are not symmetric `weight_zero_point` of the same shape.
fn integers<'a>(module: &str, codes: &'a TensorInfo, scheme: &Scheme, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.weight_scale"), codes)?;
    let [rows, cols] = taking.matrix(codes)?;
    let map = group_map(module, cols, taking)?;
    let groups = groups(scales, scheme, [rows, cols], map, taking)?;
    let offset = match zero_point(module, codes, scheme, taking)? {
        None => Offset::None,
        Some(zeros) => {
            taking.shape(zeros, &[&scales.shape])?;
            Offset::Zero(taking.numbers(zeros, &["I8"])?)
        }
    };
    let packing = Packing::Stream { bits: 8, align: 8 };
    let matrix = Quantized {
        rows,
        cols,
        codes: taking.codes(codes, [rows, cols], packing, Values::of(Decoder::I8))?,
        groups,
        scale: scale(scales, taking)?,
        offset,
        transposed: false,
    };
    taking.make("INT8", format!("{module}.weight"), codes, vec![rows, cols], vec![matrix]);
    Ok(())
}
