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

/// All modules; `group_size` is `None` where a group is all inputs of an output, and not what counts where single modules
/// have other groups (`overridden`).
pub fn modules(group_size: Option<usize>, version: &str, overridden: bool, taking: &mut Taking<'_>) {
    for (module, codes) in taking.ending(".qweight") {
        // What is wrong is reported.
        let _ = one(group_size, version, overridden, module, codes, taking);
    }
}

fn one<'a>(
    group_size: Option<usize>,
    version: &str,
    overridden: bool,
    module: &str,
    codes: &'a TensorInfo,
    taking: &mut Taking<'a>,
) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scales"), codes)?;
    let zeros = taking.need(&format!("{module}.qzeros"), codes)?;
    let (shape, packing, groups, offset) = match version {
        // The scales alone tell then how many groups there are.
        "gemm" if overridden => {
            let [groups, inputs] = [taking.matrix(scales)?[0], taking.matrix(codes)?[0]];
            gemm(Some(inputs.div_ceil(groups)), codes, scales, zeros, taking)?
        }
        "gemm" => gemm(group_size, codes, scales, zeros, taking)?,
        "gemv" => gemv(group_size, codes, scales, zeros, taking)?,
        _ => gemv_fast(group_size, codes, scales, zeros, taking)?,
    };
    let numbers = taking.numbers(scales, &["F16", "BF16", "F32"])?;
    let matrix = Quantized {
        rows: shape[0],
        cols: shape[1],
        codes: taking.codes(codes, shape, packing, Values::less(0))?,
        groups,
        scale: Scale { numbers, further: Further::Nothing, sign: Sign::Positive },
        offset,
        transposed: false,
    };
    taking.make("AWQ-4", format!("{module}.weight"), codes, shape.to_vec(), vec![matrix]);
    Ok(())
}

/// Rows and columns, and how codes, scales and zero points lie.
type Layout = ([usize; 2], Packing, Groups, Offset);

/// `qweight` `[in, out / 8]`, `qzeros` `[groups, out / 8]`, `scales` `[groups, out]`.
fn gemm(
    group_size: Option<usize>,
    codes: &TensorInfo,
    scales: &TensorInfo,
    zeros: &TensorInfo,
    taking: &mut Taking<'_>,
) -> Result<Layout, Failed> {
    words(codes, zeros, taking)?;
    let [inputs, words] = taking.matrix(codes)?;
    let outputs = words * 8;
    let group_size = group_size.unwrap_or(inputs);
    let groups = inputs.div_ceil(group_size);
    taking.shape(scales, &[&[groups, outputs]])?;
    taking.shape(zeros, &[&[groups, words]])?;
    let zeros = taking.codes(zeros, [outputs, groups], Packing::Interleaved, Values::less(0))?;
    let offset = Offset::Packed { codes: zeros, by_group: false };
    Ok(([outputs, inputs], Packing::Interleaved, Groups::Below { cols: group_size }, offset))
}

/// `qweight` `[out, in / 8]`, `qzeros` `[out, z]`, `scales` `[out, 8 z]`, of which the last are not used.
fn gemv(
    group_size: Option<usize>,
    codes: &TensorInfo,
    scales: &TensorInfo,
    zeros: &TensorInfo,
    taking: &mut Taking<'_>,
) -> Result<Layout, Failed> {
    words(codes, zeros, taking)?;
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
    let zeros = taking.codes(zeros, [outputs, across], packing, Values::less(0))?;
    let offset = Offset::Packed { codes: zeros, by_group: false };
    Ok(([outputs, inputs], packing, Groups::Blocks { rows: 1, cols: group_size, across }, offset))
}

/// `qweight` of I16 `[out / 4, in]`, `scales` and `qzeros` `[z, out]`, of which the last rows are not used: here a zero point
/// is a number that is added to the product.
fn gemv_fast(
    group_size: Option<usize>,
    codes: &TensorInfo,
    scales: &TensorInfo,
    zeros: &TensorInfo,
    taking: &mut Taking<'_>,
) -> Result<Layout, Failed> {
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
    let offset = Offset::Bias(taking.numbers(zeros, &["F16", "BF16", "F32"])?);
    Ok(([outputs, inputs], Packing::Quartets, Groups::Below { cols: group_size }, offset))
}

/// Codes and zero points in words of eight.
fn words(codes: &TensorInfo, zeros: &TensorInfo, taking: &mut Taking<'_>) -> Result<(), Failed> {
    [codes, zeros].iter().try_for_each(|info| taking.dtype(info, &["I32", "U32"]))
}
