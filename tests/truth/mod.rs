//! The fixtures, transformers' logits and the float64 truth of each (oracles/README.md), and how to run them.

// Each test binary uses a part of this.
#![allow(dead_code)]

use checkpoint_oracle::checkpoint::{self, Source};
use checkpoint_oracle::exec::{Executor, Input, Kernels, Rows, Session};
use checkpoint_oracle::model::{Pack, Plan, close_books};
use checkpoint_oracle::ops::{Float, Matrix};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn root(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Names of all fixtures, and at least so many that a lost folder is noticed; with the environment variable
/// `ORACLE_FIXTURE` those whose names start with one of its words.
pub fn fixtures() -> Vec<String> {
    let folders = std::fs::read_dir(root("fixtures")).expect("fixtures/ exists");
    let mut names: Vec<String> = folders
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 130, "one or more fixtures for each pack, found {names:?}");
    if let Ok(wanted) = std::env::var("ORACLE_FIXTURE") {
        names.retain(|name| wanted.split_whitespace().any(|start| name.starts_with(start)));
    }
    names
}

pub struct Golden {
    pub prompt: String,
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub vocab: usize,
    /// transformers, float32: `[tokens, vocab]`
    pub theirs: Vec<f64>,
    /// The float64 truth: `[tokens, vocab]`
    pub truth: Vec<f64>,
}

pub fn goldens(fixture: &str) -> Vec<Golden> {
    let bytes = std::fs::read(root("oracles").join(format!("{fixture}.safetensors"))).expect("an oracle per fixture");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut prompts: Vec<&str> = file.names().into_iter().filter_map(|n| n.strip_suffix(".tokens")).collect();
    prompts.sort_unstable();
    assert!(prompts.len() >= 2, "{fixture}: at least two prompts");
    let integers = |name: String| -> Vec<u32> {
        let view = file.tensor(&name).unwrap();
        assert_eq!(view.dtype(), Dtype::I64);
        view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()).try_into().unwrap()).collect()
    };
    prompts
        .iter()
        .map(|prompt| {
            let theirs = file.tensor(&format!("{prompt}.logits_f32")).unwrap();
            let truth = file.tensor(&format!("{prompt}.logits_f64")).unwrap();
            assert_eq!((theirs.dtype(), truth.dtype()), (Dtype::F32, Dtype::F64));
            let wide = |b: &[u8]| f64::from(f32::from_le_bytes(b.try_into().unwrap()));
            Golden {
                prompt: (*prompt).to_owned(),
                tokens: integers(format!("{prompt}.tokens")),
                positions: integers(format!("{prompt}.positions")),
                vocab: truth.shape()[1],
                theirs: theirs.data().chunks_exact(4).map(wide).collect(),
                truth: truth.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
            }
        })
        .collect()
}

pub fn load(fixture: &str) -> (Plan, Arc<dyn Source>) {
    let opened = checkpoint::open(&root("fixtures").join(fixture));
    assert!(opened.problems.is_empty(), "{fixture}: {:#?}", opened.problems);
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
    assert!(books.problems.is_empty(), "{fixture}: {:#?}", books.problems);
    (books.plan.unwrap(), source)
}

/// Logits of all positions, `[tokens, vocab]`.
pub fn run<F: Float>(plan: &Plan, source: &Arc<dyn Source>, golden: &Golden, kernels: &dyn Kernels<F>) -> Matrix<F> {
    let length = golden.positions.iter().max().unwrap() + 1;
    let mut session = Session::<F>::new(plan, length as usize);
    let input = Input { session: &mut session, tokens: golden.tokens.clone(), positions: golden.positions.clone() };
    Executor::new(plan, source, kernels).run(vec![input], Rows::All, &mut ()).unwrap().remove(0)
}

fn argmax(row: impl Iterator<Item = f64>) -> usize {
    row.enumerate().fold((0, f64::NEG_INFINITY), |best, (i, v)| if v > best.1 { (i, v) } else { best }).0
}

pub fn max_distance(a: impl Iterator<Item = f64>, b: &[f64]) -> f64 {
    a.zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

/// Difference between the largest and the smallest of all logits.
pub fn spread(truth: &[f64]) -> f64 {
    let (low, high) = truth.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    high - low
}

/// Where the best token isn't that of the truth, as sentences.
pub fn other_argmax(logits: &Matrix<f32>, golden: &Golden) -> Vec<String> {
    let best = |t: usize| argmax(logits.row(t).iter().map(|v| v.to_f64()));
    let rows = golden.truth.chunks_exact(golden.vocab).enumerate();
    rows.map(|(t, truth)| (t, best(t), argmax(truth.iter().copied())))
        .filter(|(_, ours, truth)| ours != truth)
        .map(|(t, ours, truth)| format!("{} token {t}: argmax {ours} against {truth}", golden.prompt))
        .collect()
}
