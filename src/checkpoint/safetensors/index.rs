//! model.safetensors.index.json: which file holds which tensor.

use super::super::{files, json};
use crate::problem::{Problem, quote};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

pub(super) const NAME: &str = "model.safetensors.index.json";
/// The largest real ones take about ten megabytes (a hundred thousand tensors).
const LIMIT: u64 = 64_000_000;

pub(super) struct Index {
    /// Tensor to file name.
    pub weight_map: BTreeMap<String, String>,
    /// `metadata.total_size`: by convention the bytes of all tensors' data.
    pub total_size: Option<Value>,
    /// Tensors that the index gives no usable file name for; `problems` says why.
    pub misplaced: BTreeSet<String>,
    pub problems: Vec<Problem>,
}

impl Index {
    /// # Errors
    /// The index is unusable as a whole; what is wrong with single entries is in [`Index::problems`].
    pub(super) fn read(path: &Path) -> Result<Self, Problem> {
        let place = path.display().to_string();
        let mut root = json::parse_object(&files::read_small(path, LIMIT)?, &place)?;
        let weight_map = match root.get_mut("weight_map").map(Value::take) {
            Some(Value::Object(map)) => map,
            other => {
                let found = other.as_ref().map_or("none", json::kind);
                let message = format!("expected an object `weight_map` from tensor to file names, found {found}");
                return Err(Problem::new("index-weight-map", place, message));
            }
        };
        let total_size = root.get("metadata").and_then(|metadata| metadata.get("total_size")).cloned();
        let mut index =
            Self { weight_map: BTreeMap::new(), total_size, misplaced: BTreeSet::new(), problems: Vec::new() };
        for (tensor, file) in weight_map {
            let reason = match &file {
                Value::String(file) => unsafe_name(file).map(|reason| format!("found {}: {reason}", quote(file))),
                other => Some(format!("found {}", json::kind(other))),
            };
            match (reason, file) {
                (None, Value::String(file)) => {
                    index.weight_map.insert(tensor, file);
                }
                (reason, _) => {
                    let message = format!("expected the name of a file beside it, {}", reason.unwrap_or_default());
                    let place = format!("{place}, tensor {}", quote(&tensor));
                    index.problems.push(Problem::new("index-file-name", place, message));
                    index.misplaced.insert(tensor);
                }
            }
        }
        Ok(index)
    }

    /// The files that the index names, sorted.
    pub(super) fn file_names(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    /// The tensors that the index places in `file`.
    pub(super) fn tensors_in<'a>(&'a self, file: &'a str) -> impl Iterator<Item = &'a str> {
        self.weight_map.iter().filter(move |(_, f)| f.as_str() == file).map(|(tensor, _)| tensor.as_str())
    }
}

/// Why a file name in an index must not become a path: an index comes from the network and names files in its own
/// folder only.
fn unsafe_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("it is empty")
    } else if name.contains(['/', '\\', ':']) || name == "." || name == ".." {
        Some("it leads out of the folder")
    } else if name.chars().any(char::is_control) {
        Some("it holds control characters")
    } else {
        None
    }
}
