//! Reading a header of unknown length from a file's start: every length is held against what is left of the file
//! before a byte is read or an allocation made.

use super::super::local::LocalFile;
use crate::digest::to_hex;
use crate::problem::Problem;
use sha2::{Digest, Sha256};

/// Bytes that are read at once.
const PIECE: usize = 1 << 16;

pub(super) struct Cursor<'f> {
    file: &'f LocalFile,
    place: String,
    /// Bytes of the file from `start` on.
    buffer: Vec<u8>,
    start: u64,
    /// The next byte, counted from the file's start.
    at: u64,
    hash: Sha256,
}

impl<'f> Cursor<'f> {
    pub(super) fn new(file: &'f LocalFile) -> Self {
        let place = file.info.path.display().to_string();
        Self { file, place, buffer: Vec::new(), start: 0, at: 0, hash: Sha256::new() }
    }

    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Bytes before the next one.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Bytes from the next one to the file's end.
    pub(super) fn left(&self) -> u64 {
        self.file.info.len - self.at
    }

    pub(super) fn problem(&self, code: &'static str, message: impl Into<String>) -> Problem {
        Problem::new(code, &self.place, message)
    }

    /// The next `N` bytes, which are `what`.
    pub(super) fn take<const N: usize>(&mut self, what: &str) -> Result<[u8; N], Problem> {
        self.need(N as u64, what)?;
        let mut bytes = [0; N];
        self.copy(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32, Problem> {
        self.take(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64, Problem> {
        self.take(what).map(u64::from_le_bytes)
    }

    /// The next `len` bytes; the caller has bounded them.
    pub(super) fn bytes(&mut self, len: u64, what: &str) -> Result<Vec<u8>, Problem> {
        self.need(len, what)?;
        let mut bytes = vec![0; len as usize];
        self.copy(&mut bytes)?;
        Ok(bytes)
    }

    /// Passes over `len` bytes.
    pub(super) fn skip(&mut self, len: u64, what: &str) -> Result<(), Problem> {
        self.need(len, what)?;
        let end = self.at + len;
        while self.at < end {
            let here = self.filled()?;
            let n = here.len().min((end - self.at) as usize);
            self.pass(n);
        }
        Ok(())
    }

    /// SHA-256 (lowercase hex) of everything before the next byte.
    pub(super) fn sha256(self) -> String {
        to_hex(&self.hash.finalize())
    }

    fn need(&self, len: u64, what: &str) -> Result<(), Problem> {
        if len <= self.left() {
            return Ok(());
        }
        let message = format!(
            "expected {len} bytes of {what} at byte {}, found {} before the file's end: the file is cut off, or damaged",
            self.at,
            self.left()
        );
        Err(self.problem("gguf-truncated", message))
    }

    fn copy(&mut self, mut bytes: &mut [u8]) -> Result<(), Problem> {
        while !bytes.is_empty() {
            let here = self.filled()?;
            let n = here.len().min(bytes.len());
            bytes[..n].copy_from_slice(&here[..n]);
            self.pass(n);
            bytes = &mut bytes[n..];
        }
        Ok(())
    }

    /// What is buffered from the next byte on: at least one byte, where the file has one.
    fn filled(&mut self) -> Result<&[u8], Problem> {
        if self.at >= self.start + self.buffer.len() as u64 {
            self.buffer.resize(PIECE.min(self.left() as usize), 0);
            self.start = self.at;
            if let Err(error) = self.file.read(self.at, &mut self.buffer) {
                return Err(self.problem("file-unreadable", format!("can't be read: {error:#}")));
            }
        }
        Ok(&self.buffer[(self.at - self.start) as usize..])
    }

    fn pass(&mut self, n: usize) {
        let first = (self.at - self.start) as usize;
        self.hash.update(&self.buffer[first..first + n]);
        self.at += n as u64;
    }
}
