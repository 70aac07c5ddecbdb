//! GGUF files through the binary: the twins that scripts/make_gguf_fixtures.py wrote are the plan and the bits of their
//! folders, and what can't be read is refused by name.

mod common;

use checkpoint_oracle::checkpoint::Source;
use checkpoint_oracle::model::{Pack, close_books, open};
use common::{Copy, fixture, oracle, outcome, read};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const TOKENS: [&str; 9] = ["1", "5", "9", "20", "7", "3", "11", "2", "30"];

fn gguf(name: &str) -> PathBuf {
    fixture("gguf").join(name)
}

struct Twin {
    file: String,
    folder: String,
    set: serde_json::Map<String, Value>,
}

fn twins() -> Vec<Twin> {
    let text = fs::read_to_string(gguf("twins.json")).expect("scripts/make_gguf_fixtures.py wrote it");
    let list: Vec<Value> = serde_json::from_str(&text).expect("a list");
    let text = |twin: &Value, key: &str| twin[key].as_str().expect("a text").to_owned();
    let twin = |twin: &Value| Twin {
        file: text(twin, "file"),
        folder: text(twin, "folder"),
        set: twin["set"].as_object().expect("an object").clone(),
    };
    list.iter().map(twin).collect()
}

/// The bits of the logits of a run.
#[track_caller]
fn bits(checkpoint: &Path, words: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.tsv");
    let mut command = oracle();
    command.arg("run").arg(checkpoint).args(TOKENS).args(words).arg("-o").arg(&out);
    let (code, _, stderr) = outcome(command);
    assert_eq!(code, 0, "{}: {stderr}", checkpoint.display());
    let file = read(&out);
    (0..file.vocab()).map(|i| file.logits.hex(i)).collect()
}

fn check(checkpoint: &Path) -> (i32, Value) {
    let mut command = oracle();
    command.arg("check").arg(checkpoint).args(["--format", "json"]);
    let (code, stdout, stderr) = outcome(command);
    let report = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    (code, report)
}

/// Every name of a twin's folder is the first that its pack knows, but for these: old spellings, and the language models of
/// folders of several models.
const OTHER_NAMES: [&str; 8] = [
    "qwen3-plain.gguf",
    "gpt2-plain.gguf",
    "falcon-new.gguf",
    "qwen3_vl-published.gguf",
    "qwen3_5-dense.gguf",
    "qwen3_vl_moe-layer.gguf",
    "mistral3-mistral.gguf",
    "granitemoehybrid-attention.gguf",
];

#[test]
fn a_twin_is_the_plan_and_the_bits_of_its_folder() {
    let twins = twins();
    assert!(twins.len() >= 30, "{}", twins.len());
    for Twin { file, folder, set } in twins {
        let copy = Copy::of(&folder);
        // A config may hold Python's infinity, which can't be written anew.
        let copy = if set.is_empty() { copy } else { copy.config(|config| config.extend(set)) };
        let path = gguf(&file);
        let (report, of_folder) = (check(&path), check(&copy.path()));
        assert_eq!((report.0, of_folder.0), (0, 0), "{file}: {:#}", report.1["problems"]);
        if OTHER_NAMES.contains(&file.as_str()) {
            assert_ne!(report.1["plan_sha256"], of_folder.1["plan_sha256"], "{file} has become alike");
        } else {
            assert_eq!(report.1["plan_sha256"], of_folder.1["plan_sha256"], "{file}");
        }
        assert_eq!(bits(&path, &[]), bits(&copy.path(), &[]), "{file}");
    }
}

#[test]
fn every_pack_that_reads_gguf_files_has_a_twin() {
    let packs = Pack::embedded();
    let answered: Vec<String> = twins()
        .iter()
        .map(|twin| {
            let opened = open(&gguf(&twin.file), packs);
            let (config, source) = (opened.config.expect("a config"), opened.source.expect("weights"));
            let books = close_books(&config, source.as_ref(), &opened.unavailable, packs, &[]);
            books.pack.expect("a pack").0.name
        })
        .collect();
    for pack in packs.iter().filter(|pack| pack.gguf.is_some()) {
        assert!(answered.contains(&pack.name), "no twin is read by pack {}", pack.name);
    }
}

#[test]
fn blocks_are_the_bits_of_their_values() {
    // Q8_0 and Q4_0, permuted rows among them, at an alignment of 8; and the values that gguf-py makes of them.
    let blocks = bits(&gguf("granite-blocks.gguf"), &[]);
    assert_eq!(blocks, bits(&gguf("granite-dequantised.gguf"), &[]));
    assert_ne!(blocks, bits(&gguf("granite-plain.gguf"), &[]));
    let truth = bits(&gguf("granite-blocks.gguf"), &["--numeric", "f64"]);
    assert_eq!(truth, bits(&gguf("granite-dequantised.gguf"), &["--numeric", "f64"]));
}

#[test]
fn a_file_says_in_which_formats_it_stores_weights() {
    let dtype = |path: &Path| {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("out.tsv");
        let mut command = oracle();
        command.arg("run").arg(path).arg("1").arg("-o").arg(&out);
        assert_eq!(outcome(command).0, 0);
        read(&out).receipt("weights_dtype").map(str::to_owned)
    };
    assert_eq!(dtype(&gguf("granite-blocks.gguf")).as_deref(), Some("Q4_0:15,F32:10,Q8_0:4"));
    assert_eq!(dtype(&gguf("llama-plain.gguf")).as_deref(), Some("F32:21"));
    // As stored: five experts are one tensor in the file.
    assert_eq!(dtype(&gguf("mixtral-experts.gguf")).as_deref(), Some("F32:33"));
    assert_eq!(dtype(&fixture("qwen2-plain")).as_deref(), Some("BF16:26"));
    assert_eq!(dtype(&fixture("llama-bias-llama3")).as_deref(), Some("BF16:17,F32:17,F16:16"));
}

#[test]
fn a_tensor_is_the_same_in_pieces_of_any_size() {
    for file in [
        "granite-blocks.gguf",
        "gemma2-softcap.gguf",
        "mixtral-experts.gguf",
        "granitemoe-plain.gguf",
        "gpt_oss-mxfp4.gguf",
        "qwen3_5-turns.gguf",
    ] {
        let source = open(&gguf(file), Pack::embedded()).source.expect("weights");
        for info in source.tensors().values() {
            let whole = source.read(info, 0..info.len).expect("it can be read");
            for size in [1, 7, 100] {
                let starts = (0..info.len).step_by(size as usize);
                let pieces = starts.map(|at| source.read(info, at..(at + size).min(info.len)).expect("it can be read"));
                let pieces: Vec<u8> = pieces.flatten().collect();
                assert_eq!(pieces, whole, "{file}, {}", info.name);
            }
            assert!(source.read(info, 0..info.len + 1).is_err());
        }
    }
}

#[test]
fn a_folder_of_one_model_is_that_model() {
    let folder = tempfile::tempdir().expect("a folder");
    for part in 1..=3 {
        let name = format!("llama-split-{part:05}-of-00003.gguf");
        fs::copy(gguf(&name), folder.path().join(&name)).expect("a copy");
    }
    assert_eq!(bits(folder.path(), &[]), bits(&gguf("llama-plain.gguf"), &[]));
    let (_, report) = check(folder.path());
    assert_eq!(report["files"].as_array().map(Vec::len), Some(3));
    fs::copy(gguf("qwen2-plain.gguf"), folder.path().join("other.gguf")).expect("a copy");
    let (code, report) = check(folder.path());
    assert_eq!((code, report["problems"][0]["code"].as_str()), (2, Some("gguf-several")));
    // A blob without the ending, as Ollama keeps them.
    let blob = folder.path().join("sha256-1234");
    fs::copy(gguf("llama-plain.gguf"), &blob).expect("a copy");
    assert_eq!(bits(&blob, &[]), bits(&gguf("llama-plain.gguf"), &[]));
}

/// A file whose bytes `from`, which are there once, become `to`, of the same length.
fn changed(file: &str, changes: &[(&[u8], &[u8])]) -> (tempfile::TempDir, PathBuf) {
    let mut bytes = fs::read(gguf(file)).expect("it is there");
    for (from, to) in changes {
        assert_eq!(from.len(), to.len());
        let places: Vec<usize> = (0..bytes.len() - from.len()).filter(|&i| bytes[i..].starts_with(from)).collect();
        assert_eq!(places.len(), 1, "{}", String::from_utf8_lossy(from));
        bytes[places[0]..places[0] + from.len()].copy_from_slice(to);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    fs::write(&path, bytes).expect("a file");
    (folder, path)
}

#[track_caller]
fn refused(file: &str, changes: &[(&[u8], &[u8])], words: &[&str]) {
    let (_folder, path) = changed(file, changes);
    let mut command = oracle();
    command.arg("run").arg(&path).args(TOKENS);
    let (code, stdout, stderr) = outcome(command);
    assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
    common::assert_says(&stderr, &[&["m.gguf"], words].concat());
    assert_eq!(check(&path).0, 2);
}

#[test]
fn a_key_that_nothing_reads_is_refused_by_its_own_name() {
    let key = b"llama.attention.head_count_kv";
    let other = b"llama.attention.head_count_xy";
    refused("llama-plain.gguf", &[(key, other)], &["key `llama.attention.head_count_xy`", "unknown key (value 2)"]);
    let (_folder, path) = changed("llama-plain.gguf", &[(b"llama.context_length", b"llama.somethingelse1")]);
    let mut command = oracle();
    command.arg("check").arg(&path).args(["--allow-unused", "llama.somethingelse1"]);
    let (code, stdout, _) = outcome(command);
    assert_eq!(code, 0, "{stdout}");
}

#[test]
fn a_tensor_that_nothing_uses_is_refused_by_its_own_name() {
    refused(
        "llama-plain.gguf",
        &[(b"blk.1.attn_k.weight", b"blk.1.attn_x.weight")],
        &["tensor `blk.1.attn_x.weight`: surplus", "tensor `model.layers.1.self_attn.k_proj.weight`: missing"],
    );
}

#[test]
fn a_value_of_no_sense_is_refused_by_both_names() {
    let eps = |n: f32| [b"llama.attention.layer_norm_rms_epsilon\x06\0\0\0".as_slice(), &n.to_le_bytes()].concat();
    for (n, found) in [(-1.0, "found -1.0"), (f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
        refused(
            "llama-plain.gguf",
            &[(&eps(1e-5), &eps(n))],
            &["key `rms_norm_eps` (`llama.attention.layer_norm_rms_epsilon` in the file)", found],
        );
    }
}

#[test]
fn a_family_without_a_pack_is_refused_by_name() {
    let name = |name: &[u8; 5]| [b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0".as_slice(), name].concat();
    refused(
        "llama-plain.gguf",
        &[(&name(b"llama"), &name(b"rwkv6"))],
        &["no pack answers for `rwkv6`", "llama", "qwen3moe"],
    );
}

#[test]
fn a_family_whose_files_lack_something_is_refused_by_a_sentence() {
    let name = |name: &[u8; 6]| [b"general.architecture\x08\0\0\0\x06\0\0\0\0\0\0\0".as_slice(), name].concat();
    refused(
        "gemma2-softcap.gguf",
        &[(&name(b"gemma2"), &name(b"bitnet"))],
        &["`bitnet`", "lose that activations are rounded"],
    );
}

#[test]
fn a_part_of_a_tensor_is_not_the_tensor() {
    let renamed = |file: &str, from: &str, to: &str, words: &[&str]| {
        let (from, to) = (from.as_bytes(), to.as_bytes());
        refused(file, &[(from, to)], words);
    };
    renamed(
        "deepseek_v3-mtp.gguf",
        "blk.1.attn_k_b.weight",
        "blk.1.attn_x_b.weight",
        &[
            "tensor `model.layers.1.self_attn.kv_b_proj.weight`",
            "attn_k_b [heads, rank, key] and attn_v_b",
            "blk.1.attn_v_b",
        ],
    );
    renamed(
        "gpt_oss-yarn.gguf",
        "blk.0.ffn_up_exps.weight",
        "blk.0.ffn_xx_exps.weight",
        &[
            "ffn_gate_exps and ffn_up_exps of one storage type and shape",
            "found `blk.0.ffn_gate_exps.weight` (F32 [5, 14, 26])",
        ],
    );
    renamed(
        "qwen3_next-published.gguf",
        "blk.0.attn_gate.weight",
        "blk.0.attn_xxxx.weight",
        &["attn_qkv and attn_gate of one storage type", "found `blk.0.attn_qkv.weight`"],
    );
}

#[test]
fn numbers_of_heads_that_can_not_be_are_refused() {
    let key = |key: &str, n: u8| [key.as_bytes(), b"\x04\0\0\0", &[n, 0, 0, 0]].concat();
    let groups = |n| key("qwen35.ssm.group_count", n);
    refused("qwen3_5-turns.gguf", &[(&groups(2), &groups(0))], &["ssm.group_count"]);
    refused(
        "qwen3_5-turns.gguf",
        &[(&groups(2), &groups(4))],
        &["expected ssm.time_step_rank to be a multiple of ssm.group_count, found "],
    );
    let heads = |n| key("gptneox.attention.head_count", n);
    refused(
        "gpt_neox-parallel.gguf",
        &[(&heads(5), &heads(7))],
        &["blk.0.attn_qkv", "whole groups of heads, found 120 rows"],
    );
}

#[test]
fn an_order_that_is_not_undone_gives_other_bits() {
    // Three key heads of two value heads, for two of three: the same rows, in another order.
    let key = |n: u8| [b"qwen35.ssm.group_count\x04\0\0\0".as_slice(), &[n, 0, 0, 0]].concat();
    let source = |path: &Path| open(path, Pack::embedded()).source.expect("weights");
    let (_folder, other) = changed("qwen3_5-turns.gguf", &[(&key(2), &key(3))]);
    let (right, wrong) = (source(&gguf("qwen3_5-turns.gguf")), source(&other));
    let read = |source: &dyn Source, name: &str| {
        let info = &source.tensors()[name];
        source.read(info, 0..info.len).expect("it can be read")
    };
    for name in ["in_proj_z.weight", "in_proj_a.weight", "out_proj.weight", "A_log", "dt_bias", "conv1d.weight"] {
        let name = format!("model.layers.0.linear_attn.{name}");
        assert_ne!(read(right.as_ref(), &name), read(wrong.as_ref(), &name), "{name}");
    }
    let name = "model.layers.0.linear_attn.norm.weight";
    assert_eq!(read(right.as_ref(), name), read(wrong.as_ref(), name));
}

#[test]
fn a_file_without_groups_of_experts_says_so() {
    let key = |name: &[u8; 11]| [b"deepseek2.expert_".as_slice(), name].concat();
    let (_folder, path) =
        changed("deepseek_v3-mtp.gguf", &[(&key(b"group_count"), &key(b"somewhatelse".first_chunk().unwrap()))]);
    let mut command = oracle();
    command.arg("check").arg(&path).args(["--format", "json", "--allow-unused", "deepseek2.expert_somewhatels"]);
    let (_, stdout, _) = outcome(command);
    let report: Value = serde_json::from_str(&stdout).expect("a report");
    assert!(report["notes"].as_array().expect("a list").iter().any(|note| note["code"] == "gguf-groups"), "{report:#}");
    let (_, report) = check(&gguf("deepseek_v3-mtp.gguf"));
    assert_eq!(report["notes"].as_array().map_or(0, Vec::len), 0, "{report:#}");
}

#[test]
fn a_constant_of_the_family_can_not_be_another() {
    // MiniMax-M2's router takes a sigmoid.
    let gating = |n: u8| [b"minimax-m2.expert_gating_func\x04\0\0\0".as_slice(), &[n, 0, 0, 0]].concat();
    refused(
        "minimax_m2-partial.gguf",
        &[(&gating(2), &gating(1))],
        &["minimax-m2.expert_gating_func", "sigmoid", "as in every model of this family", "found 1"],
    );
    refused("minimax_m2-partial.gguf", &[(&gating(2), &gating(9))], &["minimax-m2.expert_gating_func", "found 9"]);
    // Granite without RoPE.
    let rope = |on: u8| [b"granite.rope.scaling.finetuned\x07\0\0\0".as_slice(), &[on]].concat();
    refused(
        "granitemoehybrid-attention.gguf",
        &[(&rope(1), &rope(0))],
        &["granite.rope.scaling.finetuned", "value false"],
    );
}

#[test]
fn a_damaged_container_is_told_and_nothing_else() {
    let mut bytes = fs::read(gguf("llama-plain.gguf")).expect("it is there");
    bytes.truncate(bytes.len() - 100);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    fs::write(&path, bytes).expect("a file");
    let (code, report) = check(&path);
    let problems = report["problems"].as_array().expect("a list");
    assert_eq!((code, problems.len(), problems[0]["code"].as_str()), (2, 1, Some("gguf-truncated")));
}

#[test]
fn rows_beyond_the_last_token_are_not_used() {
    // One token less than rows: the array of tokens says 60, and the last of them is now the value of another key.
    let path = gguf("llama-plain.gguf");
    let (_, whole) = check(&path);
    assert_eq!(whole["plan"]["vocab_size"], 61);
    let tokens = |n: u8| [b"tokenizer.ggml.tokens\x09\0\0\0\x08\0\0\0".as_slice(), &[n, 0, 0, 0, 0, 0, 0, 0]].concat();
    let types = b"tokenizer.ggml.token_type";
    // The last token, `<60>`, and the key behind it become one key of that name's length, an array as before.
    let last = [b"\x04\0\0\0\0\0\0\0<60>".as_slice(), &(types.len() as u64).to_le_bytes(), types].concat();
    let mut key = ((last.len() - 8) as u64).to_le_bytes().to_vec();
    key.extend(b"tokenizer.");
    key.resize(last.len(), b'x');
    let (_folder, path) = changed("llama-plain.gguf", &[(&tokens(61), &tokens(60)), (&last, &key)]);
    let (code, report) = check(&path);
    assert_eq!(code, 0, "{:#}", report["problems"]);
    assert_eq!(report["plan"]["vocab_size"], 60);
    assert_eq!(report["notes"][0]["code"], "gguf-padded");
    assert_eq!(bits(&path, &[]), bits(&gguf("llama-plain.gguf"), &[])[..60]);
    refused("llama-plain.gguf", &[(&tokens(61), &tokens(60))], &["gguf"]);
}

#[test]
fn an_output_that_is_the_model_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    fs::copy(gguf("llama-plain.gguf"), &path).expect("a copy");
    let mut command = oracle();
    command.arg("run").arg(&path).arg("1").arg("-o").arg(&path);
    let (code, _, stderr) = outcome(command);
    assert_eq!(code, 2);
    common::assert_says(&stderr, &["m.gguf", "is one of the files that this run reads"]);
}

/// Real files, where they lie: those of docs/real-models.md, with the five best logits that transformers computes in
/// float32 from the dequantised weights.
#[test]
fn real_files_have_the_logits_of_their_folders() {
    type Real = (&'static str, [(usize, f64); 5], &'static str);
    const REAL: [Real; 2] = [
        (
            "ORACLE_SMOLLM2_GGUF",
            [(260, 22.6430), (216, 22.2302), (638, 21.1582), (253, 21.0102), (2412, 20.5024)],
            "Q4_1:210,F32:61,Q8_0:1",
        ),
        (
            "ORACLE_GEMMA3_GGUF",
            [(506, 19.0915), (496, 18.5476), (9079, 18.2686), (886, 18.1130), (3224, 17.7839)],
            "F32:109,Q5_0:81,Q4_K:27,Q8_0:10,Q6_K:9",
        ),
    ];
    for (variable, expected, dtypes) in REAL {
        let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
            eprintln!("skipped: set {variable} to the file");
            continue;
        };
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("out.tsv");
        let mut command = oracle();
        command.arg("run").arg(path).args(["2", "818", "5279", "529", "7001", "563", "-o"]).arg(&out);
        let (code, _, stderr) = outcome(command);
        assert_eq!(code, 0, "{stderr}");
        let file = read(&out);
        let logits = file.logits.to_f64();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        for (&found, (index, logit)) in order.iter().zip(expected) {
            assert_eq!(found, index);
            assert!((logits[found] - logit).abs() < 2e-4, "{found}: {}", logits[found]);
        }
        assert_eq!(file.receipt("weights_dtype"), Some(dtypes));
    }
}
