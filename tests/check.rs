//! `oracle check`: the plan in readable form, the census, and the same as JSON.

mod common;

use common::*;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;

#[track_caller]
fn check(fixture: &str) -> String {
    let (code, stdout, stderr) = outcome(words(&format!("check fixtures/{fixture}")));
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
    stdout
}

/// What the report says of `name`.
#[track_caller]
fn row<'r>(report: &'r str, name: &str) -> &'r str {
    let row = report.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("  ")).map(str::trim_start);
    row.unwrap_or_else(|| panic!("no row {name}:\n{report}"))
}

#[test]
fn every_number_that_affects_the_result_is_shown() {
    let report = check("qwen3-bias-yarn");
    assert_eq!(row(&report, "pack"), "qwen3, because of model_type `qwen3`");
    assert_eq!(row(&report, "vocab_size"), "53");
    assert_eq!(row(&report, "hidden_size"), "28");
    assert_eq!(row(&report, "num_hidden_layers"), "3");
    assert!(row(&report, "attention").starts_with("4 heads, 2 key/value heads, head_dim "), "{report}");
    assert_eq!(row(&report, "sliding_window"), "none");
    assert!(row(&report, "rope").starts_with("yarn, factor "), "{report}");
    for part in ["attention_factor ", "beta_fast ", "beta_slow ", "truncate true", "original_max_position_embeddings "]
    {
        assert!(row(&report, "rope").contains(part), "{report}");
    }
    assert_eq!(row(&report, "q/k norm"), "RMSNorm per head before RoPE, eps 0.01");
    assert_eq!(row(&report, "mlp"), "gated, intermediate_size 30, hidden_act silu");
    assert_eq!(row(&report, "bias"), "q, k, v, o");
    assert_eq!(row(&report, "norm"), "RMSNorm before mixer, mlp and head, eps 0.01");
    assert_eq!(row(&report, "head"), "lm_head.weight");
    assert!(report.ends_with("the books close: every config key and every tensor is accounted for\n"), "{report}");
}

#[test]
fn what_differs_between_layers_is_shown_by_layer() {
    assert_eq!(row(&check("qwen2-window-yarn"), "sliding_window"), "layers 0-1: none; layers 2-3: 6");
    assert_eq!(row(&check("mistral-window"), "sliding_window"), "7");
    assert_eq!(row(&check("qwen2-plain"), "sliding_window"), "none", "it is there and switched off");
    assert_eq!(row(&check("qwen2-plain"), "bias"), "q, k, v");
    assert!(row(&check("llama-bias-llama3"), "attention").starts_with("4 heads, 1 key/value head, head_dim "));
    assert_eq!(row(&check("qwen2-plain"), "head"), "tied to the embedding");
}

#[test]
fn what_single_families_have_is_shown_where_it_is_not_the_usual() {
    for (fixture, name, wanted) in [
        ("mamba2-bias-tied", "mixer", ", time_step_limit 0.3 to 0.9"),
        ("deepseek_v3-mtp", "mlp", ", norm_topk_eps 1e-20"),
        ("deepseek_v3-mtp", "mlp", " groups by the sum of their best two"),
        ("deepseek_v3-mtp", "mixer", ", latent_norm_eps 1e-6"),
        ("gemma4-moe", "mlp", ", the router's input normalised, times "),
        ("kimi_linear-groups", "mixer", ", sigmoid gate"),
        ("llama4_text-chunks", "attention", " tokens"),
        ("gemma3n-shared", "branches", "AltUp and Laurel of rank "),
        ("mamba2-groups", "bias", "conv"),
    ] {
        let report = check(fixture);
        assert!(row(&report, name).contains(wanted), "{fixture}: expected {wanted:?} in {report}");
    }
    for (fixture, name, unwanted) in [
        ("mamba2-groups", "mixer", "time_step_limit"),
        ("mamba2-bias-tied", "bias", "conv"),
        ("deepseek_v2-groups", "mlp", "norm_topk_eps"),
        ("deepseek_v2-groups", "mlp", "best two"),
        ("qwen3_next-mixed", "mixer", "sigmoid gate"),
    ] {
        let report = check(fixture);
        assert!(!row(&report, name).contains(unwanted), "{fixture}: {unwanted:?} in {report}");
    }
}

#[test]
fn ternary_weights_are_shown_with_their_scale() {
    for (fixture, wanted) in [
        ("bitnet-packed", "ternary weights, packed, times weight_scale; inputs rounded to 8 bits per token"),
        ("bitnet-divisor", "ternary weights, packed, divided by weight_scale; inputs rounded to 8 bits per token"),
        (
            "bitnet-online",
            "ternary weights, rounded on the way, times their mean magnitude; inputs rounded to 8 bits per token",
        ),
    ] {
        assert_eq!(row(&check(fixture), "quantization"), wanted);
    }
    assert!(!check("bitnet-plain").contains("quantization"));
}

#[test]
fn each_kind_of_rope_is_shown_with_its_numbers() {
    for (fixture, wanted) in [
        ("llama-plain", "default, rope_theta 10000, 6 dimensions in halves"),
        ("llama-linear-tied-stored", "linear, factor 4, rope_theta 10000, 8 dimensions in halves"),
        (
            "llama-dynamic",
            "dynamic, factor 2.5 beyond max_position_embeddings 11, rope_theta 10000, 12 dimensions in halves",
        ),
        (
            "llama-bias-llama3",
            "llama3, factor 8, low_freq_factor 1, high_freq_factor 4, original_max_position_embeddings 256, rope_theta \
             50000, 14 dimensions in halves",
        ),
        (
            "llama-yarn",
            // 0.1 ln 4 + 1
            "yarn, factor 4, attention_factor 1.138629436111989, beta_fast 32, beta_slow 1, truncate true, \
             original_max_position_embeddings 4096, rope_theta 10000, 8 dimensions in halves",
        ),
    ] {
        assert_eq!(row(&check(fixture), "rope"), wanted, "{fixture}");
    }
}

#[test]
fn a_long_list_of_divisors_is_shown_by_its_ends() {
    let report = check("llama-longrope");
    let rope = row(&report, "rope");
    let wanted =
        ["short_factor [1, ..., 1.6] (6 values) up to 12 positions", "long_factor [1, ..., 7] (6 values) beyond"];
    assert_says(rope, &wanted);
    assert_says(row(&check("mistral-longrope"), "rope"), &["short_factor [1, 1.1, 1.3, 1.5] up to 10 positions"]);
    let long: Vec<f64> = (0..64).map(|i| 1.0 + f64::from(i) / 8.0).collect();
    let copy = Copy::of("qwen3-head-dim-default").config(|map| {
        map.remove("rope_theta");
        let scaling = json!({"rope_type": "longrope", "short_factor": long, "long_factor": long, "factor": 4.0});
        map.insert("rope_scaling".into(), scaling);
    });
    let (code, report, _) = outcome(copy.check(""));
    assert_eq!(code, 0, "{report}");
    assert_says(row(&report, "rope"), &["[1, ..., 8.875] (64 values)"]);
    assert!(report.lines().all(|line| line.len() < 300), "{report}");
}

#[test]
fn the_census_counts_by_dtype() {
    let report = check("llama-bias-llama3");
    let census: Vec<&str> = report.lines().filter(|line| line.starts_with("tensors ")).collect();
    assert_eq!(census.len(), 3, "{report}");
    for (line, dtype) in census.iter().zip([" BF16, ", " F16, ", " F32, "]) {
        assert!(line.contains(dtype) && line.contains(" elements, "), "{report}");
    }
    assert!(row(&report, "files").starts_with("6, "), "{report}");
    // vocabulary 61, hidden 24, intermediate 38, 4 heads and 2 KV heads of 6: two embeddings, a norm, two layers.
    let parameters = 2 * 61 * 24 + 24 + 2 * (2 * 24 + 2 * 24 * 24 + 2 * 12 * 24 + 3 * 38 * 24);
    let report = check("llama-plain");
    assert_eq!(row(&report, "parameters"), parameters.to_string());
    assert_eq!(row(&report, "tensors"), format!("21 F32, {parameters} elements, 46.78 KiB"));
    assert_eq!(row(&report, "files"), "1, 48.83 KiB (50000 bytes)");
}

#[test]
fn the_json_report_has_its_documented_keys() {
    let (code, stdout, stderr) = outcome(words("check fixtures/qwen3-window-llama3 --format json"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let report: Value = serde_json::from_str(&stdout).unwrap();
    let keys: Vec<&String> = report.as_object().unwrap().keys().collect();
    let expected = [
        "checkpoint",
        "ok",
        "pack",
        "because",
        "plan_sha256",
        "config_sha256",
        "parameters",
        "census",
        "formats",
        "files",
        "ignored_tensors",
        "allowed_unused",
        "notes",
        "problems",
        "plan",
    ];
    assert_eq!(keys, expected);
    assert_eq!(report["checkpoint"], "fixtures/qwen3-window-llama3");
    assert_eq!((&report["ok"], &report["pack"]), (&json!(true), &json!("qwen3")));
    assert_eq!(report["problems"], json!([]));
    assert_eq!(report["census"].as_object().unwrap().keys().collect::<Vec<_>>(), ["F16"]);
    let path = Path::new("fixtures/qwen3-window-llama3").join("model.safetensors");
    assert_eq!(report["files"][0]["path"], path.display().to_string());
    let plan = &report["plan"];
    assert_eq!((&plan["vocab_size"], &plan["ropes"][0]["rope_type"]), (&json!(55), &json!("llama3")));
    let windows: Vec<&Value> =
        plan["layers"].as_array().unwrap().iter().map(|l| &l["mixer"]["attention"]["sliding_window"]).collect();
    assert!(windows.contains(&&json!(6)) && windows.contains(&&Value::Null), "{windows:?}");
}

#[test]
fn the_json_report_of_a_refused_checkpoint_lists_the_problems_with_codes() {
    let copy = Copy::of("llama-plain").set("foo", json!(1)).set("hidden_act", json!("tanh"));
    let (code, stdout, _) = outcome(copy.check("--format json"));
    assert_eq!(code, 2);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["ok"], json!(false));
    let codes: Vec<&Value> = report["problems"].as_array().unwrap().iter().map(|p| &p["code"]).collect();
    assert_eq!(codes, [&json!("activation"), &json!("config-unknown-key")]);
    assert!(report["problems"][1]["place"].as_str().unwrap().ends_with("config.json, key `foo`"));
    // Nothing could be opened: the report is still one.
    let (code, stdout, _) = outcome(words("check no/such/folder --format json"));
    assert_eq!(code, 2);
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((&report["ok"], &report["plan"]), (&json!(false), &Value::Null));
    assert_eq!(report["problems"][0]["code"], "folder-missing");
}

#[test]
fn a_check_reads_headers_alone() {
    // Cut within the data and restored to its length with a hole: what a weight is plays no part.
    let copy = Copy::of("llama-plain");
    let path = copy.file("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    file.set_len(header).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let (code, stdout, _) = outcome(copy.check(""));
    assert_eq!(code, 0);
    let without_path = |text: &str| text.split_once('\n').unwrap().1.to_owned();
    assert_eq!(without_path(&stdout), without_path(&check("llama-plain")));
}

#[test]
fn equal_configs_have_equal_plans_whatever_their_spelling() {
    let plan = |copy: &Copy| row(&outcome(copy.check("")).1, "plan sha256").to_owned();
    let modern = plan(&Copy::of("llama-plain"));
    let legacy = Copy::of("llama-plain").config(|map| {
        map.remove("rope_parameters");
        map.insert("rope_theta".into(), json!(10000));
    });
    assert_eq!(plan(&legacy), modern);
    assert_ne!(plan(&legacy.set("rope_theta", json!(10001))), modern);
    assert_ne!(plan(&Copy::of("llama-plain").set("rms_norm_eps", json!(1e-6))), modern);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let binary = assert_cmd::cargo::cargo_bin("oracle");
    for line in [
        "check fixtures/llama-plain",
        "check fixtures/llama-plain --format json",
        "run fixtures/llama-plain 1 2",
        "packs",
        "--generate man",
        "--help",
    ] {
        let mut command = std::process::Command::new(&binary);
        command.args(line.split(' ')).current_dir(root(".")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{line}: {stderr}");
        assert!(!stderr.contains("ipe") && !stderr.contains("panicked"), "{line}: {stderr}");
    }
}

#[test]
fn messages_that_nobody_reads_change_no_exit_code() {
    let binary = assert_cmd::cargo::cargo_bin("oracle");
    for (line, code) in [("run fixtures/llama-plain 1 2 --top 3", 0), ("run fixtures/llama-plain 99", 2)] {
        let mut command = std::process::Command::new(&binary);
        command.args(line.split(' ')).current_dir(root(".")).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stderr.take());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{line}");
    }
}
