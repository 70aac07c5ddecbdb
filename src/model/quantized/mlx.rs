//! MLX: codes of 1 to 8 bits with a scale and a bias for each group, and its floats of four and eight bits.

use super::float8::MOST_EXPERTS;
use super::taking::{Failed, Taking};
use crate::checkpoint::Decoder;
use crate::checkpoint::TensorInfo;
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::model::keys::{Keys, Reported};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// How the codes of a module are meant.
#[derive(Clone, Copy)]
struct Format {
    mode: Mode,
    bits: usize,
    group_size: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Affine,
    /// E2M1, a power of two for each group.
    Mxfp4,
    /// E2M1, an E4M3 number for each group.
    Nvfp4,
    /// E4M3, a power of two for each group.
    Mxfp8,
}

const MODES: [(&str, Mode); 4] =
    [("affine", Mode::Affine), ("mxfp4", Mode::Mxfp4), ("nvfp4", Mode::Nvfp4), ("mxfp8", Mode::Mxfp8)];

/// Whether an object without a method is MLX's, which has its own key for it.
pub fn is_meant(root: &Map<String, Value>, quantization: &Map<String, Value>) -> bool {
    root.get("quantization").and_then(Value::as_object) == Some(quantization)
}

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.raw("quant_method");
    let common = format(keys, false)?;
    let mut own: BTreeMap<String, Format> = BTreeMap::new();
    let modules: Vec<(&str, &Value)> =
        keys.unread().filter(|(_, value)| value.is_object() || value.is_boolean()).collect();
    for (module, value) in modules {
        // true is as all others, and false says that it is not quantised, as its tensors do.
        if let Some(map) = keys.raw(module).and(value.as_object()) {
            let mut inner = keys.nested(module, map);
            let read = format(&mut inner, true);
            keys.add_problems(inner.close());
            own.insert(module.to_owned(), read?);
        }
    }
    for (module, scales) in taking.ending(".scales") {
        let _ = one(own.get(module).copied().unwrap_or(common), module, scales, taking);
    }
    Ok(())
}

fn format(keys: &mut Keys<'_>, own: bool) -> Result<Format, Reported> {
    let mode = keys.read("mode", "affine, mxfp4, nvfp4 or mxfp8", |value| {
        MODES.iter().find(|(name, _)| Some(*name) == value.as_str()).map(|(_, mode)| *mode)
    })?;
    // A module's own entry takes nothing from the others', as in mlx's `to_quantized`.
    let mode = mode.unwrap_or(Mode::Affine);
    let missing = |keys: &mut Keys<'_>, key: &str| {
        keys.report("config-key-missing", key, "missing; the codes can't be read without it")
    };
    let Some(bits) = keys.count("bits")?.or(own.then_some(4)) else { return Err(missing(keys, "bits")) };
    let Some(group_size) = keys.count("group_size")?.or(own.then_some(64)) else {
        return Err(missing(keys, "group_size"));
    };
    let fits = match mode {
        Mode::Affine => matches!(bits, 1..=6 | 8),
        Mode::Mxfp4 | Mode::Nvfp4 => bits == 4,
        Mode::Mxfp8 => bits == 8,
    };
    if !fits {
        return Err(keys.report(
            "config-value",
            "bits",
            format!("expected a number of bits that this mode has, found {bits}"),
        ));
    }
    Ok(Format { mode, bits, group_size })
}

/// `weight` of words `[out, in * bits / 32]`, `scales` and `biases` `[out, in / group_size]`; with experts one more
/// dimension in front.
fn one<'a>(format: Format, module: &str, scales: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let Format { mode, bits, group_size } = format;
    let weight = format!("{module}.weight");
    let codes = taking.need(&weight, scales)?;
    taking.take(&scales.name);
    taking.dtype(codes, &["U32"])?;
    let (outer, rows, words) = match codes.shape[..] {
        [rows, words] => (None, rows, words),
        [experts, rows, words] => (Some(experts), rows, words),
        _ => return Err(taking.fail("tensor-shape", codes, "expected a matrix, or one for each expert")),
    };
    let elements = words.saturating_mul(32);
    if !elements.is_multiple_of(bits) || !(elements / bits).is_multiple_of(group_size) || words == 0 {
        let message = format!(
            "expected words that hold whole groups of {group_size} codes of {bits} bits, found {words} in a row"
        );
        return Err(taking.fail("tensor-row", codes, message));
    }
    let cols = elements / bits;
    let groups = cols / group_size;
    let mut shape = vec![rows, groups];
    shape.splice(0..0, outer);
    taking.shape(scales, &[&shape])?;
    let floats = ["F16", "BF16", "F32"];
    let (values, decoder, biases) = match mode {
        Mode::Affine => {
            let biases = taking.need(&format!("{module}.biases"), codes)?;
            taking.shape(biases, &[&shape])?;
            (Values::less(0), None, Some(taking.numbers(biases, &floats)?))
        }
        Mode::Mxfp4 => (Values::float4(), Some(Decoder::E8M0), None),
        Mode::Nvfp4 => (Values::float4(), Some(Decoder::E4M3), None),
        Mode::Mxfp8 => (Values::float8(), Some(Decoder::E8M0), None),
    };
    let mut numbers = taking.numbers(scales, if decoder.is_some() { &["U8"] } else { &floats })?;
    numbers.decoder = decoder.unwrap_or(numbers.decoder);
    let sign = match mode {
        Mode::Affine => Sign::Any,
        Mode::Nvfp4 => Sign::NotNegative,
        _ => Sign::Positive,
    };
    let count = outer.unwrap_or(1);
    if !(1..=MOST_EXPERTS).contains(&count) || rows == 0 {
        return Err(taking.fail("tensor-shape", codes, "expected a matrix with elements, or one for each expert"));
    }
    let all = taking.codes(
        codes,
        [rows.saturating_mul(count), cols],
        Packing::Stream { bits: bits as u32, align: 32 },
        values,
    )?;
    let matrices: Vec<Quantized> = (0..count)
        .map(|i| Quantized {
            rows,
            cols,
            codes: all.entry(i, count),
            groups: Groups::Blocks { rows: 1, cols: group_size, across: groups },
            scale: Scale { numbers: numbers.entry(i, count), further: Further::Nothing, sign },
            offset: biases.as_ref().map_or(Offset::None, |biases| Offset::Bias(biases.entry(i, count))),
            transposed: false,
        })
        .collect();
    let name = match mode {
        Mode::Affine => format!("MLX-{bits}"),
        Mode::Mxfp4 => "MXFP4".to_owned(),
        Mode::Nvfp4 => "NVFP4".to_owned(),
        Mode::Mxfp8 => "MXFP8".to_owned(),
    };
    // The experts of a layer are one tensor here, and one each elsewhere.
    if let Some((before, projection)) = module.split_once(".switch_mlp.") {
        let part = match (before.ends_with("block_sparse_moe"), projection) {
            (true, "gate_proj") => "w1",
            (true, "down_proj") => "w2",
            (true, "up_proj") => "w3",
            (_, other) => other,
        };
        for (i, matrix) in matrices.into_iter().enumerate() {
            taking.make(
                name.clone(),
                format!("{before}.experts.{i}.{part}.weight"),
                codes,
                vec![rows, cols],
                vec![matrix],
            );
        }
        return Ok(());
    }
    let mut shape = vec![rows, cols];
    shape.splice(0..0, outer);
    taking.make(name, weight, codes, shape, matrices);
    Ok(())
}
