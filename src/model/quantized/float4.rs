//! Weights in floats of four bits: NVFP4 and MXFP4.

use super::float8::{self, Form, MOST_EXPERTS, ignore_activations};
use super::gptq::{none, word};
use super::taking::{Failed, Taking};
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::checkpoint::{Decoder, TensorInfo};
use crate::model::contract::shown;
use crate::model::keys::{Keys, Reported};

/// What the second scale of NVFP4 does to the first.
#[derive(Clone, Copy)]
pub enum Second {
    Multiplies,
    Divides,
}

/// Elements with a scale in common.
const NVFP4: usize = 16;
const MXFP4: usize = 32;

/// ModelOpt's names of what it does to weights, and to activations where it says more.
const ALGORITHMS: [&str; 10] = [
    "fp8",
    "fp8_pb_wo",
    "fp8_per_channel_per_token",
    "mxfp8",
    "nvfp4",
    "nvfp4_awq",
    "w4a16_nvfp4",
    "w4a8_nvfp4_fp8",
    "w4a8_mxfp4_fp8",
    "mixed_precision",
];

/// ModelOpt: floats of eight bits, of four, or some of both.
pub fn modelopt(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    const INERT: [&str; 9] = [
        "quant_method",
        "producer",
        "ignore",
        "exclude_modules",
        "kv_cache_scheme",
        "kv_cache_quant_algo",
        "quantized_layers",
        "config_groups",
        "group_size",
    ];
    keys.read_all_of(&INERT);
    word(keys, "quant_algo", &ALGORITHMS)?;
    matrices(taking);
    for (name, scales) in taking.ending("_weight_scale_2") {
        if let Some(codes) = taking.find(name).filter(|codes| codes.dtype.name() == "U8") {
            let _ = nvfp4_experts(codes, scales, taking);
        }
    }
    for (_, info) in taking.ending(".pre_quant_scale") {
        taking.fail("tensor-surplus", info, "inputs are multiplied by it first, which is not known here");
    }
    float8::all(Form::default(), taking);
    taking.activations("as the weights, with stored scales");
    Ok(())
}

/// AMD's Quark: the same tensors, with one scale.
pub fn quark(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    const INERT: [&str; 10] = [
        "quant_method",
        "exclude",
        "export",
        "kv_cache_post_rope",
        "kv_cache_quant_config",
        "layer_quant_config",
        "layer_type_quant_config",
        "quant_mode",
        "softmax_quant_spec",
        "version",
    ];
    keys.read_all_of(&INERT);
    none(keys, "algo_config", "weights may be transformed then, in a way that is not known here")?;
    if let Some(all) = keys.object("global_quant_config")? {
        let mut all = keys.nested("global_quant_config", all);
        all.read_all();
        let read = word(&mut all, "weight.dtype", &["fp8_e4m3", "fp8_e5m2", "fp4"]);
        if all.has("input_tensors") && !all.is_null("input_tensors") {
            taking.activations("as the config's input_tensors say");
        }
        keys.add_problems(all.close());
        read?;
    }
    matrices(taking);
    float8::all(Form::default(), taking);
    Ok(())
}

/// Matrices of codes of four bits.
fn matrices(taking: &mut Taking<'_>) {
    for (module, codes) in taking.ending(".weight") {
        if codes.dtype.name() != "U8" {
            continue;
        }
        let (name, scale) = (format!("{module}.weight"), format!("{module}.weight_scale"));
        let powers = taking.find(&scale).is_some_and(|info| info.dtype.name() == "U8");
        // What is wrong is reported.
        let _ = match powers {
            true => mxfp4_matrix(codes, name, &scale, taking),
            false => nvfp4(codes, name, &scale, &format!("{module}.weight_scale_2"), Second::Multiplies, taking),
        };
    }
}

/// Codes `[out, in / 2]` of two in a byte, the lower half first; a scale in E4M3 for each 16 or 32, and one for all.
pub fn nvfp4<'a>(
    codes: &'a TensorInfo,
    name: String,
    scale: &str,
    second: &str,
    does: Second,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(scale, codes)?;
    let one = taking.need(second, codes)?;
    taking.dtype(codes, &["U8"])?;
    let (count, rows, cols) = two_in_a_byte(codes, NVFP4, taking)?;
    let outer = &codes.shape[..codes.shape.len() - 1];
    let groups = [NVFP4, 2 * NVFP4].map(|size| [outer, &[cols / size]].concat());
    let which = taking.shape(scales, &[&groups[0], &groups[1]])?;
    let size = NVFP4 << which;
    if !cols.is_multiple_of(size) {
        return Err(taking.fail(
            "tensor-row",
            codes,
            format!("expected rows of a multiple of {size} codes, found {cols}"),
        ));
    }
    if count == 1 {
        taking.shape(one, &[&[], &[1]])?;
    } else {
        taking.shape(one, &[&[count], &[count, 1, 1]])?;
    }
    let numbers = taking.numbers(scales, &["F8_E4M3"])?;
    let one = taking.numbers(one, &["F32"])?;
    let all = taking.codes(codes, [count * rows, cols], Packing::Stream { bits: 4, align: 8 }, Values::float4())?;
    let matrix = |i: usize| Quantized {
        rows,
        cols,
        codes: all.entry(i, count),
        groups: Groups::Blocks { rows: 1, cols: size, across: cols / size },
        scale: Scale {
            numbers: numbers.entry(i, count),
            further: match does {
                Second::Multiplies => Further::Times(one.entry(i, count)),
                Second::Divides => Further::Over(one.entry(i, count)),
            },
            sign: Sign::NotNegative,
        },
        offset: Offset::None,
        transposed: false,
    };
    let matrices = (0..count).map(matrix).collect();
    let mut shape = codes.shape.clone();
    shape.pop();
    shape.push(cols);
    taking.make("NVFP4", name, codes, shape, matrices);
    Ok(())
}

/// Codes `[experts, in / 2, out]` of two inputs in a byte, a scale for each sixteen inputs, `[experts, in / 16, out]`, and one
/// for all.
fn nvfp4_experts<'a>(codes: &'a TensorInfo, second: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scales = taking.need(&format!("{}_weight_scale", codes.name), codes)?;
    taking.take(&second.name);
    let [count, pairs, cols] = codes.shape[..] else {
        return Err(taking.fail("tensor-shape", codes, "expected the shape [experts, in / 2, out]"));
    };
    let rows = pairs.saturating_mul(2);
    if !(1..=MOST_EXPERTS).contains(&count) || rows == 0 || cols == 0 || !rows.is_multiple_of(NVFP4) {
        let message = format!("expected a multiple of {NVFP4} inputs for each expert, found {}", shown(&codes.shape));
        return Err(taking.fail("tensor-row", codes, message));
    }
    taking.shape(scales, &[&[count, rows / NVFP4, cols]])?;
    taking.shape(second, &[&[], &[1]])?;
    let numbers = taking.numbers(scales, &["F8_E4M3"])?;
    let second = taking.numbers(second, &["F32"])?;
    let all = taking.codes(codes, [count * rows, cols], Packing::RowPairs, Values::float4())?;
    let matrix = |i: usize| Quantized {
        rows,
        cols,
        codes: all.entry(i, count),
        groups: Groups::Blocks { rows: NVFP4, cols: 1, across: cols },
        scale: Scale {
            numbers: numbers.entry(i, count),
            further: Further::Times(second.clone()),
            sign: Sign::NotNegative,
        },
        offset: Offset::None,
        transposed: false,
    };
    let matrices = (0..count).map(matrix).collect();
    taking.make("NVFP4", codes.name.clone(), codes, vec![count, rows, cols], matrices);
    Ok(())
}

/// Experts (one where there is no such dimension), rows and columns of codes that lie two in a byte.
fn two_in_a_byte(codes: &TensorInfo, group: usize, taking: &mut Taking<'_>) -> Result<(usize, usize, usize), Failed> {
    let (count, rows, bytes) = match codes.shape[..] {
        [rows, bytes] if rows > 0 && bytes > 0 => (1, rows, bytes),
        [count, rows, bytes] if (1..=MOST_EXPERTS).contains(&count) && rows > 0 && bytes > 0 => (count, rows, bytes),
        _ => return Err(taking.fail("tensor-shape", codes, "expected a matrix, or one for each expert")),
    };
    let cols = bytes.saturating_mul(2);
    if !cols.is_multiple_of(group) {
        let message = format!("expected rows of a multiple of {group} codes, found {cols}");
        return Err(taking.fail("tensor-row", codes, message));
    }
    Ok((count, rows, cols))
}

/// Codes `[out, in / 2]` of two in a byte, a power of two for each 32, `[out, in / 32]`.
pub fn mxfp4_matrix<'a>(
    codes: &'a TensorInfo,
    name: String,
    scale: &str,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(scale, codes)?;
    taking.dtype(codes, &["U8", "I8"])?;
    let (count, rows, cols) = two_in_a_byte(codes, MXFP4, taking)?;
    let mut shape = codes.shape.clone();
    shape.pop();
    shape.push(cols / MXFP4);
    taking.shape(scales, &[&shape])?;
    let matrices = powers(codes, scales, [count, rows, cols], false, taking)?;
    shape.pop();
    shape.push(cols);
    taking.make("MXFP4", name, codes, shape, matrices);
    Ok(())
}

fn powers(
    codes: &TensorInfo,
    scales: &TensorInfo,
    [count, rows, cols]: [usize; 3],
    transposed: bool,
    taking: &mut Taking<'_>,
) -> Result<Vec<Quantized>, Failed> {
    let mut numbers = taking.numbers(scales, &["U8", "F8_E8M0"])?;
    numbers.decoder = Decoder::E8M0;
    let packing = Packing::Stream { bits: 4, align: 8 };
    let all = taking.codes(codes, [count.saturating_mul(rows), cols], packing, Values::float4())?;
    let matrix = |i: usize| Quantized {
        rows,
        cols,
        codes: all.entry(i, count),
        groups: Groups::Blocks { rows: 1, cols: MXFP4, across: cols / MXFP4 },
        scale: Scale { numbers: numbers.entry(i, count), further: Further::Nothing, sign: Sign::Positive },
        offset: Offset::None,
        transposed,
    };
    Ok((0..count).map(matrix).collect())
}

/// `quant_method: mxfp4`, gpt-oss: experts' `..._blocks` `[experts, out, in / 32, 16]` and `..._scales` `[experts, out, in /
/// 32]` of what is `[experts, in, out]` elsewhere.
pub fn mxfp4(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&["quant_method", "modules_to_not_convert", "dequantize"]);
    for (name, codes) in taking.ending("_blocks") {
        // What is wrong is reported.
        let _ = experts(name, codes, taking);
    }
    ignore_activations(taking);
    Ok(())
}

fn experts<'a>(name: &str, codes: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scales = taking.need(&format!("{name}_scales"), codes)?;
    taking.dtype(codes, &["U8"])?;
    let [count, rows, groups, 16] = codes.shape[..] else {
        return Err(taking.fail("tensor-shape", codes, "expected the shape [experts, out, in / 32, 16]"));
    };
    if !(1..=MOST_EXPERTS).contains(&count) || rows == 0 || groups == 0 {
        return Err(taking.fail("tensor-shape", codes, "expected experts with elements"));
    }
    taking.shape(scales, &[&[count, rows, groups]])?;
    let cols = groups.saturating_mul(MXFP4);
    let matrices = powers(codes, scales, [count, rows, cols], true, taking)?;
    taking.make("MXFP4", name.to_owned(), codes, vec![count, cols, rows], matrices);
    Ok(())
}
