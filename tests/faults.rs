//! Faults through the binary: `faults`, `probes`, `run --inject`, `self-test --mutants`.

mod common;

use checkpoint_oracle::exec::faults::catalogue;
use checkpoint_oracle::model::Pack;
use common::*;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;

#[track_caller]
fn json(line: &str) -> Value {
    let (code, stdout, stderr) = outcome(words(&format!("{line} --format json")));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}:\n{stdout}"))
}

fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"].as_array().unwrap().iter().find(|check| check["check"] == name).unwrap()
}

/// Names of the faults that a check doesn't notice.
fn unnoticed(report: &Value, name: &str) -> BTreeSet<String> {
    check(report, name)["survivors"].as_object().unwrap().keys().cloned().collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| name.to_string()).collect()
}

/// What a window hides that is longer than the prompt.
const WINDOWS: [&str; 4] = ["window-missing", "window-off-by-one", "window-wrong-layer", "window-rolls-early"];

/// What shows only where tokens that differ meet.
const MEETING: [&str; 13] = [
    "attn-scale",
    "causal-mask-missing",
    "chunk-mask-local",
    "chunk-position-reset",
    "decode-position-off-by-one",
    "qk-norm-after-rope",
    "qk-norm-dropped",
    "rope-pairing",
    "rope-scaling-dropped",
    "window-missing",
    "window-off-by-one",
    "window-rolls-early",
    "window-wrong-layer",
];

#[test]
fn every_fault_of_every_pack_is_noticed_by_bits_and_by_the_f32_tolerance() {
    let mut everywhere = BTreeSet::new();
    for pack in Pack::embedded().iter().filter(|pack| pack.refuse.is_none()) {
        let report = json(&format!("faults --pack {} --require bits --require f32", pack.name));
        for name in ["bits", "f32"] {
            let check = check(&report, name);
            assert_eq!(check["killed"], check["of"], "{}: {check}", pack.name);
            assert!(check["of"].as_u64().unwrap() >= 10, "{}: {check}", pack.name);
        }
        // A coarse check misses some: that is what the matrix is for.
        assert!(!unnoticed(&report, "nmse").is_empty(), "{}", pack.name);
        for subject in report["subjects"].as_array().unwrap() {
            let faults = subject["faults"].as_array().unwrap();
            let not = subject["not_applicable"].as_array().unwrap();
            assert_eq!(faults.len() + not.len(), catalogue().len());
            assert!(not.iter().all(|entry| entry["reason"].as_str().unwrap().len() > 10));
            everywhere.extend(faults.iter().map(|fault| fault["name"].as_str().unwrap().to_owned()));
            // Rounding activations is no bug, and a tolerance for such engines lets it pass.
            let honest = faults.iter().find(|fault| fault["honest"] == true).unwrap();
            for cell in honest["probes"].as_array().unwrap() {
                let noticed: Vec<&str> =
                    cell["noticed_by"].as_array().unwrap().iter().flat_map(Value::as_str).collect();
                assert!(noticed.contains(&"bits") && !noticed.contains(&"bf16"), "{}: {cell}", subject["name"]);
            }
        }
    }
    // Between them the packs have everything that a fault of the present families needs.
    let missing: Vec<&str> = catalogue().iter().map(|f| f.name).filter(|&name| !everywhere.contains(name)).collect();
    for name in missing {
        let (code, _, stderr) = outcome(words(&format!("run fixtures/qwen3-plain 1 2 --inject {name}")));
        assert_eq!(code, 2, "{name}");
        let present = ["partial-rotary-ignored", "rope-wrong-layer"].contains(&name);
        // Of mixers that no pack has.
        let present = present || stderr.contains("no layer ") || stderr.contains("no convolution ");
        let present = present || stderr.contains("no scan");
        assert!(present || stderr.contains("here") && stderr.contains(" yet"), "{name}: {stderr}");
    }
}

#[test]
fn one_token_hides_what_needs_more() {
    let report = json("faults fixtures/qwen3-window-llama3 --prompt 7");
    let mut expected = set(&MEETING);
    expected.extend(set(&[
        "kv-layer-mixup",
        "kv-not-appended",
        "kv-swapped",
        "kv-trim",
        "prefix-offset",
        "snapshot-stale",
    ]));
    assert_eq!(unnoticed(&report, "bits"), expected);
    let (code, stdout, _) = outcome(words("faults fixtures/qwen3-window-llama3 --prompt 7 --require bits"));
    assert_eq!(code, 1, "what is required and doesn't hold is no success");
    assert_says(&stdout, &["bits killed ", "unnoticed", "window-missing", "prompt-1"]);
}

#[test]
fn four_equal_tokens_hide_rope_masks_and_windows() {
    let report = json("faults fixtures/qwen3-window-llama3 --prompt 7,7,7,7");
    // Equal values average to themselves, but for rounding: that alone is what `bits` sees of most of these.
    assert_eq!(unnoticed(&report, "f32"), set(&MEETING));
    assert_eq!(unnoticed(&report, "bits"), set(&WINDOWS));
}

#[test]
fn a_few_tokens_hide_windows_and_far_positions_show_scaling() {
    let near = json("faults fixtures/qwen3-window-llama3 --prompt 1,2,3,4");
    assert_eq!(unnoticed(&near, "bits"), set(&WINDOWS));
    let far = json("faults fixtures/qwen3-window-llama3 --prompt 1,2,3,4@0,9,200,400");
    assert_eq!(unnoticed(&far, "bits"), set(&WINDOWS));
    let of = |report: &Value| {
        let faults = report["subjects"][0]["faults"].as_array().unwrap();
        let fault = faults.iter().find(|fault| fault["name"] == "rope-scaling-dropped").unwrap();
        fault["probes"][0]["max_abs"].as_f64().unwrap()
    };
    assert!(of(&far) > 2.0 * of(&near), "{} against {}", of(&far), of(&near));
}

#[test]
fn the_switch_of_longrope_shows_at_one_length_only() {
    for (last, hidden) in [(11, true), (12, false), (13, true)] {
        let report = json(&format!("faults fixtures/llama-longrope --prompt 1,2,3@0,5,{last}"));
        assert_eq!(unnoticed(&report, "bits").contains("longrope-switch"), hidden, "{last}");
    }
}

#[test]
fn every_format_is_written() {
    let line = "faults fixtures/llama-plain --prompt 1,2,3 --require nmse --format";
    let of = |format: &str| {
        let (code, stdout, stderr) = outcome(words(&format!("{line} {format}")));
        assert_eq!((code, stderr.as_str()), (1, ""), "{stdout}");
        stdout
    };
    let csv = of("csv");
    let mut lines = csv.lines();
    assert_eq!(
        lines.next().unwrap(),
        "subject,fault,place,shown_by,honest,probe,max_abs,nmse,by_bits,by_f32,by_bf16,by_nmse,by_argmax"
    );
    assert!(lines.clone().count() > 15 && lines.all(|line| line.starts_with("fixtures/llama-plain,")), "{csv}");
    assert_says(
        &of("junit"),
        &["<testsuite name=\"oracle faults\" tests=\"5\" failures=\"1\"", "<failure message=\"nmse"],
    );
    assert_says(
        &of("github"),
        &["::error title=nmse notices every fault::", "::notice title=bits notices every fault::"],
    );
    assert_says(&of("text"), &["not applicable", "there are no experts", "which is not counted", "bf16-activations"]);
}

#[test]
fn a_pack_without_a_checkpoint_to_try_faults_on_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    let head = "name = \"mine\"\ntitle = \"Mine\"\nmodel_types = [\"mine\"]\narchitectures = []\n";
    for (more, wanted) in [
        ("like = \"llama\"\n", "pack mine has no [self_test], whose config gives a tiny checkpoint"),
        ("refuse = \"it sees the future\"\n", "pack mine runs no checkpoint: it sees the future"),
    ] {
        std::fs::write(&file, format!("{head}{more}")).unwrap();
        let (code, stdout, stderr) = outcome(words(&format!("faults --pack {}", file.display())));
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, &[wanted]);
    }
}

#[test]
fn prompts_and_checkpoints_that_do_not_fit_are_refused() {
    for (line, wanted) in [
        ("faults fixtures/llama-plain --prompt 1,99", "token 99 is beyond the vocabulary of 61"),
        ("faults fixtures/llama-plain --prompt 1,2@0", "one position per token (2), found 1"),
        ("faults fixtures/llama-plain --prompt 1,x", "expected a whole number"),
        ("faults fixtures/llama-plain --prompt @", "holds no token"),
        ("faults", "<CKPT>"),
        ("faults --pack lama", "no pack `lama`; the nearest are "),
        ("faults nowhere", "nowhere"),
        ("probes --pack lama", "no pack `lama`"),
        ("faults fixtures/llama-plain --require all", "all"),
    ] {
        let (code, stdout, stderr) = outcome(words(line));
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}");
        assert_says(&stderr, &[wanted]);
    }
}

#[test]
fn an_injected_fault_changes_the_file_and_is_recorded() {
    let copy = Copy::of("qwen3-window-llama3");
    let folder = tempfile::tempdir().unwrap();
    let clean = folder.path().join("clean.tsv");
    let prompt = "1 2 3 4 5 6 7 8 9";
    outcome(copy.run(prompt));
    fs::copy(copy.out(), &clean).unwrap();
    for executor in ["reference", "accelerated"] {
        for fault in ["window-missing", "causal-mask-missing", "bf16-activations", "kv-quantized"] {
            let line = format!("{prompt} --inject {fault} --executor {executor}");
            let (code, _, stderr) = outcome(copy.run(&line));
            assert_eq!(code, 0, "{line}: {stderr}");
            let file = read(&copy.out());
            assert!(file.receipt("injected_fault").unwrap().starts_with(fault), "{line}");
            assert!(file.engine.starts_with("oracle-") && file.engine.ends_with("-injected"), "{}", file.engine);
            let mut diff = oracle();
            diff.arg("diff").arg(&clean).arg(copy.out()).args(["--atol", "1e-5"]);
            let (code, stdout, _) = outcome(diff);
            assert_eq!(code, 1, "{line}: {stdout}");
        }
    }
    let file = read(&clean);
    assert_eq!((file.engine.as_str(), file.receipt("injected_fault")), ("oracle-reference", None));
}

#[test]
fn a_fault_is_injected_into_float64_as_well() {
    let copy = Copy::of("llama-plain");
    let clean = copy.assert_runs("1 2 3 --numeric f64");
    let wrong = copy.assert_runs("1 2 3 --numeric f64 --inject gqa-tile");
    assert_ne!(clean.logits, wrong.logits);
}

#[test]
fn what_can_not_be_injected_is_refused_before_anything_is_written() {
    let copy = Copy::of("llama-plain");
    for (fault, wanted) in [
        ("window-mising", &["--inject: no fault is called `window-mising`; the nearest are window-missing, "][..]),
        ("window-missing", &["does not apply: no layer has a sliding window"]),
        ("topk-norm", &["there are no experts"]),
        ("kv-not-appended", &["a single pass", "several passes", "oracle kv-equivalence"]),
        ("prefix-offset", &["forking", "oracle kv-equivalence"]),
        ("snapshot-stale", &["restoring a snapshot"]),
        ("kv-trim", &["trimming"]),
    ] {
        copy.assert_run_refused(&format!("1 2 3 --inject {fault}"), wanted);
    }
}

#[test]
fn the_proposed_prompts_show_every_fault() {
    for (line, most) in [
        ("probes fixtures/llama-longrope", 4),
        ("probes fixtures/qwen2-layer-types-dynamic", 2),
        ("probes --pack llama", 4),
    ] {
        let report = json(line);
        for subject in report["subjects"].as_array().unwrap() {
            let probes = subject["probes"].as_array().unwrap();
            assert!((1..=most).contains(&probes.len()), "{line}: {subject}");
            assert_eq!(subject["unnoticed"].as_array().unwrap().len(), 0, "{line}: {subject}");
            let all: BTreeSet<&str> =
                probes.iter().flat_map(|p| p["bits"].as_array().unwrap()).flat_map(Value::as_str).collect();
            assert_eq!(all.len() as u64, subject["faults"].as_u64().unwrap(), "{line}");
        }
    }
    let (code, stdout, _) = outcome(words("probes fixtures/mistral-window"));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["--prompt", "notices", "bits ", " of ", "window-off-by-one"]);
    let (_, csv, _) = outcome(words("probes fixtures/mistral-window --format csv"));
    assert!(csv.starts_with("subject,probe,prompt,faults,by_bits,by_f32\n"), "{csv}");
}

#[test]
fn mutants_are_noticed_and_honest_engines_are_not_rejected() {
    let (code, stdout, stderr) = outcome(words("self-test --mutants"));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    let line = stdout.lines().find(|line| line.starts_with("mutants: ")).unwrap();
    let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [bits, of_bits, alarms, engines, f32, of_f32, f32_alarms, f32_engines] = numbers[..] else { panic!("{line}") };
    assert!(bits == of_bits && f32 == of_f32 && bits == f32 && bits > 300, "{line}");
    assert!(alarms == 0 && f32_alarms == 0 && engines > 200 && f32_engines >= 24, "{line}");
    for pack in Pack::embedded().iter().filter(|pack| pack.refuse.is_none()) {
        assert_says(&stdout, &[&format!("{:12} ok     {}\n", pack.name, pack.self_test.logits_sha256)]);
    }
}

#[test]
fn the_documentation_lists_every_fault_in_order() {
    let text = fs::read_to_string(root("docs/faults.md")).unwrap();
    let mut rest = text.as_str();
    for fault in catalogue() {
        let (_, after) = rest.split_once(&format!("| `{}` |", fault.name)).unwrap_or_else(|| panic!("{}", fault.name));
        rest = after;
    }
}
