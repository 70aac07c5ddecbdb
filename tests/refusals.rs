//! What wrong input gets: exit code 2, a sentence that names the file and the thing, no output file, and an old one
//! left as it was.

mod common;

use checkpoint_oracle::model::{Pack, close_books};
use common::*;
use proptest::prelude::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::fs;

fn set(fixture: &str, key: &str, value: Value) -> Copy {
    Copy::of(fixture).set(key, value)
}

// The folder and its files.

#[test]
fn no_such_folder() {
    let copy = Copy::of("llama-plain");
    fs::remove_dir_all(copy.path()).unwrap();
    copy.assert_refused(&["ckpt: there is no such folder"]);
}

#[test]
fn a_file_in_place_of_the_folder() {
    let copy = Copy::of("llama-plain");
    fs::remove_dir_all(copy.path()).unwrap();
    fs::write(copy.path(), "").unwrap();
    copy.assert_refused(&["ckpt: expected a folder, found a file"]);
}

#[test]
fn a_folder_without_config() {
    let copy = Copy::of("llama-plain");
    fs::remove_file(copy.file("config.json")).unwrap();
    copy.assert_refused(&["ckpt: has no config.json", "`model.safetensors`"]);
}

#[test]
fn a_config_that_is_not_one_json_object() {
    let copy = Copy::of("llama-plain");
    let good = fs::read_to_string(copy.file("config.json")).unwrap();
    for (text, wanted) in [
        ("", "config.json: expected a JSON object, found nothing (0 bytes)"),
        (&good[..good.len() / 2], "it is cut off"),
        ("hello", "is not JSON"),
        ("[1]", "expected a JSON object, found an array"),
        ("{\"hidden_size\": NaN}", "`NaN`"),
        ("{\"hidden_size\": 1, \"hidden_size\": 2}", "`hidden_size` twice"),
    ] {
        fs::write(copy.file("config.json"), text).unwrap();
        copy.assert_refused(&["config.json", wanted]);
    }
    fs::write(copy.file("config.json"), good).unwrap();
    copy.assert_runs("1 2 3");
}

#[test]
fn no_weights() {
    let copy = Copy::of("llama-plain");
    fs::remove_file(copy.file("model.safetensors")).unwrap();
    copy.assert_refused(&["ckpt: has neither model.safetensors nor model.safetensors.index.json"]);
}

#[test]
fn a_file_of_weights_that_is_damaged() {
    let copy = Copy::of("llama-plain");
    let good = fs::read(copy.file("model.safetensors")).unwrap();
    let with_length = |length: u64| [&length.to_le_bytes()[..], &good[8..]].concat();
    for (bytes, wanted) in [
        (vec![], "found an empty file (0 bytes)"),
        (good[..good.len() - 1].to_vec(), "49999"),
        (with_length(u64::MAX), "header"),
        (with_length(good.len() as u64), "header"),
        (with_length(17), "header"),
        ([&good[..8], &vec![b'x'; good.len() - 8]].concat(), "header"),
    ] {
        fs::write(copy.file("model.safetensors"), bytes).unwrap();
        copy.assert_refused(&["model.safetensors", wanted]);
    }
    fs::write(copy.file("model.safetensors"), good).unwrap();
    copy.assert_runs("1 2 3");
}

#[test]
fn offsets_that_overlap_or_lead_out_of_the_file() {
    let copy = Copy::of("llama-plain");
    let good = fs::read(copy.file("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&good[8..8 + length]).unwrap();
    let [begin, end] = [0, 1].map(|i| header["model.norm.weight"]["data_offsets"][i].as_u64().unwrap());
    for (offsets, wanted) in [
        ([begin - 4, end - 4], "overlap"),
        ([begin + (1 << 40), end + (1 << 40)], "1099511"),
        ([end, begin], "expected"),
    ] {
        let mut header = header.clone();
        header["model.norm.weight"]["data_offsets"] = json!(offsets);
        let header = header.to_string();
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &good[8 + length..]].concat();
        fs::write(copy.file("model.safetensors"), bytes).unwrap();
        let (code, stdout, _) = outcome(copy.check(""));
        assert_eq!(code, 2);
        assert_says(&stdout, &["model.safetensors, tensor `model.norm.weight`", wanted]);
        assert!(!stdout.contains("missing"), "what is broken is not reported as missing besides:\n{stdout}");
        copy.assert_run_refused("1 2 3", &["model.safetensors", "`model.norm.weight`", wanted]);
    }
}

const SHARD: &str = "model-00003-of-00006.safetensors";

#[test]
fn a_shard_that_is_missing_empty_or_too_short() {
    let copy = Copy::of("llama-bias-llama3");
    let good = fs::read(copy.file(SHARD)).unwrap();
    fs::remove_file(copy.file(SHARD)).unwrap();
    copy.assert_refused(&[SHARD, "there is no such file", "the index places"]);
    fs::write(copy.file(SHARD), "").unwrap();
    copy.assert_refused(&[SHARD, "found an empty file (0 bytes)"]);
    fs::write(copy.file(SHARD), &good[..good.len() - 1]).unwrap();
    copy.assert_refused(&[SHARD, "11995"]);
    fs::write(copy.file(SHARD), good).unwrap();
    copy.assert_runs("1 2 3");
}

#[test]
fn names_that_are_none_of_the_packs() {
    let renamed = |fixture: &str, layers_too: bool| {
        Copy::of(fixture).tensors(|tensors| {
            let old: Vec<String> = tensors.keys().cloned().collect();
            for name in old.into_iter().filter(|name| layers_too || !name.contains(".layers.")) {
                if let Some(rest) = name.strip_prefix("model.") {
                    let stored = tensors.remove(&name).unwrap();
                    tensors.insert(format!("transformer.{rest}"), stored);
                }
            }
        })
    };
    renamed("llama-plain", true).assert_refused(&[
        "ckpt: no tensor has a name that the pack knows, under any of its prefixes (`model.`, none): ",
        "expected such as `model.embed_tokens.weight`, found such as `transformer.embed_tokens.weight`",
    ]);
    // Where some are known, each is named that isn't.
    renamed("llama-plain", false).assert_refused(&["4 problems", "tensor `model.norm.weight`: missing"]);
}

fn edit_index(copy: &Copy, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
    let path = copy.file("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
}

#[test]
fn an_index_that_names_a_file_or_a_tensor_that_is_not_there() {
    let copy = Copy::of("llama-bias-llama3");
    edit_index(&copy, |map| drop(map.insert("model.norm.weight".into(), "model-7.safetensors".into())));
    copy.assert_refused(&["model-7.safetensors: there is no such file"]);
    let copy = Copy::of("llama-bias-llama3");
    edit_index(&copy, |map| drop(map.insert("model.extra".into(), SHARD.into())));
    copy.assert_refused(&["model.safetensors.index.json, tensor `model.extra`", SHARD]);
    let copy = Copy::of("llama-bias-llama3");
    edit_index(&copy, |map| drop(map.insert("model.norm.weight".into(), "../../etc/passwd".into())));
    copy.assert_refused(&["`model.norm.weight`", "leads out of the folder"]);
}

#[test]
fn of_a_tensor_in_two_files_the_index_decides_and_the_copy_is_reported() {
    let copy = Copy::of("llama-bias-llama3");
    let before = copy.assert_runs("1 2 3");
    // The shard that holds the final norm, under another shard's name in the index, with other values.
    let index: Value = serde_json::from_slice(&fs::read(copy.file("model.safetensors.index.json")).unwrap()).unwrap();
    let owner = index["weight_map"]["model.norm.weight"].as_str().unwrap().to_owned();
    let mut bytes = fs::read(copy.file(&owner)).unwrap();
    *bytes.last_mut().unwrap() ^= 0x3f;
    fs::write(copy.file("model-copy.safetensors"), bytes).unwrap();
    let moved = "model.layers.0.input_layernorm.weight";
    edit_index(&copy, |map| {
        let here: Vec<String> = map.iter().filter(|(_, f)| **f == owner).map(|(name, _)| name.clone()).collect();
        assert!(!here.iter().any(|name| name == moved) && here.len() > 1);
        map.insert(here[0].clone(), "model-copy.safetensors".into());
    });
    let (code, stdout, _) = outcome(copy.check(""));
    assert_eq!(code, 0, "{stdout}");
    assert_says(
        &stdout,
        &["note: ", "model-copy.safetensors: holds copies of tensors that the index places elsewhere"],
    );
    let (_, _, stderr) = outcome(copy.run("1 2 3"));
    assert_says(&stderr, &["note: ", "the index decides"]);
    assert_eq!(read(&copy.out()).tokens, before.tokens);
}

// config.json: the family.

#[test]
fn an_unknown_model_type_lists_the_nearest_packs() {
    set("llama-plain", "model_type", json!("qwen4")).assert_refused(&[
        "config.json, key `model_type`: no pack answers for `qwen4`; the nearest are qwen",
        "oracle packs",
    ]);
    set("llama-plain", "model_type", json!("mistrel")).assert_refused(&["the nearest are mistral, "]);
    // Nothing is like it.
    set("llama-plain", "model_type", json!("acme"))
        .assert_refused(&["no pack answers for `acme` (oracle packs lists all)"]);
    set("llama-plain", "model_type", json!(7)).assert_refused(&["`model_type`: expected a text, found 7"]);
    set("llama-plain", "model_type", json!("a\u{1b}[2Jb")).assert_refused(&["`a\\u{1b}[2Jb`"]);
    let neither = Copy::of("llama-plain").config(|map| {
        map.remove("model_type");
        map.insert("architectures".into(), json!(["GPT5"]));
    });
    neither.assert_refused(&["config.json, key `model_type`: missing, and architectures names no known family"]);
}

#[test]
fn architectures_stand_in_for_the_model_type_and_must_not_contradict_it() {
    let by_architecture = Copy::of("llama-plain").config(|map| drop(map.remove("model_type")));
    by_architecture.assert_runs("1 2 3");
    let (_, stdout, _) = outcome(by_architecture.check(""));
    assert_says(&stdout, &["llama, because of architectures `LlamaForCausalLM`, as there is no model_type"]);
    set("llama-plain", "architectures", json!(["LlamaForSequenceClassification"])).assert_refused(&[
        "config.json, key `architectures`: `LlamaForSequenceClassification` is not a language model of this family",
    ]);
    set("llama-plain", "architectures", json!("LlamaForCausalLM")).set("foo", json!(1)).assert_refused(&[
        "2 problems",
        "config.json, key `architectures`: expected a list of texts, found \"LlamaForCausalLM\"",
        "`foo`",
    ]);
}

#[test]
fn an_unknown_key_that_could_change_the_numbers() {
    set("llama-plain", "logit_scale", json!(0.5)).assert_refused(&[
        "config.json, key `logit_scale`: unknown key (value 0.5): it could change the numbers",
        "--allow-unused",
    ]);
    set("llama-plain", "query_pre_attn_scalar", Value::Null).assert_refused(&["`query_pre_attn_scalar`"]);
    // A key of another family is as unknown as any: llama has no window.
    set("llama-plain", "sliding_window", json!(5)).assert_refused(&["`sliding_window`"]);
    set("llama-plain", "a\u{202e}b", json!("\u{1b}c\u{202e}")).assert_refused(&["`a\\u{202e}b`", "\\u{202e}"]);
    // A key near one that is not there is likely to be meant for it.
    for (key, meant) in
        [("rope_thta", "rope_theta"), ("rope_scalign", "rope_scaling"), ("sep_token_di", "sep_token_id")]
    {
        let sentence = format!("key `{key}`: unknown key (value 3): it could change the numbers");
        set("llama-plain", key, json!(3)).assert_refused(&[&sentence, &format!("(did you mean `{meant}`?)")]);
    }
    let copy = set("llama-plain", "headdim", json!(6)).config(|map| drop(map.remove("head_dim")));
    copy.assert_refused(&["`headdim`", "(did you mean `head_dim`?)"]);
    let copy = Copy::of("llama-linear-tied-stored").config(|map| {
        map["rope_scaling"].as_object_mut().unwrap().insert("rope_typ".into(), json!("linear"));
        map["rope_scaling"].as_object_mut().unwrap().remove("rope_type");
        map["rope_scaling"].as_object_mut().unwrap().insert("type".into(), json!("linear"));
    });
    copy.assert_refused(&["`rope_scaling.rope_typ`", "(did you mean `rope_type`?)"]);
    let (_, stdout, _) = outcome(set("llama-plain", "logit_scale", json!(0.5)).check(""));
    assert!(!stdout.contains("did you mean"), "{stdout}");
    // One that is there is not meant.
    let (_, stdout, _) = outcome(set("llama-plain", "hidden_sizes", json!(1)).check(""));
    assert!(!stdout.contains("did you mean"), "{stdout}");
    set("llama-plain", "use_cache", json!("whatever")).assert_runs("1 2 3");
    set("llama-plain", "partial_rotary_factor", json!(1.0)).assert_runs("1 2 3");
    set("llama-plain", "partial_rotary_factor", json!(0.5)).assert_refused(&[
        "config.json, key `partial_rotary_factor`: 0.5 would change the numbers, and is not supported",
    ]);
}

#[test]
fn an_allowed_key_is_recorded() {
    let copy = set("llama-plain", "logit_scale", json!(0.5));
    let (code, stdout, _) = outcome(copy.check("--allow-unused logit_scale"));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["allowed unused           logit_scale\n"]);
    assert_eq!(outcome(copy.run("1 2 3 --allow-unused logit_scale")).0, 0);
    let allowed = read(&copy.out()).receipts.into_iter().find(|(key, _)| key == "allowed_unused");
    assert_eq!(allowed.unwrap().1, "logit_scale");
    fs::remove_file(copy.out()).unwrap();
    // It allows what it names, and nothing else.
    copy.assert_run_refused("1 2 3 --allow-unused logit", &["`logit_scale`"]);
    copy.assert_run_refused("1 2 3 --allow-unused scale", &["`logit_scale`"]);
    // A slip of the pen must not go unnoticed.
    for name in ["hidden_size", "logit_scal", "nothing"] {
        let sentence = format!("--allow-unused `{name}`: names neither an unknown key nor a surplus tensor");
        let (code, stdout, _) = outcome(Copy::of("llama-plain").check(&format!("--allow-unused {name}")));
        assert_eq!(code, 2);
        assert_says(&stdout, &[&format!("problem: {sentence}")]);
        Copy::of("llama-plain").assert_run_refused(&format!("1 2 3 --allow-unused {name}"), &[&sentence]);
    }
    // Twice the same is no slip.
    assert_eq!(outcome(copy.check("--allow-unused logit_scale --allow-unused logit_scale")).0, 0);
    // Where the plan can't be made, what a name stands for isn't known.
    let (_, stdout, _) = outcome(set("llama-plain", "hidden_size", json!(-1)).check("--allow-unused model.layers.0.x"));
    assert_says(&stdout, &["1 problem: "]);
    // What is wrong can't be allowed away.
    set("llama-plain", "hidden_size", json!(-1))
        .assert_run_refused("1 2 3 --allow-unused hidden_size", &["`hidden_size`: expected a whole number"]);
}

// config.json: values.

#[test]
fn a_number_that_is_wrong_negative_or_absurd() {
    let whole = "expected a whole number from 1 to 2147483647, found ";
    for (key, value, wanted) in [
        ("hidden_size", json!("24"), format!("{whole}\"24\"")),
        ("hidden_size", json!(-24), format!("{whole}-24")),
        ("hidden_size", json!(0), format!("{whole}0")),
        ("hidden_size", json!(24.5), format!("{whole}24.5")),
        ("hidden_size", json!(1u64 << 40), format!("{whole}1099511627776")),
        ("hidden_size", json!([24]), format!("{whole}[24]")),
        ("hidden_size", json!(true), format!("{whole}true")),
        ("num_hidden_layers", json!(1e9), format!("{whole}1000000000.0")),
        ("num_hidden_layers", json!(1_000_000_000), "expected at most 10000, found 1000000000".into()),
        ("num_hidden_layers", json!(9999), "expected at most 21, as there are no more tensors, found 9999".into()),
        ("num_hidden_layers", json!(-1), format!("{whole}-1")),
        ("vocab_size", json!(0), format!("{whole}0")),
        (
            "intermediate_size",
            json!({}),
            "expected a whole number from 1 to 2147483647, or a list of 2 of them (one per layer)".into(),
        ),
        ("num_attention_heads", json!(-4), format!("{whole}-4")),
        ("num_key_value_heads", json!(3), "expected a divisor of num_attention_heads (4), found 3".into()),
        ("num_key_value_heads", json!(8), "expected a divisor of num_attention_heads (4), found 8".into()),
        ("head_dim", json!(7), "RoPE rotates pairs: expected an even head dimension, found 7".into()),
        ("head_dim", json!(0), format!("{whole}0")),
        ("max_position_embeddings", json!(u64::MAX), format!("{whole}18446744073709551615")),
        ("rms_norm_eps", json!(-1e-5), "expected a number from 0 to 1, found -0.00001".into()),
        ("rms_norm_eps", json!("1e-5"), "expected a number from 0 to 1, found \"1e-5\"".into()),
        ("rms_norm_eps", json!(2), "expected a number from 0 to 1, found 2".into()),
        ("attention_bias", json!(1), "expected true or false, found 1".into()),
        ("tie_word_embeddings", json!("false"), "expected true or false, found \"false\"".into()),
        ("hidden_act", json!(null), String::new()),
        ("hidden_act", json!(["silu"]), "expected a text, found [\"silu\"]".into()),
    ] {
        let copy = set("llama-plain", key, value);
        if wanted.is_empty() {
            copy.assert_runs("1 2 3");
        } else {
            copy.assert_refused(&[&format!("config.json, key `{key}`: {wanted}")]);
        }
    }
}

#[test]
fn a_huge_number_of_rows_is_refused_before_memory_is_taken_for_it() {
    let copy = Copy::of("llama-plain").config(|map| {
        for key in ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"] {
            map.insert(key.into(), json!(i32::MAX));
        }
        map.insert("head_dim".into(), json!(i32::MAX - 1));
    });
    copy.assert_refused(&[
        "21 problems",
        "tensor `model.embed_tokens.weight`: expected shape [2147483647, 2147483647], found [61, 24]",
    ]);
}

#[test]
fn a_key_that_a_plan_needs_is_missing() {
    for key in ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"] {
        let copy = Copy::of("llama-plain").config(|map| drop(map.remove(key)));
        copy.assert_refused(&[&format!("config.json, key `{key}`: missing")]);
    }
    let copy = Copy::of("llama-minimal").set("hidden_size", json!(31));
    copy.assert_refused(&[
        "key `head_dim`: missing, and hidden_size (31) is not a multiple of num_attention_heads (3)",
    ]);
}

#[test]
fn an_unsupported_activation() {
    set("llama-plain", "hidden_act", json!("quick_gelu")).assert_refused(&[
        "config.json, key `hidden_act`: unsupported activation `quick_gelu`; supported are silu, swish, gelu",
    ]);
    set("llama-plain", "hidden_act", json!("swish")).assert_runs("1 2 3");
}

#[test]
fn every_problem_is_found_at_once_and_none_is_made_up() {
    let copy = Copy::of("mistral-window")
        .set("num_hidden_layers", json!(-1))
        .set("head_dim", json!(3))
        .set("hidden_act", json!("tanh"))
        .set("foo", json!(1));
    copy.assert_refused(&["4 problems", "`num_hidden_layers`", "`head_dim`", "`hidden_act`", "`foo`"]);
    // Two fields read attention_bias, and KV heads default to the heads: each is wrong once.
    set("llama-plain", "attention_bias", json!("no")).assert_refused(&["`attention_bias`"]);
    set("llama-minimal", "num_attention_heads", json!(-3)).assert_refused(&["`num_attention_heads`"]);
    let copy = Copy::of("llama-plain").set("foo", json!(1)).tensors(|tensors| {
        tensors.remove("model.norm.weight");
        tensors.insert("model.extra".into(), (Dtype::F32, vec![1], f32s([1.0])));
    });
    copy.assert_refused(&["3 problems", "`foo`", "`model.norm.weight`: missing", "`model.extra`: surplus"]);
}

#[test]
fn a_run_shows_the_first_of_many_problems_and_check_all() {
    let copy = set("llama-plain", "num_hidden_layers", json!(5));
    let (code, _, stderr) = outcome(copy.run("1"));
    assert_eq!(code, 2);
    assert_says(&stderr, &["27 problems:", "and 7 more: oracle check `"]);
    assert_eq!(stderr.matches("missing; the plan needs it").count(), 20, "{stderr}");
    let (_, stdout, _) = outcome(copy.check(""));
    assert_eq!(stdout.matches("missing; the plan needs it").count(), 27, "{stdout}");
}

// RoPE.

fn scaling(fixture: &str, value: Value) -> Copy {
    Copy::of(fixture).config(|map| {
        map.remove("rope_parameters");
        map.insert("rope_scaling".into(), value);
    })
}

#[test]
fn an_unknown_kind_of_rope() {
    scaling("llama-plain", json!({"rope_type": "ntk-by-parts", "alpha": 3})).assert_refused(&[
        "config.json, key `rope_scaling.rope_type`: unknown kind `ntk-by-parts`; known are default, linear, dynamic, llama3",
    ]);
    scaling("llama-plain", json!({"type": "su"})).assert_refused(&["unknown kind `su`"]);
    // The name of a variant is none of a kind.
    scaling("hunyuan_v1_dense-alpha", json!({"rope_type": "ntk_alpha (dynamic with alpha)", "alpha": 3}))
        .assert_refused(&["unknown kind `ntk_alpha (dynamic with alpha)`"]);
    scaling("llama-plain", json!({"rope_type": 1})).assert_refused(&["`rope_scaling.rope_type`: expected a text"]);
    scaling("llama-plain", json!("linear")).assert_refused(&["`rope_scaling`: expected an object, found \"linear\""]);
    scaling("llama-plain", json!({"rope_type": "linear", "factor": 2.0})).assert_runs("1 2 3");
}

#[test]
fn an_unknown_key_inside_the_rope_object() {
    scaling("llama-plain", json!({"type": "linear", "factor": 2.0, "finetuned": true}))
        .assert_refused(&["config.json, key `rope_scaling.finetuned`: unknown key (value true)"]);
    scaling("llama-plain", json!({"type": "linear", "factor": 2.0, "beta_fast": 32}))
        .assert_refused(&["`rope_scaling.beta_fast`: unknown key"]);
    // What single families have.
    let alpha = json!({"type": "dynamic", "factor": 1.0, "alpha": 1000.0});
    scaling("llama-plain", alpha.clone()).assert_refused(&["`rope_scaling.alpha`: unknown key (value 1000.0)"]);
    scaling("hunyuan_v1_dense-alpha", alpha).assert_runs("1 2 3");
    scaling("hunyuan_v1_dense-alpha", json!({"type": "dynamic", "alpha": -1}))
        .assert_refused(&["`rope_scaling.alpha`: expected a number greater than zero"]);
    let beta =
        json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "llama_4_scaling_beta": 0.1});
    for fixture in ["llama-plain", "gpt_oss-yarn"] {
        scaling(fixture, beta.clone())
            .assert_refused(&["`rope_scaling.llama_4_scaling_beta`: unknown key (value 0.1)"]);
    }
    scaling("ministral3-scaling", beta).assert_runs("1 2 3");
    let copy = scaling("llama-plain", json!({"type": "linear", "factor": 2.0, "finetuned": true}));
    assert_eq!(outcome(copy.run("1 2 3 --allow-unused rope_scaling.finetuned")).0, 0);
}

#[test]
fn a_value_of_rope_that_is_missing_or_wrong() {
    let llama3 = |edit: &[(&str, Value)]| {
        let mut map = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32});
        for (key, value) in edit {
            map[*key] = value.clone();
        }
        map
    };
    scaling("llama-plain", llama3(&[])).assert_runs("1 2 3");
    for (value, wanted) in [
        (json!({"rope_type": "linear"}), "`rope_scaling.factor`: missing; this kind of RoPE needs it"),
        (
            json!({"rope_type": "linear", "factor": 0}),
            "`rope_scaling.factor`: expected a number greater than zero (1e-30 to 1e30), found 0",
        ),
        (
            json!({"rope_type": "dynamic", "factor": "2"}),
            "expected a number greater than zero (1e-30 to 1e30), found \"2\"",
        ),
        (llama3(&[("high_freq_factor", json!(0.5))]), "expected at least low_freq_factor (1), found 0.5"),
        (llama3(&[("low_freq_factor", json!(null))]), "`rope_scaling.low_freq_factor`: missing"),
        (llama3(&[("original_max_position_embeddings", json!(1))]), "expected at least 2, found 1"),
        (json!({"rope_type": "yarn", "factor": -4.0}), "`rope_scaling.factor`: expected a number greater than zero"),
        (json!({"rope_type": "yarn", "factor": 4.0, "truncate": 1}), "`rope_scaling.truncate`: expected true or false"),
        (
            json!({"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [1, 1, 1], "factor": 2}),
            "`rope_scaling.short_factor`: expected a list of 3 numbers greater than zero (one per pair of a head), found [1,1]",
        ),
        (
            json!({"rope_type": "longrope", "short_factor": [1, 1, 1], "factor": 2}),
            "`rope_scaling.long_factor`: missing",
        ),
        (json!({"rope_type": "linear", "factor": 2, "rope_theta": 1}), "expected a number greater than one, found 1"),
    ] {
        scaling("llama-plain", value).assert_refused(&["config.json, key ", wanted]);
    }
    set("llama-minimal", "rope_theta", json!(-1)).assert_refused(&["`rope_theta`: expected a number greater than one"]);
}

#[test]
fn spellings_of_rope_that_contradict_each_other() {
    let both = |scaling: Value| set("llama-plain", "rope_scaling", scaling);
    both(json!({"rope_type": "default", "rope_theta": 10000.0})).assert_runs("1 2 3");
    both(json!({"rope_type": "linear", "factor": 2.0}))
        .assert_refused(&["config.json, key `rope_scaling`: differs from rope_parameters, which is also there"]);
    set("llama-plain", "rope_theta", json!(20000.0)).assert_refused(&[
        "config.json, key `rope_parameters.rope_theta`: stands in two places with different values, 10000 and 20000",
    ]);
    scaling("llama-plain", json!({"rope_type": "linear", "type": "yarn", "factor": 2.0}))
        .assert_refused(&["`rope_scaling.rope_type`: stands in two places with different values, linear and yarn"]);
}

// Numbers that no model has.

#[test]
fn a_number_that_float32_does_not_hold() {
    for (fixture, key) in [
        ("granite-plain", "logits_scaling"),
        ("gemma2-softcap", "query_pre_attn_scalar"),
        ("cohere-plain", "logit_scale"),
    ] {
        for number in [1e-310, 1e300] {
            let wanted =
                format!("`{key}`: expected a number greater than zero (1e-30 to 1e30), found {}", json!(number));
            set(fixture, key, json!(number)).assert_refused(&["config.json, key ", &wanted]);
        }
        set(fixture, key, json!(3.5)).assert_runs("1 2 3");
    }
}

#[test]
fn counts_that_would_make_too_much() {
    let copy = Copy::of("stablelm-parallel").config(|map| {
        let heads = 100_001;
        let more = json!({"num_attention_heads": heads, "num_key_value_heads": 1, "hidden_size": 8 * heads});
        map.extend(more.as_object().unwrap().clone());
    });
    copy.assert_refused(&["key `num_attention_heads`: expected at most 100000 with norms of their own in each layer"]);
    for (key, value) in [("block_ffn_dim_multiplier", json!(1e30)), ("block_ff_dim", json!(1))] {
        set("lfm2-published", key, value).assert_refused(&["key `block_ff_dim`: gives no usable width"]);
    }
}

/// Every number of these configs as large as it may be, and as small: problems, and no panic.
#[test]
fn the_largest_and_the_smallest_numbers_are_only_problems() {
    for fixture in [
        "falcon-new",
        "gemma4-moe",
        "gemma3n-shared",
        "granitemoehybrid-moe-rope",
        "gpt_oss-yarn",
        "kimi_linear-groups",
        "lfm2-published",
        "mistral4-groups",
        "minimax_m2-partial",
        "qwen3_next-mixed",
        "stablelm-parallel",
    ] {
        let config: Value =
            serde_json::from_slice(&fs::read(common::fixture(fixture).join("config.json")).unwrap()).unwrap();
        let numbers = config.as_object().unwrap().iter().filter(|(_, value)| value.is_number());
        for (key, value) in numbers {
            let extremes: &[Value] =
                if value.is_u64() { &[json!(0), json!(1), json!(2147483647)] } else { &[json!(1e-310), json!(1e300)] };
            for extreme in extremes {
                let opened = checkpoint_oracle::checkpoint::open(&set(fixture, key, extreme.clone()).path());
                let (mut config, source) = (opened.config.unwrap(), opened.source.unwrap());
                let books =
                    |config: &_| close_books(config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
                assert!(books(&config).plan.is_none_or(|plan| plan.parameters() > 0), "{fixture}, {key}");
                config.root.insert("hidden_size".into(), json!(2147483640));
                assert!(!books(&config).problems.is_empty(), "{fixture}, {key}");
            }
        }
    }
}

/// transformers cuts `head_dim * (rotary_dim / head_dim)`: 44 * (30 / 44) is just below 30.
#[test]
fn a_part_of_a_head_that_floats_miss() {
    let rotary = |dim: usize| {
        set("minimax_m2-plain", "head_dim", json!(44)).set("rotary_dim", json!(dim)).check("").output().unwrap().stdout
    };
    let said = |dim| String::from_utf8(rotary(dim)).unwrap();
    assert_says(&said(30), &["key `rotary_dim`: transformers, which cuts 44 * (30 / 44), rotates 29 columns"]);
    let report = said(28);
    assert!(report.contains("28 dimensions in halves") && !report.contains("rotary_dim"), "{report}");
}

// Windows.

#[test]
fn layer_types_of_the_wrong_length_or_kind() {
    let types = |list: Value| set("qwen3-window-llama3", "layer_types", list);
    types(json!(["full_attention", "sliding_attention", "full_attention"])).assert_runs("1 2 3");
    for (list, wanted) in [
        (json!(["full_attention"]), "expected one entry per layer (3), found 1"),
        (
            json!(["full_attention", "chunked_attention", "full_attention"]),
            "layer 1: expected full_attention or sliding_attention, found \"chunked_attention\"",
        ),
        (json!(["full_attention", 1, "full_attention"]), "expected a list of texts"),
        (json!("full_attention"), "expected a list of texts, found \"full_attention\""),
    ] {
        types(list).assert_refused(&[&format!("config.json, key `layer_types`: {wanted}")]);
    }
    set("qwen3-window-llama3", "use_sliding_window", json!(false))
        .assert_refused(&["`layer_types`: layer ", "use_sliding_window and sliding_window give no window"]);
    set("mistral-window", "sliding_window", json!(0)).assert_refused(&["`sliding_window`: expected a whole number"]);
    set("qwen2-plain", "max_window_layers", json!(-1))
        .assert_refused(&["`max_window_layers`: expected a whole number"]);
}

// Tensors.

#[test]
fn a_tensor_that_is_missing_or_surplus() {
    let q = "model.layers.1.self_attn.q_proj.weight";
    let copy = Copy::of("llama-plain").tensors(|tensors| drop(tensors.remove(q)));
    copy.assert_refused(&[&format!("ckpt, tensor `{q}`: missing; the plan needs it with shape [24, 24]")]);
    let surplus = || {
        Copy::of("llama-plain").tensors(|tensors| {
            tensors.insert("model.layers.1.self_attn.q_proj.bias".into(), (Dtype::F32, vec![24], f32s([0.0; 24])));
        })
    };
    surplus().assert_refused(&[
        "model.safetensors, tensor `model.layers.1.self_attn.q_proj.bias`: surplus (F32 [24]); nothing in the plan uses it",
    ]);
    let copy = surplus();
    let allow = "--allow-unused model.layers.1.self_attn.q_proj.bias";
    let (code, stdout, _) = outcome(copy.check(allow));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["allowed unused           model.layers.1.self_attn.q_proj.bias\n"]);
    assert_eq!(outcome(copy.run(&format!("1 2 3 {allow}"))).0, 0);
    assert!(
        fs::read_to_string(copy.out()).unwrap().contains("\nallowed_unused\tmodel.layers.1.self_attn.q_proj.bias\n")
    );
    // A name that would break the file's lines is escaped in it.
    let copy = Copy::of("llama-plain").tensors(|tensors| {
        tensors.insert("a\tb\nc".into(), (Dtype::F32, vec![1], f32s([0.0])));
    });
    copy.assert_refused(&["tensor `a\\tb\\nc`: surplus"]);
    let mut command = copy.run("1 2 3");
    command.args(["--allow-unused", "a\tb\nc"]);
    assert_eq!(outcome(command).0, 0);
    let allowed = read(&copy.out()).receipts.into_iter().find(|(key, _)| key == "allowed_unused");
    assert_eq!(allowed.unwrap().1, "a\\tb\\nc");
    // What the pack declares without effect is said, and harmless.
    let ignorable = Copy::of("llama-plain").tensors(|tensors| {
        let name = "model.layers.0.self_attn.rotary_emb.inv_freq";
        tensors.insert(name.into(), (Dtype::F32, vec![3], f32s([1.0; 3])));
    });
    ignorable.assert_runs("1 2 3");
    assert_says(
        &outcome(ignorable.check("")).1,
        &["ignored tensors          1 of rotary tables: model.layers.0.self_attn.rotary_emb"],
    );
    // A bias that the config promises and the file lacks.
    set("llama-plain", "mlp_bias", json!(true))
        .assert_refused(&["6 problems", "`model.layers.0.mlp.gate_proj.bias`: missing"]);
}

#[test]
fn a_tensor_of_the_wrong_shape() {
    let up = "model.layers.0.mlp.up_proj.weight";
    let copy = Copy::of("llama-plain").tensors(|tensors| tensors.get_mut(up).unwrap().1.reverse());
    copy.assert_refused(&[&format!(
        "model.safetensors, tensor `{up}`: expected shape [38, 24], found [24, 38] (transposed)"
    )]);
    let copy = Copy::of("llama-plain").tensors(|tensors| tensors.get_mut(up).unwrap().1 = vec![38 * 24]);
    copy.assert_refused(&["expected shape [38, 24], found [912]\n"]);
    set("llama-plain", "vocab_size", json!(64))
        .assert_refused(&["2 problems", "expected shape [64, 24], found [61, 24]"]);
}

#[test]
fn a_tensor_of_a_dtype_that_cannot_be_decoded() {
    let norm = "model.norm.weight";
    for (dtype, bytes, name) in [(Dtype::U8, 1, "U8"), (Dtype::BOOL, 1, "BOOL"), (Dtype::F8_E4M3, 1, "F8_E4M3")] {
        let copy = Copy::of("llama-plain").tensors(|tensors| {
            tensors.insert(norm.into(), (dtype, vec![24], vec![0; 24 * bytes]));
        });
        copy.assert_refused(&[&format!("model.safetensors, tensor `{norm}`: dtype {name} can't be decoded here")]);
    }
}

#[test]
fn a_surplus_tensor_with_a_zero_among_huge_dimensions() {
    let copy = Copy::of("llama-plain").tensors(|tensors| {
        tensors.insert("x".into(), (Dtype::F32, vec![0, 5], vec![]));
    });
    // The crate that writes the file would not multiply these, so the header is changed in place.
    let path = copy.file("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + length].to_vec()).unwrap();
    let header = header.replace("\"shape\":[0,5]", "\"shape\":[1099511627776,1099511627776,0]");
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]].concat();
    fs::write(&path, bytes).unwrap();
    copy.assert_refused(&["tensor `x`", "surplus (F32 [1099511627776, 1099511627776, 0])"]);
}

/// Untied llama-plain with `tie_word_embeddings` and the head as given.
fn head(tied: bool, edit: impl FnOnce(Stored) -> Option<Stored>) -> Copy {
    set("llama-plain", "tie_word_embeddings", json!(tied)).tensors(|tensors| {
        let embed = tensors["model.embed_tokens.weight"].clone();
        tensors.remove("lm_head.weight");
        tensors.extend(edit(embed).map(|head| ("lm_head.weight".to_owned(), head)));
    })
}

fn different(mut head: Stored) -> Option<Stored> {
    head.2[4 * 24 + 2] ^= 1;
    Some(head)
}

#[test]
fn a_tied_head_may_be_absent_or_equal_and_nothing_else() {
    head(true, |_| None).assert_runs("1 2 3");
    let equal = head(true, Some);
    equal.assert_runs("1 2 3");
    let note = "model.safetensors, tensor `lm_head.weight`: stored although tie_word_embeddings is true; it equals \
                `model.embed_tokens.weight`, which is used";
    assert_says(&outcome(equal.check("")).1, &["note: ", note]);
    assert_says(&outcome(equal.run("1 2 3")).2, &["note: ", note]);
    head(true, different).assert_refused(&[
        "model.safetensors, tensor `lm_head.weight`: tie_word_embeddings is true, but the stored head differs from \
         `model.embed_tokens.weight` (first at element 24)",
    ]);
    // Found although something else is wrong too.
    head(true, different).set("foo", json!(1)).assert_refused(&["2 problems", "`foo`", "the stored head differs"]);
}

#[test]
fn an_untied_head_must_be_there() {
    head(false, |_| None)
        .assert_refused(&["ckpt, tensor `lm_head.weight`: missing; the plan needs it with shape [61, 24]"]);
    let (equal, different) = (head(false, Some), head(false, different));
    let rows = [equal.assert_runs("1 2 3"), head(true, |_| None).assert_runs("1 2 3"), different.assert_runs("1 2 3")];
    assert_eq!(rows[0].logits, rows[1].logits, "an equal head computes what a tied one does");
    assert_ne!(rows[0].logits, rows[2].logits);
    assert!(!outcome(equal.check("")).1.contains("note"), "nothing is odd about it");
}

// The command line of a run.

#[test]
fn tokens_that_are_no_tokens() {
    let copy = Copy::of("llama-plain");
    let whole = "expected a whole number from 0 to 4294967295, found ";
    for (words, wanted) in [
        ("1 x", format!("token 1: {whole}`x`")),
        ("1 2.5", format!("token 1: {whole}`2.5`")),
        ("-1", format!("token 0: {whole}`-1`")),
        ("1 -- -1", format!("token 1: {whole}`-1`")),
        ("+1", format!("{whole}`+1`")),
        ("0x1f", format!("{whole}`0x1f`")),
        ("4294967296", format!("{whole}`4294967296`")),
        ("1,,2", "token 1: there is none before a comma".into()),
        ("1 2 61 99", "ckpt: token 2: 61 is beyond the vocabulary of 61 (0 to 60)".into()),
        ("", "no tokens: give token ids after the checkpoint, or --tokens-file".into()),
    ] {
        copy.assert_run_refused(words, &[&wanted]);
    }
    copy.assert_runs("0 60");
    let (code, _, stderr) = outcome({
        let mut command = words("run fixtures/llama-plain");
        command.args([" ", ""]);
        command
    });
    assert_eq!(code, 2);
    assert_says(&stderr, &["no tokens"]);
}

#[test]
fn a_file_of_tokens_that_is_none() {
    let copy = Copy::of("llama-plain");
    for (text, wanted) in [
        ("", "tokens.txt: holds no token"),
        (" \n", "tokens.txt: holds no token"),
        ("1 2\nthree", "tokens.txt: token 2: expected a whole number"),
        ("1 61", "token 1: 61 is beyond the vocabulary"),
    ] {
        let file = copy.beside("tokens.txt", text);
        copy.assert_run_refused(&format!("--tokens-file {}", file.display()), &[wanted]);
    }
    fs::write(copy.beside("tokens.txt", ""), [0xff, 0xfe]).unwrap();
    let file = |name: &str| format!("--tokens-file {}", copy.path().with_file_name(name).display());
    copy.assert_run_refused(&file("tokens.txt"), &["tokens.txt: can't be read as text"]);
    copy.assert_run_refused(&file("missing.txt"), &["missing.txt: can't be opened"]);
    copy.assert_run_refused(&file("ckpt"), &["ckpt: can't be "]);
}

#[test]
fn positions_that_do_not_fit() {
    let copy = Copy::of("llama-plain");
    for (list, wanted) in [
        ("0,1", "--positions: expected one position per token (3), found 2"),
        ("0,1,2,3", "--positions: expected one position per token (3), found 4"),
        ("0,-1,2", "position 1: expected a whole number from 0 to 4294967295, found `-1`"),
        ("0,1,4294967296", "position 2: expected a whole number"),
        ("0,1,x", "position 2: expected a whole number from 0 to 4294967295, found `x`"),
    ] {
        copy.assert_run_refused(&format!("1 2 3 --positions {list}"), &[wanted]);
    }
    let (code, _, stderr) = outcome(copy.run("1 2 3 --positions 0,1,4294967295"));
    assert_eq!(code, 0, "{stderr}");
}

#[test]
fn options_out_of_range() {
    for (line, wanted) in [
        ("run fixtures/llama-plain 1 --threads 0", "0"),
        ("run fixtures/llama-plain 1 --threads many", "many"),
        ("run fixtures/llama-plain 1 --top -1", "-1"),
        ("run fixtures/llama-plain 1 --numeric f16", "f16"),
        ("run fixtures/llama-plain 1 --nonsense", "--nonsense"),
        ("run", "CKPT"),
        ("check", "CKPT"),
        ("check fixtures/llama-plain --format yaml", "yaml"),
        ("nonsense", "nonsense"),
        ("--generate nonsense", "nonsense"),
    ] {
        let (code, stdout, stderr) = outcome(words(line));
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}: {stderr}");
        assert!(stderr.contains(wanted), "{line}: {stderr}");
    }
}

#[test]
fn an_output_path_that_cannot_be_written() {
    let copy = Copy::of("llama-plain");
    let folder = copy.out().parent().unwrap().to_owned();
    fs::create_dir(folder.join("there")).unwrap();
    for (path, wanted) in [
        (folder.join("missing/out.tsv"), "missing does not exist"),
        (folder.join("there"), "there: is a folder; expected the name of a file to write"),
        (folder.join("new/"), "is a folder"),
        (folder.clone(), "is a folder"),
    ] {
        let mut command = oracle();
        command.arg("run").arg(copy.path()).args(["1", "2", "-o"]).arg(&path);
        let (code, stdout, stderr) = outcome(command);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, &[wanted]);
        assert_eq!(copy.left(), ["there"]);
        assert_eq!(fs::read_dir(folder.join("there")).unwrap().count(), 0);
    }
}

#[test]
fn the_output_path_is_refused_before_the_checkpoint_is_opened() {
    let (code, _, stderr) = outcome(words("run no/such/checkpoint 1 -o no/such/folder/out.tsv"));
    assert_eq!(code, 2);
    assert_says(&stderr, &["no/such/folder does not exist"]);
    assert!(!stderr.contains("checkpoint"), "{stderr}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_leaves_nothing() {
    let (code, _, stderr) = outcome(words("run fixtures/llama-plain 1 2 -o /dev/full"));
    assert_eq!(code, 2);
    assert_says(&stderr, &["/dev/full: cannot be written: No space left on device"]);
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let binary = assert_cmd::cargo::cargo_bin("oracle");
    for line in ["run fixtures/llama-plain 1 2", "check fixtures/llama-plain", "packs", "--generate man"] {
        let mut command = std::process::Command::new(&binary);
        let output = command.args(line.split(' ')).current_dir(root(".")).stdout(full()).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{line}: {stderr}");
        assert!(stderr.contains("No space left"), "{line}: {stderr}");
    }
    // Messages that nobody can read change no exit code.
    for (line, code) in [("run fixtures/llama-plain 1 2 --top 3", 0), ("run fixtures/llama-plain", 2), ("run", 2)] {
        let mut command = std::process::Command::new(&binary);
        let status = command.args(line.split(' ')).current_dir(root(".")).stderr(full()).output().unwrap().status;
        assert_eq!(status.code(), Some(code), "{line}");
    }
}

#[cfg(unix)]
#[test]
fn a_file_that_cannot_grow_is_an_error_that_leaves_nothing() {
    // A limit of no bytes per file: the temporary file can be made, but not written.
    let copy = Copy::of("llama-plain");
    let run = |limit: &str| {
        let mut command = assert_cmd::Command::new("sh");
        command.args(["-c", "trap '' XFSZ; ulimit -f $0; exec \"$@\"", limit]);
        command.arg(assert_cmd::cargo::cargo_bin("oracle")).arg("run").arg(copy.path()).args(["1", "2", "-o"]);
        command.arg(copy.out());
        outcome(command)
    };
    let (code, _, stderr) = run("0");
    assert_eq!(code, 2, "{stderr}");
    assert_says(&stderr, &["out.tsv: cannot be written: File too large"]);
    assert_eq!(copy.left(), [""; 0]);
    fs::write(copy.out(), OLD).unwrap();
    assert_eq!(run("0").0, 2);
    copy.assert_old_file();
    assert_eq!(run("unlimited").0, 0);
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_refused_where_the_system_enforces_it() {
    use std::os::unix::fs::PermissionsExt;
    let copy = Copy::of("llama-plain");
    let folder = copy.out().parent().unwrap().to_owned();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
    let enforced = fs::write(folder.join("probe"), "").is_err();
    let (code, _, stderr) = outcome(copy.run("1 2"));
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    if enforced {
        assert_eq!(code, 2);
        assert_says(&stderr, &["out.tsv: no file can be created in the folder"]);
        assert_eq!(copy.left(), [""; 0]);
    }
    // A file without write permission is refused for whoever it is.
    fs::write(copy.out(), OLD).unwrap();
    fs::set_permissions(copy.out(), fs::Permissions::from_mode(0o444)).unwrap();
    let (code, _, stderr) = outcome(copy.run("1 2"));
    assert_eq!(code, 2);
    assert_says(&stderr, &["out.tsv: is read-only"]);
    assert_eq!(fs::read_to_string(copy.out()).unwrap(), OLD);
}

// Values that are no numbers.

fn spoilt(tensor: &str, value: f32) -> Copy {
    Copy::of("llama-plain").tensors(|tensors| {
        let data = &mut tensors.get_mut(tensor).unwrap_or_else(|| panic!("{tensor}")).2;
        data[40..44].copy_from_slice(&value.to_le_bytes());
    })
}

#[test]
fn nan_or_infinity_in_the_weights_is_traced_to_its_layer_and_operation() {
    for (tensor, value, wanted) in [
        ("model.embed_tokens.weight", f32::NAN, "NaN first appears in embed (token 0, column 10)"),
        (
            "model.layers.0.input_layernorm.weight",
            f32::INFINITY,
            "inf first appears in layer.0.mixer.in (token 0, column 10)",
        ),
        (
            "model.layers.1.self_attn.q_proj.weight",
            f32::NAN,
            "NaN first appears in layer.1.mixer.q (token 0, column 0)",
        ),
        (
            "model.layers.1.self_attn.v_proj.weight",
            f32::NEG_INFINITY,
            "first appears in layer.1.mixer.v (token 0, column 0)",
        ),
        ("model.layers.0.self_attn.o_proj.weight", f32::NAN, "NaN first appears in layer.0.mixer.out"),
        ("model.layers.0.mlp.down_proj.weight", f32::NAN, "NaN first appears in layer.0.mlp.out"),
        ("model.norm.weight", f32::NAN, "NaN first appears in norm (token 2, column 10)"),
        ("lm_head.weight", f32::NAN, "NaN first appears in head (token 2, column 0)"),
    ] {
        let copy = spoilt(tensor, value);
        // Headers can't show it.
        assert_eq!(outcome(copy.check("")).0, 0);
        let run = || copy.run("0 1 2");
        let (code, _, stderr) = outcome(run());
        assert_eq!(code, 1, "{stderr}");
        assert_says(&stderr, &["error: ", "ckpt: ", wanted, "Nothing was written; --allow-nonfinite writes the file"]);
        assert_eq!(copy.left(), [""; 0]);
        fs::write(copy.out(), OLD).unwrap();
        assert_eq!(outcome(run()).0, 1);
        copy.assert_old_file();
        let (code, _, stderr) = outcome(copy.run("0 1 2 --allow-nonfinite"));
        assert_eq!(code, 1, "{stderr}");
        assert_says(&stderr, &["warning: ", wanted]);
        let values = read(&copy.out()).logits.to_f64();
        assert!(values.iter().any(|v| !v.is_finite()), "{tensor}");
        assert_eq!(outcome(copy.run("0 1 2 --numeric f64")).0, 1);
    }
    // Only what is used counts: this row's token is not among the tokens.
    let copy = spoilt("model.embed_tokens.weight", f32::NAN);
    assert_eq!(outcome(copy.run("1 2 3")).0, 0);
    assert_eq!(outcome(copy.run("1 2 3 --allow-nonfinite")).0, 0, "allowing what does not happen changes nothing");
}

// Packs of the user's.

const MINE: &str = r#"
name = "mine"
title = "A family of mine"
like = "llama"
model_types = ["my_llama"]
architectures = ["LlamaForCausalLM"]
inert = ["pretraining_tp"]
"#;

#[test]
fn a_pack_of_the_users_answers_for_a_new_model_type() {
    let copy = set("llama-plain", "model_type", json!("my_llama"));
    copy.assert_refused(&["no pack answers for `my_llama`; the nearest is llama"]);
    let pack = copy.beside("mine.toml", MINE).display().to_string();
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {pack}")));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["pack                     mine, because of model_type `my_llama`\n"]);
    let (code, _, stderr) = outcome(copy.run(&format!("1 2 3 --pack {pack}")));
    assert_eq!(code, 0, "{stderr}");
    let logits = read(&copy.out()).logits;
    assert_eq!(logits, Copy::of("llama-plain").assert_runs("1 2 3").logits, "it is llama under another name");
    // Given in vain: said, not passed over.
    let (code, stdout, _) = outcome(Copy::of("llama-plain").check(&format!("--pack {pack}")));
    assert_eq!(code, 0);
    assert_says(&stdout, &["note: ", "mine.toml: is not used: pack llama answers, because of model_type `llama`"]);
}

#[test]
fn a_key_that_is_inert_in_the_other_pack_is_said_to_be() {
    let copy = set("llama-plain", "model_type", json!("my_llama"));
    let pack = copy.beside("mine.toml", &MINE.replace("inert = [\"pretraining_tp\"]\n", "")).display().to_string();
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {pack}")));
    assert_eq!(code, 2, "{stdout}");
    let wanted = "lets it pass. Pack llama lists it as inert, which mine doesn't take over through like\n";
    assert_says(&stdout, &["key `pretraining_tp`: unknown key", wanted]);
    let other = copy.set("pretraining_tq", json!(1));
    let (_, stdout, _) = outcome(other.check(&format!("--pack {pack} --allow-unused pretraining_tp")));
    assert_says(&stdout, &["key `pretraining_tq`: unknown key"]);
    assert!(!stdout.contains("as inert"), "{stdout}");
}

#[test]
fn a_pack_changes_what_its_fields_say() {
    let copy = set("llama-plain", "model_type", json!("my_llama")).set("activation_function", json!("gelu"));
    let fields = "[fields]\nhidden_act = \"activation_function\"\nnorm_eps = { value = 0.25 }\nqkv_bias = { value = false }\n\
                  o_bias = { value = false }\nrope = { rule = \"rope_parameters\", default = 500000 }\n";
    let pack = MINE
        .replace("\"pretraining_tp\"", "\"pretraining_tp\", \"hidden_act\", \"rms_norm_eps\", \"attention_bias\"")
        + fields;
    let pack = copy.beside("mine.toml", &pack).display().to_string();
    let copy = copy.config(|map| drop(map.remove("rope_parameters")));
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {pack}")));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["hidden_act gelu\n", "eps 0.25\n", "rope_theta 500000,"]);
}

/// As any other field: spellings must agree, and a constant may be a whole number.
#[test]
fn the_rotated_part_of_a_head_is_a_field_as_any_other() {
    let copy = set("llama-plain", "model_type", json!("my_llama")).set("head_dim", json!(12)).set("rotary", json!(0.5));
    let report = |field: &str| {
        let pack = copy.beside("mine.toml", &format!("{MINE}[fields]\npartial_rotary_factor = {field}\n"));
        outcome(copy.check(&format!("--pack {} --allow-unused rotary", pack.display()))).1
    };
    assert_says(&report("{ key = [\"rotary\", \"rotary_pct\"], default = 0.25 }"), &["6 dimensions in halves"]);
    assert_says(&report("{ value = 1 }"), &["12 dimensions in halves"]);
    let copy = copy.set("rotary_pct", json!(1.0));
    let pack = copy.beside(
        "mine.toml",
        &format!("{MINE}[fields]\npartial_rotary_factor = {{ key = [\"rotary\", \"rotary_pct\"] }}\n"),
    );
    let (_, stdout, _) = outcome(copy.check(&format!("--pack {}", pack.display())));
    assert_says(&stdout, &["key `rotary_pct`: differs from rotary, which is also there and means the same"]);
}

#[test]
fn what_a_pack_says_for_a_whole_family_needs_no_key() {
    let fields = "[fields]\nhidden_act = { value = \"gelu\" }\nnorm_eps = { value = 1e-5 }\n\
                  rope = { rule = \"rope_parameters\", default = 1000000 }\n\
                  num_key_value_heads = { value = 2 }\ntie_word_embeddings = { value = false }\n";
    let inert =
        "\"pretraining_tp\", \"hidden_act\", \"rms_norm_eps\", \"num_key_value_heads\", \"tie_word_embeddings\"";
    let copy = set("llama-plain", "model_type", json!("my_llama")).config(|map| drop(map.remove("rope_parameters")));
    let pack = copy.beside("mine.toml", &(MINE.replace("\"pretraining_tp\"", inert) + fields));
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {}", pack.display())));
    assert_eq!(code, 0, "{stdout}");
    let wanted = ["hidden_act gelu\n", "eps 1e-5\n", "rope_theta 1000000,", "2 key/value heads", "lm_head.weight"];
    assert_says(&stdout, &wanted);
    assert_eq!(outcome(copy.run(&format!("1 2 3 --pack {}", pack.display()))).0, 0);
}

#[test]
fn a_checkpoint_without_a_subcommand_is_told_the_run_it_was_meant_for() {
    for (line, meant) in [
        ("fixtures/llama-plain 1 2", "to run a checkpoint: oracle run fixtures/llama-plain 1 2\n"),
        ("fixtures/llama-plain", "to run a checkpoint: oracle run fixtures/llama-plain\n"),
        ("no/such 1,2", "to run a checkpoint: oracle run no/such 1,2\n"),
    ] {
        let (code, stdout, stderr) = outcome(words(line));
        assert_eq!((code, stdout.as_str()), (2, ""));
        assert_says(&stderr, &[meant]);
    }
    for line in ["dif a b", "run fixtures/llama-plain --nonsense", "check"] {
        let (code, _, stderr) = outcome(words(line));
        assert_eq!(code, 2);
        assert!(!stderr.contains("to run a checkpoint"), "{stderr}");
    }
}

#[test]
fn a_pack_of_the_users_comes_before_the_built_in_ones() {
    let copy = Copy::of("llama-plain");
    let text = MINE.replace("my_llama", "llama") + "[fields]\nnorm_eps = { value = 0.5 }\n";
    let pack =
        copy.beside("mine.toml", &text.replace("[\"pretraining_tp\"]", "[\"pretraining_tp\", \"rms_norm_eps\"]"));
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {}", pack.display())));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["mine, because of model_type `llama`\n", "eps 0.5\n"]);
    assert!(!stdout.contains("is not used"), "{stdout}");
}

#[test]
fn a_pack_that_is_none() {
    let copy = set("llama-plain", "model_type", json!("my_llama"));
    let with = |text: &str| {
        let file = copy.beside("mine.toml", text);
        format!("1 2 3 --pack {}", file.display())
    };
    let fields = |text: &str| format!("{MINE}[fields]\n{text}\n");
    let layer = |text: &str| format!("{MINE}[tensors.layer]\n{text}\n");
    for (text, wanted) in [
        ("not toml".to_owned(), "mine.toml: line 1, `not toml`: "),
        (format!("{MINE}colour = 3\n"), "line 8, `colour = 3`: unknown field `colour`"),
        ("name = \"mine\"\n".into(), "missing field `title`"),
        (MINE.replace("\"llama\"", "\"lama\""), "like = \"lama\": there is no such pack; the nearest are "),
        (MINE.replace("like = \"llama\"\n", ""), "fields.vocab_size: missing, every plan needs it"),
        (
            MINE.replace("[\"my_llama\"]", "[]").replace("[\"LlamaForCausalLM\"]", "[]"),
            "model_types and architectures are empty",
        ),
        (
            fields("logit_softcap = \"final_logit_softcapping\""),
            "fields.logit_softcap: nothing reads this field; the fields of a plan are vocab_size, ",
        ),
        (fields("nrom_eps = \"eps\""), "fields.nrom_eps: nothing reads this field"),
        (layer("k_nrom = \"{prefix}layers.{layer}.k\""), "tensors.layer.k_nrom: nothing reads this tensor"),
        (
            fields("tie_word_embeddings = { value = \"yes\" }"),
            "fields.tie_word_embeddings: value: expected true or false, found \"yes\"",
        ),
        (
            fields("num_key_value_heads = { value = -2 }"),
            "fields.num_key_value_heads: value: expected a whole number from 1 to 2147483647, found -2",
        ),
        (fields("num_key_value_heads = { value = 2.0 }"), "fields.num_key_value_heads: value: expected a whole number"),
        (fields("rope = { value = 500000.0 }"), "fields.rope: only a rule can give this field"),
        (fields("norm_eps = { key = \"eps\", rule = \"eps\" }"), "fields.norm_eps: unknown rule \"eps\""),
        (fields("qkv_bias = { rule = \"bias\" }"), "fields.qkv_bias: unknown rule \"bias\""),
        (fields("hidden_act = { rule = \"act\" }"), "fields.hidden_act: unknown rule \"act\""),
        (fields("head_dim = { key = \"d\", rule = \"half\" }"), "fields.head_dim: unknown rule \"half\""),
        (
            fields("hidden_size = { key = \"nope\", default_from = \"hidden_size\" }"),
            "fields.hidden_size: default_from = \"hidden_size\": expected",
        ),
        (
            fields("hidden_size = { key = \"nope\", null_from = \"hidden_size\" }"),
            "fields.hidden_size: null_from = \"hidden_size\": expected",
        ),
        (
            fields(
                "hidden_size = { key = \"a\", default_from = \"vocab_size\" }\n\
                 vocab_size = { key = \"b\", default_from = \"hidden_size\" }",
            ),
            "fields.hidden_size: default_from = \"vocab_size\": expected",
        ),
        (
            fields(
                "hidden_size = { key = \"a\", null_from = \"vocab_size\" }\n\
                 vocab_size = { key = \"b\", default_from = \"hidden_size\" }",
            ),
            "fields.hidden_size: null_from = \"vocab_size\": expected",
        ),
        (fields("hidden_size = { default_form = \"x\", key = \"y\" }"), "hidden_size = { default_form"),
        (fields("hidden_size = 3"), "`hidden_size = 3`: expected the name of a config key, or a table"),
        (fields("hidden_size = { key = \"n_embd\", colour = 1 }"), "expected the name of a config key, or a table"),
        (
            fields("hidden_size = { key = \"n_embd\", value = 3 }"),
            "fields.hidden_size: exactly one of key, value and rule",
        ),
        (fields("hidden_size = { default = 3 }"), "fields.hidden_size: exactly one of key, value and rule"),
        (
            fields("hidden_size = { key = \"n\", default = -3 }"),
            "fields.hidden_size: default: expected a whole number from 1 to 2147483647, found -3",
        ),
        (fields("hidden_size = { value = \"big\" }"), "fields.hidden_size: value: expected a whole number"),
        (fields("hidden_size = { value = 3, default = 4 }"), "fields.hidden_size: a value for the whole family"),
        (
            fields("hidden_size = { key = \"n\", default = 3, default_from = \"vocab_size\" }"),
            "fields.hidden_size: at most one of",
        ),
        (
            fields("hidden_size = { key = \"n\", default_from = \"hidden_size\" }"),
            "fields.hidden_size: default_from = \"hidden_size\": expected",
        ),
        (
            fields("hidden_size = { key = \"n\", null_from = \"norm_eps\" }"),
            "fields.hidden_size: null_from = \"norm_eps\": expected",
        ),
        (fields("qk_norm = { value = 1 }"), "fields.qk_norm: value: expected true or false, found 1"),
        (
            fields("norm_eps = { key = \"eps\", default = \"1e-5\" }"),
            "fields.norm_eps: default: expected a number from 0 to 1",
        ),
        (fields("hidden_act = { value = \"tanh\" }"), "fields.hidden_act: value: expected one of silu"),
        (
            fields("rope = { rule = \"alibi\" }"),
            "fields.rope: unknown rule \"alibi\"; rules for this field: \"rope_parameters\", \"rope_parameters, dynamic",
        ),
        (fields("rope = \"rope\""), "fields.rope: only a rule can give this field: \"rope_parameters\", "),
        (
            fields("sliding_window = { key = \"w\", rule = \"sliding_window everywhere\" }"),
            "fields.sliding_window: key: not beside the rule \"sliding_window everywhere\"",
        ),
        (
            fields("moe_layers = { rule = \"every layer\", default = 2 }"),
            "fields.moe_layers: default: not beside the rule \"every layer\"",
        ),
        (
            fields("embed_scale = { key = \"s\", rule = \"sqrt(hidden_size)\" }"),
            "fields.embed_scale: key: not beside the rule",
        ),
        (
            fields("intermediate_size = { key = \"i\", default = 3, rule = \"4 * hidden_size\" }"),
            "fields.intermediate_size: default: not beside the rule",
        ),
        (fields("qk_norm_eps = \"eps\""), "fields.qk_norm_eps: nothing reads this field"),
        (
            fields("rope = { rule = \"rope_parameters\", default = 1 }"),
            "fields.rope: default: expected a number greater than one",
        ),
        (
            fields("sliding_window = { rule = \"sliding_window sometimes\", default = 5 }"),
            "fields.sliding_window: unknown rule",
        ),
        (
            fields("vocab_size = { key = \"v\", rule = \"hidden_size / num_attention_heads\" }"),
            "rules for this field: none",
        ),
        (
            layer("post_norm = \"{prefix}layers.{layer}.x\""),
            "tensors.layer.post_norm: nothing reads this tensor; the parts of a layer are mixer_norm, mixer_post_norm, q, ",
        ),
        (layer("q = \"{prefix}q\""), "tensors.layer.q: expected {layer} for the layer's index, found \"{prefix}q\""),
        (
            layer("q = \"{prefix}{layer}.{head}\""),
            "tensors.layer.q: expected {prefix} and {layer} at most once and no other braces",
        ),
        (layer("q = \"{prefix}layers.{layer}.self_attn.k_proj.weight\""), "tensors: k and q have the same name"),
        (format!("{MINE}[tensors]\nhead = \"{{layer}}.x\"\n"), "tensors.head: expected no {layer} outside the layers"),
    ] {
        let sentence = copy.assert_run_refused(&with(&text), &["mine.toml: ", wanted]);
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
    }
    copy.assert_run_refused("1 2 3 --pack no/such.toml", &["no/such.toml: there is no such file"]);
    assert_eq!(outcome(copy.run(&with(MINE))).0, 0);
}

#[test]
fn a_pack_without_a_name_for_a_bias_that_the_config_has() {
    let copy = set("qwen3-plain", "model_type", json!("my_llama"));
    let pack = MINE.replace("LlamaForCausalLM", "Qwen3ForCausalLM") + "[fields]\nqk_norm = { value = true }\n";
    let pack = copy.beside("mine.toml", &pack).display().to_string();
    let (code, stdout, _) = outcome(copy.check(&format!("--pack {pack}")));
    assert_eq!(code, 2, "{stdout}");
    assert_says(&stdout, &["layer 0: the pack names no tensor for q_norm, which this config makes necessary"]);
}

// Anything at all.

fn anything() -> impl Strategy<Value = Value> {
    let number = prop_oneof![
        (-3i64..200).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![0.0, -0.0, 1e-300, 1e300, 0.5, 2147483647.0]).prop_map(Value::from),
    ];
    let leaf = prop_oneof![
        4 => number.clone(),
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => prop::sample::select(vec!["", "silu", "yarn", "dynamic", "llama", "full_attention"]).prop_map(Value::from),
        1 => prop::collection::vec(number, 0..8).prop_map(Value::from),
    ];
    let kind = prop::sample::select(vec!["default", "linear", "dynamic", "llama3", "yarn", "longrope"]);
    let keys = prop::sample::select(vec![
        "factor",
        "rope_theta",
        "low_freq_factor",
        "high_freq_factor",
        "beta_fast",
        "beta_slow",
        "short_factor",
        "long_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "mscale",
    ]);
    let rope = (kind, prop::collection::vec((keys, leaf.clone()), 0..6)).prop_map(|(kind, entries)| {
        let mut map = serde_json::Map::from_iter(entries.into_iter().map(|(key, value)| (key.to_owned(), value)));
        map.insert("rope_type".into(), kind.into());
        Value::Object(map)
    });
    prop_oneof![3 => leaf, 1 => rope]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_config_never_panics(
        fixture in prop::sample::select(vec!["llama-bias-llama3", "mistral-window", "qwen2-window-yarn", "qwen3-longrope"]),
        edits in prop::collection::vec((any::<prop::sample::Index>(), anything()), 1..3),
        rope in prop::option::weighted(0.3, anything()),
    ) {
        let copy = Copy::of(fixture).config(|map| {
            for (at, value) in edits {
                let key = map.keys().nth(at.index(map.len())).unwrap().clone();
                map.insert(key, value);
            }
            if let Some(rope) = rope {
                map.remove("rope_parameters");
                map.insert("rope_scaling".into(), rope);
            }
        });
        let config = fs::read_to_string(copy.file("config.json")).unwrap();
        let (check, stdout, stderr) = outcome(copy.check("--format json"));
        prop_assert!([0, 2].contains(&check), "{}\n{}", config, stderr);
        let report: Value = serde_json::from_str(&stdout).unwrap();
        prop_assert_eq!(report["ok"].as_bool(), Some(check == 0));
        prop_assert_eq!(outcome(copy.check("")).0, check);
        let (run, _, stderr) = outcome(copy.run("1 2 3"));
        // A factor such as 1e300 may give infinities, which a run then names.
        prop_assert!(run == check || run == 1 && check == 0 && stderr.contains("first appears in"), "{}\n{}", config, stderr);
        prop_assert_eq!(copy.left().is_empty(), run != 0);
    }
}

#[cfg(unix)]
#[test]
fn a_pack_that_never_ends_is_not_read() {
    let (code, _, stderr) = outcome(words("run fixtures/llama-plain 1 --pack /dev/zero"));
    assert_eq!(code, 2);
    assert_says(&stderr, &["/dev/zero: "]);
}

// BitNet's packed weights and their scales.

const QUANTIZED: &str = "model.layers.1.self_attn.q_proj.weight";
const SCALE: &str = "model.layers.1.self_attn.q_proj.weight_scale";

fn bitnet(dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Copy {
    Copy::of("bitnet-packed").tensors(|tensors| {
        assert!(tensors.insert(SCALE.into(), (dtype, shape.to_vec(), bytes.to_vec())).is_some());
    })
}

#[test]
fn a_packed_weight_whose_scale_is_missing_or_of_another_kind() {
    Copy::of("bitnet-packed").assert_runs("1 2 3");
    let none = Copy::of("bitnet-packed").tensors(|tensors| drop(tensors.remove(SCALE)));
    none.assert_refused(&[SCALE, "missing; the plan needs it with shape [1]"]);
    let one = 1f32.to_le_bytes();
    bitnet(Dtype::F32, &[1], &one).assert_runs("1 2 3");
    bitnet(Dtype::F32, &[1, 1], &one).assert_refused(&[SCALE, "expected shape [1], found [1, 1]"]);
    bitnet(Dtype::F32, &[2], &[one, one].concat()).assert_refused(&[SCALE, "expected shape [1], found [2]"]);
    bitnet(Dtype::U8, &[1], &[1]).assert_refused(&[SCALE, "dtype U8 can't be decoded here"]);
}

#[test]
fn a_scale_that_is_no_number_above_zero() {
    for (value, shown) in [(0.0, "0"), (-0.5, "-0.5"), (f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-0.0, "-0")] {
        let copy = bitnet(Dtype::F32, &[1], &value.to_le_bytes());
        copy.assert_refused(&[SCALE, &format!("expected a number greater than zero, found {shown}")]);
    }
    bitnet(Dtype::F32, &[1], &f32::from_bits(1).to_le_bytes()).assert_runs("1 2 3");
}

#[test]
fn a_packed_weight_of_another_shape_or_type() {
    let with = |dtype: Dtype, shape: &[usize]| {
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.bitsize() / 8];
        Copy::of("bitnet-packed").tensors(|tensors| {
            assert!(tensors.insert(QUANTIZED.into(), (dtype, shape.to_vec(), bytes)).is_some());
        })
    };
    with(Dtype::U8, &[6, 24]).assert_runs("1 2 3");
    with(Dtype::U8, &[24, 24]).assert_refused(&[QUANTIZED, "expected shape [6, 24], found [24, 24]"]);
    with(Dtype::U8, &[24, 6]).assert_refused(&[QUANTIZED, "expected shape [6, 24], found [24, 6] (transposed)"]);
    with(Dtype::I8, &[6, 24]).assert_refused(&[QUANTIZED, "expected U8, four ternary rows in one, found I8"]);
    let both = [QUANTIZED, "expected shape [6, 24], found [24, 24]", "expected U8", "found BF16"];
    let (code, stdout, _) = outcome(with(Dtype::BF16, &[24, 24]).check(""));
    assert_eq!(code, 2);
    assert_says(&stdout, &both);
    // Rows that are no multiple of four: 34 of gate and up in each of three layers.
    let copy = set("bitnet-packed", "intermediate_size", json!(34));
    let (code, stdout, _) = outcome(copy.check(""));
    assert_eq!(code, 2);
    let says =
        ["mlp.gate_proj.weight`: 34 rows can't be packed: four of them lie in one", "mlp.up_proj.weight`: 34 rows"];
    assert_says(&stdout, &says);
}

#[test]
fn a_config_and_weights_that_are_quantised_in_different_ways() {
    let online = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online" });
    let (code, stdout, _) = outcome(set("bitnet-packed", "quantization_config", online).check(""));
    assert_eq!(code, 2);
    let scale = format!("`{SCALE}`: surplus");
    assert_says(&stdout, &["expected shape [24, 24], found [6, 24]", "dtype U8 can't be decoded here", &scale]);
    let offline = json!({ "quant_method": "bitnet", "linear_class": "autobitlinear" });
    let (code, stdout, _) = outcome(set("bitnet-online", "quantization_config", offline).check(""));
    assert_eq!(code, 2);
    assert_says(&stdout, &["expected shape [6, 24], found [24, 24]", "expected U8", "weight_scale`: missing"]);
}

#[test]
fn a_quantization_that_is_not_known_is_refused_by_name() {
    let bitnet = |key: &str, value: Value| {
        Copy::of("bitnet-divisor").config(|map| {
            let config = map.get_mut("quantization_config").unwrap();
            config.as_object_mut().unwrap().insert(key.into(), value);
        })
    };
    for (key, value, wanted) in [
        ("quant_method", json!("fp8"), "`fp8`, but no tensor of the folder is stored so"),
        ("linear_class", json!("linear"), "expected bitlinear or autobitlinear"),
        ("quantization_mode", json!("online"), "online is for autobitlinear"),
        ("modules_to_not_convert", json!(["q_proj"]), "expected null or [\"lm_head\"], found [\"q_proj\"]"),
        ("use_rms_norm", json!(true), "a further norm before every projection is not supported"),
        ("group_size", json!(128), "unknown key (value 128)"),
    ] {
        let copy = bitnet(key, value);
        copy.assert_refused(&[&format!("config.json, key `quantization_config.{key}`"), wanted]);
    }
    bitnet("modules_to_not_convert", json!(["lm_head"])).assert_runs("1 2 3");
    bitnet("rms_norm_eps", json!(1e-6)).assert_runs("1 2 3");
    set("llama-plain", "quantization_config", json!({ "quant_method": "bitnet" }))
        .assert_refused(&["key `quantization_config`", "would change the numbers, and is not supported"]);
}
