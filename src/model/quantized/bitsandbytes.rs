//! bitsandbytes: NF4, FP4 and eight bits.

use super::taking::{Failed, Taking};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::quantized::{Further, Groups, Numbers, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::model::keys::{Keys, Reported, shown};
use serde_json::{Map, Value};

/// How the library computes, and which modules it left as they were: the tensors say the rest.
const INERT: [&str; 15] = [
    "quant_method",
    "load_in_4bit",
    "load_in_8bit",
    "_load_in_4bit",
    "_load_in_8bit",
    "llm_int8_threshold",
    "llm_int8_skip_modules",
    "llm_int8_enable_fp32_cpu_offload",
    "llm_int8_has_fp16_weight",
    "bnb_4bit_compute_dtype",
    "bnb_4bit_quant_type",
    "bnb_4bit_use_double_quant",
    "bnb_4bit_quant_storage",
    "modules_to_not_convert",
    "bnb_4bit_blocksize",
];

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    for kind in ["nf4", "fp4"] {
        for (weight, state) in taking.ending(&format!(".quant_state.bitsandbytes__{kind}")) {
            // What is wrong is reported.
            let _ = four_bits(weight, state, taking);
        }
    }
    for (_, absmax) in taking.ending(".weight.absmax") {
        if !taking.is_taken(absmax) {
            let name = absmax.name.replace(".absmax", ".quant_state.bitsandbytes__nf4");
            let _ = taking.need(&name, absmax);
        }
    }
    let scaled = taking.ending(".SCB");
    if !scaled.is_empty() && keys.flag("llm_int8_has_fp16_weight")? != Some(true) {
        taking.activations("8 bits for each token, but for the largest");
    }
    for (module, scales) in scaled {
        let _ = eight_bits(module, scales, taking);
    }
    for (module, codes) in taking.ending(".weight") {
        if codes.dtype.name() == "I8" && !taking.is_taken(codes) {
            let _ = taking.need(&format!("{module}.SCB"), codes);
        }
    }
    Ok(())
}

/// `weight` of bytes, `absmax` of each `blocksize` elements, `quant_map` of 16 values, and a JSON text with the shape. With
/// nested scales `absmax` is a code too.
fn four_bits<'a>(weight: &str, state: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let codes = taking.need(weight, state)?;
    let absmax = taking.need(&format!("{weight}.absmax"), codes)?;
    let map = taking.need(&format!("{weight}.quant_map"), codes)?;
    let text = taking.read(state)?;
    let parsed = serde_json::from_slice::<Map<String, Value>>(&text);
    let parsed =
        parsed.map_err(|error| taking.fail("tensor-value", state, format!("expected a JSON object: {error}")))?;
    let shape: Option<Vec<usize>> = parsed.get("shape").and_then(Value::as_array).and_then(|list| {
        list.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0)).collect()
    });
    let Some(&[rows, cols]) = shape.as_deref() else {
        return Err(expected(taking, state, &parsed, "shape", "two numbers greater than zero"));
    };
    let blocksize = count(taking, state, &parsed, "blocksize")?;
    let Some(elements) = rows.checked_mul(cols) else {
        return Err(expected(taking, state, &parsed, "shape", "fewer elements"));
    };
    let values = table::<16>(taking, map)?;
    let blocks = elements.div_ceil(blocksize);
    taking.shape(absmax, &[&[blocks], &[blocks, 1]])?;
    let scale = match absmax.dtype.name() {
        "U8" => {
            let of = taking.need(&format!("{weight}.nested_absmax"), codes)?;
            let map = taking.need(&format!("{weight}.nested_quant_map"), codes)?;
            let size = count(taking, state, &parsed, "nested_blocksize")?;
            let Some(offset) = parsed.get("nested_offset").and_then(Value::as_f64).filter(|n| n.is_finite()) else {
                return Err(expected(taking, state, &parsed, "nested_offset", "a number"));
            };
            taking.shape(of, &[&[blocks.div_ceil(size)]])?;
            let table = table::<256>(taking, map)?;
            let table = Values::each(|code| table[usize::from(code)]);
            let of = taking.numbers(of, &["F32"])?;
            let further = Further::Nested { table, of, size, offset: offset as f32 };
            Scale { numbers: taking.numbers(absmax, &["U8"])?, further, sign: Sign::Any }
        }
        _ => Scale {
            numbers: taking.numbers(absmax, &["F32", "F16", "BF16"])?,
            further: Further::Nothing,
            sign: Sign::NotNegative,
        },
    };
    // Bytes, whatever floats they are said to be.
    taking.dtype(codes, &["U8", "F16", "BF16", "F32"])?;
    let matrix = Quantized {
        rows,
        cols,
        codes: taking.codes(codes, [rows, cols], Packing::UpperFirst, Values::table(&values))?,
        groups: Groups::Line { size: blocksize },
        scale,
        offset: Offset::None,
        transposed: false,
    };
    let format = if state.name.ends_with("__nf4") { "NF4" } else { "FP4" };
    taking.make(format, weight.to_owned(), codes, vec![rows, cols], vec![matrix]);
    Ok(())
}

/// `weight` of I8 `[out, in]`, `SCB` `[out]`: the largest magnitude of each row.
fn eight_bits<'a>(module: &str, scales: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let weight = format!("{module}.weight");
    let codes = taking.need(&weight, scales)?;
    taking.take(&scales.name);
    taking.dtype(codes, &["I8"])?;
    let [rows, cols] = taking.matrix(codes)?;
    taking.shape(scales, &[&[rows]])?;
    if let Some(format) = taking.take(&format!("{module}.weight_format")) {
        let value = taking.read(format)?;
        if value.iter().any(|&byte| byte != 0) {
            return Err(taking.fail(
                "tensor-value",
                format,
                "expected 0, rows one after the other: the orders for GPUs are not known here",
            ));
        }
    }
    let numbers: Numbers = taking.numbers(scales, &["F32"])?;
    let matrix = Quantized {
        rows,
        cols,
        codes: taking.codes(
            codes,
            [rows, cols],
            Packing::Stream { bits: 8, align: 8 },
            Values::of(crate::checkpoint::Decoder::I8),
        )?,
        groups: Groups::Blocks { rows: 1, cols, across: 1 },
        // The library's own constant for 1/127.
        scale: Scale { numbers, further: Further::Then(7.874_016e-3), sign: Sign::NotNegative },
        offset: Offset::None,
        transposed: false,
    };
    taking.make("LLM.int8", weight, codes, vec![rows, cols], vec![matrix]);
    Ok(())
}

fn table<const N: usize>(taking: &mut Taking<'_>, info: &TensorInfo) -> Result<[f32; N], Failed> {
    taking.dtype(info, &["F32"])?;
    taking.shape(info, &[&[N]])?;
    let bytes = taking.peek(info)?;
    let values =
        std::array::from_fn(|i| bytes[4 * i..].first_chunk().map_or(f32::NAN, |word| f32::from_le_bytes(*word)));
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        return Err(taking.fail(
            "tensor-value",
            info,
            format!("element {at}: expected a finite number, found {}", values[at]),
        ));
    }
    Ok(values)
}

fn count(taking: &mut Taking<'_>, state: &TensorInfo, parsed: &Map<String, Value>, key: &str) -> Result<usize, Failed> {
    match parsed.get(key).and_then(crate::model::keys::count) {
        Some(count) => Ok(count),
        None => Err(expected(taking, state, parsed, key, "a number greater than zero")),
    }
}

fn expected(taking: &mut Taking<'_>, state: &TensorInfo, parsed: &Map<String, Value>, key: &str, what: &str) -> Failed {
    let found = parsed.get(key).map_or("none".to_owned(), shown);
    taking.fail("tensor-value", state, format!("key {key}: expected {what}, found {found}"))
}
