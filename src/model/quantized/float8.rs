//! Weights in floats of eight bits, each times a scale of its tensor, row, column or block.

use super::float4::mxfp4_matrix;
use super::taking::{ACTIVATIONS, Failed, Taking};
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::checkpoint::{Decoder, TensorInfo};
use crate::model::keys::{Found, Keys, Reported, count};

/// Keys that say which modules were left as they were, or what was measured of activations.
const INERT: [&str; 8] = [
    "quant_method",
    "modules_to_not_convert",
    "ignored_layers",
    "kv_cache_scheme",
    "dequantize",
    "weight_per_tensor",
    "act_per_tensor",
    "activation_scale_ub",
];

/// `quant_method: fp8`: blocks of `weight_block_size`, or one scale for a tensor.
pub fn fp8(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    let one_of = |keys: &mut Keys<'_>, key, words: &[&str]| {
        keys.read(key, &words.join(" or "), |value| {
            value.as_str().filter(|word| words.contains(word)).map(str::to_owned)
        })
    };
    one_of(keys, "fmt", &["e4m3", "e5m2", "float8_e4m3fn"])?;
    one_of(keys, "scale_fmt", &["ue8m0", "float"])?;
    let scheme = one_of(keys, "activation_scheme", &["dynamic", "static"])?;
    let block = block(keys, "weight_block_size")?;
    if one_of(keys, "expert_dtype", &["fp8", "fp4"])?.as_deref() == Some("fp4") {
        experts_of_four_bits(taking);
    }
    all(Form { block, outputs_last: false }, taking);
    taking.activations(format!("E4M3, {}", scheme.as_deref().unwrap_or("dynamic")));
    Ok(())
}

/// `quant_method: fbgemm_fp8`: one scale for each row.
pub fn fbgemm(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    all(Form { block: None, outputs_last: true }, taking);
    taking.activations("E4M3, for each token");
    Ok(())
}

/// Rows and columns of a block.
pub fn block(keys: &mut Keys<'_>, key: &str) -> Found<[usize; 2]> {
    keys.read(key, "two numbers greater than zero", |value| match value.as_array()?.as_slice() {
        [rows, cols] => Some([count(rows)?, count(cols)?]),
        _ => None,
    })
}

pub fn is_float8(info: &TensorInfo) -> bool {
    matches!(info.dtype.name(), "F8_E4M3" | "F8_E5M2")
}

/// DeepSeek's experts, two codes in a byte.
fn experts_of_four_bits(taking: &mut Taking<'_>) {
    for (module, codes) in taking.ending(".weight") {
        if module.contains(".experts.") && codes.dtype.name() == "I8" {
            let name = format!("{module}.weight");
            let inverse = format!("{module}.weight_scale_inv");
            let scale = if taking.find(&inverse).is_some() { inverse } else { format!("{module}.scale") };
            // What is wrong is reported.
            let _ = mxfp4_matrix(codes, name, &scale, taking);
        }
    }
}

/// What the shapes of scales mean.
#[derive(Debug, Clone, Copy, Default)]
pub struct Form {
    /// Rows and columns of a block.
    pub block: Option<[usize; 2]>,
    /// Experts in one tensor are stored as [in, out], and a scale for each of something is for each output.
    pub outputs_last: bool,
}

/// All weights that are stored so.
pub fn all(form: Form, taking: &mut Taking<'_>) {
    for (_, codes) in taking.ending("") {
        if is_float8(codes) && !is_scale(&codes.name) && !taking.is_taken(codes) {
            // What is wrong is reported.
            let _ = one(codes, form, taking);
        }
    }
    ignore_activations(taking);
}

/// Scales may be floats of eight bits too.
fn is_scale(name: &str) -> bool {
    ["_scale", "_scale_inv", ".scale"].iter().any(|suffix| name.ends_with(suffix))
}

pub fn ignore_activations(taking: &mut Taking<'_>) {
    taking.ignore(ACTIVATIONS, &[".input_scale", ".input_zero_point", ".output_scale", "activation_scale"]);
    taking.ignore(ACTIVATIONS, &[".input_global_scale", "_input_scale", ".input_scale_ub", ".qscale_act"]);
    taking
        .ignore("scales of cached keys and values", &[".k_scale", ".v_scale", ".q_scale", ".prob_scale", ".kv_scale"]);
}

/// A weight `[out, in]`, or of all experts with one more dimension in front, beside `..._scale`, `..._scale_inv` or what
/// else it is called: one, or one for each entry, row, column or block. Whatever its name, a scale is a factor.
pub fn one<'a>(codes: &'a TensorInfo, form: Form, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let module = codes.name.strip_suffix(".weight").unwrap_or(&codes.name);
    let others = [
        format!("{}_scale_inv", codes.name),
        format!("{}_weight_scale", codes.name),
        format!("{module}.scale"),
        format!("{module}.qscale_weight"),
    ];
    let other = others.into_iter().find(|name| taking.find(name).is_some());
    let scales = match other {
        Some(name) => taking.need(&name, codes)?,
        // As others in the folder are called.
        None if !taking.ending("_scale_inv").is_empty() => taking.need(&format!("{}_scale_inv", codes.name), codes)?,
        None => taking.need(&format!("{}_scale", codes.name), codes)?,
    };
    let (experts, rows, cols) = match codes.shape[..] {
        [rows, cols] if rows > 0 && cols > 0 => (None, rows, cols),
        [experts, rows, cols] if (1..=MOST_EXPERTS).contains(&experts) && rows > 0 && cols > 0 => {
            (Some(experts), rows, cols)
        }
        _ => return Err(taking.fail("tensor-shape", codes, "expected a matrix, or one for each expert")),
    };
    let mut numbers = taking.numbers(scales, &["F32", "BF16", "F16", "F8_E8M0", "U8"])?;
    if numbers.decoder == Decoder::U8 {
        numbers.decoder = Decoder::E8M0;
    }
    let whole = Groups::Blocks { rows, cols, across: 1 };
    let by_row = Groups::Blocks { rows: 1, cols, across: 1 };
    let by_col = Groups::Blocks { rows, cols: 1, across: cols };
    let blocks = form.block.map(|[high, wide]| {
        let across = cols.div_ceil(wide);
        ([rows.div_ceil(high), across], Groups::Blocks { rows: high, cols: wide, across })
    });
    // The shapes that a scale may have, and what they mean.
    let mut forms: Vec<(Vec<usize>, Groups)> = Vec::new();
    match (blocks, experts) {
        (Some((shape, groups)), None) => forms.push((shape.to_vec(), groups)),
        (Some((shape, groups)), Some(experts)) => forms.push((vec![experts, shape[0], shape[1]], groups)),
        (None, None) => {
            forms.push((vec![], whole.clone()));
            forms.push((vec![1], whole.clone()));
            forms.push((vec![1, 1], whole));
            forms.push((vec![rows, 1], by_row.clone()));
            forms.push((vec![rows], by_row));
            // ModelOpt's blocks, whose size nothing says.
            let [high, wide] = [rows.div_ceil(128), cols.div_ceil(128)];
            forms.push((vec![high, 1, wide, 1], Groups::Blocks { rows: 128, cols: 128, across: wide }));
            if numbers.decoder == Decoder::E8M0 {
                let across = cols.div_ceil(32);
                forms.push((vec![rows, across], Groups::Blocks { rows: 1, cols: 32, across }));
            }
        }
        (None, Some(experts)) => {
            forms.push((vec![], whole.clone()));
            forms.push((vec![experts], whole.clone()));
            forms.push((vec![experts, 1, 1], whole));
            forms.push((vec![experts, 1, cols], by_col.clone()));
            if form.outputs_last {
                forms.push((vec![experts, cols, 1], by_col));
            } else {
                forms.push((vec![experts, rows, 1], by_row));
            }
        }
    }
    let shapes: Vec<&[usize]> = forms.iter().map(|(shape, _)| shape.as_slice()).collect();
    let which = taking.shape(scales, &shapes)?;
    let groups = &forms[which].1;
    let values = if codes.dtype.name() == "F8_E5M2" { Values::of(Decoder::E5M2) } else { Values::float8() };
    let count = experts.unwrap_or(1);
    let packing = Packing::Stream { bits: 8, align: 8 };
    let all = taking.codes(codes, [count.saturating_mul(rows), cols], packing, values)?;
    let matrix = |i: usize| Quantized {
        rows,
        cols,
        codes: all.entry(i, count),
        groups: groups.clone(),
        scale: Scale {
            numbers: if scales.shape.is_empty() { numbers.clone() } else { numbers.entry(i, count) },
            further: Further::Nothing,
            sign: Sign::Positive,
        },
        offset: Offset::None,
        transposed: false,
    };
    let matrices = (0..count).map(matrix).collect();
    taking.make(codes.dtype.name(), codes.name.clone(), codes, codes.shape.clone(), matrices);
    Ok(())
}

/// No model has more.
pub const MOST_EXPERTS: usize = 65_536;
