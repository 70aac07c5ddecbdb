//! What single families ask of a checkpoint, beside the logits that tests/golden.rs compares.

mod common;

use common::*;
use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use std::fs;

fn set(fixture: &str, key: &str, value: Value) -> Copy {
    Copy::of(fixture).set(key, value)
}

#[test]
fn a_token_that_stands_for_an_image_is_refused() {
    let message = "token 2: 62 stands for an image (image_token_id in the config), and a run of text alone has none";
    let copy = Copy::of("qwen3_vl-published");
    copy.assert_run_refused("1 2 62 3", &["ckpt: ", message]);
    let prompts =
        copy.beside("p.jsonl", "{\"id\": \"a\", \"tokens\": [1, 2]}\n{\"id\": \"b\", \"tokens\": [1, 2, 62]}\n");
    let (code, _, stderr) = outcome(copy.run(&format!("--prompts {}", prompts.display())));
    assert_eq!(code, 2, "{stderr}");
    assert_says(&stderr, &["prompt `b`, ", message]);
    for (fixture, token, wanted) in [
        ("qwen3_5-mtp", 63, "63 stands for a video (video_token_id in the config)"),
        ("mistral3-mistral", 10, "10 stands for an image (image_token_index in the config)"),
        ("llama4-published", 63, "63 stands for an image (image_token_index in the config)"),
    ] {
        for command in ["run", "kv-equivalence"] {
            let mut command = words(command);
            command.arg(fixture_path(fixture)).args(["1", "2", &token.to_string()]);
            let (code, stdout, stderr) = outcome(command);
            assert_eq!((code, stdout.as_str()), (2, ""), "{fixture}");
            assert_says(&stderr, &[wanted]);
        }
    }
    // The probes avoid it.
    let (code, _, stderr) = outcome(words(&format!("faults {}", fixture_path("qwen3_vl-published"))));
    assert_eq!(code, 0, "{stderr}");
}

/// The checkpoint is refused, and among the problems is this one.
#[track_caller]
fn assert_check_says(copy: &Copy, wanted: &str) {
    let (code, stdout, stderr) = outcome(copy.check(""));
    assert_eq!((code, stderr.as_str()), (2, ""));
    assert_says(&stdout, &[wanted]);
}

fn fixture_path(name: &str) -> String {
    fixture(name).display().to_string()
}

#[test]
fn a_drafter_is_named() {
    for name in ["gemma4_assistant", "gemma4_unified_assistant"] {
        set("llama-plain", "model_type", json!(name))
            .assert_refused(&["key `model_type`: this is a drafter for Gemma 4", "it can't run alone"]);
    }
}

#[test]
fn quantised_weights_and_activations_of_other_families_are_refused() {
    set("llama-plain", "quantization_config", json!({"quant_method": "fp8"}))
        .assert_refused(&["`quantization_config.quant_method`: `fp8`, but no tensor of the folder is stored so"]);
    set("llama-plain", "quantization_config", json!(null)).assert_runs("1 2 3");
}

/// transformers' AutoBitLinear scales the sum and its bias, BitLinear the sum alone. With powers of two no bit is lost.
#[test]
fn a_scale_that_multiplies_reaches_the_bias_and_one_that_divides_does_not() {
    let logits = |class: &str, scale: f32, bias: f32| {
        let config = json!({ "quant_method": "bitnet", "linear_class": class });
        let copy = set("bitnet-packed", "quantization_config", config).set("attention_bias", json!(true));
        let copy = copy.tensors(|tensors| {
            for (_, stored) in tensors.iter_mut().filter(|(name, _)| name.ends_with(".weight_scale")) {
                *stored = (Dtype::F32, vec![1], f32s([scale]));
            }
            for (layer, (part, rows)) in
                (0..3).flat_map(|layer| [("q", 24), ("k", 12), ("v", 12), ("o", 24)].map(|part| (layer, part)))
            {
                let values = (0..rows).map(|i| bias * (i % 7 - 3) as f32);
                let stored = (Dtype::F32, vec![rows as usize], f32s(values));
                assert!(tensors.insert(format!("model.layers.{layer}.self_attn.{part}_proj.bias"), stored).is_none());
            }
        });
        copy.assert_runs("1 2 3 4 5").logits
    };
    let multiplied = logits("autobitlinear", 0.25, 2.0);
    assert_eq!(multiplied, logits("bitlinear", 4.0, 0.5));
    assert_ne!(multiplied, logits("bitlinear", 4.0, 2.0));
    assert_ne!(multiplied, logits("autobitlinear", 0.25, 0.5));
}

#[test]
fn layers_that_predict_further_tokens_are_counted() {
    Copy::of("deepseek_v3-mtp").assert_runs("1 2 3");
    let surplus = "tensor `model.layers.3.eh_proj.weight`: surplus";
    assert_check_says(&set("deepseek_v3-mtp", "num_nextn_predict_layers", json!(0)), surplus);
    // A layer of the model is none of them.
    assert_check_says(&set("deepseek_v3-mtp", "num_hidden_layers", json!(2)), surplus);
    assert_check_says(&set("glm4_moe-groups", "num_hidden_layers", json!(2)), surplus);
}

#[test]
fn a_missing_expert_is_named() {
    let name = "model.layers.1.block_sparse_moe.experts.0.w1.weight";
    let copy = Copy::of("minimax_m2-partial").tensors(|tensors| drop(tensors.remove(name)));
    copy.assert_refused(&[&format!("tensor `{name}`: missing; the plan needs it with shape [12, 30]")]);
    let name = "model.layers.1.mlp.experts.gate_up_proj";
    let copy = Copy::of("mixtral-fused").tensors(|tensors| drop(tensors.remove(name)));
    copy.assert_refused(&[&format!("tensor `{name}`: missing; the plan needs it with shape [7, 28, 26]")]);
}

/// transformers writes Qwen3-VL's experts as `[experts, out, in]`, published files have `[experts, in, out]`.
#[test]
fn the_shape_tells_how_experts_lie() {
    let published = Copy::of("qwen3_vl_moe-published");
    let saved = Copy::of("qwen3_vl_moe-published").tensors(|tensors| {
        for (_, stored) in tensors.iter_mut().filter(|(name, _)| name.contains(".mlp.experts.")) {
            let (Dtype::BF16, shape, data) = stored else { panic!("BF16") };
            let [experts, rows, cols] = shape[..] else { panic!("three dimensions") };
            let at = |e: usize, r: usize, c: usize| 2 * ((e * rows + r) * cols + c);
            let order = (0..experts).flat_map(|e| (0..cols).flat_map(move |c| (0..rows).map(move |r| at(e, r, c))));
            *data = order.flat_map(|at| [data[at], data[at + 1]]).collect();
            *shape = vec![experts, cols, rows];
        }
    });
    let logits = |copy: &Copy| copy.assert_runs("1 2 3 4 5").logits;
    assert_eq!(logits(&published), logits(&saved));
}

#[test]
fn a_folder_that_does_not_say_whether_its_head_is_tied() {
    let name = "language_model.lm_head.weight";
    Copy::of("mistral3-mistral").assert_runs("1 2 3");
    let headless = || Copy::of("mistral3-mistral").tensors(|tensors| drop(tensors.remove(name)));
    headless().assert_runs("1 2 3");
    headless().set("tie_word_embeddings", json!(false)).assert_refused(&[&format!("tensor `{name}`: missing")]);
}

#[test]
fn what_a_family_fixes_is_refused_otherwise() {
    for (fixture, key, value, wanted) in [
        ("minimax_m2-plain", "scoring_func", json!("softmax"), "\"softmax\" would change the numbers"),
        ("minimax_m2-plain", "attn_type_list", json!([1, 0]), "[1,0] would change the numbers"),
        ("minimax_m2-plain", "attn_type_list", json!([]), "[] would change the numbers"),
        ("minimax_m2-plain", "rotary_dim", json!(14), "expected a part of head_dim (12)"),
        ("hunyuan_v1_moe-alpha", "norm_topk_prob", json!(false), "false would change the numbers"),
        ("hunyuan_v1_moe-alpha", "use_mixed_mlp_moe", json!(false), "false would change the numbers"),
        ("deepseek_v3-mtp", "topk_method", json!("greedy"), "\"greedy\" would change the numbers"),
        ("deepseek_v3-mtp", "num_key_value_heads", json!(2), "latent attention has a key for each of 4 heads, found 2"),
        ("deepseek_v2-lite", "scoring_func", json!("sigmoid"), "\"sigmoid\" would change the numbers"),
        ("kimi_linear-published", "mla_use_nope", json!(false), "false would change the numbers"),
        ("gpt_oss-yarn", "rope_scaling", json!(null), "`rope_parameters`: missing; the family's own default"),
        (
            "mamba2-bias-tied",
            "expand",
            json!(3),
            "expected what gives heads times head_dim (48) with hidden_size, found 3",
        ),
        (
            "mamba2-bias-tied",
            "layer_types",
            json!(["mamba", "full_attention", "mamba"]),
            "layer 1 is one of attention, which this family doesn't have",
        ),
        ("mamba2-bias-tied", "time_step_limit", json!(["Infinity", 1]), "expected a list of two ascending numbers"),
        ("lfm2-published", "block_multiple_of", json!(7), "expected shape [35, 28], found [40, 28]"),
        ("qwen3_next-published", "use_sliding_window", json!(true), "true would change the numbers"),
        ("qwen2_moe-shared", "mlp_only_layers", json!([9]), "expected a list of layers from 0 to 5"),
        ("mistral4-small", "num_experts_per_tok", json!(8), "expected at most the number of experts (7), found 8"),
    ] {
        assert_check_says(&set(fixture, key, value), wanted);
    }
}

#[test]
fn infinity_is_no_number_where_one_is_needed() {
    let copy = Copy::of("mamba2-groups");
    let config = fs::read_to_string(copy.file("config.json")).unwrap();
    assert_says(&config, &["Infinity"]);
    copy.assert_runs("1 2 3");
    let copy = Copy::of("mamba2-groups");
    fs::write(
        copy.file("config.json"),
        config.replace("\"layer_norm_epsilon\": 1e-05", "\"layer_norm_epsilon\": Infinity"),
    )
    .unwrap();
    copy.assert_refused(&["`layer_norm_epsilon`: expected a number from 0 to 1, found \"Infinity\""]);
}

/// As transformers' Qwen2MoeConfig writes it by default.
#[test]
fn a_window_that_is_switched_off_may_be_zero() {
    let zero = set("qwen2_moe-window", "sliding_window", json!(0));
    assert_check_says(&zero, "key `sliding_window`: expected a whole number from 1");
    let off = zero.set("use_sliding_window", json!(false));
    let (code, stdout, _) = outcome(off.check(""));
    assert_eq!(code, 0, "{stdout}");
    assert_says(&stdout, &["sliding_window           none"]);
}
