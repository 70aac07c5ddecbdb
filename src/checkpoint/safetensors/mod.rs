//! A folder of safetensors: `model.safetensors`, or shards with `model.safetensors.index.json`.

mod header;
mod index;
mod shard;

use super::folder::Listing;
use super::local::{KEPT_OPEN, sha256_of};
use super::{Source, SourceFile, TensorInfo};
use crate::digest::sha256_hex;
use crate::problem::{Problem, quote, quote_list};
use anyhow::{Context, ensure};
use header::{Entry, tensor_place};
use index::Index;
use shard::Shard;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

const SINGLE: &str = "model.safetensors";

/// A folder of safetensors files, read with positioned reads.
pub struct SafetensorsFolder {
    tensors: BTreeMap<String, TensorInfo>,
    shards: Vec<Shard>,
    files: Vec<SourceFile>,
}

/// Everything that opening a folder of safetensors found.
pub struct OpenedFolder {
    /// The tensors that can be read; `None` when there is no usable index, or no file with a usable header.
    pub source: Option<SafetensorsFolder>,
    /// Tensors that the checkpoint promises and that `problems` already speaks of: none of them is in `source`.
    pub unavailable: BTreeSet<String>,
    /// What makes the checkpoint unfit to run.
    pub problems: Vec<Problem>,
    /// What is odd and does not matter to a run.
    pub notes: Vec<Problem>,
}

impl SafetensorsFolder {
    /// Opens the files and reads their headers, and no weight.
    ///
    /// `model.safetensors` is read where it exists, else the files that `model.safetensors.index.json` names: what
    /// transformers does. Where two files hold the same tensor, the index decides. A tensor that the index does not
    /// name, in a file that it names, counts as part of the checkpoint, as it does in transformers.
    ///
    /// Everything that is wrong is in the result, not the first thing only; a broken file does not keep the others
    /// from being read.
    pub fn open(folder: &Path) -> OpenedFolder {
        let mut opened =
            OpenedFolder { source: None, unavailable: BTreeSet::new(), problems: Vec::new(), notes: Vec::new() };
        if let Err(problem) = opened.find_and_open(folder) {
            opened.problems.push(problem);
        }
        opened
    }
}

impl Source for SafetensorsFolder {
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
        let shard = self.shards.get(tensor.file).with_context(|| format!("{} is not of this checkpoint", name()))?;
        ensure!(
            range.start <= range.end && range.end <= tensor.len,
            "{}: expected a range within its {} bytes, found {range:?}",
            tensor_place(&shard.file.info.path.display().to_string(), &tensor.name),
            tensor.len
        );
        let end = tensor.offset.checked_add(range.end).filter(|&end| end <= shard.file.info.len);
        ensure!(end.is_some(), "{}: {} lies beyond its end", shard.file.info.path.display(), name());
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
    /// header's length and the SHA-256 of its header's bytes; then, for each tensor by name: its name (after its length in
    /// bytes) and its file's name. One item a line, numbers in decimal. The same wherever the folder lies.
    fn headers_sha256(&self) -> anyhow::Result<String> {
        let mut lines = String::from("safetensors\n");
        for shard in &self.shards {
            let header_len = shard.data_start - header::PREFIX;
            lines += &format!("{}\n{}\n{header_len}\n{}\n", shard.name, shard.file.info.len, shard.header_sha256);
        }
        for tensor in self.tensors.values() {
            lines += &format!("{} {}\n{}\n", tensor.name.len(), tensor.name, self.shards[tensor.file].name);
        }
        Ok(sha256_hex(lines.as_bytes()))
    }

    fn full_sha256(&self) -> anyhow::Result<String> {
        sha256_of(self.shards.iter().map(|shard| &shard.file))
    }
}

impl OpenedFolder {
    fn find_and_open(&mut self, folder: &Path) -> Result<(), Problem> {
        let listing = Listing::read(folder)?;
        let index_path = folder.join(index::NAME);
        let index = if listing.has(SINGLE) {
            self.note_ignored_index(&listing, &index_path);
            None
        } else if listing.has(index::NAME) {
            Some(Index::read(&index_path)?)
        } else {
            let message = format!("has neither {SINGLE} nor {}: {}", index::NAME, listing.weights_hint());
            return Err(Problem::new("weights-missing", folder.display().to_string(), message));
        };
        let names = match &index {
            Some(index) => index.file_names(),
            None => BTreeSet::from([SINGLE]),
        };
        self.note_strays(&listing, &names, folder);
        let shards = self.open_files(folder, &names, index.as_ref());
        self.merge(shards, index, &index_path);
        let empty = self.source.as_ref().is_none_or(|source| source.tensors.is_empty());
        if empty && self.problems.is_empty() {
            let message = "holds no tensors: expected a model's weights".to_owned();
            self.problems.push(Problem::new("weights-missing", folder.display().to_string(), message));
        }
        Ok(())
    }

    /// An index beside `model.safetensors` is ordinary when it says the same thing.
    fn note_ignored_index(&mut self, listing: &Listing, index_path: &Path) {
        if !listing.has(index::NAME) {
            return;
        }
        let agrees = Index::read(index_path).is_ok_and(|index| index.weight_map.values().all(|file| file == SINGLE));
        if !agrees {
            let message = format!("is not used, since {SINGLE} exists: the tensors are those of that file");
            self.notes.push(Problem::new("index-ignored", index_path.display().to_string(), message));
        }
    }

    fn note_strays(&mut self, listing: &Listing, names: &BTreeSet<&str>, folder: &Path) {
        for stray in listing.ending_in(".safetensors").filter(|name| !names.contains(name)) {
            let message = format!("is not read: the checkpoint's files are {}", quote_list(names.iter().copied()));
            let place = format!("{}, file {}", folder.display(), quote(stray));
            self.notes.push(Problem::new("shard-stray", place, message));
        }
    }

    fn open_files(&mut self, folder: &Path, names: &BTreeSet<&str>, index: Option<&Index>) -> Vec<(Shard, Vec<Entry>)> {
        let mut shards = Vec::new();
        for (i, &name) in names.iter().enumerate() {
            match Shard::open(name, folder.join(name), i < KEPT_OPEN) {
                Ok((shard, header)) => {
                    self.problems.extend(header.problems);
                    self.unavailable.extend(header.broken);
                    shards.push((shard, header.entries));
                }
                Err(mut problem) => {
                    if let Some(index) = index {
                        let tensors: Vec<&str> = index.tensors_in(name).collect();
                        problem.message += &format!(" (the index places {} tensors in it)", tensors.len());
                        self.unavailable.extend(tensors.into_iter().map(str::to_owned));
                    }
                    self.problems.push(problem);
                }
            }
        }
        shards
    }

    /// Makes one set of tensors of those of all files, as the index says.
    fn merge(&mut self, opened: Vec<(Shard, Vec<Entry>)>, index: Option<Index>, index_path: &Path) {
        let mut tensors = BTreeMap::<String, TensorInfo>::new();
        let mut shards = Vec::<Shard>::new();
        let mut strays = Vec::new();
        for (file, (shard, entries)) in opened.into_iter().enumerate() {
            let mut unnamed = Vec::new();
            for entry in entries {
                match index.as_ref().map(|index| index.weight_map.get(&entry.name)) {
                    Some(Some(owner)) if *owner != shard.name => {
                        strays.push((file, entry.name));
                        continue;
                    }
                    Some(None) if index.as_ref().is_some_and(|index| index.misplaced.contains(&entry.name)) => continue,
                    Some(None) => unnamed.push(entry.name.clone()),
                    _ => {}
                }
                if let Some(first) = tensors.get(&entry.name) {
                    let message =
                        format!("is also in {}, and the index names neither", quote(&shards[first.file].name));
                    let place = tensor_place(&shard.file.info.path.display().to_string(), &entry.name);
                    self.problems.push(Problem::new("tensor-ambiguous", place, message));
                    continue;
                }
                let info = TensorInfo {
                    name: entry.name.clone(),
                    dtype: entry.dtype,
                    shape: entry.shape,
                    file,
                    offset: shard.data_start + entry.begin,
                    len: entry.end - entry.begin,
                };
                tensors.insert(entry.name, info);
            }
            if !unnamed.is_empty() {
                let names = quote_list(unnamed.iter().map(String::as_str));
                let message = format!("holds tensors that the index does not name ({names}): they count as well");
                self.notes.push(Problem::new(
                    "tensor-not-in-index",
                    shard.file.info.path.display().to_string(),
                    message,
                ));
            }
            shards.push(shard);
        }
        if let Some(index) = index {
            self.note_duplicates(&strays, &shards, &tensors);
            self.report_absent(&index, &strays, &shards, &tensors, index_path);
            self.note_total_size(&index, &tensors, index_path);
            self.unavailable.extend(index.misplaced);
            self.problems.extend(index.problems);
        }
        // A broken copy does not make a tensor unavailable that another file serves.
        self.unavailable.retain(|name| !tensors.contains_key(name));
        if !shards.is_empty() {
            let files = shards.iter().map(|shard| shard.file.info.clone()).collect();
            self.source = Some(SafetensorsFolder { tensors, shards, files });
        }
    }

    /// Copies of a tensor in another file than the one that the index names.
    fn note_duplicates(
        &mut self,
        strays: &[(usize, String)],
        shards: &[Shard],
        tensors: &BTreeMap<String, TensorInfo>,
    ) {
        for (file, shard) in shards.iter().enumerate() {
            let mut copies = strays
                .iter()
                .filter(|(stray, name)| *stray == file && tensors.contains_key(name))
                .map(|(_, name)| name.as_str())
                .peekable();
            if copies.peek().is_some() {
                let message = format!(
                    "holds copies of tensors that the index places elsewhere ({}): the index decides, these copies \
                     are not read here, but may be by a loader that reads every file",
                    quote_list(copies)
                );
                self.notes.push(Problem::new("tensor-duplicate", shard.file.info.path.display().to_string(), message));
            }
        }
    }

    /// Tensors that the index places in a readable file which does not hold them.
    fn report_absent(
        &mut self,
        index: &Index,
        strays: &[(usize, String)],
        shards: &[Shard],
        tensors: &BTreeMap<String, TensorInfo>,
        index_path: &Path,
    ) {
        let found_in: BTreeMap<&str, usize> = strays.iter().map(|(file, name)| (name.as_str(), *file)).collect();
        for (name, owner) in &index.weight_map {
            if tensors.contains_key(name) || !self.unavailable.insert(name.clone()) {
                continue;
            }
            let elsewhere = match found_in.get(name.as_str()) {
                Some(&file) => format!("{} holds it", quote(&shards[file].name)),
                None => "no other file holds it".into(),
            };
            let message = format!("expected it in {}, which does not hold it; {elsewhere}", quote(owner));
            let place = tensor_place(&index_path.display().to_string(), name);
            self.problems.push(Problem::new("index-tensor-missing", place, message));
        }
    }

    /// Wrong sizes are common in the wild, and nothing depends on them.
    fn note_total_size(&mut self, index: &Index, tensors: &BTreeMap<String, TensorInfo>, index_path: &Path) {
        let Some(stated) = &index.total_size else { return };
        let found: u64 = tensors.values().map(|tensor| tensor.len).sum();
        let agrees = stated.as_f64() == Some(found as f64);
        if !agrees && self.unavailable.is_empty() {
            let message = format!("gives metadata.total_size as {stated}, the tensors take {found} bytes");
            self.notes.push(Problem::new("index-total-size", index_path.display().to_string(), message));
        }
    }
}
