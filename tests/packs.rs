//! Packs against the fixtures: which pack answers for which, which spellings mean the same, and what is refused.

mod common;

use checkpoint_oracle::checkpoint;
use checkpoint_oracle::model::{Books, Pack, close_books};
use common::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn books(folder: &Path) -> Books {
    let opened = checkpoint::open(folder);
    assert!(opened.problems.is_empty(), "{:#?}", opened.problems);
    let (config, source) = (opened.config.expect("it has a config"), opened.source.expect("it has weights"));
    close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[])
}

#[test]
fn every_fixture_is_of_exactly_one_pack_and_selects_it() {
    let mut pack_of: BTreeMap<&str, &str> = BTreeMap::new();
    for pack in Pack::embedded() {
        for fixture in &pack.fixtures {
            let other = pack_of.insert(fixture, &pack.name);
            assert_eq!(other, None, "{fixture} is listed by {} as well", pack.name);
        }
    }
    for name in fixtures() {
        let chosen = books(&fixture(&name)).pack.expect("a pack answers").0.name;
        match pack_of.remove(name.as_str()) {
            Some(pack) => assert_eq!(chosen, pack, "{name}"),
            // What is refused verifies nothing.
            None => assert!(!books(&fixture(&name)).problems.is_empty(), "no pack lists {name}"),
        }
    }
    assert_eq!(pack_of, BTreeMap::new(), "fixtures that are not there");
}

#[test]
fn every_pack_that_runs_has_a_fixture_or_is_run_inside_one() {
    let packs = || Pack::embedded().iter().filter(|pack| pack.refuse.is_none());
    let text_of = |folder: &Pack, pack: &Pack| {
        folder.text.as_ref().is_some_and(|text| pack.model_types.contains(&text.model_type))
    };
    for pack in packs() {
        // A folder's fixture runs its text model, and a folder runs what its text model's fixtures do.
        let alike = packs().filter(|other| text_of(other, pack) || text_of(pack, other));
        assert!(!pack.fixtures.is_empty() || alike.into_iter().any(|p| !p.fixtures.is_empty()), "{}", pack.name);
    }
}

/// What `edit` makes of a fixture's config.
fn edited(name: &str, edit: &dyn Fn(&mut Map<String, Value>)) -> Copy {
    Copy::of(name).config(|map| edit(map))
}

fn set(map: &mut Map<String, Value>, keys: &Value) {
    for (key, value) in keys.as_object().expect("an object") {
        map.insert(key.clone(), value.clone());
    }
}

#[test]
fn spellings_that_mean_the_same_give_the_same_plan() {
    let full = json!({ "head_dim": 16, "num_key_value_heads": 1 });
    // Fixture, keys that go, keys that come.
    let cases: Vec<(&str, &[&str], Value)> = vec![
        (
            "phi3-longrope",
            &[],
            json!({ "rope_scaling": { "type": "su", "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.1, 1.9, 3.7, 6.0] } }),
        ),
        (
            "phi3-longrope",
            &["rope_scaling"],
            json!({ "rope_parameters": { "rope_type": "yarn", "original_max_position_embeddings": 11, "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.1, 1.9, 3.7, 6.0] } }),
        ),
        ("exaone4-hybrid", &[], json!({ "sliding_window_pattern": 3 })),
        ("gemma3-plain", &[], json!({ "sliding_window_pattern": "LLG" })),
        (
            "gemma3-plain",
            &["sliding_window_pattern"],
            json!({ "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"] }),
        ),
        (
            "gemma3-plain",
            &["rope_theta", "rope_local_base_freq", "rope_scaling"],
            json!({ "rope_parameters": { "full_attention": { "rope_type": "linear", "factor": 8.0, "rope_theta": 1e6 }, "sliding_attention": { "rope_type": "default", "rope_theta": 1e4 } } }),
        ),
        (
            "gemma2-softcap",
            &[],
            json!({ "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "hidden_act": "relu" }),
        ),
        ("gemma-plain", &["hidden_activation"], json!({ "hidden_act": "gelu_pytorch_tanh" })),
        (
            "gemma4-dense",
            &["global_head_dim", "num_global_key_value_heads"],
            json!({ "per_layer_config": { "1": full, "4": full } }),
        ),
        (
            "gemma4-dense",
            &[],
            json!({ "per_layer_config": { "1": full, "4": full }, "global_head_dim": 77, "num_global_key_value_heads": 4 }),
        ),
        (
            "gemma4-dense",
            &[],
            json!({ "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "sliding_attention"] }),
        ),
        ("gemma4-bias", &["num_global_key_value_heads"], json!({})),
        (
            "granitemoehybrid-moe-nope",
            &[],
            json!({ "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"] }),
        ),
        ("granitemoehybrid-moe-nope", &["position_embedding_type"], json!({ "mamba_d_head": "auto" })),
        ("granitemoehybrid-dense-nope", &[], json!({ "mamba_d_head": 11, "time_step_limit": null })),
        (
            "cohere2-hybrid",
            &["layer_switch"],
            json!({ "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"], "sliding_window_pattern": 3 }),
        ),
        ("olmo3-yarn", &["rope_theta"], json!({})),
        (
            "falcon-new",
            &["hidden_size"],
            json!({ "n_embed": 36, "num_ln_in_parallel_attn": 2, "multi_query": false, "ffn_hidden_size": 144 }),
        ),
        ("falcon-serial", &[], json!({ "num_kv_heads": 5 })),
        ("falcon-multi-query", &[], json!({ "num_kv_heads": 5, "parallel_attn": true })),
        ("starcoder2-window", &["norm_epsilon"], json!({ "layer_norm_epsilon": 1e-5 })),
        ("gpt2-scaled-untied", &[], json!({ "reorder_and_upcast_attn": false })),
        ("seed_oss-plain", &["head_dim"], json!({ "head_dim": 10 })),
        ("smollm3-plain", &["layer_types"], json!({ "no_rope_layer_interval": 2 })),
        ("smollm3-plain", &["no_rope_layers"], json!({ "no_rope_layer_interval": 2 })),
        (
            "gpt_neox-parallel",
            &["rotary_pct", "rotary_emb_base"],
            json!({ "rope_parameters": { "rope_theta": 10000, "partial_rotary_factor": 0.5 } }),
        ),
        ("hunyuan_v1_dense-alpha", &["head_dim"], json!({})),
    ];
    for (name, gone, come) in cases {
        let changed = edited(name, &|map| {
            gone.iter().for_each(|key| drop(map.remove(*key)));
            set(map, &come);
        });
        let (before, after) = (books(&fixture(name)), books(&changed.path()));
        assert!(after.problems.is_empty(), "{name} {come}: {:#?}", after.problems);
        assert_eq!(
            after.plan.map(|p| p.sha256()),
            before.plan.map(|p| p.sha256()),
            "{name} without {gone:?}, with {come}"
        );
    }
}

#[test]
fn what_a_family_does_not_have_is_refused_by_name() {
    let full = json!({ "head_dim": 16, "num_key_value_heads": 1 });
    let cases: Vec<(&str, Value, &str)> = vec![
        ("falcon-multi-query", json!({ "alibi": true }), "key `alibi`"),
        ("falcon-new", json!({ "parallel_attn": false }), "key `parallel_attn`: contradicts new_decoder_architecture"),
        ("gemma-plain", json!({ "use_bidirectional_attention": true }), "key `use_bidirectional_attention`"),
        ("gemma-plain", json!({ "hidden_act": "silu" }), "key `hidden_act`: \"silu\" would change the numbers"),
        ("gemma3-plain", json!({ "attn_logit_softcapping": 50.0 }), "key `attn_logit_softcapping`"),
        (
            "gemma3-cap-bias",
            json!({ "sliding_window": null }),
            "key `sliding_window`: layer 1 is sliding_attention, but there is no window",
        ),
        ("gemma4-dense", json!({ "use_bidirectional_attention": "all" }), "key `use_bidirectional_attention`"),
        ("gemma4-dense", json!({ "per_layer_config": { "1": full } }), "key `per_layer_config`"),
        (
            "gemma4-dense",
            json!({ "per_layer_config": { "1": full, "4": { "head_dim": 10 } } }),
            "key `per_layer_config`",
        ),
        ("gemma4-dense", json!({ "per_layer_config": { "0": full, "1": full, "4": full } }), "key `per_layer_config`"),
        (
            "gemma4-dense",
            json!({ "per_layer_config": { "1": full, "4": { "head_dim": 16, "num_key_value_heads": 1, "sliding_window": 3 } } }),
            "key `per_layer_config`",
        ),
        (
            "gemma4-dense",
            json!({ "rope_parameters": { "rope_type": "default", "rope_theta": 10000.0 } }),
            "key `rope_parameters`: expected an object with one for full_attention",
        ),
        (
            "gemma4-dense",
            json!({ "rope_parameters": null }),
            "key `rope_parameters`: expected an object with one for full_attention",
        ),
        ("gemma4-moe", json!({ "num_experts": null }), "key `num_experts`: missing"),
        ("olmo3-yarn", json!({ "rope_theta": 10000.0 }), "key `rope_theta`: 10000.0 would change the numbers"),
        (
            "olmo3-two-bases",
            json!({ "rope_parameters": { "full_attention": { "rope_type": "yarn", "factor": 2.0, "truncate": false }, "sliding_attention": {} } }),
            "key `rope_parameters.full_attention`: truncate has no effect",
        ),
        (
            "phi3-longrope",
            json!({ "rope_scaling": { "type": "linear", "factor": 2.0 } }),
            "known are default, longrope, su, yarn",
        ),
        ("phi3-longrope", json!({ "attention_bias": true }), "key `attention_bias`"),
        ("cohere2-hybrid", json!({ "position_embedding_type": "nope" }), "key `position_embedding_type`"),
        ("cohere2-hybrid", json!({ "layer_switch": 4 }), "key `layer_switch`: differs from sliding_window_pattern"),
        (
            "exaone4-hybrid",
            json!({ "layer_types": null, "sliding_window_pattern": "GLLL" }),
            "key `sliding_window_pattern`",
        ),
        ("hunyuan_v1_dense-alpha", json!({ "use_qk_norm": false }), "key `use_qk_norm`"),
        (
            "hunyuan_v1_dense-alpha",
            json!({ "attention_head_dim": 12 }),
            "key `attention_head_dim`: differs from head_dim",
        ),
        ("granitemoehybrid-moe-nope", json!({ "normalization_function": "layernorm" }), "key `normalization_function`"),
        ("granitemoehybrid-moe-nope", json!({ "mamba_expand": 3 }), "key `mamba_expand`"),
        ("granitemoehybrid-moe-nope", json!({ "position_embedding_type": "alibi" }), "key `position_embedding_type`"),
        ("ministral3-scaling", json!({ "rope_parameters": null }), "key `rope_parameters`: missing"),
        ("ministral3-scaling", json!({ "layer_types": ["full_attention"] }), "key `layer_types`: unknown key"),
        (
            "starcoder2-window",
            json!({ "layer_norm_epsilon": 1e-6 }),
            "key `layer_norm_epsilon`: differs from norm_epsilon",
        ),
        ("nemotron-plain", json!({ "num_key_value_heads": null }), "key `num_key_value_heads`: missing"),
        ("gpt2-plain", json!({ "add_cross_attention": true }), "key `add_cross_attention`"),
    ];
    for (name, keys, wanted) in cases {
        let problems = books(&edited(name, &|map| set(map, &keys)).path()).problems;
        let said: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(said.iter().any(|problem| problem.contains(wanted)), "{name} {keys}: expected {wanted:?} in {said:#?}");
    }
}

#[test]
fn a_soft_cap_that_is_null_is_none_and_one_that_is_absent_is_the_familys() {
    let caps = |copy: &Copy| {
        let plan = books(&copy.path()).plan.expect("the books close");
        let attention = plan.layers[0].mixer.attention_spec().expect("it is attention").attn_logit_softcapping;
        (attention, plan.head.final_logit_softcapping)
    };
    assert_eq!(caps(&Copy::of("gemma2-softcap")), (Some(3.0), Some(5.0)));
    assert_eq!(caps(&Copy::of("gemma2-no-caps")), (None, None));
    let absent = edited("gemma2-no-caps", &|map| {
        map.remove("attn_logit_softcapping");
        map.remove("final_logit_softcapping");
    });
    assert_eq!(caps(&absent), (Some(50.0), Some(30.0)));
}

#[test]
fn a_head_dim_that_is_null_follows_from_the_others() {
    // The tensors don't fit then, but the config gives a plan.
    let copy = edited("seed_oss-plain", &|map| {
        set(map, &json!({ "head_dim": null, "hidden_size": 24, "num_attention_heads": 3, "num_key_value_heads": 1 }))
    });
    let plan = books(&copy.path()).plan.expect("the config gives a plan");
    assert_eq!(plan.layers[0].mixer.attention_spec().expect("it is attention").head_dim, 8);
    let copy = edited("seed_oss-plain", &|map| drop(map.remove("head_dim")));
    let plan = books(&copy.path()).plan.expect("the config gives a plan");
    assert_eq!(plan.layers[0].mixer.attention_spec().expect("it is attention").head_dim, 128);
}

#[test]
fn gemma_3n_drops_gates_on_ten_layers_where_no_key_says_it() {
    let sparse = |layers: usize| {
        let kinds = vec!["full_attention"; layers];
        let copy = edited("gemma3n-stream-one", &|map| {
            map.remove("activation_sparsity_pattern");
            set(map, &json!({ "num_hidden_layers": layers, "layer_types": kinds, "intermediate_size": 26 }));
        });
        let plan = serde_json::to_value(books(&copy.path()).plan.expect("the config gives a plan")).expect("JSON");
        let layers = plan["layers"].as_array().expect("a list").clone();
        layers.iter().map(|layer| layer["mlp"]["sparsity"].as_f64().is_some()).collect::<Vec<bool>>()
    };
    assert_eq!(sparse(10), [false; 10]);
    assert_eq!(sparse(12), [[true; 10].as_slice(), &[false; 2]].concat());
}

#[test]
fn microsofts_own_files_of_phi_4_multimodal_are_the_same_model() {
    let modules = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"];
    let copy = edited("phi4_multimodal-longrope", &|map| {
        for key in ["vision_config", "audio_config", "rope_parameters"] {
            map.remove(key);
        }
        set(
            map,
            &json!({
                "model_type": "phi4mm", "architectures": ["Phi4MMForCausalLM"], "embd_layer": { "embedding_cls": "image_audio" },
                "img_processor": null, "audio_processor": { "name": "cascades" }, "vision_lora": { "r": 2 }, "speech_lora": { "r": 2 },
                "attention_bias": false, "mlp_bias": false, "lm_head_bias": false, "full_attn_mod": 1, "interpolate_factor": 1,
                "partial_rotary_factor": 0.75, "rope_theta": 10000.0,
                "rope_scaling": { "type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 2.1, 4.0] },
            }),
        );
    })
    .tensors(|tensors| {
        let names: Vec<String> = tensors.keys().cloned().collect();
        for name in names {
            let Some(module) = modules.iter().find(|module| name.ends_with(&format!("{module}.weight"))) else { continue };
            if !name.starts_with("model.layers.") {
                continue;
            }
            let (dtype, shape, data) = tensors.remove(&name).expect("it is there");
            let stem = name.strip_suffix("weight").expect("it is a weight").to_owned();
            for adapter in ["speech", "vision"] {
                for part in ["lora_A", "lora_B"] {
                    tensors.insert(format!("{stem}{part}.{adapter}.weight"), (dtype, vec![1, 2], data[..4].to_vec()));
                }
            }
            tensors.insert(format!("{stem}base_layer.weight"), (dtype, shape, data));
            assert!(stem.contains(module));
        }
    });
    let tokens = "3 17 5 29 11 2 23 8 19 1 13 7";
    let theirs = copy.assert_runs(tokens);
    let ours = Copy::of("phi4_multimodal-longrope").assert_runs(tokens);
    assert_eq!(theirs.logits, ours.logits);
}
