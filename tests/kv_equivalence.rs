//! `oracle kv-equivalence`: what holds passes, and what doesn't is caught and named.

mod common;

use checkpoint_oracle::engine::blind::blind_spots;
use checkpoint_oracle::engine::equivalence::{Check, Equivalence, Gate, Kind, Subject, check};
use checkpoint_oracle::engine::mock::{Mock, Slip};
use checkpoint_oracle::engine::{Engine, Local, schedule};
use checkpoint_oracle::exec::reference::Reference;
use checkpoint_oracle::oracle::verdict::Verdict;
use common::{assert_says, fixture, fixtures, load, oracle, outcome, root, words};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

/// The tokens of a fixture's main prompt.
fn main_prompt(name: &str) -> Vec<u32> {
    let text = fs::read_to_string(root(&format!("fixtures/{name}.prompts.json"))).unwrap();
    let prompts: Value = serde_json::from_str(&text).unwrap();
    prompts["prompts"][0]["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect()
}

fn kv(name: &str, tokens: &[u32], further: &[&str]) -> (i32, String, String) {
    let mut command = oracle();
    command.arg("kv-equivalence").arg(fixture(name)).args(tokens.iter().map(u32::to_string)).args(further);
    outcome(command)
}

const PLAIN: [u32; 6] = [43, 27, 33, 2, 52, 4];

#[test]
fn every_fixture_gives_the_same_bits_in_pieces() {
    for name in fixtures() {
        let tokens = main_prompt(&name);
        let short = &tokens[..tokens.len().min(6)];
        for prompt in [short, &tokens[..]] {
            let (code, stdout, stderr) = kv(&name, prompt, &[]);
            assert_eq!(code, 0, "{name}: {stdout}{stderr}");
            assert!(stdout.starts_with("identical: "), "{stdout}");
            assert!(!stdout.contains("first difference"), "{stdout}");
        }
    }
}

#[test]
fn a_report_says_what_was_covered_and_what_is_kept() {
    let tokens = main_prompt("mistral-window");
    let (_, stdout, _) = kv("mistral-window", &tokens[..9], &["--chunks", "2,7"]);
    let wanted = [
        "every chunk i..j (45), which stands for all 256 ways to cut the prompt",
        "rolling windows: all 256 ways to cut the prompt",
        "attention, window 7",
        "9 x 28",
        "a rolling cache of window 7 that drops entries (needs more than 14 tokens)",
    ];
    assert_says(&stdout, &wanted);
    let (_, stdout, _) = kv("mistral-window", &tokens, &[]);
    assert_says(&stdout, &["schedules of the list", "rolling windows"]);
    assert!(!stdout.contains("cannot see"), "{stdout}");
}

#[test]
fn sparse_positions_go_through_sessions() {
    for name in ["llama-longrope", "llama-dynamic", "mistral-window"] {
        let (code, stdout, stderr) = kv(name, &[5, 9, 2, 7], &["--positions", "0,9,5000,60000"]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert_says(&stdout, &["0,9,5000,60000"]);
        assert!(!stdout.contains("rope scaling"), "{stdout}");
    }
}

#[test]
fn the_accelerated_executor_is_within_the_truth_based_tolerance() {
    let (short, long) = (main_prompt("qwen3-plain"), main_prompt("mistral-long"));
    // Few tokens at once are left to the reference's kernels; 70 are not, and other sums give other bits.
    for (name, prompt, verdict) in
        [("qwen3-plain", &short[..6], "identical"), ("mistral-long", &long[..], "within-tolerance")]
    {
        let (code, stdout, stderr) = kv(name, prompt, &["--executor", "accelerated"]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert_says(&stdout, &["oracle-accelerated-", "up to 8 times as far as float32 is from the float64 truth"]);
        assert!(stdout.starts_with(verdict), "{stdout}");
        // A cache that forgets is far beyond it.
        let (code, stdout, _) = kv(name, prompt, &["--executor", "accelerated", "--inject", "kv-not-appended"]);
        assert_eq!(code, 1, "{stdout}");
    }
}

#[test]
fn a_cache_format_is_judged_against_itself_or_by_a_tolerance() {
    let run = |further: &[&str]| kv("llama-plain", &PLAIN, further);
    let (code, stdout, _) = run(&["--cache", "q8_0"]);
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["identical", "a cache in q8_0 moves the logits of one pass by up to 0.0"]);
    let (code, stdout, _) = run(&["--cache", "q8_0", "--atol", "1"]);
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["within-tolerance"]);
    let (code, stdout, _) = run(&["--cache", "q8_0", "--atol", "1e-4"]);
    assert_eq!(code, 1, "{stdout}");
    assert_says(&stdout, &["different", "token 0, logits"]);
}

#[test]
fn faults_of_the_state_are_caught_and_others_are_not_its_business() {
    for (name, wanted) in [
        ("kv-not-appended", "first chunks 1 + 1"),
        ("kv-layer-mixup", "first chunks 1 + 1"),
        ("decode-position-off-by-one", "first chunks 1 + 1"),
        ("chunk-position-reset", "first chunks 1 + 2"),
        ("causal-mask-missing", "first chunks 1: token 0"),
        ("kv-trim", "first trim and redo"),
        ("prefix-offset", "first prefix reuse"),
        ("snapshot-stale", "first snapshot and restore"),
    ] {
        let (code, stdout, stderr) = kv("llama-plain", &PLAIN, &["--inject", name]);
        assert_eq!(code, 1, "{name}: {stdout}{stderr}");
        assert_says(&stdout, &[wanted, &format!("broken on purpose: {name}")]);
    }
    // Wrong in one pass and in pieces alike.
    for name in ["attn-scale", "rope-theta-default"] {
        let (code, stdout, stderr) = kv("qwen3-plain", &PLAIN, &["--inject", name]);
        assert_eq!(code, 0, "{name}: {stdout}{stderr}");
        assert_says(&stdout, &["identical", &format!("broken on purpose: {name}")]);
    }
    let (code, _, stderr) = kv("llama-plain", &PLAIN, &["--inject", "window-missing"]);
    assert_eq!(code, 2, "it does not apply: {stderr}");
}

#[test]
fn what_cannot_be_checked_is_refused() {
    let refused = |tokens: &[u32], further: &[&str], wanted: &[&str]| {
        let (code, stdout, stderr) = kv("llama-plain", tokens, further);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, wanted);
    };
    refused(&[3], &[], &["a prompt of one token can't come in pieces"]);
    refused(&[], &[], &["no tokens"]);
    refused(&[1, 61], &[], &["token 61 is beyond the vocabulary of 61"]);
    refused(&[1, 2, 3], &["--chunks", "1,1"], &["--chunks", "add up to the 3 tokens", "found 2"]);
    refused(&[1, 2, 3], &["--chunks", "3,0"], &["found one of 0"]);
    refused(&[1, 2, 3], &["--positions", "0,1"], &["one position per token (3), found 2"]);
    refused(&[1, 2, 3], &["--inject", "no-such-fault"], &["no-such-fault"]);
    refused(&[1, 2], &["--engine", "x", "--positions", "0,1"], &["cannot be used with"]);
    refused(&[1, 2], &["--timeout", "1"], &["--engine"]);
}

#[test]
fn every_format_says_the_same() {
    let (code, stdout, _) = kv("llama-plain", &PLAIN, &["--format", "json"]);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &report["exit_code"], &report["verdict"]), (0, &Value::from(0), &Value::from("identical")));
    assert_eq!(report["report"], "oracle-kv-equivalence-v1");
    assert_eq!(report["state"].as_array().unwrap().len(), 4);
    let runs = report["runs"].as_array().unwrap();
    assert!(runs.iter().all(|run| run["outcome"] == "same"), "{stdout}");

    let (_, stdout, _) = kv("llama-plain", &PLAIN, &["--format", "csv"]);
    assert_eq!(stdout.lines().count(), runs.len() + 1);
    assert!(stdout.starts_with("kind,state,what,outcome,"), "{stdout}");

    let failing = ["--cache", "q8_0", "--atol", "1e-9", "--format"];
    let (code, stdout, _) = kv("llama-plain", &PLAIN, &[&failing[..], &["junit"]].concat());
    assert_eq!(code, 1);
    assert_says(&stdout, &["<testsuite name=\"oracle kv-equivalence\"", "<failure message="]);
    let (_, stdout, _) = kv("llama-plain", &PLAIN, &[&failing[..], &["github"]].concat());
    assert!(stdout.lines().all(|line| line.starts_with("::error file=")), "{stdout}");
    let (code, stdout, stderr) = kv("llama-plain", &PLAIN, &["-q"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
}

fn judged(mock: &Mock, tokens: &[u32], exact: bool) -> Equivalence {
    let full = Mock { slip: mock.slip.filter(|slip| *slip == Slip::NotANumber), ..mock.clone() };
    let limited = Mock { capacity: Some(tokens.len()), ..mock.clone() };
    let subject = |engine, full_at| Subject { name: String::new(), engine, exact, full_at };
    check(&Check {
        tokens,
        positions: &(0..tokens.len() as u32).collect::<Vec<_>>(),
        full: &full,
        subjects: &[subject(mock, None), subject(&limited, Some(tokens.len()))],
        gate: Gate::Bits,
        windows: BTreeSet::from([4]),
        chunks: None,
    })
    .unwrap()
}

const SLIPS: [(Slip, Kind, &str); 10] = [
    (Slip::ForgetsNewest, Kind::Chunks, "after 2 tokens the state holds other bits than one pass leaves"),
    (Slip::RestartsPositions, Kind::Chunks, "token 1, hidden state after layer 1"),
    (Slip::MisstatesShape, Kind::Chunks, "after 6 tokens layer 0 keeps 5 rows of history from token 0 on"),
    (Slip::RestoresStale, Kind::Snapshot, "after 3 tokens the state holds other bits"),
    (Slip::TrimsTheWrongEnd, Kind::Trim, "after 3 tokens the state holds other bits"),
    (Slip::ForksShort, Kind::Prefix, "after 3 tokens the state holds other bits"),
    (Slip::ForksShared, Kind::Prefix, "token 3, hidden state after layer 1"),
    (Slip::ResetsNothing, Kind::Reset, "after 0 tokens the state holds other bits"),
    (Slip::OverfillsCapacity, Kind::Capacity, "a session for 6 tokens took one more"),
    (Slip::NotANumber, Kind::FullForward, "token 2, logits, value 9: NaN in the full forward pass never passes"),
];

#[test]
fn a_sound_mock_passes() {
    for n in [2, 6, 12, 13, 40] {
        let tokens: Vec<u32> = (0..n).map(|i| i * 7 % 10).collect();
        for exact in [true, false] {
            let report = judged(&Mock { vocab_size: 10, ..Mock::default() }, &tokens, exact);
            assert_eq!(report.verdict, Verdict::Identical, "{:?}", report.first_difference());
        }
    }
}

#[test]
fn every_slip_of_the_mock_is_caught_and_named() {
    for (slip, kind, wanted) in SLIPS {
        let mock = Mock { vocab_size: 10, slip: Some(slip), capacity: None };
        let report = judged(&mock, &PLAIN.map(|t| t % 10), true);
        assert_eq!(report.verdict, Verdict::Different, "{slip:?}");
        let of_kind = report.runs.iter().find(|run| run.kind == kind && run.difference.is_some());
        let run = of_kind.unwrap_or_else(|| panic!("{slip:?}: {:?}", report.first_difference()));
        let message = &run.difference.as_ref().unwrap().message;
        assert!(message.contains(wanted), "{slip:?}: {message}");
    }
}

#[test]
fn every_slip_shows_in_the_values_too() {
    // Without digests, and in a prompt that is too long for all ways to cut it.
    let tokens: Vec<u32> = (0..15).map(|i| i * 7 % 10).collect();
    for (slip, kind, _) in SLIPS {
        let mock = Mock { vocab_size: 10, slip: Some(slip), capacity: None };
        let report = judged(&mock, &tokens, false);
        assert_eq!(report.verdict, Verdict::Different, "{slip:?}");
        assert!(report.runs.iter().any(|run| run.kind == kind && run.difference.is_some()), "{slip:?}");
    }
}

/// Whether each way to cut the prompt gives the values of one pass, found out by doing it.
fn enumerated(engine: &dyn Engine, tokens: &[u32]) -> Vec<(Vec<usize>, bool)> {
    let positions: Vec<u32> = (0..tokens.len() as u32).collect();
    let whole = engine.session(tokens.len()).unwrap().prefill(tokens, &positions).unwrap();
    let same = |chunks: &Vec<usize>| {
        let mut session = engine.session(tokens.len()).unwrap();
        chunks.iter().all(|&n| {
            let range = session.len()..session.len() + n;
            let step = session.prefill(&tokens[range.clone()], &positions[range.clone()]).unwrap();
            step.logits == whole.logits.slice_rows(range.clone())
                && step.layers.iter().zip(&whole.layers).all(|(a, b)| *a == b.slice_rows(range.clone()))
        })
    };
    schedule::compositions(tokens.len()).map(|chunks| (chunks.clone(), same(&chunks))).collect()
}

#[test]
fn the_induction_says_what_all_ways_to_cut_a_prompt_say() {
    let tokens = PLAIN.map(|t| t % 10);
    for slip in [None, Some(Slip::ForgetsNewest), Some(Slip::RestartsPositions)] {
        let mock = Mock { vocab_size: 10, slip, capacity: None };
        let all = enumerated(&mock, &tokens);
        assert_eq!(all.len(), 32);
        assert_eq!(all.iter().all(|(_, same)| *same), slip.is_none(), "{slip:?}");
        let report = judged(&mock, &tokens, true);
        assert_eq!(report.verdict == Verdict::Identical, slip.is_none());
        // 21 chunks: from nothing, and from each state.
        assert_eq!(report.runs.iter().filter(|run| run.kind == Kind::Chunks).count(), 21);
    }
    let reference = Reference::default();
    for name in ["mistral-window", "llama-dynamic", "qwen3-window-llama3"] {
        let (plan, source) = load(name);
        let engine = Local::<f32>::new("oracle-reference", &plan, &source, &reference);
        assert!(enumerated(&engine, &PLAIN.map(|t| t % 50)).iter().all(|(_, same)| *same), "{name}");
    }
}

#[test]
fn what_a_prompt_cannot_see_is_computed_from_the_plan() {
    let seen = |name: &str, tokens: &[u32], positions: &[u32]| -> String {
        let spots = blind_spots(&load(name).0, tokens, positions);
        spots.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(seen("mistral-window", &[1, 2, 3], &[0, 1, 2]), "window 7 (needs more than 7 tokens)");
    let fifteen: Vec<u32> = (0..15).collect();
    assert_eq!(seen("mistral-window", &fifteen, &fifteen), "");
    assert_eq!(
        seen("llama-plain", &[1, 2], &[0, 1]),
        "a chunk of several tokens after others (needs more than 2 tokens)"
    );
    let equal =
        "positions, masks and windows: the tokens are all equal, and so are their values (needs different tokens)";
    assert_eq!(seen("llama-plain", &[4, 4, 4], &[0, 1, 2]), equal);
    // Trained for 11 positions.
    let scaling = "rope scaling dynamic (acts from position 11 on; try --positions 0,1,11)";
    assert_eq!(seen("llama-dynamic", &[1, 2, 3], &[0, 1, 2]), scaling);
    assert_eq!(seen("llama-dynamic", &[1, 2, 3], &[0, 1, 11]), "");
    let (_, stdout, _) = outcome(words("kv-equivalence fixtures/mistral-window 1 2 3"));
    assert_says(&stdout, &["this prompt cannot see: window 7 (needs more than 7 tokens)"]);
}

#[test]
fn our_binary_is_a_runner_that_takes_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let run = |chunks: &str, name: &str| {
        let mut command = oracle();
        let out = folder.path().join(name);
        command.env("MEMRA_ORACLE_OUT", &out).env("MEMRA_ORACLE_CHUNKS", chunks);
        command.arg(fixture("mistral-window")).args(PLAIN.map(|t| t.to_string()));
        (outcome(command), out)
    };
    let ((code, _, stderr), whole) = run("", "whole.tsv");
    assert_eq!(code, 0, "{stderr}");
    let ((code, _, stderr), pieces) = run("3,1,2", "pieces.tsv");
    assert_eq!(code, 0, "{stderr}");
    let (whole, pieces) = (common::read(&whole), common::read(&pieces));
    assert_eq!((whole.receipt("chunks"), pieces.receipt("chunks")), (None, Some("3,1,2")));
    assert_eq!(whole.logits, pieces.logits);
    for (chunks, wanted) in [("3,1", "found 4"), ("6,0", "one of 0"), ("x", "found `x`")] {
        let ((code, _, stderr), out) = run(chunks, "refused.tsv");
        assert_eq!(code, 2, "{stderr}");
        assert_says(&stderr, &["--chunks", wanted]);
        assert!(!out.exists());
    }
}

/// Runners as shell scripts.
#[cfg(unix)]
mod runners {
    use super::*;

    /// Checks a shell script as an engine; `$oracle` is our binary.
    fn script(body: &str, further: &[&str]) -> (i32, String, String) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runner of mine.sh");
        let oracle = assert_cmd::cargo::cargo_bin("oracle");
        let text = format!("oracle='{}'\n{EDIT}\n{body}\n", oracle.display());
        fs::write(&path, text).unwrap();
        let engine = format!("sh '{}'", path.display());
        kv("mistral-window", &PLAIN, &[&["--engine", &engine], further].concat())
    }

    /// Changes the output file: an awk program between its fields, which are separated by tabs.
    const EDIT: &str = r#"edit() {
        awk -F'\t' -v OFS='\t' "$1" "$MEMRA_ORACLE_OUT" > "$MEMRA_ORACLE_OUT.new"
        mv "$MEMRA_ORACLE_OUT.new" "$MEMRA_ORACLE_OUT"
    }"#;

    const SOUND: &str = "\"$oracle\" \"$@\"";

    #[test]
    fn a_sound_runner_passes() {
        let (code, stdout, stderr) = script(SOUND, &["--chunks", "2,4"]);
        assert_eq!(code, 0, "{stdout}{stderr}");
        let wanted = [
            "identical",
            "oracle-reference",
            "trim and redo: the runner protocol has no way to trim a session",
            "snapshot and restore: the runner protocol has no snapshots",
            "window 7 (needs more than 7 tokens)",
        ];
        assert_says(&stdout, &wanted);
        let (code, _, stderr) = script(SOUND, &["--timeout", "60"]);
        assert_eq!(code, 0, "{stderr}");
    }

    #[test]
    fn a_runner_without_evidence_is_refused() {
        let refused = |body: &str, further: &[&str], wanted: &[&str]| {
            let (code, stdout, stderr) = script(body, further);
            assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
            assert_says(&stderr, wanted);
        };
        refused("exit 0", &[], &["wrote no file", "said nothing"]);
        let stale = format!("if [ -z \"$MEMRA_ORACLE_CHUNKS\" ]; then {SOUND}; fi; exit 0");
        refused(&stale, &[], &["in chunks of 5,1", "wrote no file"]);
        refused("\"$oracle\" \"$1\" 1 2 3", &[], &["other tokens: expected 43,27,33,2,52,4, found 1,2,3"]);
        refused(&format!("unset MEMRA_ORACLE_CHUNKS; {SOUND}"), &[], &["has no record `chunks` with 5,1"]);
        let claims = format!("{SOUND}; edit '$1 == \"chunks\" {{ $2 = \"6\" }} {{ print }}'");
        refused(&claims, &[], &["computed in chunks of 6: expected 5,1"]);
        refused("echo no such model >&2; exit 3", &[], &["failed (exit status: 3)", "no such model"]);
        refused("echo hello > \"$MEMRA_ORACLE_OUT\"", &[], &["no oracle file"]);
        refused("exec sleep 60", &["--timeout", "1"], &["ran longer than 1 s"]);
        let positions = "edit '$1 == \"vocab\" { print \"positions\", \"0,1,2,3,4,9\" } { print }'";
        let positions = format!("{SOUND}; {positions}");
        refused(&positions, &[], &["positions 0,1,2,3,4,9"]);
    }

    #[test]
    fn a_runner_whose_cache_is_wrong_differs() {
        let edit = "edit '$1 == \"logit\" && $2 == 3 { $3 = \"41200000\" } { print }'";
        let wrong = format!("{SOUND}; if [ -n \"$MEMRA_ORACLE_CHUNKS\" ]; then {edit}; fi");
        let (code, stdout, stderr) = script(&wrong, &[]);
        assert_eq!(code, 1, "{stdout}{stderr}");
        assert_says(&stdout, &["different", "chunks 5 + 1", "token 5, logits, value 3", "this run 10"]);
        let (code, stdout, _) = script(&wrong, &["--atol", "100"]);
        assert_eq!(code, 0, "{stdout}");
        assert_says(&stdout, &["within-tolerance"]);
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let (code, _, stderr) = kv("llama-plain", &[1, 2], &["--engine", "/no/such/program -x"]);
        assert_eq!(code, 2);
        assert_says(&stderr, &["runner /no/such/program -x", "can't be started"]);
    }

    #[test]
    fn a_checkpoint_that_we_cannot_run_can_be_checked_elsewhere() {
        let copy = common::Copy::of("llama-plain").set("some_new_key", serde_json::json!(1));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.sh");
        let oracle_path = assert_cmd::cargo::cargo_bin("oracle");
        let body = format!(
            "c=${{MEMRA_ORACLE_CHUNKS:-4}}; o=$MEMRA_ORACLE_OUT; unset MEMRA_ORACLE_OUT\n\
             exec '{}' run --allow-unused some_new_key --quiet --chunks $c -o \"$o\" \"$@\"\n",
            oracle_path.display()
        );
        fs::write(&path, body).unwrap();
        let mut command = oracle();
        command.arg("kv-equivalence").arg(copy.path()).args(["1", "2", "3", "4"]);
        command.arg("--engine").arg(format!("sh {}", path.display()));
        let (code, stdout, stderr) = outcome(command);
        assert_eq!(code, 0, "{stdout}{stderr}");
        assert_says(&stdout, &["what this prompt cannot see is unknown", "some_new_key"]);
    }
}
