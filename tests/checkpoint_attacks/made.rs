//! Folders to attack. Good files are written by the `safetensors` crate, bad ones byte by byte.

use checkpoint_oracle::Problem;
use checkpoint_oracle::checkpoint::{self, Opened};
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const SINGLE: &str = "model.safetensors";
pub const INDEX: &str = "model.safetensors.index.json";

/// A checkpoint's folder, removed at the end of the test.
pub struct Folder(TempDir);

impl Folder {
    pub fn empty() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// config.json and nothing else.
    pub fn with_config() -> Self {
        let folder = Self::empty();
        folder.put("config.json", br#"{"model_type": "llama"}"#);
        folder
    }

    /// config.json, and a model.safetensors of a header and data.
    pub fn with_single(header: &str, data: &[u8]) -> Self {
        let folder = Self::with_config();
        folder.put(SINGLE, &shard(header, data));
        folder
    }

    /// config.json, an index and two good shards: `a.safetensors` holds `a` and `b`, `b.safetensors` holds `c`.
    pub fn with_two_shards() -> Self {
        let folder = Self::with_config();
        folder.write_good("a.safetensors", &["a", "b"]);
        folder.write_good("b.safetensors", &["c"]);
        folder.put_index(r#"{"a":"a.safetensors","b":"a.safetensors","c":"b.safetensors"}"#);
        folder
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub fn put(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.join(name), bytes).expect("a file");
    }

    pub fn put_index(&self, weight_map: &str) {
        self.put(INDEX, format!("{{\"metadata\":{{}},\"weight_map\":{weight_map}}}").as_bytes());
    }

    /// A file with the named tensors, each F32 `[2, 3]` (24 bytes).
    pub fn write_good(&self, name: &str, tensors: &[&str]) {
        let data = [7u8; 24];
        let views = tensors.iter().map(|&name| (name, TensorView::new(Dtype::F32, vec![2, 3], &data).unwrap()));
        serialize_to_file(views, None, &self.join(name)).expect("a safetensors file");
    }

    pub fn open(&self) -> Opened {
        checkpoint::open(self.path())
    }

    /// Every problem as "code place: message".
    pub fn problems(&self) -> Vec<String> {
        sentences(&self.open().problems)
    }

    pub fn notes(&self) -> Vec<String> {
        sentences(&self.open().notes)
    }

    #[track_caller]
    pub fn assert_sound(&self) {
        let opened = self.open();
        assert_eq!(sentences(&opened.problems), [""; 0]);
        assert!(opened.unavailable.is_empty());
        assert!(opened.into_checkpoint().is_ok());
    }

    /// There is one problem: it has this code, and its sentence holds all of these words.
    #[track_caller]
    pub fn assert_refused(&self, code: &str, words: &[&str]) {
        let problems = self.problems();
        assert_eq!(problems.len(), 1, "{problems:#?}");
        assert_says(&problems[0], code, words);
    }

    #[track_caller]
    pub fn assert_noted(&self, code: &str, words: &[&str]) {
        self.assert_sound();
        let notes = self.notes();
        assert_eq!(notes.len(), 1, "{notes:#?}");
        assert_says(&notes[0], code, words);
    }
}

fn sentences(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| format!("{} {problem}", problem.code)).collect()
}

#[track_caller]
pub fn assert_says(sentence: &str, code: &str, words: &[&str]) {
    assert!(sentence.starts_with(&format!("{code} ")), "expected the code {code}: {sentence}");
    for word in words {
        assert!(sentence.contains(word), "expected {word:?} in: {sentence}");
    }
    assert!(!sentence.chars().any(char::is_control), "fit for a terminal: {sentence:?}");
}

/// The bytes of a file with this header and data.
pub fn shard(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}
