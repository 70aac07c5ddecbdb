//! A checkpoint that is held in memory: made in code, or copied from another source.

use super::{Dtype, Source, SourceFile, TensorInfo};
use crate::digest::{sha256_hex, to_hex};
use crate::problem::quote;
use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ops::Range;

/// Tensors in memory, served without copying. They count as one file named `memory`, in which they follow one another
/// by name.
pub struct MemorySource {
    tensors: BTreeMap<String, TensorInfo>,
    data: BTreeMap<String, Vec<u8>>,
    files: [SourceFile; 1],
}

impl MemorySource {
    /// Holds `tensors`: by name, the format, the shape (outermost dimension first) and the stored bytes.
    ///
    /// # Errors
    /// A tensor has another number of bytes than its shape and format take, or rows that are not whole blocks.
    pub fn new(tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>) -> anyhow::Result<Self> {
        let mut infos = BTreeMap::new();
        let mut data = BTreeMap::new();
        let mut offset = 0;
        for (name, (dtype, shape, bytes)) in tensors {
            let len = bytes.len() as u64;
            dtype
                .check_row(shape.last().copied().unwrap_or(1))
                .map_err(|problem| anyhow::anyhow!("{}: {problem}", quote(&name)))?;
            let expected = dtype.shape_bytes(&shape);
            ensure!(
                expected == Some(len) || dtype.unit().is_none(),
                "{}: expected {} bytes for shape {shape:?} of {dtype}, found {len}",
                quote(&name),
                expected.map_or("a whole number of".into(), |expected| expected.to_string())
            );
            infos.insert(name.clone(), TensorInfo { name: name.clone(), dtype, shape, file: 0, offset, len });
            data.insert(name, bytes);
            offset += len;
        }
        Ok(Self { tensors: infos, data, files: [SourceFile { path: "memory".into(), len: offset }] })
    }
}

/// Copies everything that `source` holds into memory.
///
/// The copy's hashes are those of its own layout: what identifies the checkpoint is the hashes of `source`.
///
/// # Errors
/// A tensor can't be read.
pub fn load_resident(source: &dyn Source) -> anyhow::Result<MemorySource> {
    let mut tensors = BTreeMap::new();
    for (name, info) in source.tensors() {
        let bytes = source.read(info, 0..info.len)?;
        tensors.insert(name.clone(), (info.dtype.clone(), info.shape.clone(), bytes));
    }
    MemorySource::new(tensors)
}

impl Source for MemorySource {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_into<'a>(&'a self, tensor: &TensorInfo, range: Range<u64>, _: &'a mut Vec<u8>) -> anyhow::Result<&'a [u8]> {
        let name = || quote(&tensor.name);
        let data = self.data.get(&tensor.name).with_context(|| format!("there is no tensor {}", name()))?;
        let bounds = usize::try_from(range.start)?..usize::try_from(range.end)?;
        data.get(bounds).with_context(|| format!("{}: expected a range within {} bytes", name(), data.len()))
    }

    fn is_resident(&self) -> bool {
        true
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// SHA-256 over each tensor's name, format, shape and number of bytes, by name.
    fn headers_sha256(&self) -> anyhow::Result<String> {
        let mut lines = String::from("memory\n");
        for TensorInfo { name, dtype, shape, len, .. } in self.tensors.values() {
            lines += &format!("{} {name}\n{dtype}\n{shape:?}\n{len}\n", name.len());
        }
        Ok(sha256_hex(lines.as_bytes()))
    }

    fn full_sha256(&self) -> anyhow::Result<String> {
        let mut hash = Sha256::new();
        for bytes in self.data.values() {
            hash.update(bytes);
        }
        Ok(to_hex(&hash.finalize()))
    }
}
