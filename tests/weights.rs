//! `oracle weights`: verdicts, exit codes, figures and reports, through the binary; and that weights are read in step, each
//! byte once.

mod common;

use assert_cmd::Command;
use checkpoint_oracle::checkpoint::{Counted, Dtype, MemorySource, Source, SourceFile, TensorInfo};
use checkpoint_oracle::exec::weights::{Block, RowReader};
use checkpoint_oracle::model::plan::{Part, Weight};
use checkpoint_oracle::model::{Pack, Plan, close_books, open, schema};
use checkpoint_oracle::oracle::verdict::{Gate, Verdict};
use checkpoint_oracle::oracle::weights::{Checkpoint, Finding, Options, WeightsComparison, compare};
use common::{Copy, assert_says, f32s, fixture, fixtures, load, oracle, outcome};
use safetensors::tensor::Dtype as StoredDtype;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn gguf(name: &str) -> PathBuf {
    fixture("gguf").join(name)
}

fn weights(a: &Path, b: &Path, words: &str) -> Command {
    let mut command = oracle();
    command.arg("weights").args([a, b]).args(words.split_whitespace());
    command
}

/// The JSON report, and the exit code.
#[track_caller]
fn report(a: &Path, b: &Path, words: &str) -> (i32, Value) {
    let (code, stdout, stderr) = outcome(weights(a, b, &format!("{words} --format json")));
    let report: Value = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    assert_eq!(report["exit_code"], code, "{stderr}");
    (code, report)
}

/// The entry of a weight.
#[track_caller]
fn weight<'r>(report: &'r Value, name: &str) -> &'r Value {
    let all = report["weights"].as_array().unwrap();
    all.iter().find(|weight| weight["name"] == name).unwrap_or_else(|| panic!("no {name} in {report:#}"))
}

fn names(report: &Value) -> Vec<&str> {
    report["weights"].as_array().unwrap().iter().map(|weight| weight["name"].as_str().unwrap()).collect()
}

fn codes(report: &Value) -> Vec<&str> {
    report["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[track_caller]
fn close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap_or_else(|| panic!("{value} instead of {expected}"));
    assert!((value - expected).abs() <= 1e-13 * expected.abs(), "{value} instead of {expected}");
}

/// In a copy of llama-minimal: [30, 30], called layer.1.o.
const O: &str = "model.layers.1.self_attn.o_proj.weight";

/// A copy of llama-minimal whose layer.1.o begins with `values` and then is all zero.
fn with_o(values: &[f32]) -> Copy {
    Copy::of("llama-minimal").tensors(|tensors| {
        let all = values.iter().copied().chain(std::iter::repeat(0.0)).take(900);
        tensors.insert(O.to_owned(), (StoredDtype::F32, vec![30, 30], f32s(all)));
    })
}

/// d = (0, 0.5, 0, -0.5, 0, ...), as the pair of tests/diff.rs.
fn hand() -> [Copy; 2] {
    [with_o(&[1.0, 2.0, 3.0, 4.0]), with_o(&[1.0, 2.5, 3.0, 3.5])]
}

#[test]
fn every_twin_holds_the_weights_of_its_folder() {
    let twins = fs::read_to_string(gguf("twins.json")).expect("scripts/make_gguf_fixtures.py wrote it");
    let twins: Vec<Value> = serde_json::from_str(&twins).expect("a list");
    assert!(twins.len() >= 30, "{}", twins.len());
    let mut within = Vec::new();
    for twin in &twins {
        let (file, folder) = (twin["file"].as_str().unwrap(), twin["folder"].as_str().unwrap());
        let (copy, set) = (Copy::of(folder), twin["set"].as_object().unwrap().clone());
        // A config with an infinity is no JSON, and is left as it is.
        let copy = if set.is_empty() { copy } else { copy.config(|config| config.extend(set)) };
        let (a, b) = (Opened::new(&copy.path()), Opened::new(&gguf(file)));
        let mut found = compared(&a, &b, Gate::Bits, 1 << 20);
        if found.verdict != Verdict::Identical {
            // ggml knows no negative zero of four bits; a logarithm is off by what its exponential, rounded, is relatively.
            let atol = if file == "gpt_oss-mxfp4.gguf" { 0.0 } else { f64::from(f32::EPSILON) / 2.0 };
            let off = found.weights.iter().filter(|weight| weight.finding != Finding::Identical);
            assert!(atol == 0.0 || off.into_iter().all(|weight| weight.name.ends_with("a_log")), "{file}");
            found = compared(&a, &b, Gate::Tolerance { atol, rtol: 0.0 }, 1 << 20);
            assert_eq!(found.verdict, Verdict::WithinTolerance, "{file}: {:?}", found.reasons);
            within.push(file);
        }
        assert!(found.plan.is_empty(), "{file}: {:?}", found.plan);
        assert_eq!(found.counts.weights, found.weights.len());
    }
    let expected = [
        "gpt_oss-mxfp4.gguf",
        "granitemoehybrid-moe.gguf",
        "granitemoehybrid-no-experts.gguf",
        "qwen3_next-published.gguf",
        "qwen3_5-dense.gguf",
        "qwen3_5_moe-experts.gguf",
        "kimi_linear-published.gguf",
    ];
    assert_eq!(within, expected);
}

#[test]
fn a_folder_and_its_file_are_identical_through_the_binary() {
    let (code, stdout, stderr) = outcome(weights(&fixture("llama-plain"), &gguf("llama-plain.gguf"), ""));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert!(stdout.starts_with("identical: 21 of 21 weights have the same bits\n"), "{stdout}");
    assert_says(&stdout, &["bit for bit", "the same apart from weights"]);
    assert!(!stdout.contains("layer.0.q"), "{stdout}");
}

#[test]
fn blocks_are_their_values_and_not_those_they_were_made_of() {
    let (blocks, values) = (gguf("granite-blocks.gguf"), gguf("granite-dequantised.gguf"));
    let (code, same) = report(&blocks, &values, "");
    assert_eq!((code, &same["counts"]["identical"]), (0, &json!(29)));
    assert_eq!(weight(&same, "layer.1.v")["reference"]["dtype"], "Q4_0");
    assert_eq!(weight(&same, "layer.1.v")["candidate"]["dtype"], "F32");

    let (code, other) = report(&gguf("granite-plain.gguf"), &blocks, "");
    assert_eq!((code, codes(&other)), (1, vec!["bits-differ"]));
    let mut last = f64::NEG_INFINITY;
    for weight in other["weights"].as_array().unwrap() {
        let metrics = &weight["metrics"];
        if weight["candidate"]["dtype"] == "F32" {
            assert_eq!(weight["finding"], "identical");
            continue;
        }
        // Four bits keep more than a tenth of the amplitude apart from noise, eight bits more than a hundredth.
        let snr = metrics["snr_db"].as_f64().expect("finite");
        let least = if weight["candidate"]["dtype"] == "Q4_0" { 15.0 } else { 35.0 };
        assert!((least..60.0).contains(&snr), "{weight:#}");
        assert!(snr >= last, "the worst comes first");
        last = snr;
        close(&metrics["nmse"], 10f64.powf(-snr / 10.0));
    }
    // As numpy has them, of what gguf-py decodes.
    for (name, max_abs, cosine, snr, equal) in [
        ("layer.1.v", 0.052490234375, 0.995_869_776_651_918, 20.835_490_728_341_114, 20),
        ("layer.2.v", 0.049072265625, 0.996_023_757_425_049_7, 20.967_949_194_154_18, 18),
    ] {
        let metrics = &weight(&other, name)["metrics"];
        assert_eq!((&metrics["max_abs"]["value"], &metrics["equal_bits"]), (&json!(max_abs), &json!(equal)));
        close(&metrics["cosine"], cosine);
        close(&metrics["snr_db"], snr);
    }
    let (_, stdout, _) = outcome(weights(&gguf("granite-plain.gguf"), &blocks, "-n 2"));
    assert_says(&stdout, &["F32 | Q4_0", "the worst 2 of 19 weights that are not identical"]);
}

/// As in tests/diff.rs: NMSE 0.5/30, cosine 29/sqrt(30 * 28.5); 10 log10(60) dB; RMSE sqrt(0.5/900).
#[test]
fn the_figures_are_those_computed_by_hand() {
    let [a, b] = hand();
    let (code, report) = report(&a.path(), &b.path(), "");
    assert_eq!((code, &report["verdict"]), (1, &json!("different")));
    assert_eq!(names(&report)[0], "layer.1.o", "the worst comes first");
    let found = weight(&report, "layer.1.o");
    assert_eq!(found["finding"], "different");
    assert_eq!(found["reference"], json!({"tensor": O, "dtype": "F32", "shape": [30, 30]}));
    let metrics = &found["metrics"];
    assert_eq!(
        (&metrics["elements"], &metrics["equal_bits"], &metrics["beyond"]),
        (&json!(900), &json!(898), &json!(2))
    );
    assert_eq!(metrics["max_abs"], json!({"index": 1, "value": 0.5}));
    assert_eq!(metrics["max_relative"], json!({"index": 1, "value": 0.25}));
    assert_eq!(metrics["zero_reference"], 0);
    close(&metrics["rmse"], (0.5f64 / 900.0).sqrt());
    close(&metrics["nmse"], 1.0 / 60.0);
    close(&metrics["cosine"], 29.0 / 855f64.sqrt());
    close(&metrics["snr_db"], 17.781_512_503_836_435);
    let worst = json!({
        "index": 1, "reference": 2.0, "candidate": 2.5, "reference_bits": "40000000", "candidate_bits": "40200000",
    });
    assert_eq!((&metrics["worst"], &metrics["first_beyond"]), (&worst, &worst));
    assert_eq!(report["counts"]["identical"], 20);
    let equal = &weight(&report, "layer.0.o")["metrics"];
    assert_eq!((&equal["cosine"], &equal["snr_db"], &equal["nmse"]), (&json!(1.0), &json!(null), &json!(0.0)));
    let (_, stdout, _) = outcome(weights(&a.path(), &b.path(), ""));
    assert_says(
        &stdout,
        &[
            "different: 20 of 21 weights have the same bits, the worst is layer.1.o (17.78 dB signal to noise)",
            "weight layer.1.o: 2 of 900 elements hold other bits, the first at [0, 1]: reference 2 (40000000), candidate 2.5",
            "0.2500000",
            "898 of 900",
            "F32 | F32",
        ],
    );
}

#[test]
fn a_tolerance_passes_at_its_bound_and_fails_below() {
    let [a, b] = hand();
    for (words, expected) in [
        ("--atol 0.5", 0),
        ("--atol 0.499", 1),
        ("--tolerance 0.5", 0),
        ("--tolerance 0.499", 1),
        ("--rtol 0.25", 0),
        ("--rtol 0.249", 1),
        // 0.1 + 0.2 * 2 and 0.1 + 0.2 * 4
        ("--atol 0.1 --rtol 0.2", 0),
        ("--atol 0.1 --rtol 0.199", 1),
    ] {
        let (code, report) = report(&a.path(), &b.path(), words);
        assert_eq!(code, expected, "{words}");
        let (verdict, codes_expected) =
            if expected == 0 { ("within-tolerance", vec![]) } else { ("different", vec!["beyond-tolerance"]) };
        assert_eq!((report["verdict"].as_str().unwrap(), codes(&report)), (verdict, codes_expected), "{words}");
        assert_eq!(weight(&report, "layer.1.o")["finding"], verdict);
        assert_eq!(report["gate"]["name"], "tolerance");
    }
    for wrong in ["--atol -1", "--rtol nan"] {
        assert_eq!(outcome(weights(&a.path(), &b.path(), wrong)).0, 2, "{wrong}");
    }
}

#[test]
fn zeros_have_an_angle_only_with_zeros() {
    let (zero, other) = (with_o(&[]), with_o(&[0.0, 2.0]));
    let (_, found) = report(&zero.path(), &other.path(), "");
    let metrics = &weight(&found, "layer.1.o")["metrics"];
    for absent in ["cosine", "nmse", "snr_db", "max_relative"] {
        assert_eq!(metrics[absent], Value::Null, "{absent}");
    }
    assert_eq!((&metrics["zero_reference"], &metrics["max_abs"]["value"]), (&json!(1), &json!(2.0)));
    assert_eq!(names(&found)[0], "layer.1.o");
    let (code, found) = report(&zero.path(), &zero.path(), "");
    assert_eq!((code, &weight(&found, "layer.1.o")["metrics"]["cosine"]), (0, &json!(1.0)));
    assert_eq!(found["hints"][0]["code"], "same-file");
}

#[test]
fn minus_zero_is_another_bit_but_within_any_tolerance() {
    let (a, b) = (with_o(&[0.0, 1.0]), with_o(&[-0.0, 1.0]));
    let (code, found) = report(&a.path(), &b.path(), "");
    assert_eq!((code, names(&found)[0]), (1, "layer.1.o"));
    assert_eq!(weight(&found, "layer.1.o")["metrics"]["worst"]["candidate_bits"], "80000000");
    let (code, found) = report(&a.path(), &b.path(), "--atol 0");
    assert_eq!((code, &found["verdict"]), (0, &json!("within-tolerance")));
}

#[test]
fn what_is_not_finite_never_passes_and_is_named() {
    let nan = with_o(&[1.0, 2.0, f32::NAN]);
    for (b, counts) in
        [(&nan, [1, 1]), (&with_o(&[1.0, 2.0, 3.0]), [1, 0]), (&with_o(&[9.0, 2.0, f32::INFINITY]), [1, 1])]
    {
        let (code, found) = report(&nan.path(), &b.path(), "--atol 1e30");
        assert_eq!((code, codes(&found), names(&found)[0]), (1, vec!["nonfinite"], "layer.1.o"));
        let metrics = &weight(&found, "layer.1.o")["metrics"];
        let expected = json!({"reference": counts[0], "candidate": counts[1], "first_index": 2});
        assert_eq!(metrics["nonfinite"], expected);
        assert!(!metrics["cosine"].is_null() && metrics["worst"]["index"] == 2);
    }
    let (_, stdout, _) = outcome(weights(&nan.path(), &nan.path(), ""));
    assert_says(&stdout, &["layer.1.o", "never passes: 1 in the reference, 1 in the candidate, the first at [0, 2]"]);
}

#[test]
fn one_element_that_was_changed_is_found_by_its_meaning() {
    // llama-plain has 4 heads of 6 columns. Row 2 i + half of a head in the file is row half * 3 + i of the folder's.
    let source = open(&gguf("llama-plain.gguf"), Pack::embedded()).source.expect("weights");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("changed.gguf");
    for (tensor, row, name, expected) in
        [("blk.1.attn_q.weight", 6 + 1, "layer.1.q", 6 + 3), ("blk.0.ffn_up.weight", 7, "layer.0.up", 7)]
    {
        let info = &source.stored()[tensor];
        let (cols, column) = (info.shape[1], 5);
        let mut bytes = fs::read(gguf("llama-plain.gguf")).expect("it is there");
        let at = info.offset as usize + 4 * (row * cols + column);
        bytes[at..at + 4].copy_from_slice(&7.0f32.to_le_bytes());
        fs::write(&path, bytes).expect("a file");
        let (code, found) = report(&fixture("llama-plain"), &path, "");
        assert_eq!((code, names(&found)[0], &found["counts"]["identical"]), (1, name, &json!(20)));
        let metrics = &weight(&found, name)["metrics"];
        assert_eq!(metrics["worst"]["index"], expected * cols + column);
        assert_eq!((&metrics["worst"]["candidate"], &metrics["beyond"]), (&json!(7.0), &json!(1)));
    }
}

#[test]
fn missing_and_surplus_weights_are_different_whatever_the_tolerance() {
    let short = Copy::of("llama-minimal")
        .set("num_hidden_layers", json!(1))
        .tensors(|tensors| tensors.retain(|name, _| !name.contains("layers.1.")));
    let whole = fixture("llama-minimal");
    for (a, b, finding, code_of) in
        [(&whole, &short.path(), "missing", "weight-missing"), (&short.path(), &whole, "surplus", "weight-surplus")]
    {
        let (code, found) = report(a, b, "--atol 100");
        assert_eq!((code, codes(&found)), (1, vec![code_of]));
        assert_eq!(names(&found)[0], "layer.1.mixer_norm");
        assert_eq!((&found["counts"][finding], &found["counts"]["identical"]), (&json!(9), &json!(12)));
        let entry = weight(&found, "layer.1.down");
        assert_eq!((&entry["finding"], &entry["metrics"]), (&json!(finding), &Value::Null));
        assert_eq!(entry["reference"].is_null(), finding == "surplus");
        assert_eq!(found["plan"][0]["key"], "layers");
    }
    let (_, stdout, _) = outcome(weights(&whole, &short.path(), ""));
    assert_says(&stdout, &["layer.1.mixer_norm is missing", "2 of them", "1 of them", "BF16 | none"]);
}

#[test]
fn another_shape_is_different_whatever_the_tolerance() {
    // A vocabulary that was padded by one row.
    let padded = Copy::of("llama-minimal").set("vocab_size", json!(54)).tensors(|tensors| {
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            let (_, shape, bytes) = tensors.get_mut(name).unwrap();
            shape[0] += 1;
            bytes.extend([0; 2 * 30]);
        }
    });
    let (code, found) = report(&fixture("llama-minimal"), &padded.path(), "--atol 100");
    assert_eq!((code, codes(&found)), (1, vec!["weight-shape"]));
    assert_eq!(names(&found)[..2], ["embed", "head"]);
    assert_eq!(weight(&found, "head")["candidate"]["shape"], json!([54, 30]));
    let keys: Vec<&Value> = found["plan"].as_array().unwrap().iter().map(|difference| &difference["key"]).collect();
    assert_eq!(keys, ["vocab_size"]);
    let (_, stdout, _) = outcome(weights(&fixture("llama-minimal"), &padded.path(), ""));
    assert_says(
        &stdout,
        &["embed has another shape", "has shape [53, 30]", "has [54, 30]", "BF16 [53, 30] | BF16 [54, 30]"],
    );
}

#[test]
fn a_difference_of_plans_is_shown_and_leaves_the_verdict_to_the_weights() {
    let other = Copy::of("llama-minimal").set("rope_theta", json!(20000.0)).set("rms_norm_eps", json!(1e-4));
    let (code, found) = report(&fixture("llama-minimal"), &other.path(), "");
    assert_eq!((code, &found["verdict"]), (0, &json!("identical")));
    let differences: BTreeMap<&str, &Value> =
        found["plan"].as_array().unwrap().iter().map(|d| (d["key"].as_str().unwrap(), d)).collect();
    assert_eq!(
        differences.keys().collect::<Vec<_>>(),
        [&"mixer_norm.eps", &"mlp_norm.eps", &"norm.eps", &"ropes.0.rope_theta"]
    );
    assert_eq!(differences["ropes.0.rope_theta"]["candidate"], 20000.0);
    assert_eq!(differences["mixer_norm.eps"]["layers"], json!([0, 1]));
    let (_, stdout, _) = outcome(weights(&fixture("llama-minimal"), &other.path(), ""));
    assert_says(&stdout, &["identical: 21 of 21", "differs in ", "mixer_norm.eps of layers 0-1", "ropes.0.rope_theta"]);
    let (_, found) = report(&fixture("llama-minimal"), &fixture("llama-minimal"), "");
    assert_eq!(found["plan"], json!([]));
}

#[test]
fn a_tied_head_is_the_stored_head_that_equals_the_embedding() {
    let tied = Copy::of("llama-minimal").set("tie_word_embeddings", json!(true)).tensors(|tensors| {
        tensors.remove("lm_head.weight");
    });
    let stored = Copy::of("llama-minimal").tensors(|tensors| {
        let embed = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), embed);
    });
    for (a, b) in [(&tied, &stored), (&stored, &tied)] {
        let (code, found) = report(&a.path(), &b.path(), "");
        assert_eq!((code, weight(&found, "head")["finding"].as_str()), (0, Some("identical")));
        assert_eq!(found["plan"][0]["key"], "head.tied");
    }
    let (code, found) = report(&tied.path(), &fixture("llama-minimal"), "");
    assert_eq!((code, names(&found)[0]), (1, "head"));
    assert_eq!(weight(&found, "head")["reference"]["tensor"], "model.embed_tokens.weight");
    let (_, found) = report(&tied.path(), &tied.path(), "");
    assert!(!names(&found).contains(&"head"), "it is the embedding on both sides");
}

/// Rows `range` of each of the experts' matrices, which lie one after the other.
fn rows_of(bytes: &[u8], expert: usize, rows: usize, row_bytes: usize, range: Range<usize>) -> Vec<u8> {
    let first = expert * rows * row_bytes;
    bytes[first + range.start * row_bytes..first + range.end * row_bytes].to_vec()
}

#[test]
fn experts_in_one_tensor_are_those_in_tensors_of_their_own() {
    let split = |spoil: bool| {
        Copy::of("mixtral-fused").tensors(|tensors| {
            for layer in 0..2 {
                let of = |name: &str| format!("model.layers.{layer}.mlp.experts.{name}");
                let (_, _, gate_up) = tensors.remove(&of("gate_up_proj")).unwrap();
                let (dtype, _, down) = tensors.remove(&of("down_proj")).unwrap();
                for e in 0..7 {
                    let mut put = |name: &str, shape: [usize; 2], bytes: Vec<u8>| {
                        let name = format!("model.layers.{layer}.block_sparse_moe.experts.{e}.{name}.weight");
                        tensors.insert(name, (dtype, shape.to_vec(), bytes));
                    };
                    put("w1", [14, 26], rows_of(&gate_up, e, 28, 52, 0..14));
                    put("w3", [14, 26], rows_of(&gate_up, e, 28, 52, 14..28));
                    let mut bytes = rows_of(&down, e, 26, 28, 0..26);
                    if spoil && (layer, e) == (1, 5) {
                        bytes[40..42].copy_from_slice(&[0, 0x3c]);
                    }
                    put("w2", [26, 14], bytes);
                }
            }
        })
    };
    let (code, found) = report(&fixture("mixtral-fused"), &split(false).path(), "");
    assert_eq!((code, &found["verdict"]), (0, &json!("identical")), "{:#}", found["reasons"]);
    assert!(names(&found).contains(&"layer.0.expert.6.up"));
    let (code, found) = report(&fixture("mixtral-fused"), &split(true).path(), "");
    assert_eq!((code, names(&found)[0]), (1, "layer.1.expert.5.down"));
    // Byte 40 is the first of element 20 of [26, 14].
    assert_eq!(weight(&found, "layer.1.expert.5.down")["metrics"]["worst"]["index"], 20);
}

#[test]
fn a_checkpoint_with_problems_is_refused_with_all_of_them() {
    let sound = fixture("llama-minimal");
    let broken = Copy::of("llama-minimal").set("something", json!(3)).tensors(|tensors| {
        tensors.remove(O);
    });
    let missing = sound.join("nothing");
    let (code, stdout, stderr) = outcome(weights(&missing, &broken.path(), ""));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert_says(&stderr, &["nothing", "2 problems", "something", "o_proj.weight"]);
    for (a, b) in [(&sound, &broken.path()), (&broken.path(), &sound)] {
        let (code, found) = report(a, b, "");
        assert_eq!((code, &found["verdict"], &found["weights"]), (2, &json!("refused"), &json!([])));
        let mut found = codes(&found);
        found.sort_unstable();
        assert_eq!(found, ["config-unknown-key", "tensor-missing"]);
    }
    assert_eq!(outcome(weights(&sound, &missing, "-q")), (2, String::new(), String::new()));
    assert_eq!(outcome(weights(&sound, &sound, "--pack nowhere.toml")).0, 2);
    let (code, stdout, _) = outcome(weights(&sound, &missing, "--format junit"));
    assert_eq!(code, 2);
    assert_says(&stdout, &["errors=\"1\"", "<error message=\"refused: "]);
}

#[test]
fn a_name_may_stay_unused_on_one_side() {
    let (sound, odd) = (fixture("llama-minimal"), Copy::of("llama-minimal").set("something", json!(3)));
    for (a, b) in [(&sound, &odd.path()), (&odd.path(), &sound)] {
        assert_eq!(outcome(weights(a, b, "-q")).0, 2);
        assert_eq!(outcome(weights(a, b, "-q --allow-unused something")), (0, String::new(), String::new()));
        let (code, _, stderr) = outcome(weights(a, b, "--allow-unused something --allow-unused somthing"));
        assert_eq!(code, 2);
        assert_says(&stderr, &["--allow-unused `somthing`"]);
    }
}

#[test]
fn a_pack_need_answer_for_one_side() {
    let text = fs::read_to_string(common::root("packs/llama.toml")).expect("it is there");
    let text = text.replace("name = \"llama\"", "name = \"acme\"").replace("[\"llama\"", "[\"acme\"");
    let acme = Copy::of("llama-minimal").set("model_type", json!("acme"));
    let words = format!("--pack {}", acme.beside("acme.toml", &text).display());
    let (sound, acme) = (fixture("llama-minimal"), acme.path());
    assert_eq!(outcome(weights(&sound, &acme, "-q")).0, 2);
    let (code, stdout, stderr) = outcome(weights(&sound, &acme, &words));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_says(&stdout, &["(llama, ", "(acme, "]);
    let (code, _, stderr) = outcome(weights(&sound, &gguf("llama-minimal.gguf"), &words));
    assert_eq!(code, 0);
    assert_says(&stderr, &["is not used: pack llama answers"]);
}

#[test]
fn a_file_that_is_cut_off_is_refused() {
    let cut = Copy::of("llama-minimal");
    let bytes = fs::read(cut.file("model.safetensors")).expect("it is there");
    fs::write(cut.file("model.safetensors"), &bytes[..bytes.len() - 10]).expect("a file");
    let (code, _, stderr) = outcome(weights(&fixture("llama-minimal"), &cut.path(), ""));
    assert_eq!(code, 2);
    assert_says(&stderr, &["model.safetensors"]);
}

#[test]
fn a_report_comes_in_the_formats_of_diff() {
    let [a, b] = hand();
    let (a, b) = (a.path(), b.path());
    let (code, stdout, _) = outcome(weights(&a, &b, "--format csv"));
    assert_eq!(code, 1);
    let mut reader = csv::Reader::from_reader(stdout.as_bytes());
    let header = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.unwrap()).collect();
    assert_eq!((rows.len(), &header[0], &rows[0][0]), (21, "weight", "layer.1.o"));
    let cell = |name: &str| &rows[0][header.iter().position(|known| known == name).unwrap()];
    assert_eq!([cell("finding"), cell("reference_dtype"), cell("candidate_shape")], ["different", "F32", "30x30"]);
    assert_eq!([cell("max_abs"), cell("max_abs_index"), cell("equal_bits")], ["0.5", "1", "898"]);
    assert!(cell("snr_db").starts_with("17.7815125038"), "{}", cell("snr_db"));

    let (code, stdout, _) = outcome(weights(&a, &b, "--format junit"));
    assert_eq!(code, 1);
    assert_says(&stdout, &["tests=\"1\" failures=\"1\" errors=\"0\"", "<failure message=\"different: 20 of 21"]);
    let (code, stdout, _) = outcome(weights(&a, &b, "--format junit --atol 1"));
    assert_eq!(code, 0);
    assert_says(&stdout, &["failures=\"0\"", "<system-out>within-tolerance: "]);
    let (_, stdout, _) = outcome(weights(&a, &b, "--format github"));
    assert!(stdout.starts_with("::error file="), "{stdout}");
    assert_says(&stdout, &["weight layer.1.o"]);
    assert_eq!(outcome(weights(&a, &b, "-q")), (1, String::new(), String::new()));
    let (_, found) = report(&a, &b, "");
    assert_eq!(found["report"], "oracle-weights-v1");
    for (side, path) in [("reference", &a), ("candidate", &b)] {
        assert_eq!((&found[side]["checkpoint"], &found[side]["pack"]), (&json!(path), &json!("llama")));
    }
}

/// A checkpoint whose books close.
struct Opened {
    plan: Plan,
    source: Arc<dyn Source>,
}

impl Opened {
    #[track_caller]
    fn new(path: &Path) -> Self {
        let opened = open(path, Pack::embedded());
        let (config, source) = (opened.config.expect("a config"), opened.source.expect("weights"));
        let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
        assert!(books.problems.is_empty(), "{}: {:?}", path.display(), books.problems);
        Self { plan: books.plan.expect("the books close"), source }
    }
}

fn compared(a: &Opened, b: &Opened, gate: Gate, piece_bytes: usize) -> WeightsComparison {
    fn side<'a>(name: &'a str, of: &'a Opened) -> Checkpoint<'a> {
        Checkpoint { name, pack: "", plan: &of.plan, source: of.source.as_ref() }
    }
    let (a, b) = (side("a", a), side("b", b));
    compare(a, b, Options { gate, piece_bytes, listed: 0 }).expect("both can be read")
}

#[test]
fn a_weight_that_cannot_be_read_is_no_verdict() {
    let sound = Opened::new(&fixture("llama-minimal"));
    let mut lacking: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)> = BTreeMap::new();
    for (name, info) in sound.source.tensors().iter().filter(|(name, _)| *name != O) {
        let bytes = sound.source.read(info, 0..info.len).expect("it can be read");
        lacking.insert(name.clone(), (info.dtype.clone(), info.shape.clone(), bytes));
    }
    let source = MemorySource::new(lacking).expect("it is sound");
    let a = Checkpoint { name: "a", pack: "", plan: &sound.plan, source: sound.source.as_ref() };
    let b = Checkpoint { name: "b", source: &source, ..a };
    let error = compare(a, b, Options { gate: Gate::Bits, piece_bytes: 1 << 20, listed: 0 }).expect_err("one is gone");
    assert_says(&format!("{error:#}"), &["b: ", O, "not in the checkpoint"]);
}

/// Another source that remembers the longest read.
struct Longest(Arc<dyn Source>, AtomicU64);

impl Source for Longest {
    fn tensors(&self) -> &BTreeMap<String, TensorInfo> {
        self.0.tensors()
    }

    fn files(&self) -> &[SourceFile] {
        self.0.files()
    }

    fn read_into<'a>(&'a self, info: &TensorInfo, range: Range<u64>, to: &'a mut Vec<u8>) -> anyhow::Result<&'a [u8]> {
        self.1.fetch_max(range.end - range.start, Ordering::Relaxed);
        self.0.read_into(info, range, to)
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

/// Columns of gate and up in turn, and four planes in one byte: each of the parts reads all of them.
fn read_again(name: &str) -> bool {
    name.starts_with("gpt_oss") || name == "bitnet-packed" || name == "bitnet-divisor"
}

/// Whether a pack may name this part, or the tensor that it lies in.
fn is_of_the_packs(part: &str) -> bool {
    let words: Vec<&str> = part.split('.').collect();
    match words[..] {
        ["layer", _, "expert", _, role] => schema::is_role(&format!("expert_{role}")),
        ["layer", _, role, "head", _] => schema::is_role(role),
        ["layer", _, "conv_in", "b" | "c" | "x" | "b_bias" | "c_bias" | "x_bias"] => true,
        ["layer", _, "mamba_in", "z" | "xbc" | "dt" | "z_bias" | "xbc_bias" | "dt_bias"] => true,
        ["layer", _, "attn_gate" | "attn_gate_bias"] => true,
        ["layer", _, role] => schema::is_role(role),
        [role] | [role, _] => schema::is_model_role(role),
        _ => false,
    }
}

#[test]
fn every_fixture_is_itself_and_each_byte_of_it_is_read_once() {
    const PIECE: usize = 512;
    let mut once = 0;
    for name in fixtures() {
        let (plan, source) = load(&name);
        let (mut used, mut parts, mut longest_row) = (BTreeSet::new(), BTreeSet::new(), 0);
        plan.each_part(&mut |part, weight| {
            assert!(is_of_the_packs(&part.to_string()), "{name}: {part} is no part that a pack can name");
            assert!(parts.insert(part.to_string()), "{name}: {part} twice");
            used.insert(weight.name.clone());
            longest_row = longest_row.max(weight.shape.iter().max().copied().unwrap_or(0) as u64 * 4);
        });
        let stored: u64 = used.iter().map(|tensor| source.tensors()[tensor].len).sum();
        let longest = Arc::new(Longest(source, AtomicU64::new(0)));
        let counted = Arc::new(Counted::new(Arc::clone(&longest) as Arc<dyn Source>));
        let watched = Opened { plan: plan.clone(), source: Arc::clone(&counted) as Arc<dyn Source> };
        let plain = Opened { plan, source: Arc::clone(&longest.0) };
        let found = compared(&plain, &watched, Gate::Bits, PIECE);
        assert_eq!((found.verdict, found.weights.len()), (Verdict::Identical, parts.len()), "{name}");
        let read = counted.read_bytes();
        if read_again(&name) {
            assert!(stored < read && read <= 4 * stored, "{name}: {read} bytes of {stored}");
        } else {
            assert_eq!(read, stored, "{name}");
            once += 1;
        }
        let longest = longest.1.load(Ordering::Relaxed);
        assert!(longest <= longest_row.max(PIECE as u64), "{name}: {longest} bytes in one read");
    }
    assert!(once >= 100, "{once}");
}

#[test]
fn no_figure_depends_on_the_pieces_or_on_threads() {
    let (a, b) = (Opened::new(&gguf("granite-plain.gguf")), Opened::new(&gguf("granite-blocks.gguf")));
    let whole = compared(&a, &b, Gate::Bits, 1 << 20);
    assert_eq!(whole.verdict, Verdict::Different);
    for (piece, threads) in [(1, 1), (100, 3), (4096, 2)] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert_eq!(pool.install(|| compared(&a, &b, Gate::Bits, piece)), whole, "{piece} bytes, {threads} threads");
    }
}

/// Reads all rows in pieces of `step`.
fn rows(source: &MemorySource, weight: &Weight, step: usize) -> Vec<Vec<f32>> {
    let reader = RowReader::new(source, weight).expect("it is there");
    let (mut block, mut all) = (Block::default(), Vec::new());
    for first in (0..reader.rows()).step_by(step) {
        let range = first..reader.rows().min(first + step);
        reader.read(range.clone(), &mut block).expect("it can be read");
        for r in 0..range.len() {
            let mut row = vec![f32::NAN; reader.cols()];
            block.row(r, &mut row);
            all.push(row);
        }
    }
    all
}

fn part(name: &str, shape: &[usize], part: Part) -> Weight {
    Weight { name: name.to_owned(), shape: shape.to_vec(), part: Some(Box::new(part)) }
}

#[test]
fn rows_come_in_the_plans_order_however_they_are_stored() {
    // t is [2 experts, 3 inputs, 8] and holds 0, 1, 2, ...; u is [8, 2]; p is [1, 3] bytes.
    let f32_of = |shape: &[usize]| {
        let count = shape.iter().product::<usize>() as u16;
        (Dtype::F32, shape.to_vec(), f32s((0..count).map(f32::from)))
    };
    // Of a byte the lowest two bits are the first plane, less one: 0b_10_01_00_10 is 1, -1, 0, 1.
    let packed = (Dtype::parse("U8"), vec![1, 3], vec![0b10_01_00_10, 0b00_00_00_00, 0b01_10_01_10]);
    let tensors = [("t", f32_of(&[2, 3, 8])), ("u", f32_of(&[8, 2])), ("v", f32_of(&[8])), ("p", packed)];
    let source = MemorySource::new(tensors.into_iter().map(|(name, t)| (name.to_owned(), t)).collect()).unwrap();
    let lie = |stored: &[usize], base, first, block, stride, transposed, packed| Part {
        stored: stored.to_vec(),
        base,
        first,
        block,
        stride,
        transposed,
        packed,
    };
    // Outputs 1 2 5 6 of the second expert: columns of rows 3 to 5.
    let columns = part("t", &[4, 3], lie(&[2, 3, 8], 3, 1, 2, 4, true, false));
    let expected: Vec<Vec<f32>> =
        [1.0, 2.0, 5.0, 6.0].map(|column| vec![24.0 + column, 32.0 + column, 40.0 + column]).to_vec();
    // Rows 1 2, 5 6.
    let blocks = part("u", &[4, 2], lie(&[8, 2], 0, 1, 2, 4, false, false));
    let of_rows: Vec<Vec<f32>> = [1.0, 2.0, 5.0, 6.0].map(|row| vec![2.0 * row, 2.0 * row + 1.0]).to_vec();
    let planes = part("p", &[4, 3], lie(&[1, 3], 0, 0, 4, 4, false, true));
    let of_planes = vec![vec![1.0, -1.0, 1.0], vec![-1.0, -1.0, 0.0], vec![0.0, -1.0, 1.0], vec![1.0, -1.0, 0.0]];
    for step in 1..=4 {
        assert_eq!(rows(&source, &columns, step), expected, "columns, {step}");
        assert_eq!(rows(&source, &blocks, step), of_rows, "rows, {step}");
        assert_eq!(rows(&source, &planes, step), of_planes, "planes, {step}");
    }
    let vector = part("v", &[3], lie(&[8], 0, 2, 1, 2, false, false));
    assert_eq!(rows(&source, &vector, 1), [[2.0, 4.0, 6.0]]);
    let along = part("u", &[2], lie(&[8, 2], 3, 0, 2, 2, true, false));
    assert_eq!(rows(&source, &along, 1), [[6.0, 7.0]]);
    assert!(RowReader::new(&source, &Weight::whole("w".to_owned(), &[8])).is_err());
}
