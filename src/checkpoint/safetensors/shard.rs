//! One safetensors file: opened, its header read and checked.

use super::super::local::LocalFile;
use super::header::{self, Header};
use crate::digest::to_hex;
use crate::problem::Problem;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// One file of the folder, as it was when it was opened.
pub(super) struct Shard {
    pub name: String,
    pub file: LocalFile,
    /// Bytes before the data: the length prefix and the header.
    pub data_start: u64,
    /// SHA-256 of the header's bytes, lowercase hex.
    pub header_sha256: String,
}

impl Shard {
    /// Opens `path` and reads its header. With `keep_open` unset the file is closed again, and opened for each read.
    ///
    /// # Errors
    /// The file can't be read, or its header is unusable as a whole.
    pub(super) fn open(name: &str, path: PathBuf, keep_open: bool) -> Result<(Self, Header), Problem> {
        let place = path.display().to_string();
        let mut file = LocalFile::open(path)?;
        let len = file.info.len;
        let read = |offset: u64, n: u64| {
            let mut bytes = vec![0; n as usize];
            match file.read(offset, &mut bytes) {
                Ok(()) => Ok(bytes),
                Err(error) => Err(Problem::new("file-unreadable", &place, format!("can't be read: {error:#}"))),
            }
        };
        let header_len = header::length(&read(0, len.min(header::PREFIX))?, len, &place)?;
        let text = read(header::PREFIX, header_len)?;
        let data_start = header::PREFIX + header_len;
        let header = header::parse(&text, len - data_start, &place)?;
        if !keep_open {
            file.close();
        }
        let header_sha256 = to_hex(&Sha256::digest(&text));
        Ok((Self { name: name.to_owned(), file, data_start, header_sha256 }, header))
    }
}
