//! Which file a path means: a GGUF file itself, or the only model in a folder.

use super::super::folder::Listing;
use super::header::MAGIC;
use crate::problem::{Problem, quote_list};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The first file of the GGUF model that `path` means; `None` where it means something else: a folder with safetensors, a
/// file of another kind, nothing.
///
/// # Errors
/// It is a folder of several models.
pub fn find(path: &Path) -> Result<Option<PathBuf>, Problem> {
    let Ok(metadata) = std::fs::metadata(path) else {
        // A file that isn't there is told as such.
        return Ok(is_named(path).then(|| path.to_owned()));
    };
    if !metadata.is_dir() {
        // Ollama's blobs have no such ending.
        return Ok((is_named(path) || (metadata.is_file() && begins_alike(path))).then(|| path.to_owned()));
    }
    let Ok(listing) = Listing::read(path) else { return Ok(None) };
    let other = [".safetensors", ".safetensors.index.json"].iter().any(|end| listing.ending_in(end).next().is_some());
    let mut models = BTreeSet::new();
    for name in listing.ending_in(".gguf") {
        // The projector of a model that sees lies beside it.
        if name.starts_with("mmproj") {
            continue;
        }
        models.insert(match parts(&path.join(name)) {
            Some((stem, _, count)) => part_path(&stem, 1, count),
            None => path.join(name),
        });
    }
    if other || models.is_empty() {
        return Ok(None);
    }
    if models.len() > 1 {
        let names: Vec<_> = models.iter().filter_map(|model| model.file_name()?.to_str()).collect();
        let message = format!("holds {} GGUF models ({}): give the file of one", names.len(), quote_list(names));
        return Err(Problem::new("gguf-several", path.display().to_string(), message));
    }
    Ok(models.pop_first())
}

fn is_named(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

fn begins_alike(path: &Path) -> bool {
    let mut start = [0; MAGIC.len()];
    File::open(path).is_ok_and(|mut file| file.read_exact(&mut start).is_ok()) && start == MAGIC
}

/// Of `stem-00002-of-00003.gguf`: the stem, 2 and 3.
pub(super) fn parts(path: &Path) -> Option<(PathBuf, u64, u64)> {
    let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = name.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.parse().ok().filter(|_| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit()));
    Some((path.with_file_name(stem), digits(number)?, digits(count)?))
}

/// The name that `parts` takes apart.
pub(super) fn part_path(stem: &Path, number: u64, count: u64) -> PathBuf {
    let name = stem.file_name().unwrap_or_default().to_string_lossy();
    stem.with_file_name(format!("{name}-{number:05}-of-{count:05}.gguf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_parts_is_taken_apart_and_put_together() {
        let path = Path::new("a/m-q4-00002-of-00003.gguf");
        let (stem, number, count) = parts(path).expect("a part");
        assert_eq!((stem.as_path(), number, count), (Path::new("a/m-q4"), 2, 3));
        assert_eq!(part_path(&stem, number, count), path);
        for other in
            ["m.gguf", "m-00002-of-3.gguf", "m-0002-of-00003.gguf", "m-00002-of-00003.bin", "m-+0002-of-00003.gguf"]
        {
            assert_eq!(parts(Path::new(other)), None, "{other}");
        }
    }
}
