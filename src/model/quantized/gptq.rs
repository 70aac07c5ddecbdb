//! GPTQ, as AutoGPTQ and GPTQModel write it.

use super::awq;
use super::taking::{Failed, Taking, whole};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::model::keys::{Found, Keys, Reported};
use crate::problem::quote;

/// Keys that say how the codes were found, or how a library computes with them.
const INERT: [&str; 36] = [
    "quant_method",
    "method",
    "sym",
    "desc_act",
    "static_groups",
    "true_sequential",
    "damp_percent",
    "damp_auto_increment",
    "lm_head",
    "meta",
    "model_name_or_path",
    "model_file_base_name",
    "awq_gemm_checkpoint",
    "adapter",
    "act_group_aware",
    "hyb_act",
    "mse",
    "backend",
    "use_cuda_fp16",
    "use_exllama",
    "exllama_config",
    "max_input_length",
    "dataset",
    "tokenizer",
    "batch_size",
    "block_name_to_quantize",
    "modules_in_block_to_quantize",
    "module_name_preceding_first_block",
    "cache_block_outputs",
    "pad_token_id",
    "model_seqlen",
    "disable_exllama",
    "modules_to_not_convert",
    "quant_type",
    "offload_to_disk",
    "offload_to_disk_path",
];

/// What the config says of all modules.
struct Common {
    bits: usize,
    /// `None` where a group is all inputs of an output.
    group_size: Option<usize>,
    /// Stored zero points are one less than they are.
    less_one: bool,
    /// Some modules have other bits or groups.
    overridden: bool,
}

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&INERT);
    for key in ["rotation", "activation"] {
        none(keys, key, "weights are transformed then, in a way that is not known here")?;
    }
    if keys.flag("is_marlin_format")? == Some(true) {
        return Err(keys.report(
            "config-value",
            "is_marlin_format",
            "expected false: the order of Marlin's codes is not known here",
        ));
    }
    word(keys, "pack_dtype", &["int32"])?;
    let format = word(keys, "checkpoint_format", &["gptq", "gptq_v2"])?;
    let second = word(keys, "format", &["gptq", "gptq_v2"])?;
    let newer = keys.flag("v2")?.unwrap_or(false) || format.or(second) == Some("gptq_v2");
    let overridden = keys.object("dynamic")?.is_some_and(|dynamic| !dynamic.is_empty());
    let common =
        Common { bits: bits(keys, "bits")?, group_size: group_size(keys, "group_size")?, less_one: !newer, overridden };
    modules(&common, taking);
    Ok(())
}

/// `auto-round`: the tensors of GPTQ, or those of AWQ.
pub fn auto_round(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    const MORE: [&str; 26] = [
        "autoround_version",
        "data_type",
        "iters",
        "nsamples",
        "seqlen",
        "lr",
        "minmax_lr",
        "enable_quanted_input",
        "enable_minmax_tuning",
        "low_gpu_mem_usage",
        "scale_dtype",
        "amp",
        "gradient_accumulate_steps",
        "not_use_best_mse",
        "dataset",
        "batch_size",
        "block_name_to_quantize",
        "quant_block_list",
        "to_quant_block_names",
        "backend",
        "sym",
        "quant_method",
        "act_bits",
        "act_group_size",
        "supported_types",
        "regex_config",
    ];
    keys.read_all_of(&MORE);
    let formats = [
        "auto_round",
        "auto_round:gptq",
        "auto_round:auto_gptq",
        "auto_round:gptqmodel",
        "auto_round:auto_awq",
        "auto_round:awq",
        "auto_gptq",
        "auto_awq",
    ];
    let format = word(keys, "packing_format", &formats)?.unwrap_or("auto_round:auto_gptq");
    let overridden = keys.object("extra_config")?.is_some_and(|extra| !extra.is_empty());
    let (bits, group_size) = (bits(keys, "bits")?, group_size(keys, "group_size")?);
    if format.ends_with("awq") {
        awq::modules(group_size, "gemm", overridden, taking);
    } else {
        modules(&Common { bits, group_size, less_one: format.contains("gptq"), overridden }, taking);
    }
    Ok(())
}

fn bits(keys: &mut Keys<'_>, key: &str) -> Result<usize, Reported> {
    match keys.count(key)? {
        Some(bits @ (2 | 3 | 4 | 8)) => Ok(bits),
        Some(other) => Err(keys.report("config-value", key, format!("expected 2, 3, 4 or 8, found {other}"))),
        None => Err(keys.report("config-key-missing", key, "missing; it says how many bits a code has")),
    }
}

/// A positive number of inputs; all of them where it is -1.
pub fn group_size(keys: &mut Keys<'_>, key: &str) -> Found<usize> {
    let size = keys.read(key, "-1 or a number greater than zero", |value| {
        let size = value.as_i64().filter(|&size| size == -1 || (1..=i64::from(i32::MAX)).contains(&size))?;
        Some(usize::try_from(size).ok())
    })?;
    Ok(size.flatten())
}

/// One of some words, in whatever case.
pub fn word<'k>(keys: &mut Keys<'k>, key: &str, words: &[&'static str]) -> Found<&'static str> {
    let known = |value: &'k serde_json::Value| {
        let text = value.as_str()?.to_ascii_lowercase();
        let text = text.strip_prefix("torch.").unwrap_or(&text);
        words.iter().find(|word| **word == text).copied()
    };
    keys.read(key, &words.join(" or "), known)
}

/// `null` or an empty object.
pub fn none(keys: &mut Keys<'_>, key: &str, why: &str) -> Result<(), Reported> {
    let found = keys.raw(key).filter(|value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty()));
    match found {
        Some(value) => {
            let message = format!("expected null, found {}: {why}", quote(&value.to_string()));
            Err(keys.report("config-value", key, message))
        }
        None => Ok(()),
    }
}

fn modules(common: &Common, taking: &mut Taking<'_>) {
    for (module, codes) in taking.ending(".qweight") {
        // What is wrong is reported.
        let _ = one(common, module, codes, taking);
    }
}

/// `qweight` `[in * bits / 32, out]`, `qzeros` `[groups, out * bits / 32]`, `scales` `[groups, out]`, and `g_idx` `[in]`, the
/// group of each input.
fn one<'a>(common: &Common, module: &str, codes: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scales"), codes)?;
    let zeros = taking.need(&format!("{module}.qzeros"), codes)?;
    let map = taking.take(&format!("{module}.g_idx"));
    for info in [codes, zeros] {
        taking.dtype(info, &["I32", "U32"])?;
    }
    let [words, outputs] = taking.matrix(codes)?;
    let [groups, _] = taking.matrix(scales)?;
    taking.shape(scales, &[&[groups, outputs]])?;
    let [_, zero_words] = taking.matrix(zeros)?;
    let mut bits = common.bits;
    if common.overridden && outputs > 0 {
        bits = zero_words * 32 / outputs;
    }
    if !matches!(bits, 2 | 3 | 4 | 8) || !(outputs * bits).is_multiple_of(32) {
        let message = format!("{outputs} outputs of {bits} bits don't fill words of 32 bits");
        return Err(taking.fail("tensor-row", zeros, message));
    }
    taking.shape(zeros, &[&[groups, outputs * bits / 32]])?;
    if !(words * 32).is_multiple_of(bits) {
        let message = format!("expected words that hold a whole number of codes of {bits} bits, found {words} words");
        return Err(taking.fail("tensor-row", codes, message));
    }
    let inputs = words * 32 / bits;
    let group_size = common.group_size.unwrap_or(inputs);
    let expected = inputs.div_ceil(group_size);
    if groups != expected && !(common.overridden && map.is_some()) {
        let message = format!("expected {expected} groups of {group_size} of {inputs} inputs, found {groups}");
        return Err(taking.fail("tensor-shape", scales, message));
    }
    let lookup = match map {
        Some(map) => {
            taking.dtype(map, &["I32"])?;
            taking.shape(map, &[&[inputs]])?;
            Groups::Mapped { map: whole(map), groups, below: true }
        }
        None => Groups::Below { cols: group_size },
    };
    let mask = (1u32 << bits) - 1;
    let zero = match (common.less_one, bits) {
        (false, _) => Values::less(0),
        // As AutoGPTQ: the sum has as many bits as a code, but for three bits.
        (true, 3) => Values::less(-1),
        (true, _) => Values::each(|code| ((u32::from(code) + 1) & mask) as f32),
    };
    let bits = bits as u32;
    let matrix = Quantized {
        rows: outputs,
        cols: inputs,
        codes: taking.codes(codes, [outputs, inputs], Packing::Down { bits }, Values::less(0))?,
        groups: lookup,
        scale: Scale {
            numbers: taking.numbers(scales, &["F16", "BF16", "F32"])?,
            further: Further::Nothing,
            sign: Sign::Positive,
        },
        offset: Offset::Packed {
            codes: taking.codes(zeros, [groups, outputs], Packing::Stream { bits, align: 32 }, zero)?,
            by_group: true,
        },
        transposed: false,
    };
    taking.make(format!("GPTQ-{bits}"), format!("{module}.weight"), codes, vec![outputs, inputs], vec![matrix]);
    zero_bias(module, taking)
}

/// Older tools write a bias of zeros where there was none.
fn zero_bias(module: &str, taking: &mut Taking<'_>) -> Result<(), Failed> {
    let name = format!("{module}.bias");
    let Some(bias) = taking.find(&name) else { return Ok(()) };
    if taking.peek(bias)?.iter().all(|&byte| byte == 0) {
        taking.ignore_one("biases of zeros", &name);
    }
    Ok(())
}
