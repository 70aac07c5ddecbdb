//! config.json as a file: found, bounded, strictly parsed. What its keys mean is not known here.

use super::folder::Listing;
use super::{files, json};
use crate::digest::sha256_hex;
use crate::problem::Problem;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const NAME: &str = "config.json";
/// Real ones take a few kilobytes.
const LIMIT: u64 = 16_000_000;

/// A checkpoint's config.json.
#[derive(Debug, Clone)]
pub struct Config {
    pub path: PathBuf,
    /// SHA-256 of the file's bytes, lowercase hex.
    pub sha256: String,
    /// The file's object, keys in the file's order.
    pub root: Map<String, Value>,
    /// Where the file has another name for a key: that name.
    pub origins: BTreeMap<String, String>,
}

impl Config {
    /// Reads `folder`/config.json.
    ///
    /// # Errors
    /// There is no such folder or file (with a hint at what the folder holds instead), it is not a regular file, is
    /// larger than 16 MB, or is not one strict JSON object: see the codes `folder-*`, `config-missing`, `file-*` and
    /// `json-*`.
    pub fn read(folder: &Path) -> Result<Self, Problem> {
        let listing = Listing::read(folder)?;
        if !listing.has(NAME) {
            let message = format!("has no {NAME}: {}", listing.config_hint());
            return Err(Problem::new("config-missing", folder.display().to_string(), message));
        }
        Self::of(folder.join(NAME))
    }

    /// Reads a further JSON file of a folder, where it is there.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn read_beside(folder: &Path, name: &str) -> Result<Option<Self>, Problem> {
        let there = Listing::read(folder)?.has(name);
        there.then(|| Self::of(folder.join(name))).transpose()
    }

    fn of(path: PathBuf) -> Result<Self, Problem> {
        let bytes = files::read_small(&path, LIMIT)?;
        let root = json::parse_config(&bytes, &path.display().to_string())?;
        Ok(Self { sha256: sha256_hex(&bytes), path, root, origins: BTreeMap::new() })
    }
}
