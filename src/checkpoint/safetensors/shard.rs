//! One safetensors file: opened, its header read and checked, its bytes served by positioned reads.
//!
//! Not memory-mapped: a file that is cut off while it is being read is an error here, and would be a fatal signal
//! there.

use super::super::{SourceFile, files};
use super::header::{self, Header};
use crate::digest::to_hex;
use crate::problem::Problem;
use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::path::PathBuf;
use std::time::SystemTime;

/// One file of the folder, as it was when it was opened.
pub(super) struct Shard {
    pub name: String,
    pub file: SourceFile,
    /// Bytes before the data: the length prefix and the header.
    pub data_start: u64,
    /// SHA-256 of the header's bytes, lowercase hex.
    pub header_sha256: String,
    modified: Option<SystemTime>,
    /// `None` in a folder of very many files: then each read opens the file.
    handle: Option<File>,
}

impl Shard {
    /// Opens `path` and reads its header. With `keep_open` unset the file is closed again, and opened for each read.
    ///
    /// # Errors
    /// The file can't be read, or its header is unusable as a whole.
    pub(super) fn open(name: &str, path: PathBuf, keep_open: bool) -> Result<(Self, Header), Problem> {
        let place = path.display().to_string();
        let (handle, metadata) = files::open_regular(&path)?;
        let len = metadata.len();
        let read = |offset: u64, n: u64| {
            let mut bytes = vec![0; n as usize];
            match files::read_exact_at(&handle, &mut bytes, offset) {
                Ok(()) => Ok(bytes),
                Err(error) => Err(Problem::new("file-unreadable", &place, format!("can't be read: {error}"))),
            }
        };
        let header_len = header::length(&read(0, len.min(header::PREFIX))?, len, &place)?;
        let text = read(header::PREFIX, header_len)?;
        let data_start = header::PREFIX + header_len;
        let header = header::parse(&text, len - data_start, &place)?;
        let shard = Self {
            name: name.to_owned(),
            file: SourceFile { path, len },
            data_start,
            header_sha256: to_hex(&Sha256::digest(&text)),
            modified: metadata.modified().ok(),
            handle: keep_open.then_some(handle),
        };
        Ok((shard, header))
    }

    /// # Errors
    /// The file has another length or modification time than when it was opened.
    pub(super) fn check_unchanged(&self) -> anyhow::Result<()> {
        let place = self.file.path.display();
        // By name: a file that was replaced by another one has changed as well.
        let metadata = std::fs::metadata(&self.file.path).with_context(|| format!("{place}: can't be found again"))?;
        self.compare(&metadata)
    }

    fn compare(&self, now: &Metadata) -> anyhow::Result<()> {
        let place = self.file.path.display();
        let (was, is) = (self.file.len, now.len());
        ensure!(was == is, "{place}: has changed since it was opened: expected {was} bytes, found {is}");
        ensure!(
            now.modified().ok() == self.modified,
            "{place}: has changed since it was opened: its modification time is another one"
        );
        Ok(())
    }

    /// Fills `bytes` from `offset` on.
    ///
    /// # Errors
    /// The file can't be read, has become shorter, or is no longer the file that was opened.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> anyhow::Result<()> {
        let reopened;
        let handle = match &self.handle {
            Some(handle) => handle,
            None => {
                reopened = self.reopen()?;
                &reopened
            }
        };
        if let Err(error) = files::read_exact_at(handle, bytes, offset) {
            let now = handle.metadata().map_or(self.file.len, |metadata| metadata.len());
            let place = self.file.path.display();
            ensure!(
                now >= self.file.len,
                "{place}: expected {} bytes as when it was opened, found {now}",
                self.file.len
            );
            return Err(error).with_context(|| format!("{place}: can't be read at byte {offset}"));
        }
        Ok(())
    }

    fn reopen(&self) -> anyhow::Result<File> {
        let (handle, metadata) =
            files::open_regular(&self.file.path).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        self.compare(&metadata)?;
        Ok(handle)
    }
}
