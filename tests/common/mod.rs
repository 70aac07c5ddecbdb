//! Fixtures to copy and to spoil, and the binary to run on them.

// Each test binary uses a part of this.
#![allow(dead_code)]

use assert_cmd::Command;
use checkpoint_oracle::checkpoint::{self, Source, SourceFile, TensorInfo};
use checkpoint_oracle::model::{Pack, Plan, close_books};
use checkpoint_oracle::oracle::OracleFile;
use checkpoint_oracle::oracle::file::Reading;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tempfile::TempDir;

/// What an output file holds before a command that must not touch it.
pub const OLD: &str = "an older result\n";

pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub fn fixture(name: &str) -> PathBuf {
    root("fixtures").join(name)
}

pub fn oracle() -> Command {
    let mut command = Command::cargo_bin("oracle").expect("the binary is built");
    command.env_remove("MEMRA_ORACLE_OUT").current_dir(root("."));
    command
}

/// `oracle WORDS`, the words being separated by spaces.
pub fn words(line: &str) -> Command {
    let mut command = oracle();
    command.args(line.split(' '));
    command
}

/// Runs `command` and takes its exit code, standard output and standard error.
#[track_caller]
pub fn outcome(mut command: Command) -> (i32, String, String) {
    let output = command.output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it speaks UTF-8");
    let stderr = text(output.stderr);
    let code = output.status.code().unwrap_or_else(|| panic!("killed by a signal: {stderr}"));
    assert!(!stderr.contains("panicked"), "{stderr}");
    (code, text(output.stdout), stderr)
}

#[track_caller]
pub fn assert_says(text: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(text.contains(wanted), "expected {wanted:?} in:\n{text}");
    }
    // Without debug formatting, and fit for a terminal.
    for unwanted in ["Some(", "None", "Err(", "Problem {", "\u{1b}"] {
        assert!(!text.contains(unwanted), "{unwanted:?} is not for people:\n{text}");
    }
}

/// A tensor as stored.
pub type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// A copy of a fixture, to be spoilt; it goes at the end of the test.
pub struct Copy {
    temp: TempDir,
}

impl Copy {
    pub fn of(name: &str) -> Self {
        let temp = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(temp.path().join("ckpt")).expect("a folder");
        for entry in fs::read_dir(fixture(name)).expect("the fixture exists") {
            let entry = entry.expect("an entry");
            fs::copy(entry.path(), temp.path().join("ckpt").join(entry.file_name())).expect("a copy");
        }
        Self { temp }
    }

    pub fn path(&self) -> PathBuf {
        self.temp.path().join("ckpt")
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Where a run writes: outside the checkpoint.
    pub fn out(&self) -> PathBuf {
        let folder = self.temp.path().join("out");
        fs::create_dir_all(&folder).expect("a folder");
        folder.join("out.tsv")
    }

    /// Names in the folder of [`Copy::out`].
    pub fn left(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.out().parent().expect("a parent"))
            .expect("the folder exists")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8"))
            .collect();
        names.sort();
        names
    }

    /// A further file beside the checkpoint.
    pub fn beside(&self, name: &str, text: &str) -> PathBuf {
        let path = self.temp.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// Edits config.json.
    pub fn config(self, edit: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let path = self.file("config.json");
        let mut root: Value = serde_json::from_slice(&fs::read(&path).expect("it is there")).expect("it is JSON");
        edit(root.as_object_mut().expect("it is an object"));
        fs::write(&path, root.to_string()).expect("a file");
        self
    }

    /// Sets one key of config.json.
    pub fn set(self, key: &str, value: Value) -> Self {
        self.config(|map| {
            map.insert(key.to_owned(), value);
        })
    }

    /// Edits the tensors of model.safetensors.
    pub fn tensors(self, edit: impl FnOnce(&mut BTreeMap<String, Stored>)) -> Self {
        let path = self.file("model.safetensors");
        let bytes = fs::read(&path).expect("it is there");
        let file = SafeTensors::deserialize(&bytes).expect("it is sound");
        let mut tensors: BTreeMap<String, Stored> = file
            .tensors()
            .into_iter()
            .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
            .collect();
        edit(&mut tensors);
        let views = tensors.iter().map(|(name, (dtype, shape, data))| {
            (name.as_str(), TensorView::new(*dtype, shape.clone(), data).expect("it fits"))
        });
        serialize_to_file(views, None, &path).expect("a file");
        self
    }

    /// `oracle run` of this checkpoint with an output file and the further words.
    pub fn run(&self, words: &str) -> Command {
        let mut command = oracle();
        command.arg("run").arg(self.path()).args(words.split_whitespace()).arg("-o").arg(self.out());
        command
    }

    pub fn check(&self, words: &str) -> Command {
        let mut command = oracle();
        command.arg("check").arg(self.path()).args(words.split_whitespace());
        command
    }

    /// A run and a check refuse this checkpoint with exit code 2 and a sentence that holds `wanted`; the run leaves no
    /// file behind, and an old one as it was. There is one problem, unless the first of `wanted` is `N problems`.
    #[track_caller]
    pub fn assert_refused(&self, wanted: &[&str]) {
        self.assert_run_refused("1 2 3", wanted);
        let (code, stdout, stderr) = outcome(self.check(""));
        assert_eq!((code, stderr.as_str()), (2, ""), "{stdout}");
        assert_says(&stdout, wanted);
        assert!(stdout.ends_with("this checkpoint can't be run\n"), "{stdout}");
        let expected = wanted[0].strip_suffix(" problems").map_or(1, |n| n.parse().expect("a number"));
        let found = stdout.lines().filter(|line| line.starts_with("problem: ")).count();
        assert_eq!(found, expected, "{stdout}");
    }

    /// As [`Copy::assert_refused`], for a run alone, with these words. Returns the sentence.
    #[track_caller]
    pub fn assert_run_refused(&self, words: &str, wanted: &[&str]) -> String {
        let (code, stdout, stderr) = outcome(self.run(words));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, wanted);
        assert_eq!(self.left(), [""; 0], "nothing is left behind");
        fs::write(self.out(), OLD).expect("a file");
        assert_eq!(outcome(self.run(words)), (2, String::new(), stderr.clone()));
        self.assert_old_file();
        fs::remove_file(self.out()).expect("it is there");
        stderr
    }

    #[track_caller]
    pub fn assert_old_file(&self) {
        assert_eq!(self.left(), ["out.tsv"]);
        assert_eq!(fs::read_to_string(self.out()).expect("it is there"), OLD);
    }

    /// The checkpoint is sound: check says so and a run of it writes a file.
    #[track_caller]
    pub fn assert_runs(&self, words: &str) -> OracleFile {
        let (code, stdout, _) = outcome(self.check(""));
        assert_eq!(code, 0, "{stdout}");
        let (code, _, stderr) = outcome(self.run(words));
        assert_eq!(code, 0, "{stderr}");
        assert_eq!(self.left(), ["out.tsv"]);
        read(&self.out())
    }
}

#[track_caller]
pub fn read(path: &Path) -> OracleFile {
    OracleFile::open(path, Reading::Strict).unwrap_or_else(|error| panic!("{error}"))
}

/// A fixture's plan and weights.
#[track_caller]
pub fn load(name: &str) -> (Plan, Arc<dyn Source>) {
    let opened = checkpoint::open(&fixture(name));
    let (config, source) = (opened.config.expect("it has a config"), opened.source.expect("it has weights"));
    let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
    assert!(books.problems.is_empty(), "{name}: {:?}", books.problems);
    (books.plan.expect("the books close"), source)
}

/// Names of all fixtures that run.
pub fn fixtures() -> Vec<String> {
    let entries = fs::read_dir(root("fixtures")).expect("the folder exists").map(|entry| entry.expect("an entry"));
    let folders = entries.filter(|entry| entry.path().join("config.json").is_file());
    let mut names: Vec<String> = folders.map(|e| e.file_name().into_string().expect("UTF-8")).collect();
    names.sort();
    names
}

/// Little-endian F32 data.
pub fn f32s(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// What another source holds, to be read piece by piece; and how many bytes were read.
pub struct Streamed(pub Arc<dyn Source>, pub AtomicU64);

impl Source for Streamed {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        self.0.tensors()
    }

    fn files(&self) -> &[SourceFile] {
        self.0.files()
    }

    fn read_into<'a>(&'a self, info: &TensorInfo, range: Range<u64>, to: &'a mut Vec<u8>) -> anyhow::Result<&'a [u8]> {
        self.1.fetch_add(range.end - range.start, Ordering::Relaxed);
        *to = self.0.read(info, range)?;
        Ok(to)
    }

    fn is_resident(&self) -> bool {
        false
    }

    fn check_unchanged(&self) -> anyhow::Result<()> {
        self.0.check_unchanged()
    }

    fn headers_sha256(&self) -> anyhow::Result<String> {
        self.0.headers_sha256()
    }

    fn full_sha256(&self) -> anyhow::Result<String> {
        self.0.full_sha256()
    }
}
