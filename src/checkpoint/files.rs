//! Opening and reading files that may be anything: missing, a folder, a pipe, unreadable, too large.

use crate::problem::Problem;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// Opens a regular file (or a symbolic link to one) without ever blocking on a pipe.
///
/// # Errors
/// There is no such file, a link leads nowhere, it is not a regular file, or it can't be opened.
pub(super) fn open_regular(path: &Path) -> Result<(File, Metadata), Problem> {
    let problem = |code, message: String| Problem::new(code, path.display().to_string(), message);
    let unreadable = |error: io::Error| problem("file-unreadable", format!("can't be read: {error}"));
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(match std::fs::read_link(path) {
                Ok(target) => problem(
                    "file-broken-link",
                    format!("is a link to {}, which does not exist: was the download interrupted?", target.display()),
                ),
                Err(_) => problem("file-missing", "there is no such file".into()),
            });
        }
        Err(error) => return Err(unreadable(error)),
    };
    if !metadata.is_file() {
        let kind = special_kind(metadata.file_type());
        return Err(problem("file-not-regular", format!("expected a regular file, found {kind}")));
    }
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    Ok((file, metadata))
}

/// Reads a whole file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`], or the file is larger than `limit`.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, Problem> {
    let place = || path.display().to_string();
    let (file, metadata) = open_regular(path)?;
    let mut bytes = Vec::new();
    if metadata.len() <= limit {
        file.take(limit + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| Problem::new("file-unreadable", place(), format!("can't be read: {error}")))?;
    }
    let found = metadata.len().max(bytes.len() as u64);
    if found > limit {
        let message = format!("expected at most {limit} bytes, found {found}: this is not such a file");
        return Err(Problem::new("file-too-large", place(), message));
    }
    Ok(bytes)
}

/// Fills `buffer` from the bytes of `file` at `offset`; leaves the file's own position out of it, so that threads can
/// share the file.
///
/// # Errors
/// `UnexpectedEof` when the file ends before the buffer is full, else what the system says.
#[cfg(unix)]
pub(super) fn read_exact_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// Fills `buffer` from the bytes of `file` at `offset`; threads can share the file.
///
/// # Errors
/// `UnexpectedEof` when the file ends before the buffer is full, else what the system says.
#[cfg(windows)]
pub(super) fn read_exact_at(file: &File, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buffer = &mut buffer[n..];
                offset += n as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn special_kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a named pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}
