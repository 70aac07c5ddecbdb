//! `oracle run`: every way of saying what to run, the file that comes out, and the runner protocol.

mod common;

use assert_cmd::Command;
use checkpoint_oracle::oracle::file::Reading;
use checkpoint_oracle::oracle::{Logits, NumericClass, OracleFile};
use common::*;
use predicates::prelude::*;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;

const TOKENS: [&str; 5] = ["17", "3", "5", "0", "29"];

fn run(tokens: &[&str]) -> Command {
    let mut command = words("run fixtures/llama-plain");
    command.args(tokens);
    command
}

/// What a run writes to standard output.
#[track_caller]
fn written(command: Command) -> String {
    let (code, stdout, stderr) = outcome(command);
    assert_eq!(code, 0, "{stderr}");
    stdout
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn tokens_come_as_words_with_commas_from_a_file_or_from_standard_input() {
    let expected = written(run(&TOKENS));
    assert!(expected.contains("\ntokens\t17,3,5,0,29\n"), "{expected}");
    for tokens in [&["17,3,5,0,29"][..], &["17,3", "5,", "0", ",29"], &["17, 3, 5, 0, 29"]] {
        assert_eq!(written(run(tokens)), expected, "{tokens:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.txt");
    for text in ["17 3 5 0 29", "17,3,5,0,29\n", "17\n3\r\n5\t0 ,29,\n"] {
        fs::write(&file, text).unwrap();
        let mut command = run(&["--tokens-file"]);
        command.arg(&file);
        assert_eq!(written(command), expected, "{text:?}");
        let mut command = run(&["--tokens-file", "-"]);
        command.write_stdin(text);
        assert_eq!(written(command), expected, "{text:?}");
    }
    assert_ne!(written(run(&["17", "3", "5", "0", "28"])), expected, "the last token matters");
    assert_ne!(written(run(&["17", "5", "3", "0", "29"])), expected, "so does the order of the others");
}

#[test]
fn tokens_are_given_in_one_way_only() {
    run(&["1", "--tokens-file", "-"]).write_stdin("1").assert().code(2).stderr(predicate::str::contains("tokens-file"));
}

#[test]
fn a_file_holds_the_bytes_that_standard_output_gets() {
    let expected = written(run(&TOKENS));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.tsv");
    for _ in 0..2 {
        // The second time the file is there already.
        run(&TOKENS).arg("-o").arg(&out).assert().success().stdout("");
        assert_eq!(fs::read_to_string(&out).unwrap(), expected);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing else is left");
    }
    assert_eq!(written(run(&["17,3,5,0,29", "-o", "-"])), expected);
    let mut alias = words("run-oracle fixtures/llama-plain 17,3,5,0,29");
    alias.arg("--quiet");
    assert_eq!(outcome(alias), (0, expected, String::new()));
}

#[test]
fn the_file_is_the_grammar_that_the_strictest_reader_takes() {
    let text = written(words("run fixtures/qwen2-plain 1 2 3 --weights-digest full"));
    let lines: Vec<&str> = text.lines().collect();
    let keys: Vec<&str> = lines.iter().take(11).map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(keys[..5], ["format", "engine", "numeric_class", "tokens", "vocab"]);
    let expected = [
        "format\tmemra-checkpoint-oracle-v1",
        "engine\toracle-reference",
        "numeric_class\tsource-weights-float32-accumulation",
        "tokens\t1,2,3",
        "vocab\t67",
    ];
    assert_eq!(lines[..5], expected);
    assert!(text.ends_with('\n') && !text.contains('\r') && !text.starts_with('\u{feff}'));
    let first = lines.iter().position(|line| line.starts_with("logit\t")).unwrap();
    let receipts: Vec<(&str, &str)> = lines[5..first].iter().map(|line| line.split_once('\t').unwrap()).collect();
    let receipt = |key: &str| receipts.iter().find(|(k, _)| *k == key).map(|(_, value)| *value);
    assert_eq!(receipt("oracle_version"), Some(env!("CARGO_PKG_VERSION")));
    assert_eq!(receipt("config_sha256"), Some(&*sha256(&fixture("qwen2-plain/config.json"))));
    assert_eq!(receipt("weights_digest"), Some("full"));
    assert_eq!(receipt("weights_sha256"), Some(&*sha256(&fixture("qwen2-plain/model.safetensors"))));
    assert_eq!(receipt("executor_backend"), Some("reference"));
    assert_eq!(receipt("plan_sha256").map(str::len), Some(64));
    assert_eq!(receipt("positions"), None, "0, 1, 2 is not worth a record");
    assert_eq!(receipt("allowed_unused"), None);
    for (i, line) in lines[first..].iter().enumerate() {
        let bits = line.strip_prefix(&format!("logit\t{i}\t")).unwrap_or_else(|| panic!("{line}"));
        assert!(bits.len() == 8 && bits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{line}");
    }
    assert_eq!(lines.len() - first, 67);
    OracleFile::read("ours", text.as_bytes(), Reading::Strict).unwrap();
}

#[test]
fn the_digest_of_headers_does_not_need_the_weights() {
    let copy = Copy::of("llama-plain");
    let receipts = |words: &str| {
        let file = copy.assert_runs(words);
        ["weights_digest", "weights_sha256", "plan_sha256"]
            .map(|key| file.receipts.iter().find(|(k, _)| k == key).unwrap().1.clone())
    };
    let [headers, full] = ["1", "1 --weights-digest full"].map(receipts);
    assert_eq!((headers[0].as_str(), full[0].as_str()), ("headers", "full"));
    assert_ne!(headers[1], full[1]);
    assert_eq!(headers[2], full[2]);
    let path = copy.file("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    assert_eq!(receipts("1"), headers);
    assert_ne!(receipts("1 --weights-digest full"), full);
}

#[test]
fn positions_are_used_and_recorded() {
    let plain = written(run(&["1,2,3"]));
    assert_eq!(written(run(&["1,2,3", "--positions", "0,1,2"])), plain, "these are the default");
    let sparse = written(run(&["1,2,3", "--positions", "0,9,5000"]));
    assert!(sparse.contains("\nvocab\t61\npositions\t0,9,5000\n"), "{sparse}");
    assert_ne!(logits(&sparse), logits(&plain));
    assert_eq!(written(run(&["1,2,3", "--positions", "0 9 5000"])), sparse);
}

fn logits(file: &str) -> &str {
    &file[file.find("logit\t").unwrap()..]
}

#[test]
fn threads_change_no_byte() {
    for (fixture, tokens) in [("qwen3-bias-yarn", "1 2 3 4 5 6 7 8 9 10 11"), ("mistral-window", "9")] {
        let with = |threads: usize| written(words(&format!("run fixtures/{fixture} {tokens} --threads {threads}")));
        let one = with(1);
        for threads in [2, 7] {
            assert_eq!(with(threads), one, "{fixture} with {threads} threads");
        }
    }
}

#[test]
fn the_wide_class_is_named_and_has_sixteen_digits() {
    let narrow = written(run(&TOKENS));
    let wide = written(run(&["17,3,5,0,29", "--numeric", "f64"]));
    assert!(wide.contains("\nnumeric_class\tsource-weights-float64-accumulation\n"), "{wide}");
    assert!(logits(&wide).lines().all(|line| line.rsplit('\t').next().unwrap().len() == 16), "{wide}");
    let read = |text: &str| OracleFile::read("ours", text.as_bytes(), Reading::Strict).unwrap();
    let (narrow, wide) = (read(&narrow), read(&wide));
    assert_eq!(wide.numeric_class, NumericClass::Float64);
    assert!(matches!(wide.logits, Logits::F64(_)));
    let distances = narrow.logits.to_f64().into_iter().zip(wide.logits.to_f64()).map(|(a, b)| (a - b).abs());
    let distance = distances.fold(0.0, f64::max);
    assert!(distance > 0.0 && distance < 1e-5, "rounding alone lies between the classes, found {distance:e}");
}

#[test]
fn each_fixtures_file_passes_the_goldens_of_another_implementation() {
    let mut seen = 0;
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(root("oracles")).unwrap() {
        let golden = entry.unwrap().path();
        let name = golden.file_name().unwrap().to_str().unwrap().to_owned();
        let parts: Vec<&str> = name.split('.').collect();
        let &[fixture, _, class, "tsv"] = &parts[..] else { continue };
        let text = fs::read_to_string(&golden).unwrap();
        let tokens = text.lines().find_map(|line| line.strip_prefix("tokens\t")).unwrap();
        let ours = folder.path().join(&name);
        let mut run = words(&format!("run fixtures/{fixture} {tokens} --quiet --numeric {class} -o"));
        run.arg(&ours).assert().success().stderr("");
        let mut diff = words(&format!("diff oracles/{name}"));
        // Of the truth ours is a second computation in float64; float32 differs by rounding.
        diff.arg(&ours).args(["--atol", if class == "f64" { "1e-6" } else { "1e-4" }]).assert().success();
        words(&format!("diff oracles/{name}")).arg(&ours).assert().code(1);
        seen += 1;
    }
    assert!(seen >= 42, "a pair of goldens for each fixture, found {seen}");
}

#[test]
fn the_top_table_ranks_the_logits_and_names_the_margin() {
    let (code, stdout, stderr) = outcome(run(&["17", "3", "--top", "3", "-q"]));
    assert_eq!(code, 0, "{stderr}");
    let lines: Vec<Vec<&str>> = stderr.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 5, "{stderr}");
    assert_eq!(lines[0], ["rank", "token", "logit", "bits"]);
    let file = OracleFile::read("ours", stdout.as_bytes(), Reading::Strict).unwrap();
    let values = file.logits.to_f64();
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    for (rank, line) in lines[1..4].iter().enumerate() {
        let token = order[rank];
        let bits = format!("{:08x}", (values[token] as f32).to_bits());
        assert_eq!(*line, [&(rank + 1).to_string(), &token.to_string(), &format!("{:.6}", values[token]), &bits]);
    }
    let margin = format!("margin of the first over the second: {:.6}", values[order[0]] - values[order[1]]);
    assert_eq!(stderr.lines().last(), Some(margin.as_str()));
    // More than there are: all of them.
    assert_eq!(outcome(run(&["17", "--top", "1000", "-q"])).2.lines().count(), 1 + 61 + 1);
}

#[test]
fn a_run_ends_with_one_summary_line_unless_it_is_quiet() {
    let (_, _, stderr) = outcome(run(&TOKENS));
    let words = ["standard output: llama, 2 layers, 5 tokens, 61 logits; argmax ", "; read ", " s"];
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert_says(&stderr, &words);
    assert_says(&outcome(run(&["1"])).2, &[", 1 token, "]);
    let copy = Copy::of("llama-plain");
    assert_says(&outcome(copy.run("1")).2, &["out.tsv: llama"]);
    assert_eq!(outcome(run(&["1", "-q"])).2, "");
}

#[cfg(unix)]
#[test]
fn a_pipe_is_written_in_place() {
    let expected = written(run(&TOKENS));
    assert_eq!(written(run(&["17,3,5,0,29", "-o", "/dev/stdout"])), expected);
    run(&["1", "-o", "/dev/null"]).assert().success();
    assert!(!fs::metadata("/dev/null").unwrap().is_file(), "the device is still one");
}

// The runner protocol.

/// `MEMRA_ORACLE_OUT=out oracle CKPT 17 3 5`.
fn runner(copy: &Copy, tokens: &[&str]) -> Command {
    let mut command = oracle();
    command.env("MEMRA_ORACLE_OUT", copy.out()).env("MEMRA_FULL_PREC", "1").arg(copy.path()).args(tokens);
    command
}

#[test]
fn a_runner_writes_the_file_that_the_driver_names() {
    let copy = Copy::of("llama-plain");
    let expected = written(run(&TOKENS));
    assert_eq!(outcome(runner(&copy, &TOKENS)), (0, String::new(), String::new()));
    assert_eq!(fs::read_to_string(copy.out()).unwrap(), expected);
    // A stale file is replaced.
    fs::write(copy.out(), OLD).unwrap();
    assert_eq!(outcome(runner(&copy, &TOKENS)).0, 0);
    assert_eq!(fs::read_to_string(copy.out()).unwrap(), expected);
    assert_eq!(copy.left(), ["out.tsv"]);
    // Tokens may be told from options by `--`.
    fs::remove_file(copy.out()).unwrap();
    assert_eq!(outcome(runner(&copy, &["--", "17", "3", "5", "0", "29"])).0, 0);
    assert_eq!(fs::read_to_string(copy.out()).unwrap(), expected);
}

#[test]
fn a_runner_that_fails_says_why_and_writes_nothing() {
    let copy = Copy::of("llama-plain");
    for (tokens, wanted) in
        [(&["1", "61"][..], "61 is beyond the vocabulary of 61"), (&[], "no tokens"), (&["x"], "`x`")]
    {
        let (code, stdout, stderr) = outcome(runner(&copy, tokens));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, &[wanted]);
        assert_eq!(copy.left(), [""; 0]);
        fs::write(copy.out(), OLD).unwrap();
        assert_eq!(outcome(runner(&copy, tokens)).0, 2);
        copy.assert_old_file();
        fs::remove_file(copy.out()).unwrap();
    }
    let mut command = words("fixtures/llama-plain 1 2");
    command.env("MEMRA_ORACLE_OUT", copy.path().join("missing/out.tsv"));
    let (code, stdout, stderr) = outcome(command);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_says(&stderr, &["missing does not exist"]);
    let copy = Copy::of("llama-plain").set("hidden_act", "tanh".into());
    let (code, _, stderr) = outcome(runner(&copy, &["1"]));
    assert_eq!(code, 2);
    assert_says(&stderr, &["config.json", "`hidden_act`", "`tanh`"]);
    assert_eq!(copy.left(), [""; 0]);
}

#[test]
fn the_variable_does_not_make_a_runner_of_a_subcommand() {
    let copy = Copy::of("llama-plain");
    let with = |line: &str| {
        let mut command = words(line);
        command.env("MEMRA_ORACLE_OUT", copy.out());
        outcome(command)
    };
    assert_eq!(with("check fixtures/llama-plain").0, 0);
    assert_eq!(with("packs").0, 0);
    assert_eq!(with("help run").0, 0);
    assert_eq!(with("--version").0, 0);
    let (code, stdout, _) = with("run fixtures/llama-plain 17 3 5 0 29");
    assert_eq!((code, stdout), (0, written(run(&TOKENS))));
    let (code, stdout, _) = with("run-oracle fixtures/llama-plain 17 3 5 0 29");
    assert_eq!((code, stdout), (0, written(run(&TOKENS))));
    assert_eq!(copy.left(), [""; 0]);
    // Without the variable (or with an empty one) a folder is no subcommand.
    let mut command = words("fixtures/llama-plain 1 2");
    command.env("MEMRA_ORACLE_OUT", "");
    assert_eq!(outcome(command).0, 2);
}
