//! AWQ, as AutoAWQ writes it.

use super::gptq::{group_size, word};
use super::taking::{Failed, Taking};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::model::keys::{Keys, Reported};

const INERT: [&str; 11] = [
    "quant_method",
    "format",
    "zero_point",
    "modules_to_not_convert",
    "backend",
    "do_fuse",
    "fuse_max_seq_len",
    "exllama_config",
    "modules_to_fuse",
    "sym",
    "desc_act",
];

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    let version = word(keys, "version", &["gemm", "gemv", "gemv_fast"])?.unwrap_or("gemm");
    let bits_key = if keys.has("w_bit") { "w_bit" } else { "bits" };
    if let Some(bits) = keys.count(bits_key)?
        && bits != 4
    {
        return Err(keys.report("config-value", bits_key, format!("expected 4, found {bits}")));
    }
    let size_key = if keys.has("q_group_size") { "q_group_size" } else { "group_size" };
    let group_size = group_size(keys, size_key)?;
    modules(group_size, version, false, taking);
    Ok(())
}

/// All modules; `group_size` is `None` where a group is all inputs of an output.
pub fn modules(group_size: Option<usize>, version: &str, overridden: bool, taking: &mut Taking<'_>) {
    for (module, codes) in taking.ending(".qweight") {
        // What is wrong is reported.
        let _ = match version {
            "gemm" => gemm(group_size, overridden, module, codes, taking),
            "gemv" => gemv(group_size, module, codes, taking),
            _ => gemv_fast(group_size, module, codes, taking),
        };
    }
}

/// `qweight` `[in, out / 8]`, `qzeros` `[groups, out / 8]`, `scales` `[groups, out]`.
fn gemm<'a>(
    group_size: Option<usize>,
    overridden: bool,
    module: &str,
    codes: &'a TensorInfo,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scales"), codes)?;
    let zeros = taking.need(&format!("{module}.qzeros"), codes)?;
    for info in [codes, zeros] {
        taking.dtype(info, &["I32", "U32"])?;
    }
    let [inputs, words] = taking.matrix(codes)?;
    let [groups, _] = taking.matrix(scales)?;
    let outputs = words * 8;
    let mut group_size = group_size.unwrap_or(inputs);
    if overridden {
        group_size = inputs.div_ceil(groups);
    }
    let groups = inputs.div_ceil(group_size);
    taking.shape(scales, &[&[groups, outputs]])?;
    taking.shape(zeros, &[&[groups, words]])?;
    let matrix = Quantized {
        rows: outputs,
        cols: inputs,
        codes: taking.codes(codes, [outputs, inputs], Packing::Interleaved, Values::less(0))?,
        groups: Groups::Below { cols: group_size },
        scale: scale(scales, taking)?,
        offset: Offset::Packed {
            codes: taking.codes(zeros, [outputs, groups], Packing::Interleaved, Values::less(0))?,
            by_group: false,
        },
        transposed: false,
    };
    taking.make("AWQ-4", format!("{module}.weight"), codes, vec![outputs, inputs], vec![matrix]);
    Ok(())
}

/// `qweight` `[out, in / 8]`, `qzeros` `[out, z]`, `scales` `[out, 8 z]`, of which the last are not used.
fn gemv<'a>(
    group_size: Option<usize>,
    module: &str,
    codes: &'a TensorInfo,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scales"), codes)?;
    let zeros = taking.need(&format!("{module}.qzeros"), codes)?;
    for info in [codes, zeros] {
        taking.dtype(info, &["I32", "U32"])?;
    }
    let [outputs, words] = taking.matrix(codes)?;
    let [_, zero_words] = taking.matrix(zeros)?;
    let inputs = words * 8;
    let group_size = group_size.unwrap_or(inputs);
    let across = zero_words * 8;
    if across < inputs.div_ceil(group_size) {
        let message = format!("expected {} groups or more, found {across}", inputs.div_ceil(group_size));
        return Err(taking.fail("tensor-shape", zeros, message));
    }
    taking.shape(zeros, &[&[outputs, zero_words]])?;
    taking.shape(scales, &[&[outputs, across]])?;
    let packing = Packing::Stream { bits: 4, align: 32 };
    let matrix = Quantized {
        rows: outputs,
        cols: inputs,
        codes: taking.codes(codes, [outputs, inputs], packing, Values::less(0))?,
        groups: Groups::Blocks { rows: 1, cols: group_size, across },
        scale: scale(scales, taking)?,
        offset: Offset::Packed {
            codes: taking.codes(zeros, [outputs, across], packing, Values::less(0))?,
            by_group: false,
        },
        transposed: false,
    };
    taking.make("AWQ-4", format!("{module}.weight"), codes, vec![outputs, inputs], vec![matrix]);
    Ok(())
}

/// `qweight` of I16 `[out / 4, in]`, `scales` and `qzeros` `[z, out]`, of which the last rows are not used: here a zero point
/// is a number that is added to the product.
fn gemv_fast<'a>(
    group_size: Option<usize>,
    module: &str,
    codes: &'a TensorInfo,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scales"), codes)?;
    let zeros = taking.need(&format!("{module}.qzeros"), codes)?;
    taking.dtype(codes, &["I16"])?;
    let [quarter, inputs] = taking.matrix(codes)?;
    let outputs = quarter * 4;
    let group_size = group_size.unwrap_or(inputs);
    let [groups, _] = taking.matrix(scales)?;
    let needed = inputs.div_ceil(group_size);
    if groups < needed || !inputs.is_multiple_of(64) {
        let message = format!("expected {needed} groups or more for {inputs} inputs, a multiple of 64, found {groups}");
        return Err(taking.fail("tensor-shape", scales, message));
    }
    taking.shape(scales, &[&[groups, outputs]])?;
    taking.shape(zeros, &[&[groups, outputs]])?;
    let matrix = Quantized {
        rows: outputs,
        cols: inputs,
        codes: taking.codes(codes, [outputs, inputs], Packing::Quartets, Values::less(0))?,
        groups: Groups::Below { cols: group_size },
        scale: scale(scales, taking)?,
        offset: Offset::Bias(taking.numbers(zeros, &["F16", "BF16", "F32"])?),
        transposed: false,
    };
    taking.make("AWQ-4", format!("{module}.weight"), codes, vec![outputs, inputs], vec![matrix]);
    Ok(())
}

fn scale(scales: &TensorInfo, taking: &mut Taking<'_>) -> Result<Scale, Failed> {
    let numbers = taking.numbers(scales, &["F16", "BF16", "F32"])?;
    Ok(Scale { numbers, further: Further::Nothing, sign: Sign::Positive })
}
