//! HQQ, as its layers save themselves in safetensors.

use super::taking::{Failed, Taking};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::quantized::{Further, Groups, Offset, Packing, Quantized, Scale, Sign, Values};
use crate::model::keys::{Keys, Reported};

const CODES: &str = ".W_q";
/// What a layer keeps of how it was made, beside what decoding needs.
const SETTINGS: [&str; 12] = [
    ".compute_dtype",
    ".channel_wise",
    ".optimize",
    ".round_zero",
    ".offload_meta",
    ".encoded_state_dict",
    ".stores_quant_config",
    ".unpack_view_dtype",
    ".view_as_float",
    ".quant_scale",
    ".quant_zero",
    ".packing",
];

pub fn undo(keys: &mut Keys<'_>, taking: &mut Taking<'_>) -> Result<(), Reported> {
    keys.read_all_of(&["quant_method", "quant_config", "skip_modules"]);
    for (module, codes) in taking.ending(CODES) {
        let _ = one(module, codes, taking);
    }
    taking.ignore("settings of the quantiser", &SETTINGS);
    Ok(())
}

/// `W_q` in planes, `scale` and `zero` of the groups, and the numbers `nbits`, `group_size`, `axis` and `shape`.
fn one<'a>(module: &str, codes: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<(), Failed> {
    let scales = taking.need(&format!("{module}.scale"), codes)?;
    let zeros = taking.need(&format!("{module}.zero"), codes)?;
    for what in ["quant_scale", "quant_zero"] {
        if let Some(info) = taking.find(&format!("{module}.{what}"))
            && taking.peek(info)?.iter().any(|&byte| byte != 0)
        {
            return Err(taking.fail(
                "tensor-value",
                info,
                "expected 0: scales and zeros that are quantised themselves are not known here",
            ));
        }
    }
    let (bits, size, axis, shape) = (
        number(module, "nbits", codes, taking)?,
        number(module, "group_size", codes, taking)?,
        number(module, "axis", codes, taking)?,
        taking.need(&format!("{module}.shape"), codes)?,
    );
    let dimensions = integers(shape, taking)?;
    let [rows, cols] = match dimensions[..] {
        [rows, cols] if rows > 0 && cols > 0 && rows.checked_mul(cols).is_some() => [rows, cols],
        _ => {
            return Err(taking.fail(
                "tensor-value",
                shape,
                format!("expected two numbers greater than zero, found {dimensions:?}"),
            ));
        }
    };
    let elements = rows * cols;
    let packed = match bits {
        1..=4 => bits,
        // Kept in a byte each.
        5 | 6 | 8 => 8,
        _ => return Err(taking.fail("tensor-value", codes, format!("expected 1 to 6 or 8 bits, found {bits}"))),
    };
    if size == 0 || !elements.is_multiple_of(size) {
        let message = format!("expected a multiple of {size} elements, found [{rows}, {cols}]");
        return Err(taking.fail("tensor-row", codes, message));
    }
    let (groups, across, high) = match axis {
        0 => (Groups::Modulo { count: elements / size }, elements / size, size),
        1 => (Groups::Line { size }, size, elements / size),
        _ => return Err(taking.fail("tensor-value", codes, format!("expected axis 0 or 1, found {axis}"))),
    };
    let count = elements / size;
    for info in [scales, zeros] {
        taking.shape(info, &[&[count, 1], &[1, count], &[count]])?;
    }
    // Bytes, whatever floats they may be said to be.
    taking.dtype(codes, &["U8", "I32", "F16", "BF16", "F32"])?;
    let packing = Packing::Planes { bits: packed as u32, width: across, height: high };
    let floats = ["F16", "BF16", "F32"];
    let matrix = Quantized {
        rows,
        cols,
        codes: taking.codes(codes, [rows, cols], packing, Values::less(0))?,
        groups,
        scale: Scale { numbers: taking.numbers(scales, &floats)?, further: Further::Nothing, sign: Sign::Positive },
        offset: Offset::Zero(taking.numbers(zeros, &floats)?),
        transposed: false,
    };
    taking.make(format!("HQQ-{bits}"), format!("{module}.weight"), codes, vec![rows, cols], vec![matrix]);
    Ok(())
}

/// A setting that is one integer.
fn number<'a>(module: &str, what: &str, codes: &'a TensorInfo, taking: &mut Taking<'a>) -> Result<usize, Failed> {
    let info = taking.need(&format!("{module}.{what}"), codes)?;
    match integers(info, taking)?[..] {
        [number] => Ok(number),
        _ => Err(taking.fail("tensor-shape", info, "expected one number")),
    }
}

fn integers(info: &TensorInfo, taking: &mut Taking<'_>) -> Result<Vec<usize>, Failed> {
    taking.dtype(info, &["I64", "I32", "U8"])?;
    let size = info.dtype.unit().map_or(1, |unit| unit.bytes);
    let bytes = taking.peek(info)?;
    let mut numbers = Vec::new();
    for bytes in bytes.chunks(size) {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        match usize::try_from(u64::from_le_bytes(word)) {
            // A negative one is larger.
            Ok(number) if number <= i32::MAX as usize => numbers.push(number),
            _ => return Err(taking.fail("tensor-value", info, "expected numbers from 0 to 2147483647")),
        }
    }
    Ok(numbers)
}
