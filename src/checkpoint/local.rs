//! One local file of a checkpoint, as it was when it was opened; its bytes come by positioned reads.
//!
//! Not memory-mapped: a file that is cut off while it is being read is an error here, and would be a fatal signal
//! there.

use super::{SourceFile, files};
use crate::digest::to_hex;
use crate::problem::Problem;
use anyhow::{Context, ensure};
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata};
use std::path::PathBuf;
use std::time::SystemTime;

/// Files kept open at a time; some systems allow a process 256. Beyond it a file is opened for each read.
pub(super) const KEPT_OPEN: usize = 128;

pub(super) struct LocalFile {
    pub info: SourceFile,
    modified: Option<SystemTime>,
    /// `None` in a folder of very many files: then each read opens the file.
    handle: Option<File>,
}

impl LocalFile {
    /// # Errors
    /// It isn't a regular file, or can't be opened.
    pub(super) fn open(path: PathBuf) -> Result<Self, Problem> {
        let (handle, metadata) = files::open_regular(&path)?;
        let info = SourceFile { path, len: metadata.len() };
        Ok(Self { info, modified: metadata.modified().ok(), handle: Some(handle) })
    }

    /// Keeps it closed from now on, to be opened for each read.
    pub(super) fn close(&mut self) {
        self.handle = None;
    }

    /// # Errors
    /// The file has another length or modification time than when it was opened.
    pub(super) fn check_unchanged(&self) -> anyhow::Result<()> {
        let place = self.info.path.display();
        // By name: a file that was replaced by another one has changed as well.
        let metadata = std::fs::metadata(&self.info.path).with_context(|| format!("{place}: can't be found again"))?;
        self.compare(&metadata)
    }

    fn compare(&self, now: &Metadata) -> anyhow::Result<()> {
        let place = self.info.path.display();
        let (was, is) = (self.info.len, now.len());
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
            let now = handle.metadata().map_or(self.info.len, |metadata| metadata.len());
            let place = self.info.path.display();
            ensure!(
                now >= self.info.len,
                "{place}: expected {} bytes as when it was opened, found {now}",
                self.info.len
            );
            return Err(error).with_context(|| format!("{place}: can't be read at byte {offset}"));
        }
        Ok(())
    }

    fn reopen(&self) -> anyhow::Result<File> {
        let (handle, metadata) =
            files::open_regular(&self.info.path).map_err(|problem| anyhow::anyhow!("{problem}"))?;
        self.compare(&metadata)?;
        Ok(handle)
    }
}

/// SHA-256 (lowercase hex) over every byte of some files, one after the other.
///
/// # Errors
/// One can't be read.
pub(super) fn sha256_of<'a>(files: impl IntoIterator<Item = &'a LocalFile>) -> anyhow::Result<String> {
    const PIECE: u64 = 1 << 20;
    let mut hash = Sha256::new();
    let mut buffer = Vec::new();
    for file in files {
        let mut at = 0;
        while at < file.info.len {
            let n = PIECE.min(file.info.len - at);
            buffer.resize(n as usize, 0);
            file.read(at, &mut buffer)?;
            hash.update(&buffer);
            at += n;
        }
    }
    Ok(to_hex(&hash.finalize()))
}
