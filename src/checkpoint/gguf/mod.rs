//! A GGUF model: one file, or several that `gguf-split` made of one.
//!
//! Tensors and keys have the file's own names here. What they mean, and which names and values the original had, is
//! known where the families are: [`crate::model::gguf`].

mod cursor;
mod find;
mod header;
mod value;

pub use find::find;
pub use value::Value;

use super::local::{KEPT_OPEN, LocalFile, sha256_of};
use super::{Source, SourceFile, TensorInfo};
use crate::digest::sha256_hex;
use crate::problem::{Problem, quote};
use anyhow::{Context, ensure};
use header::{Header, tensor_place};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

const SPLIT_NO: &str = "split.no";
const SPLIT_COUNT: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";

/// The files of a GGUF model, read with positioned reads.
pub struct Gguf {
    metadata: BTreeMap<String, Value>,
    tensors: BTreeMap<String, TensorInfo>,
    shards: Vec<Shard>,
    files: Vec<SourceFile>,
}

/// Everything that opening a GGUF model found.
pub struct OpenedGguf {
    /// `None` where the first file's header is unusable, or another file of the model. With `problems` it is fit for a
    /// census only.
    pub gguf: Option<Gguf>,
    /// What makes the model unfit to run.
    ///
    /// The codes: `file-*` as for any file; for the header as a whole `gguf-magic`, `gguf-version`, `gguf-big-endian`,
    /// `gguf-truncated`, `gguf-count`, `gguf-name`, `gguf-value-type`, `gguf-value`, `gguf-duplicate-key`,
    /// `gguf-duplicate-tensor`, `gguf-alignment`, `gguf-dimensions`; for a tensor `gguf-type`, `gguf-row`,
    /// `tensor-size`, `tensor-offsets`, `tensor-overlap`, `tensor-hole`; for what follows the tensors
    /// `gguf-trailing-bytes`; for split files `gguf-split`.
    pub problems: Vec<Problem>,
}

struct Shard {
    file: LocalFile,
    header_len: u64,
    header_sha256: String,
}

impl Gguf {
    /// Opens the model whose first file is `path` and reads its headers, and no weight.
    pub fn open(path: &Path) -> OpenedGguf {
        let mut problems = Vec::new();
        let gguf = match open_all(path, &mut problems) {
            Ok(gguf) => Some(gguf),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        OpenedGguf { gguf, problems }
    }

    /// The first file's keys and values; of a split model, without `split.*`.
    pub fn metadata(&self) -> &BTreeMap<String, Value> {
        &self.metadata
    }

    /// Where the metadata stands, for messages.
    pub fn path(&self) -> &Path {
        &self.files[0].path
    }

    /// SHA-256 (lowercase hex) of the first file's header.
    pub fn header_sha256(&self) -> &str {
        &self.shards[0].header_sha256
    }
}

/// The keys and values of a file, a split model's first one, with the whole of those `arrays`: of a long one
/// [`Gguf::metadata`] keeps the length alone.
///
/// # Errors
/// The file's metadata is unusable, or one of `arrays` is too long to be kept.
pub fn metadata(path: &Path, arrays: &[&str]) -> Result<BTreeMap<String, Value>, Problem> {
    header::metadata(&LocalFile::open(path.to_owned())?, arrays)
}

fn open_all(path: &Path, problems: &mut Vec<Problem>) -> Result<Gguf, Problem> {
    let (shard, header) = open_one(path.to_owned(), true)?;
    let Header { mut metadata, entries, data_start, problems: found, .. } = header;
    problems.extend(found);
    let split = Split::of(path, &mut metadata)?;
    let mut gguf = Gguf { metadata, tensors: BTreeMap::new(), shards: vec![], files: vec![] };
    add(&mut gguf, shard, entries, data_start)?;
    let Some(split) = split else { return Ok(gguf) };
    for number in 1..split.count {
        let path = split.path(number);
        let (shard, header) = open_one(path.clone(), (number as usize) < KEPT_OPEN)?;
        problems.extend(header.problems);
        let mut metadata = header.metadata;
        split.agrees(&path, number, &mut metadata)?;
        for (key, value) in &metadata {
            match gguf.metadata.get(key) {
                Some(first) if first == value => {}
                first => {
                    let expected = first.map_or("no such key, as in the first file".to_owned(), |v| v.to_string());
                    let message = format!("expected {expected}, found {value}");
                    let place = format!("{}, key {}", path.display(), quote(key));
                    return Err(Problem::new("gguf-split", place, message));
                }
            }
        }
        add(&mut gguf, shard, header.entries, header.data_start)?;
    }
    if let Some(expected) = split.tensors.filter(|&n| n != gguf.tensors.len() as u64 && problems.is_empty()) {
        let message = format!("expected {expected} tensors in {} files, found {}", split.count, gguf.tensors.len());
        return Err(Problem::new("gguf-split", format!("{}, key {}", path.display(), quote(SPLIT_TENSORS)), message));
    }
    Ok(gguf)
}

fn open_one(path: PathBuf, keep_open: bool) -> Result<(Shard, Header), Problem> {
    let mut file = LocalFile::open(path)?;
    let header = header::read(&file)?;
    if !keep_open {
        file.close();
    }
    Ok((Shard { file, header_len: header.len, header_sha256: header.sha256.clone() }, header))
}

/// Adds a file and its tensors.
fn add(gguf: &mut Gguf, shard: Shard, entries: Vec<header::Entry>, data_start: u64) -> Result<(), Problem> {
    let file = gguf.shards.len();
    for entry in entries {
        if let Some(first) = gguf.tensors.get(&entry.name) {
            let message = format!("is also in {}", gguf.files[first.file].path.display());
            let place = tensor_place(&shard.file.info.path.display().to_string(), &entry.name);
            return Err(Problem::new("gguf-duplicate-tensor", place, message));
        }
        let info = TensorInfo {
            name: entry.name.clone(),
            dtype: entry.dtype,
            shape: entry.shape,
            file,
            offset: data_start + entry.begin,
            len: entry.end - entry.begin,
        };
        gguf.tensors.insert(entry.name, info);
    }
    gguf.files.push(shard.file.info.clone());
    gguf.shards.push(shard);
    Ok(())
}

/// What the first file says about further ones.
struct Split {
    count: u64,
    /// Tensors of all files.
    tensors: Option<u64>,
    /// The first file's path up to its number.
    stem: PathBuf,
}

impl Split {
    /// Takes the keys of a split out of a first file's metadata.
    fn of(path: &Path, metadata: &mut BTreeMap<String, Value>) -> Result<Option<Self>, Problem> {
        let mut count = |key: &str| match metadata.remove(key) {
            None => Ok(None),
            Some(value) => value.as_count().map(Some).ok_or_else(|| {
                let message = format!("expected a whole number that is not negative, found {value}");
                Problem::new("gguf-split", format!("{}, key {}", path.display(), quote(key)), message)
            }),
        };
        let (number, count, tensors) = (count(SPLIT_NO)?, count(SPLIT_COUNT)?, count(SPLIT_TENSORS)?);
        let problem = |message: String| Problem::new("gguf-split", path.display().to_string(), message);
        let count = count.unwrap_or(1);
        if count <= 1 {
            return Ok(None);
        }
        let parts = find::parts(path);
        if let Some(number) = number.filter(|&n| n != 0) {
            let first = parts.map(|(stem, ..)| find::part_path(&stem, 1, count).display().to_string());
            let hint = first.map_or(String::new(), |first| format!(": give {first}"));
            return Err(problem(format!("is file {} of {count}; the model is opened by its first{hint}", number + 1)));
        }
        match parts {
            Some((stem, 1, of)) if of == count => Ok(Some(Self { count, tensors, stem })),
            _ => Err(problem(format!(
                "says that it is the first of {count} files: expected its name to end in -00001-of-{count:05}.gguf"
            ))),
        }
    }

    /// Of file `number`, counted from zero.
    fn path(&self, number: u64) -> PathBuf {
        find::part_path(&self.stem, number + 1, self.count)
    }

    /// Takes the keys of a split out of a further file's metadata: they say the same.
    fn agrees(&self, path: &Path, number: u64, metadata: &mut BTreeMap<String, Value>) -> Result<(), Problem> {
        let expected = [(SPLIT_NO, Some(number)), (SPLIT_COUNT, Some(self.count)), (SPLIT_TENSORS, self.tensors)];
        for (key, expected) in expected {
            let found = metadata.remove(key);
            if expected.is_some() && found.as_ref().and_then(Value::as_count) != expected {
                let found = found.map_or("no such key".to_owned(), |value| value.to_string());
                let message = format!("expected {}, found {found}", expected.unwrap_or_default());
                let place = format!("{}, key {}", path.display(), quote(key));
                return Err(Problem::new("gguf-split", place, message));
            }
        }
        Ok(())
    }
}

impl Source for Gguf {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        &self.tensors
    }

    fn files(&self) -> &[SourceFile] {
        &self.files
    }

    fn read_into<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<u64>,
        buffer: &'a mut Vec<u8>,
    ) -> anyhow::Result<&'a [u8]> {
        let name = || quote(&tensor.name);
        let shard = self.shards.get(tensor.file).with_context(|| format!("{} is not of this model", name()))?;
        let path = &shard.file.info.path;
        ensure!(
            range.start <= range.end && range.end <= tensor.len,
            "{}: expected a range within its {} bytes, found {range:?}",
            tensor_place(&path.display().to_string(), &tensor.name),
            tensor.len
        );
        if range.is_empty() {
            // Wherever that is.
            buffer.clear();
            return Ok(buffer);
        }
        let end = tensor.offset.checked_add(range.end).filter(|&end| end <= shard.file.info.len);
        ensure!(end.is_some(), "{}: {} lies beyond its end", path.display(), name());
        buffer.resize(usize::try_from(range.end - range.start)?, 0);
        shard
            .file
            .read(tensor.offset + range.start, buffer)
            .with_context(|| format!("the tensor {} can't be read", name()))?;
        Ok(buffer)
    }

    fn is_resident(&self) -> bool {
        false
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        self.shards.iter().try_for_each(|shard| shard.file.check_unchanged())
    }

    /// SHA-256 over, for each file in the order of [`Source::files`]: its name without the folder, its length, its
    /// header's length (up to the padding before the data) and the SHA-256 of its header's bytes. One item a line,
    /// numbers in decimal. The same wherever the files lie.
    fn headers_sha256(&self) -> anyhow::Result<String> {
        let mut lines = String::from("gguf\n");
        for Shard { file, header_len, header_sha256 } in &self.shards {
            let name = file.info.path.file_name().unwrap_or_default().to_string_lossy();
            lines += &format!("{name}\n{}\n{header_len}\n{header_sha256}\n", file.info.len);
        }
        Ok(sha256_hex(lines.as_bytes()))
    }

    fn full_sha256(&self) -> anyhow::Result<String> {
        sha256_of(self.shards.iter().map(|shard| &shard.file))
    }
}
