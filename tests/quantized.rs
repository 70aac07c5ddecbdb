//! Folders with quantised weights: each of fixtures/quant is decoded to the bits that the owner of its format gets
//! (oracles/quant, see the scripts that wrote them), runs as the folder of these weights does, and is refused by name where
//! something is wrong with it.

mod common;

use checkpoint_oracle::checkpoint::{Decoder, Dtype, Source};
use checkpoint_oracle::model::{Pack, close_books, open};
use checkpoint_oracle::oracle::OracleFile;
use common::{Copy, Stored, assert_says, fixture, outcome, read, root};
use safetensors::SafeTensors;
use safetensors::tensor::Dtype as StoredDtype;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

fn dialects() -> Vec<String> {
    let entries = fs::read_dir(fixture("quant")).expect("the scripts wrote it");
    let mut names: Vec<String> = entries
        .map(|entry| entry.expect("an entry"))
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    names
}

fn golden(name: &str) -> PathBuf {
    root("oracles/quant").join(format!("{name}.safetensors"))
}

/// The values of a tensor, by ranges of bytes that don't care about rows.
fn values(source: &dyn Source, name: &str) -> Vec<f32> {
    let info = &source.tensors()[name];
    assert_eq!(info.dtype, Dtype::F32, "{name}");
    let mut bytes = Vec::new();
    let step = info.len / 3 + 1;
    let mut first = 0;
    while first < info.len {
        let end = info.len.min(first + step);
        bytes.extend(source.read(info, first..end).unwrap_or_else(|error| panic!("{name}: {error:#}")));
        first = end;
    }
    assert_eq!(bytes, source.read(info, 0..info.len).expect("it can be read"), "{name}: in pieces and as a whole");
    let mut values = vec![0.0; bytes.len() / 4];
    Decoder::F32.decode(&bytes, &mut values);
    values
}

/// The experts' own tensors that the owner has in one.
fn apart(fused: &str, experts: usize) -> Vec<String> {
    let (before, parts) = match fused.strip_suffix(".gate_up_proj") {
        Some(before) => (before, &["gate_proj", "up_proj"][..]),
        None => (fused.strip_suffix(".down_proj").unwrap_or(fused), &["down_proj"][..]),
    };
    (0..experts).flat_map(|i| parts.iter().map(move |part| format!("{before}.{i}.{part}.weight"))).collect()
}

fn is_part(tensor: &str, fused: &str) -> bool {
    apart(fused, 8).iter().any(|part| part == tensor)
}

/// What differs from the owner's values.
fn differences(name: &str) -> Result<(), String> {
    let opened = open(&fixture("quant").join(name), Pack::embedded()).into_checkpoint();
    let checkpoint = opened.map_err(|problems| format!("{problems:#?}"))?;
    let source = checkpoint.source.as_ref();
    let books = close_books(&checkpoint.config, source, &BTreeSet::new(), Pack::embedded(), &[]);
    if !books.problems.is_empty() {
        return Err(format!("{:#?}", books.problems));
    }
    let bytes = fs::read(golden(name)).map_err(|error| error.to_string())?;
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("safetensors");
    let rounding = header.metadata().as_ref().and_then(|metadata| metadata.get("rounding"));
    let round: fn(f32) -> f32 = match rounding.map(String::as_str) {
        None | Some("F32") => |value| value,
        Some("F16") => |value| half::f16::from_f32(value).to_f32(),
        Some("BF16") => |value| half::bf16::from_f32(value).to_f32(),
        Some(other) => return Err(format!("rounding {other}")),
    };
    let expected = SafeTensors::deserialize(&bytes).expect("safetensors");
    for (tensor, view) in expected.tensors() {
        let found = match source.tensors().get(&tensor) {
            Some(info) if info.shape != view.shape() => {
                return Err(format!("{tensor}: {:?} for {:?}", info.shape, view.shape()));
            }
            Some(_) => values(source, &tensor),
            None => apart(&tensor, view.shape()[0]).iter().flat_map(|part| values(source, part)).collect(),
        };
        let mut wanted = vec![0.0; view.data().len() / 4];
        Decoder::F32.decode(view.data(), &mut wanted);
        if found.len() != wanted.len() {
            return Err(format!("{tensor}: {} values for {}", found.len(), wanted.len()));
        }
        let other = |(found, wanted): (&f32, &f32)| round(*found).to_bits() != wanted.to_bits();
        if let Some(at) = found.iter().zip(&wanted).position(other) {
            let count = found.iter().zip(&wanted).filter(|pair| other(*pair)).count();
            return Err(format!("{tensor}: {count} differ, element {at} is {} for {}", found[at], wanted[at]));
        }
    }
    // What is not among the owner's quantised weights is stored as it is.
    for (tensor, info) in source.tensors() {
        let golden = expected.tensor(tensor).is_ok() || expected.names().iter().any(|name| is_part(tensor, name));
        if source.stored().get(tensor) != Some(info) && !golden {
            return Err(format!("{tensor} is not in the golden file"));
        }
    }
    Ok(())
}

#[test]
fn every_dialect_decodes_to_the_bits_of_its_owner() {
    let all = dialects();
    let goldens = fs::read_dir(root("oracles/quant")).expect("the scripts wrote it");
    let goldens = goldens.filter_map(|entry| {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        Some(name.strip_suffix(".safetensors")?.to_owned())
    });
    assert_eq!(all.iter().cloned().collect::<BTreeSet<String>>(), goldens.collect());
    let wrong: Vec<String> =
        all.iter().filter_map(|name| differences(name).err().map(|error| format!("{name}: {error}"))).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The folder that holds the owner's values in float32.
fn plain(name: &str) -> Copy {
    let bytes = fs::read(golden(name)).expect("the scripts wrote it");
    let decoded = SafeTensors::deserialize(&bytes).expect("safetensors");
    let copy = Copy::of(&format!("quant/{name}")).config(|config| {
        for key in ["quantization_config", "quantization"] {
            config.remove(key);
        }
    });
    copy.tensors(|tensors| {
        let modules: Vec<String> =
            decoded.names().into_iter().map(|name| name.strip_suffix("weight").unwrap_or(name).to_owned()).collect();
        let is_bias = |name: &str, data: &[u8]| name.ends_with("bias") && data.iter().any(|&byte| byte != 0);
        tensors
            .retain(|name, (_, _, data)| is_bias(name, data) || !modules.iter().any(|module| name.starts_with(module)));
        tensors.retain(|name, _| !name.ends_with("_scale") && !name.contains(".switch_mlp."));
        // Experts that are stored apart and belong together.
        let apart = |name: &str| {
            let (before, after) = name.split_once(".experts.")?;
            let fused = decoded.tensor(&format!("{before}.experts.gate_up_proj")).is_ok();
            Some(fused && after.starts_with(|c: char| c.is_ascii_digit()))
        };
        tensors.retain(|name, _| apart(name) != Some(true));
        for (name, view) in decoded.tensors() {
            tensors.insert(name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()));
        }
    })
}

/// A run's file, and whether every value on the way was finite.
fn logits(copy: &Copy) -> (OracleFile, bool) {
    let (code, _, stderr) = outcome(copy.run("1 5 9 20 7 3 11 2 30 --allow-nonfinite"));
    assert!(code < 2, "{stderr}");
    (read(&copy.out()), code == 0)
}

#[test]
fn a_quantised_folder_is_the_plan_and_the_bits_of_its_values() {
    let mut beyond = Vec::new();
    for name in dialects() {
        let (quantised, finite) = logits(&Copy::of(&format!("quant/{name}")));
        let (decoded, also_finite) = logits(&plain(&name));
        assert_eq!(finite, also_finite, "{name}");
        // Qwen's experts are stored apart only where they are quantised.
        let same_plan = quantised.receipt("plan_sha256") == decoded.receipt("plan_sha256");
        assert_eq!(same_plan, name != "fp8-moe-split", "{name}");
        assert_ne!(quantised.receipt("weights_dtype"), decoded.receipt("weights_dtype"), "{name}");
        for i in 0..decoded.vocab() {
            assert_eq!(quantised.logits.hex(i), decoded.logits.hex(i), "{name}: logit {i}");
        }
        if !finite {
            beyond.push(name);
        }
    }
    // Their scales go up to the largest there are.
    assert_eq!(beyond, ["ct-mxfp4a16", "fp8-block-e8m0", "quark-mxfp4"]);
}

#[test]
fn the_receipt_names_the_formats() {
    for (name, expected) in [
        ("gptq-4bit", "GPTQ-4:14,F16:7"),
        ("bnb-nf4", "NF4:7,BF16:5"),
        ("mlx-4bit", "MLX-4:9,BF16:3"),
        ("ct-mixed", "BF16:11,INT4:8,INT8:2"),
    ] {
        let file = Copy::of(&format!("quant/{name}")).assert_runs("1 2 3");
        let found = file.receipt("weights_dtype").unwrap_or_default();
        assert!(found.contains(expected), "{name}: {found}");
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj";

fn rename(tensors: &mut BTreeMap<String, Stored>, from: &str, to: &str) {
    let tensor = tensors.remove(&format!("{Q}.{from}")).unwrap_or_else(|| panic!("there is no {from}"));
    tensors.insert(format!("{Q}.{to}"), tensor);
}

fn tensor<'a>(tensors: &'a mut BTreeMap<String, Stored>, name: &str) -> &'a mut Stored {
    tensors.get_mut(&format!("{Q}.{name}")).unwrap_or_else(|| panic!("there is no {name}"))
}

/// Without its last row.
fn shorten(tensors: &mut BTreeMap<String, Stored>, name: &str) {
    let (_, shape, data) = tensor(tensors, name);
    let rows = shape[0];
    data.truncate(data.len() / rows * (rows - 1));
    shape[0] -= 1;
}

#[test]
fn a_tensor_without_what_it_needs_is_refused_by_name() {
    for (name, part, of) in [
        ("gptq-4bit", "scales", "qweight"),
        ("gptq-4bit", "qzeros", "qweight"),
        ("awq-gemm", "scales", "qweight"),
        ("awq-gemv", "qzeros", "qweight"),
        ("ct-w4-group", "weight_scale", "weight_packed"),
        ("ct-w4-group", "weight_shape", "weight_packed"),
        ("ct-w4-asym", "weight_zero_point", "weight_packed"),
        ("ct-int8-channel", "weight_scale", "weight"),
        ("ct-int8-asym", "weight_zero_point", "weight"),
        ("bnb-nf4", "weight.absmax", "weight"),
        ("bnb-nf4", "weight.quant_map", "weight"),
        ("bnb-int8", "SCB", "weight"),
        ("hqq-4bit", "scale", "W_q"),
        ("hqq-4bit", "zero", "W_q"),
        ("hqq-4bit", "axis", "W_q"),
        ("mlx-4bit", "biases", "weight"),
    ] {
        let copy = Copy::of(&format!("quant/{name}")).tensors(|tensors| {
            tensors.remove(&format!("{Q}.{part}")).unwrap_or_else(|| panic!("{name}: there is no {part}"));
        });
        let missing = format!("tensor `{Q}.{part}`: missing; tensor `{Q}.{of}` (");
        copy.assert_refused(&[&missing, "can't be decoded without it"]);
    }
}

#[test]
fn a_part_of_another_shape_or_type_is_refused_by_name() {
    for (name, part) in [
        ("gptq-4bit", "scales"),
        ("gptq-4bit", "qzeros"),
        ("gptq-4bit", "g_idx"),
        ("awq-gemm", "scales"),
        ("awq-gemm", "qzeros"),
        ("ct-w4-group", "weight_scale"),
        ("ct-w4-group", "weight_packed"),
        ("ct-w4-asym", "weight_zero_point"),
        ("ct-int8-channel", "weight_scale"),
        ("bnb-nf4", "weight.absmax"),
        ("bnb-int8", "SCB"),
        ("hqq-4bit", "zero"),
        ("hqq-4bit", "W_q"),
        ("mlx-4bit", "scales"),
        ("mlx-4bit", "biases"),
    ] {
        let short = Copy::of(&format!("quant/{name}")).tensors(|tensors| shorten(tensors, part));
        let (code, _, stderr) = outcome(short.run("1 2 3"));
        assert_eq!(code, 2, "{name} {part}: {stderr}");
        assert_says(&stderr, &["model.safetensors, tensor `", "expected "]);
        assert!(stderr.contains(Q), "{name} {part}: {stderr}");
        let other = Copy::of(&format!("quant/{name}")).tensors(|tensors| {
            let (dtype, shape, data) = tensor(tensors, part);
            *dtype = StoredDtype::F64;
            *data = vec![0; shape.iter().product::<usize>() * 8];
        });
        let place = format!("model.safetensors, tensor `{Q}.{part}`");
        other.assert_refused(&[&place, "found F64", "expected dtype "]);
    }
}

#[test]
fn packed_zero_points_need_a_scale_for_each_row() {
    // One scale for all, which is allowed without them.
    let copy = Copy::of("quant/ct-w4-asym-channel").tensors(|tensors| {
        let (_, shape, data) = tensor(tensors, "weight_scale");
        data.truncate(data.len() / shape[0]);
        *shape = vec![1];
    });
    copy.assert_refused(&[&format!("tensor `{Q}.weight_scale`: expected shape [24, 1], found [1]")]);
}

#[test]
fn a_packed_tensor_beside_an_unpacked_one_is_refused() {
    for name in ["gptq-4bit", "awq-gemm", "ct-w4-group", "hqq-4bit"] {
        let copy = Copy::of(&format!("quant/{name}")).tensors(|tensors| {
            tensors.insert(format!("{Q}.weight"), (StoredDtype::F32, vec![1], vec![0; 4]));
        });
        copy.assert_refused(&[&format!("tensor `{Q}.weight`: stored beside tensor `{Q}."), "which is this weight too"]);
    }
}

#[test]
fn a_scale_that_is_none_is_refused_where_it_is_used() {
    let (nan, infinite, zero, negative) = (0x7e00u16, 0x7c00u16, 0u16, 0xbc00u16);
    for (name, part, bits, wanted) in [
        ("gptq-4bit", "scales", nan, "expected a finite scale greater than zero, found NaN"),
        ("gptq-4bit", "scales", zero, "expected a finite scale greater than zero, found 0"),
        ("awq-gemm", "scales", negative, "expected a finite scale greater than zero, found -1"),
        ("hqq-4bit", "scale", infinite, "expected a finite scale greater than zero, found inf"),
        ("hqq-4bit", "zero", nan, "expected a finite number, found NaN"),
    ] {
        let copy = Copy::of(&format!("quant/{name}")).tensors(|tensors| {
            let (dtype, _, data) = tensor(tensors, part);
            assert_eq!(*dtype, StoredDtype::F16, "{name} {part}");
            data[2..4].copy_from_slice(&bits.to_le_bytes());
        });
        copy.assert_run_refused("1 2 3", &[&format!("model.safetensors, tensor `{Q}.{part}`, element 1: {wanted}")]);
    }
    let copy = Copy::of("quant/bnb-nf4").tensors(|tensors| {
        let (_, _, data) = tensor(tensors, "weight.absmax");
        data[4..8].copy_from_slice(&(-1f32).to_le_bytes());
    });
    copy.assert_run_refused(
        "1 2 3",
        &["weight.absmax`, element 1: expected a finite scale that is not negative, found -1"],
    );
    let copy = Copy::of("quant/gptq-4bit").tensors(|tensors| {
        let (_, _, data) = tensor(tensors, "g_idx");
        data[8..12].copy_from_slice(&7i32.to_le_bytes());
    });
    copy.assert_run_refused("1 2 3", &["g_idx`, element 2: expected a group from 0 to ", ", found 7"]);
}

#[test]
fn what_the_config_says_must_be_known() {
    let edited = |name: &str, key: &str, value: Value| {
        Copy::of(&format!("quant/{name}")).config(|config| {
            let map = config["quantization_config"].as_object_mut().expect("an object");
            if value.is_null() {
                map.remove(key).expect("it is there");
            } else {
                map.insert(key.to_owned(), value);
            }
        })
    };
    for (name, key, value, wanted) in [
        ("gptq-4bit", "quant_method", Value::Null, "missing; it says how weights are quantised"),
        (
            "gptq-4bit",
            "quant_method",
            json!("eetq"),
            "`eetq` can't be decoded: its weights lie in an order that depends",
        ),
        ("gptq-4bit", "bits", Value::Null, "missing; it says how many bits a code has"),
        ("gptq-4bit", "bits", json!(5), "expected 2, 3, 4 or 8, found 5"),
        ("gptq-4bit", "group_size", json!(0), "expected -1 or a number greater than zero, found 0"),
        ("gptq-4bit", "checkpoint_format", json!("marlin"), "expected gptq or gptq_v2, found \"marlin\""),
        ("gptq-4bit", "is_marlin_format", json!(true), "expected false"),
        ("gptq-4bit", "rotation", json!("hadamard"), "expected null, found"),
        ("gptq-4bit", "beta", json!(1), "unknown key (value 1)"),
        ("awq-gemm", "version", json!("marlin"), "expected gemm or gemv or gemv_fast, found \"marlin\""),
        ("awq-gemm", "bits", json!(8), "expected 4, found 8"),
        (
            "ct-w4-group",
            "format",
            json!("marlin-24"),
            "`marlin-24` can't be decoded; those that can: dense, pack-quantized",
        ),
        ("ct-w4-group", "transform_config", json!({ "R1": {} }), "expected null, found"),
        (
            "ct-w4-group",
            "sparsity_config",
            json!({ "format": "sparse-bitmask" }),
            "expected dense, found `sparse-bitmask`",
        ),
        ("ct-w4-group", "config_groups", Value::Null, "missing; it says how weights are quantised"),
        ("hqq-4bit", "bits", json!(4), "unknown key (value 4)"),
    ] {
        let place = format!("config.json, key `quantization_config.{key}`");
        edited(name, key, value).assert_refused(&[&place, wanted]);
    }
    let copy = edited("gptq-4bit", "beta", json!(1));
    let (code, _, stderr) = outcome(copy.run("1 2 3 --allow-unused quantization_config.beta"));
    assert_eq!(code, 0, "{stderr}");
    let copy = edited("ct-w4-group", "config_groups", json!({ "group_0": { "targets": ["re:("] } }));
    copy.assert_refused(&["key `quantization_config.config_groups.group_0.targets`: `(` can't be read as a pattern"]);
    let other = json!({ "group_0": { "targets": ["re:.*down_proj"], "weights": { "num_bits": 4, "group_size": 32 } } });
    let (code, _, stderr) = outcome(edited("ct-w4-group", "config_groups", other).run("1 2 3"));
    assert_eq!(code, 2);
    assert_says(&stderr, &[&format!("tensor `{Q}.weight_packed`: none of config_groups is for this module")]);
}

#[test]
fn settings_of_a_single_layer_are_checked() {
    let state = |text: &'static str| {
        Copy::of("quant/bnb-nf4").tensors(move |tensors| {
            *tensor(tensors, "weight.quant_state.bitsandbytes__nf4") =
                (StoredDtype::U8, vec![text.len()], text.as_bytes().to_vec());
        })
    };
    state("{").assert_refused(&["weight.quant_state.bitsandbytes__nf4`: expected a JSON object"]);
    state("{}").assert_refused(&["key shape: expected two numbers greater than zero, found none"]);
    state(r#"{"shape":[4,-4]}"#).assert_refused(&["key shape: expected two numbers greater than zero, found [4,-4]"]);
    state(r#"{"shape":[4,4]}"#).assert_refused(&["key blocksize: expected a number greater than zero, found none"]);
    let copy = Copy::of("quant/bnb-nf4").tensors(|tensors| {
        rename(tensors, "weight.quant_state.bitsandbytes__nf4", "weight.quant_state.other");
    });
    copy.assert_refused(&["weight.quant_state.bitsandbytes__nf4`: missing"]);
    let copy = Copy::of("quant/bnb-int8").tensors(|tensors| tensor(tensors, "weight_format").2[0] = 1);
    copy.assert_refused(&["weight_format`: expected 0, rows one after the other"]);
    let copy = Copy::of("quant/hqq-4bit").tensors(|tensors| tensor(tensors, "axis").2[0] = 2);
    copy.assert_refused(&["expected axis 0 or 1, found 2"]);
    let copy = Copy::of("quant/hqq-4bit").tensors(|tensors| tensor(tensors, "quant_zero").2[0] = 1);
    copy.assert_refused(&["quant_zero`: expected 0"]);
    let copy = Copy::of("quant/ct-w4-group").tensors(|tensors| tensor(tensors, "weight_shape").2[7] = 0x80);
    copy.assert_refused(&["weight_shape`: expected two numbers greater than zero"]);
}

#[test]
fn a_folder_that_does_not_say_how_it_is_quantised() {
    let silent = |name: &str| {
        Copy::of(&format!("quant/{name}")).config(|config| {
            config.remove("quantization_config").expect("it is there");
        })
    };
    for (name, part, method) in [
        ("awq-gemm", "self_attn.k_proj.qweight", "gptq or awq"),
        ("ct-w4-group", "self_attn.k_proj.weight_packed", "compressed-tensors"),
        ("bnb-int8", "self_attn.k_proj.SCB", "bitsandbytes"),
        ("fp8-block", "self_attn.k_proj.weight_scale_inv", "fp8"),
    ] {
        let copy = silent(name);
        let (code, stdout, _) = outcome(copy.check(""));
        assert_eq!(code, 2, "{name}");
        let sentence = format!("is a part of a quantised weight, most likely of {method}, and nothing says how");
        assert_says(&stdout, &["config.json, key `quantization_config`: missing; tensor `", &sentence, "1 problem"]);
        assert!(stdout.contains(part.rsplit_once('.').expect("an ending").1), "{stdout}");
    }
    // All of it stands in tensors.
    let (with, without) = (Copy::of("quant/hqq-4bit").assert_runs("1 2 3"), silent("hqq-4bit").assert_runs("1 2 3"));
    assert!((0..with.vocab()).all(|i| with.logits.hex(i) == without.logits.hex(i)));
}

#[test]
fn what_mlx_says_of_a_single_module() {
    let edited = |key: &str, edit: fn(&mut serde_json::Map<String, Value>)| {
        Copy::of("quant/mlx-mixed").config(|config| edit(config[key].as_object_mut().expect("an object")))
    };
    edited("quantization_config", |map| {
        map.insert("bits".into(), json!(8));
    })
    .assert_refused(&["key `quantization_config.quant_method`: has other values than quantization"]);
    // Its own entry has mlx's defaults, not what the others have.
    let copy = Copy::of("quant/mlx-mxfp4").config(|config| {
        for key in ["quantization", "quantization_config"] {
            let map = config[key].as_object_mut().expect("an object");
            map.insert("model.layers.0.mlp.down_proj".into(), json!({ "group_size": 32, "bits": 4 }));
        }
    });
    copy.assert_refused(&["model.layers.0.mlp.down_proj.biases`: missing"]);
}
