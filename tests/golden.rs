//! Every fixture against transformers: the float64 truth and transformers' own float32 logits (oracles/README.md).

use checkpoint_oracle::checkpoint::{self, Source};
use checkpoint_oracle::exec::{
    Executor, Input, Rows, Session,
    reference::{Reference, Vectors},
};
use checkpoint_oracle::model::{Pack, Plan, close_books};
use checkpoint_oracle::ops::{Float, Matrix};
use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

fn root(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Names of all fixtures, and at least so many that a lost folder is noticed.
fn fixtures() -> Vec<String> {
    let folders = std::fs::read_dir(root("fixtures")).expect("fixtures/ exists");
    let mut names: Vec<String> = folders
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(names.len() >= 12, "at least three fixtures for each of four packs, found {names:?}");
    names
}

struct Golden {
    prompt: String,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    vocab: usize,
    /// transformers, float32: `[tokens, vocab]`
    theirs: Vec<f64>,
    /// The float64 truth: `[tokens, vocab]`
    truth: Vec<f64>,
}

fn goldens(fixture: &str) -> Vec<Golden> {
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

fn load(fixture: &str) -> (Plan, Box<dyn Source>) {
    let opened = checkpoint::open(&root("fixtures").join(fixture));
    assert!(opened.problems.is_empty(), "{fixture}: {:#?}", opened.problems);
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
    assert!(books.problems.is_empty(), "{fixture}: {:#?}", books.problems);
    (books.plan.unwrap(), source)
}

/// Logits of all positions, `[tokens, vocab]`.
fn run<F: Vectors>(plan: &Plan, source: &dyn Source, golden: &Golden) -> Matrix<F> {
    let length = golden.positions.iter().max().unwrap() + 1;
    let mut session = Session::<F>::new(plan, length as usize);
    let input = Input { session: &mut session, tokens: golden.tokens.clone(), positions: golden.positions.clone() };
    Executor::new(plan, source, &Reference::default()).run(vec![input], Rows::All, &mut ()).unwrap().remove(0)
}

fn argmax(row: impl Iterator<Item = f64>) -> usize {
    row.enumerate().fold((0, f64::NEG_INFINITY), |best, (i, v)| if v > best.1 { (i, v) } else { best }).0
}

fn max_distance(a: impl Iterator<Item = f64>, b: &[f64]) -> f64 {
    a.zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max)
}

#[test]
fn the_reference_is_as_near_the_truth_as_transformers_is() {
    println!("{:32} {:10} {:>10} {:>10} {:>6}", "fixture", "prompt", "ours", "theirs", "ratio");
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        for golden in goldens(&fixture) {
            let ours = run::<f32>(&plan, source.as_ref(), &golden);
            assert_eq!((ours.rows(), ours.cols()), (golden.tokens.len(), golden.vocab), "{fixture}");
            let distance = max_distance(ours.data().iter().map(|v| v.to_f64()), &golden.truth);
            let theirs = max_distance(golden.theirs.iter().copied(), &golden.truth);
            let (low, high) = golden.truth.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
            println!("{fixture:32} {:10} {distance:10.2e} {theirs:10.2e} {:6.2}", golden.prompt, distance / theirs);
            if distance.is_nan() || distance > 4.0 * theirs + 1e-6 * (high - low) {
                failures.push(format!("{fixture} {}: {distance:e} against {theirs:e}", golden.prompt));
            }
            for (t, truth) in golden.truth.chunks_exact(golden.vocab).enumerate() {
                let (us, them) = (argmax(ours.row(t).iter().map(|v| v.to_f64())), argmax(truth.iter().copied()));
                if us != them {
                    failures.push(format!("{fixture} {} token {t}: argmax {us} against {them}", golden.prompt));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_same_operations_in_float64_are_the_truth() {
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        for golden in goldens(&fixture) {
            let ours = run::<f64>(&plan, source.as_ref(), &golden);
            let distance = max_distance(ours.data().iter().copied(), &golden.truth);
            println!("{fixture:32} {:10} {distance:10.2e}", golden.prompt);
            if distance.is_nan() || distance > 1e-9 {
                failures.push(format!("{fixture} {}: {distance:e}", golden.prompt));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
