//! Whether two stored tensors hold the same values.

use super::{Source, TensorInfo};
use anyhow::{Context, Result};

/// Elements that are compared at once.
const CHUNK: u64 = 1 << 20;

/// Compares two decodable tensors of the same shape, value by value as float32 bits, whatever their dtypes. Returns
/// the index of the first element that differs.
///
/// # Errors
/// The source can't be read.
pub fn first_difference(source: &dyn Source, a: &TensorInfo, b: &TensorInfo) -> Result<Option<u64>> {
    let decoder = |info: &TensorInfo| info.dtype.decoder().with_context(|| format!("no decoder for {}", info.dtype));
    let decoders = [decoder(a)?, decoder(b)?];
    let elements: u64 = a.shape.iter().map(|&n| n as u64).product();
    let mut values = [Vec::new(), Vec::new()];
    let mut buffer = Vec::new();
    let mut first = 0;
    while first < elements {
        let count = CHUNK.min(elements - first);
        for ((values, info), decoder) in values.iter_mut().zip([a, b]).zip(decoders) {
            let at = |element: u64| element / decoder.block_elements() as u64 * decoder.block_bytes() as u64;
            let bytes = source.read_into(info, at(first)..at(first + count), &mut buffer)?;
            values.resize(count as usize, 0.0f32);
            decoder.decode(bytes, values);
        }
        let [x, y] = &values;
        if let Some(at) = x.iter().zip(y).position(|(x, y)| x.to_bits() != y.to_bits()) {
            return Ok(Some(first + at as u64));
        }
        first += count;
    }
    Ok(None)
}
