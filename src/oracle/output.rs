//! Results that appear whole or not at all.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::NamedTempFile;
use thiserror::Error;

/// Why a result cannot be written.
#[derive(Debug, Error)]
pub enum OutputError {
    #[error("{path}: is a folder; expected the name of a file to write")]
    Folder { path: String },

    #[error("{path}: the folder {folder} does not exist")]
    NoFolder { path: String, folder: String },

    #[error("{path}: no file can be created in the folder {folder}: {cause}")]
    UnwritableFolder { path: String, folder: String, cause: io::Error },

    #[error("{path}: is read-only")]
    ReadOnly { path: String },

    #[error("{path}: is a symbolic link that leads in a circle")]
    LinkLoop { path: String },

    #[error("{path}: cannot be written: {cause}")]
    Unwritable { path: String, cause: io::Error },
}

/// Where a result goes. Opened before the long work, so that a bad path is refused first; written by
/// [`Output::commit`] after it.
#[derive(Debug)]
pub struct Output {
    /// As the user named it.
    name: String,
    target: Target,
}

#[derive(Debug)]
enum Target {
    StandardOutput,
    /// A device or a pipe: nothing to rename over.
    InPlace(PathBuf),
    /// A regular file, there already or not.
    Replace {
        path: PathBuf,
        folder: PathBuf,
        /// Of the file that is there already.
        permissions: Option<Permissions>,
    },
}

impl Output {
    /// Opens `path` for a result; `None` and `-` are standard output.
    ///
    /// Creates and removes a temporary file in the target's folder, so a missing or read-only folder is refused here.
    /// A symbolic link is followed: the file it names is replaced, the link stays. A device or pipe is written in
    /// place; a folder, and a file without write permission, is refused.
    pub fn open(path: Option<&Path>) -> Result<Self, OutputError> {
        let Some(path) = path.filter(|path| path.as_os_str() != "-") else {
            return Ok(Self { name: "standard output".to_string(), target: Target::StandardOutput });
        };
        let name = path.display().to_string();
        let target = match path.to_str() {
            Some("/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1") => Target::StandardOutput,
            // What a descriptor points to may be a regular file, but belongs to whoever opened it.
            _ if path == Path::new("/dev/stderr") || path.starts_with("/dev/fd") || path.starts_with("/proc") => {
                Target::InPlace(path.to_path_buf())
            }
            _ => resolve(path, &name)?,
        };
        let output = Self { name, target };
        if let Target::Replace { folder, .. } = &output.target {
            let (path, folder_name) = (output.name.clone(), folder.display().to_string());
            Unfinished::create(folder, None).map_err(|cause| OutputError::UnwritableFolder {
                path,
                folder: folder_name,
                cause,
            })?;
        }
        Ok(output)
    }

    /// Writes the result through `write`. A file appears complete, on the disk, under its name, or stays as it was;
    /// nothing else is left behind. A reader of standard output that has gone away is no error.
    pub fn commit(self, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), OutputError> {
        let result = match &self.target {
            Target::StandardOutput => to_standard_output(write),
            Target::InPlace(path) => OpenOptions::new().write(true).open(path).and_then(|file| buffered(&file, write)),
            Target::Replace { path, folder, permissions } => replace(path, folder, permissions.clone(), write),
        };
        result.map_err(|cause| self.unwritable(cause))
    }

    fn unwritable(&self, cause: io::Error) -> OutputError {
        OutputError::Unwritable { path: self.name.clone(), cause }
    }
}

/// Writes to standard output; a reader that has gone away (`oracle ... | head`) is no error.
pub fn to_standard_output(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match buffered(io::stdout().lock(), write) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn buffered(out: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let result = write(&mut out).and_then(|()| out.flush());
    // After a failure the rest of the buffer must not be tried again on drop.
    drop(out.into_parts());
    result
}

fn replace(
    path: &Path,
    folder: &Path,
    permissions: Option<Permissions>,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let unfinished = Unfinished::create(folder, permissions)?;
    buffered(unfinished.file(), write)?;
    unfinished.file().sync_all()?;
    unfinished.rename(path)
}

/// Finds out what is at `path`, through symbolic links.
fn resolve(path: &Path, name: &str) -> Result<Target, OutputError> {
    let name = || name.to_string();
    let path = follow(path).ok_or_else(|| OutputError::LinkLoop { path: name() })?;
    let permissions = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => return Err(OutputError::Folder { path: name() }),
        Ok(metadata) if !metadata.is_file() => return Ok(Target::InPlace(path)),
        Ok(metadata) if metadata.permissions().readonly() => return Err(OutputError::ReadOnly { path: name() }),
        Ok(metadata) => Some(metadata.permissions()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(OutputError::Unwritable { path: name(), cause }),
    };
    let names_a_folder = path.as_os_str().to_string_lossy().ends_with(std::path::is_separator);
    let folder = match path.parent() {
        Some(parent) if path.file_name().is_some() && !names_a_folder => parent,
        _ => return Err(OutputError::Folder { path: name() }),
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !folder.is_dir() {
        return Err(OutputError::NoFolder { path: name(), folder: folder.display().to_string() });
    }
    Ok(Target::Replace { folder: folder.to_path_buf(), path, permissions })
}

/// Where a chain of symbolic links ends, whether or not something is there; `None` for a circle.
fn follow(path: &Path) -> Option<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..40 {
        match fs::read_link(&path) {
            Ok(link) => path = path.parent().unwrap_or(Path::new("")).join(link),
            Err(_) => return Some(path),
        }
    }
    None
}

/// The temporary files that exist right now.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished_files() -> MutexGuard<'static, Vec<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the process, for a handler of SIGINT and SIGTERM, without leaving a temporary file: removes those that exist
/// and lets no new one appear.
pub fn exit_without_leftovers(code: i32) -> ! {
    let files = unfinished_files();
    for path in files.iter() {
        // One that has just been renamed is no longer there, which is as well.
        let _ = fs::remove_file(path);
    }
    std::process::exit(code)
}

/// A temporary file that is removed unless it is renamed, also when the process is interrupted.
struct Unfinished {
    file: NamedTempFile,
    registered: Registered,
}

impl Unfinished {
    /// Creates one in `folder`, with the permissions given or else those of any new file.
    fn create(folder: &Path, permissions: Option<Permissions>) -> io::Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".oracle-").suffix(".tmp");
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut files = unfinished_files();
        // The error's own text would name the temporary file, which means nothing to the user.
        let file = builder.tempfile_in(folder).map_err(|error| io::Error::from(error.kind()))?;
        files.push(file.path().to_path_buf());
        drop(files);
        let registered = Registered(file.path().to_path_buf());
        if let Some(permissions) = permissions {
            file.as_file().set_permissions(permissions)?;
        }
        Ok(Self { file, registered })
    }

    fn file(&self) -> &File {
        self.file.as_file()
    }

    fn rename(self, path: &Path) -> io::Result<()> {
        let result = self.file.persist(path).map(drop).map_err(|failed| failed.error);
        drop(self.registered);
        result
    }
}

/// An entry of [`UNFINISHED`], for as long as the file has its temporary name.
struct Registered(PathBuf);

impl Drop for Registered {
    fn drop(&mut self) {
        unfinished_files().retain(|path| *path != self.0);
    }
}
