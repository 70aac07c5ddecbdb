//! The container seam: what a checkpoint format has to offer so that everything above can run on it.

use super::Dtype;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;

/// Where one tensor is stored and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub name: String,
    pub dtype: Dtype,
    /// Outermost dimension first, as PyTorch prints it: a linear weight is `[out, in]`.
    pub shape: Vec<usize>,
    /// Index into [`Source::files`].
    pub file: usize,
    /// First byte of the tensor's data, counted from the start of the file.
    pub offset: u64,
    /// Stored bytes of the tensor's data.
    pub len: u64,
}

/// One file of a checkpoint.
#[derive(Debug, Clone)]
pub struct SourceFile {
    pub path: PathBuf,
    /// Bytes.
    pub len: u64,
}

/// A checkpoint container: hands out byte ranges of named tensors.
///
/// A folder of safetensors and a GGUF file serve them from local files, a test from memory; a remote object store could as well.
pub trait Source: Send + Sync {
    /// Every tensor, by name.
    fn tensors(&self) -> &BTreeMap<String, TensorInfo>;

    /// Every tensor as the files hold it, by the name there; where the source presents them as they are, those of
    /// [`Source::tensors`].
    fn stored(&self) -> &BTreeMap<String, TensorInfo> {
        self.tensors()
    }

    /// How many tensors are stored in which format; a quantised one and its scales count once, as the format of both.
    fn formats(&self) -> BTreeMap<String, usize> {
        let mut formats = BTreeMap::new();
        for info in self.stored().values() {
            *formats.entry(info.dtype.to_string()).or_default() += 1;
        }
        formats
    }

    /// What a tensor is stored as: its dtype, or the format of a quantised one.
    fn format(&self, tensor: &TensorInfo) -> String {
        tensor.dtype.to_string()
    }

    /// Tensors that have no part in a model's weights, should a plan not use them: what they are, and their names.
    fn ignorable(&self) -> &[(&'static str, String)] {
        &[]
    }

    /// Stored bytes that a range of a tensor stands for, over all ranges as many as it has.
    fn stored_bytes(&self, _: &TensorInfo, range: &Range<u64>) -> u64 {
        range.end - range.start
    }

    /// The most bytes that it holds beside those that it hands out, `range` at a time, by two threads.
    fn working_bytes(&self, _range: u64) -> u64 {
        0
    }

    fn files(&self) -> &[SourceFile];

    /// The bytes `range` (relative to the tensor's first byte) of a tensor that [`Source::tensors`] lists: in `buffer`,
    /// which keeps its allocation from one call to the next, or wherever the source already holds them.
    ///
    /// # Errors
    /// The file can't be read, or has become shorter than it was when it was opened.
    fn read_into<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> anyhow::Result<&'a [u8]>;

    /// As [`Source::read_into`], into an allocation of its own.
    ///
    /// # Errors
    /// As [`Source::read_into`].
    fn read(&self, tensor: &TensorInfo, range: Range<u64>) -> anyhow::Result<Vec<u8>> {
        let mut buffer = Vec::new();
        let bytes = self.read_into(tensor, range, &mut buffer)?;
        Ok(bytes.to_vec())
    }

    /// Whether the source holds its bytes in memory, so that reading them ahead of time gains nothing.
    fn is_resident(&self) -> bool;

    /// Makes sure that what was read is what was opened.
    ///
    /// # Errors
    /// A file has another length or modification time than when it was opened.
    fn check_unchanged(&self) -> anyhow::Result<()>;

    /// SHA-256 (lowercase hex) over what describes the tensors (names, dtypes, shapes, places), without their data.
    fn headers_sha256(&self) -> anyhow::Result<String>;

    /// SHA-256 (lowercase hex) over every byte of every file, in the order of [`Source::files`].
    fn full_sha256(&self) -> anyhow::Result<String>;
}
