//! Opening a checkpoint of any container: what the files say, under the names of the family's pack.

use super::pack::Pack;
use super::{gguf, quantized};
use crate::checkpoint::{self, Opened};
use crate::problem::Problem;
use std::collections::BTreeSet;
use std::path::Path;

/// Opens the checkpoint that `path` means, without reading a weight: a folder with config.json and safetensors, a GGUF
/// file, the first of several that are one model, or a folder that holds one GGUF model. `packs` know what a GGUF file's
/// names mean.
pub fn open(path: &Path, packs: &[Pack]) -> Opened {
    match checkpoint::gguf::find(path) {
        Ok(None) => quantized::undo(checkpoint::open(path)),
        Ok(Some(file)) => gguf::open(&file, packs),
        Err(problem) => refused(vec![problem]),
    }
}

/// Nothing but problems.
pub(super) fn refused(problems: Vec<Problem>) -> Opened {
    Opened { config: None, source: None, unavailable: BTreeSet::new(), problems, notes: vec![] }
}
