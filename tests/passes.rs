//! Several prompts and several executors in one pass, and what a run may take.

mod common;

use checkpoint_oracle::oracle::NumericClass;
use common::{Copy, assert_says, oracle, outcome, read, words};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const PROMPTS: &str = r#"{"id": "short", "tokens": [5]}
{"id": "far", "tokens": [7, 3, 11], "positions": [0, 9, 500]}
{"id": "long one", "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]}
"#;

/// A folder with prompts.jsonl.
fn with_prompts(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("prompts.jsonl"), text).unwrap();
    folder
}

fn run_prompts(fixture: &str, folder: &TempDir, further: &str) -> (i32, String, String) {
    let mut command = oracle();
    command.arg("run").arg(common::fixture(fixture)).arg("--prompts").arg(folder.path().join("prompts.jsonl"));
    command.arg("-o").arg(folder.path().join("out")).args(further.split_whitespace());
    outcome(command)
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn one_pass_gives_the_files_of_separate_runs() {
    for fixture in ["mistral-window", "llama-longrope", "qwen3-window-llama3"] {
        let folder = with_prompts(PROMPTS);
        let (code, stdout, stderr) = run_prompts(fixture, &folder, "");
        assert_eq!((code, stdout.as_str()), (0, ""), "{stderr}");
        assert_eq!(names(&folder.path().join("out")), ["far.tsv", "long one.tsv", "short.tsv"]);
        for (id, alone) in [
            ("short", "5"),
            ("far", "7 3 11 --positions 0,9,500"),
            ("long one", "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20"),
        ] {
            let (code, stdout, _) = outcome(words(&format!("run fixtures/{fixture} {alone}")));
            assert_eq!(code, 0);
            let written = fs::read_to_string(folder.path().join("out").join(format!("{id}.tsv"))).unwrap();
            assert_eq!(written, stdout, "{fixture} {id}");
        }
    }
}

#[test]
fn prompts_that_are_wrong_are_refused_before_anything_is_made() {
    for (text, wanted) in [
        ("", "holds no prompt"),
        ("{\"id\": \"a\", \"tokens\": [1, 2}", "line 1"),
        ("{\"id\": \"a\", \"tokens\": [1]}\n{\"id\": \"b\"}", "line 2"),
        ("{\"id\": \"a/b\", \"tokens\": [1]}", "can't name a file"),
        ("{\"id\": \"a\", \"tokens\": [1]}\n{\"id\": \"a\", \"tokens\": [2]}", "stands in line 1 already"),
    ] {
        let folder = with_prompts(text);
        let (code, stdout, stderr) = run_prompts("llama-plain", &folder, "");
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert_says(&stderr, &["prompts.jsonl", wanted]);
        assert_eq!(names(folder.path()), ["prompts.jsonl"]);
    }
    let folder = with_prompts("{\"id\": \"a\", \"tokens\": [1, 9999]}");
    let (code, _, stderr) = run_prompts("llama-plain", &folder, "");
    assert_eq!(code, 2);
    assert_says(&stderr, &["prompt `a`, token 1: 9999 is beyond the vocabulary of 61"]);
    assert_eq!(names(&folder.path().join("out")), [""; 0]);
}

#[test]
fn prompts_need_a_folder_to_go_to() {
    let folder = with_prompts(PROMPTS);
    fs::write(folder.path().join("out"), "a file").unwrap();
    let (code, _, stderr) = run_prompts("llama-plain", &folder, "");
    assert_eq!(code, 2);
    assert_says(&stderr, &["out: expected a folder"]);
    let mut command = words("run fixtures/llama-plain --prompts");
    command.arg(folder.path().join("prompts.jsonl"));
    let (code, _, stderr) = outcome(command);
    assert_eq!(code, 2);
    assert!(stderr.contains("--output"), "{stderr}");
}

#[test]
fn a_value_that_is_not_finite_is_placed_in_its_prompt() {
    let spoilt = Copy::of("llama-plain").tensors(|tensors| {
        // The embedding of token 11, the last one of the second prompt.
        let (_, shape, data) = tensors.get_mut("model.embed_tokens.weight").unwrap();
        data[11 * shape[1] * 4..][..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let folder = with_prompts(PROMPTS.rsplit_once("{\"id\": \"long").unwrap().0);
    let mut command = oracle();
    command.arg("run").arg(spoilt.path()).arg("--prompts").arg(folder.path().join("prompts.jsonl"));
    command.arg("-o").arg(folder.path().join("out"));
    let (code, _, stderr) = outcome(command);
    assert_eq!(code, 1);
    assert_says(&stderr, &["NaN first appears in embed (prompt far, token 2, column 0)"]);
    assert_eq!(names(&folder.path().join("out")), [""; 0]);
}

#[test]
fn the_truth_beside_the_result_is_the_float64_run() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    for fixture in ["llama-yarn", "qwen2-window-yarn"] {
        let run = |name: &str, further: &str| {
            let mut command = words(&format!("run fixtures/{fixture} 3 1 4 1 5 9 2 6 {further}"));
            command.arg("-o").arg(path(name));
            let (code, _, stderr) = outcome(command);
            assert_eq!(code, 0, "{stderr}");
            (read(&path(name)), stderr)
        };
        let (plain, _) = run("plain.tsv", "");
        let (wide, _) = run("wide.tsv", "--numeric f64");
        let (with, stderr) = run("with.tsv", "--with-truth");
        assert_eq!((&plain.logits, &wide.numeric_class), (&with.logits, &NumericClass::Float64));
        assert!(stderr.contains("from the truth at most"), "{stderr}");
        let (narrow, wide) = (plain.logits.to_f64(), wide.logits.to_f64());
        let off: Vec<f64> = narrow.iter().zip(&wide).map(|(a, b)| (a - b).abs()).collect();
        let max = off.iter().copied().fold(0.0, f64::max);
        let rms = (off.iter().map(|d| d * d).sum::<f64>() / off.len() as f64).sqrt();
        let receipt = |key| with.receipt(key).unwrap().parse::<f64>().unwrap();
        assert!(max > 0.0 && max < 1e-4, "rounding shows, and no more: {max}");
        assert_eq!((receipt("truth_max_abs"), receipt("truth_rms")), (max, rms));
        assert_eq!(plain.receipt("truth_max_abs"), None);
    }
}

/// The bound that a refusal names.
fn bound(words_of_run: &str) -> u64 {
    let (code, stdout, stderr) = outcome(words(&format!("{words_of_run} --max-memory 1")));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_says(&stderr, &["--max-memory 1 B", "fewer tokens"]);
    let (before, _) = stderr.split_once(" bytes)").unwrap();
    before.rsplit_once('(').unwrap().1.parse().unwrap()
}

#[test]
fn what_may_not_fit_is_refused_and_what_fits_runs() {
    let run = "run fixtures/mistral-long 1 2 3";
    let needed = bound(run);
    assert_eq!(outcome(words(&format!("{run} --max-memory {needed}"))).0, 0);
    assert_eq!(outcome(words(&format!("{run} --max-memory {}", needed - 1))).0, 2);
    assert_eq!(outcome(words(&format!("{run} --max-memory 2GiB"))).0, 0);
    let (code, _, stderr) = outcome(words(&format!("{run} --max-memory lots")));
    assert_eq!(code, 2);
    assert!(stderr.contains("such as 500MB or 2GiB"), "{stderr}");
    // The truth beside it takes more, and so do more tokens.
    assert!(bound(&format!("{run} --with-truth")) > needed);
    assert!(bound("run fixtures/mistral-long 1 2 3 4 5 6 7 8 9") > needed);
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_keeps_below_its_bound() {
    for (fixture, tokens) in [
        ("llama-plain", 2000),
        ("mistral-window", 2000),
        ("gpt_oss-yarn", 800),
        ("gemma3n-shared", 800),
        ("mistral4-groups", 800),
    ] {
        let tokens: Vec<String> = (0..tokens).map(|i| (i * 7 % 50).to_string()).collect();
        let run = format!("run fixtures/{fixture} {} --with-truth", tokens.join(","));
        let needed = bound(&run);
        let (code, _, stderr) = outcome(words(&run));
        assert_eq!(code, 0, "{stderr}");
        let (_, peak) = stderr.trim_end().rsplit_once("peak memory ").expect("the summary tells");
        let (number, unit) = peak.split_once(' ').unwrap();
        let scale = if unit == "MiB" { 1 << 20 } else { 1 << 10 };
        let peak = (number.parse::<f64>().unwrap() * f64::from(scale)) as u64;
        assert!(peak < needed, "{fixture}: {peak} of {needed}");
    }
}

#[test]
fn the_accelerated_executor_says_who_it_is_and_stays_near() {
    // More than the reference's kernel does for it.
    let tokens = (1..=48).map(|token| token.to_string()).collect::<Vec<_>>().join(" ");
    let dir = tempfile::tempdir().unwrap();
    for fixture in ["qwen3-window-llama3", "llama-bias-llama3"] {
        let run = |name: &str, further: &str| {
            let mut command = words(&format!("run fixtures/{fixture} {tokens} {further}"));
            command.arg("-o").arg(dir.path().join(name));
            let (code, _, stderr) = outcome(command);
            assert_eq!(code, 0, "{stderr}");
            (read(&dir.path().join(name)), stderr)
        };
        let (reference, _) = run("ref.tsv", "--with-truth");
        let (fast, _) = run("fast.tsv", "--executor accelerated");
        assert_eq!((fast.engine.as_str(), fast.receipt("executor_backend")), ("oracle-accelerated-gemm", Some("gemm")));
        assert_eq!(fast.numeric_class, reference.numeric_class);
        assert_ne!(fast.logits, reference.logits, "another order of summation");
        let diff = |further: &str| {
            let mut command = words("diff --quiet");
            command.arg(dir.path().join("ref.tsv")).arg(dir.path().join("fast.tsv")).args(further.split_whitespace());
            outcome(command).0
        };
        // By the reference's own receipts.
        assert_eq!((diff("--tolerance auto"), diff("")), (0, 1));

        // Both in one pass: the file is the reference's, the distances are shown layer by layer.
        let (both, stderr) = run("both.tsv", "--executor both --with-truth");
        assert_eq!((&both.logits, &both.engine), (&reference.logits, &reference.engine));
        let layers = 3;
        let stages: Vec<&str> =
            stderr.lines().filter(|l| l.starts_with("layer ") || l.starts_with("logits ")).collect();
        assert_eq!(stages.len(), layers + 1, "{stderr}");
        assert_says(&stderr, &["reference - accelerated", "reference - truth", "accelerated - truth"]);
        let columns: Vec<f64> = stages[layers].split_whitespace().skip(1).map(|n| n.parse().unwrap()).collect();
        let (ours, truth) = (fast.logits.to_f64(), reference.logits.to_f64());
        let max = ours.iter().zip(&truth).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert_eq!(columns.len(), 6);
        assert_eq!(format!("{:.3e}", columns[0]), format!("{max:.3e}"));
    }
}

#[test]
fn an_executor_that_is_not_there_is_refused() {
    for (further, wanted) in [
        ("--executor accelerated --backend cublas", "no backend `cublas`; this build has gemm"),
        ("--backend gemm", "--backend: only the accelerated executor has one"),
        ("--executor accelerated --numeric f64", "--numeric f64: the accelerated executor computes in f32 only"),
    ] {
        let (code, stdout, stderr) = outcome(words(&format!("run fixtures/llama-plain 1 {further}")));
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert_says(&stderr, &[wanted]);
    }
}

#[test]
fn a_file_that_the_run_reads_is_not_overwritten() {
    let copy = Copy::of("llama-plain");
    let tokens = copy.beside("tokens.txt", "1 2 3");
    for (words, target) in [
        ("1 2", copy.file("model.safetensors")),
        ("1 2", copy.file("config.json")),
        (&*format!("--tokens-file {}", tokens.display()), tokens.clone()),
    ] {
        let before = fs::read(&target).unwrap();
        let mut command = oracle();
        command.arg("run").arg(copy.path()).args(words.split_whitespace()).arg("-o").arg(&target);
        let (code, stdout, stderr) = outcome(command);
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert_says(&stderr, &["is one of the files that this run reads"]);
        assert_eq!(fs::read(&target).unwrap(), before);
    }
    copy.assert_runs("1 2");
}
