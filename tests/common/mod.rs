//! Oracle files written by hand, and the binary under test.
//!
//! Each test program uses a part of this.
#![allow(dead_code)]

use assert_cmd::Command;
use std::fmt::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// The class of every file unless a test says otherwise.
pub const FLOAT32: &str = "source-weights-float32-accumulation";
pub const FLOAT64: &str = "source-weights-float64-accumulation";

/// The text of a file whose headers can be changed one by one.
#[derive(Clone)]
pub struct Tsv {
    pub class: String,
    pub tokens: String,
    pub records: String,
    pub bits: Vec<String>,
}

impl Tsv {
    pub fn f32(values: &[f32]) -> Self {
        let bits = values.iter().map(|value| format!("{:08x}", value.to_bits())).collect();
        Self { class: FLOAT32.into(), tokens: "1,2,3".into(), records: String::new(), bits }
    }

    pub fn f64(values: &[f64]) -> Self {
        let bits = values.iter().map(|value| format!("{:016x}", value.to_bits())).collect();
        Self { class: FLOAT64.into(), bits, ..Self::f32(&[]) }
    }

    pub fn class(mut self, class: &str) -> Self {
        self.class = class.into();
        self
    }

    pub fn tokens(mut self, tokens: &str) -> Self {
        self.tokens = tokens.into();
        self
    }

    pub fn records(mut self, records: &str) -> Self {
        self.records = records.into();
        self
    }

    pub fn text(&self) -> String {
        let (class, tokens, vocab, records) = (&self.class, &self.tokens, self.bits.len(), &self.records);
        let mut text = format!(
            "format\tmemra-checkpoint-oracle-v1\nengine\thand\nnumeric_class\t{class}\ntokens\t{tokens}\n\
             vocab\t{vocab}\n{records}"
        );
        for (index, bits) in self.bits.iter().enumerate() {
            writeln!(text, "logit\t{index}\t{bits}").unwrap();
        }
        text
    }
}

/// A folder of files; the binary runs in it, so the names in its messages are short.
pub struct Folder(pub TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    /// With `ref.tsv` and `cand.tsv`.
    pub fn pair(reference: &Tsv, candidate: &Tsv) -> Self {
        let folder = Self::new();
        folder.put("ref.tsv", reference.text());
        folder.put("cand.tsv", candidate.text());
        folder
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn put(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }

    /// `oracle ARGS`, run in this folder.
    pub fn oracle(&self, args: &[&str]) -> Command {
        let mut command = Command::cargo_bin("oracle").unwrap();
        command.current_dir(self.0.path()).args(args);
        command
    }

    /// `oracle diff ref.tsv cand.tsv ARGS`.
    pub fn diff(&self, args: &[&str]) -> Command {
        let mut command = self.oracle(&["diff", "ref.tsv", "cand.tsv"]);
        command.args(args);
        command
    }

    /// The JSON report of such a run, whatever its exit code.
    pub fn json(&self, args: &[&str]) -> serde_json::Value {
        let output = self.diff(args).args(["--format", "json"]).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap()
    }
}
