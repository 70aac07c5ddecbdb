//! Files to named, typed tensors. Nothing here knows what a model is.

pub mod config;
mod counted;
pub mod dtype;
pub(crate) mod files;
mod folder;
pub mod gguf;
mod json;
mod local;
pub mod memory;
pub mod presented;
pub mod quantized;
pub mod safetensors;
pub mod same;
pub mod source;

pub use config::Config;
pub use counted::Counted;
pub use dtype::{Block, Decoder, Dtype};
pub use gguf::Gguf;
pub use memory::{MemorySource, load_resident};
pub use presented::Presented;
pub use safetensors::SafetensorsFolder;
pub use source::{Source, SourceFile, TensorInfo};

use crate::problem::Problem;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// A checkpoint without a problem: its configuration and its tensors.
pub struct Checkpoint {
    pub config: Config,
    pub source: Arc<dyn Source>,
    /// What is odd and does not keep it from being run.
    pub notes: Vec<Problem>,
}

/// Everything that opening a checkpoint found, good and bad.
///
/// The codes of its problems: `folder-missing`, `folder-is-file`, `folder-unreadable`; for config.json and the weights
/// as such `config-missing`, `weights-missing`; for any file `file-missing`, `file-broken-link`, `file-not-regular`,
/// `file-unreadable`, `file-too-large`; for the JSON in one `json-empty`, `json-encoding`, `json-syntax`,
/// `json-truncated`, `json-not-object`, `json-duplicate-key`, `json-nonfinite`, `json-too-deep`, `json-too-large`; for
/// an index `index-weight-map`, `index-file-name`, `index-tensor-missing`; for a safetensors file `shard-empty`,
/// `shard-truncated`, `shard-trailing-bytes`, `shard-not-safetensors`, `header-length`, `header-start`,
/// `header-metadata`; for a tensor in one `tensor-entry`, `tensor-offsets`, `tensor-size`, `tensor-overlap`,
/// `tensor-hole`, `tensor-ambiguous`. Of its notes: `index-ignored`, `index-total-size`, `shard-stray`,
/// `tensor-duplicate`, `tensor-not-in-index`.
pub struct Opened {
    /// `None` when config.json is unusable.
    pub config: Option<Config>,
    /// The tensors that can be read; `None` when there is none. With [`Opened::problems`] it is fit for a census only.
    pub source: Option<Arc<dyn Source>>,
    /// Tensors that the checkpoint promises and that can't be had; `problems` already says why, so they are not
    /// missing a second time.
    pub unavailable: BTreeSet<String>,
    /// What makes the checkpoint unfit to run.
    pub problems: Vec<Problem>,
    /// What is odd and does not keep it from being run.
    pub notes: Vec<Problem>,
}

/// Opens the checkpoint in the folder `path`: config.json and the headers of the weights, no weight.
pub fn open(path: &Path) -> Opened {
    if let Err(problem) = folder::Listing::read(path) {
        // The only thing to say: both parts would say it again.
        let (unavailable, notes) = (BTreeSet::new(), Vec::new());
        return Opened { config: None, source: None, unavailable, problems: vec![problem], notes };
    }
    let mut problems = Vec::new();
    let config = Config::read(path).map_err(|problem| problems.push(problem)).ok();
    let weights = SafetensorsFolder::open(path);
    problems.extend(weights.problems);
    Opened {
        config,
        source: weights.source.map(|source| Arc::new(source) as Arc<dyn Source>),
        unavailable: weights.unavailable,
        problems,
        notes: weights.notes,
    }
}

impl Opened {
    /// The checkpoint, ready to run.
    ///
    /// # Errors
    /// Every problem that was found.
    pub fn into_checkpoint(self) -> Result<Checkpoint, Vec<Problem>> {
        match (self.config, self.source) {
            (Some(config), Some(source)) if self.problems.is_empty() => {
                Ok(Checkpoint { config, source, notes: self.notes })
            }
            _ => Err(self.problems),
        }
    }
}
