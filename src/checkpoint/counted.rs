//! A source that counts what is read of it.

use super::{Source, SourceFile, TensorInfo};
use anyhow::Result;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Another source, and the stored bytes that were asked of it.
pub struct Counted {
    inner: Arc<dyn Source>,
    read: AtomicU64,
}

impl Counted {
    pub fn new(inner: Arc<dyn Source>) -> Self {
        Self { inner, read: AtomicU64::new(0) }
    }

    /// Bytes so far.
    pub fn read_bytes(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

impl Source for Counted {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        self.inner.tensors()
    }

    fn stored(&self) -> &BTreeMap<String, TensorInfo> {
        self.inner.stored()
    }

    fn formats(&self) -> BTreeMap<String, usize> {
        self.inner.formats()
    }

    fn format(&self, tensor: &TensorInfo) -> String {
        self.inner.format(tensor)
    }

    fn ignorable(&self) -> &[(&'static str, String)] {
        self.inner.ignorable()
    }

    fn stored_bytes(&self, tensor: &TensorInfo, range: &Range<u64>) -> u64 {
        self.inner.stored_bytes(tensor, range)
    }

    fn working_bytes(&self, range: u64) -> u64 {
        self.inner.working_bytes(range)
    }

    fn files(&self) -> &[SourceFile] {
        self.inner.files()
    }

    fn read_into<'a>(&'a self, tensor: &TensorInfo, range: Range<u64>, buffer: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let bytes = self.inner.read_into(tensor, range.clone(), buffer)?;
        self.read.fetch_add(self.inner.stored_bytes(tensor, &range), Ordering::Relaxed);
        Ok(bytes)
    }

    fn is_resident(&self) -> bool {
        self.inner.is_resident()
    }

    fn check_unchanged(&self) -> Result<()> {
        self.inner.check_unchanged()
    }

    fn headers_sha256(&self) -> Result<String> {
        self.inner.headers_sha256()
    }

    fn full_sha256(&self) -> Result<String> {
        self.inner.full_sha256()
    }
}
