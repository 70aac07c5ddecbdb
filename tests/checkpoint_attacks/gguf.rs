//! GGUF files made byte by byte: what is refused, with which words, and the neighbouring file that is accepted.

use super::made::{Folder, assert_says};
use checkpoint_oracle::checkpoint::{Gguf, Source};
use checkpoint_oracle::model::{self, Pack, close_books};
use proptest::collection::vec;
use proptest::prelude::*;

/// A value of the metadata, with its type.
enum Meta<'a> {
    U32(u32),
    F32(f32),
    Text(&'a str),
    /// Type and bytes.
    Raw(u32, Vec<u8>),
}

struct Tensor<'a> {
    name: &'a str,
    /// Innermost first, as the file has it.
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

fn f32s<'a>(name: &'a str, dimensions: &[u64], offset: u64) -> Tensor<'a> {
    Tensor { name, dimensions: dimensions.to_vec(), kind: 0, offset }
}

fn text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u64).to_le_bytes());
    bytes.extend(text);
}

/// A file of these parts; the data starts at the next multiple of 32 and is `data` bytes long.
fn file(version: u32, metadata: &[(&str, Meta<'_>)], tensors: &[Tensor<'_>], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata {
        text(&mut bytes, key.as_bytes());
        match value {
            Meta::U32(n) => {
                bytes.extend(4u32.to_le_bytes());
                bytes.extend(n.to_le_bytes());
            }
            Meta::F32(n) => {
                bytes.extend(6u32.to_le_bytes());
                bytes.extend(n.to_le_bytes());
            }
            Meta::Text(value) => {
                bytes.extend(8u32.to_le_bytes());
                text(&mut bytes, value.as_bytes());
            }
            Meta::Raw(kind, raw) => {
                bytes.extend(kind.to_le_bytes());
                bytes.extend(raw);
            }
        }
    }
    for Tensor { name, dimensions, kind, offset } in tensors {
        text(&mut bytes, name.as_bytes());
        bytes.extend((dimensions.len() as u32).to_le_bytes());
        dimensions.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    if data > 0 {
        bytes.resize(bytes.len().next_multiple_of(32) + data, 7);
    }
    bytes
}

/// Two tensors of 24 bytes.
fn good() -> Vec<u8> {
    file(3, &[("general.architecture", Meta::Text("llama"))], &[f32s("a", &[3, 2], 0), f32s("b", &[3, 2], 32)], 56)
}

fn problems(bytes: &[u8]) -> Vec<String> {
    let folder = Folder::empty();
    folder.put("m.gguf", bytes);
    let opened = Gguf::open(&folder.join("m.gguf"));
    opened.problems.iter().map(|problem| format!("{} {problem}", problem.code)).collect()
}

#[track_caller]
fn refused(bytes: &[u8], code: &str, words: &[&str]) {
    let problems = problems(bytes);
    assert_eq!(problems.len(), 1, "{problems:#?}");
    assert_says(&problems[0], code, &[&["m.gguf"], words].concat());
}

#[track_caller]
fn sound(bytes: &[u8]) {
    assert_eq!(problems(bytes), [""; 0]);
}

#[test]
fn tensors_have_their_outermost_dimension_first() {
    let folder = Folder::empty();
    folder.put("m.gguf", &good());
    let opened = Gguf::open(&folder.join("m.gguf"));
    assert_eq!(opened.problems, []);
    let gguf = opened.gguf.unwrap();
    let b = &gguf.tensors()["b"];
    assert_eq!((&b.shape[..], b.len), (&[2, 3][..], 24));
    assert_eq!(gguf.read(b, 4..8).unwrap(), [7; 4]);
    assert!(gguf.read(b, 4..25).is_err());
}

#[test]
fn versions_2_and_3_alone() {
    let version = |version| file(version, &[], &[f32s("a", &[4], 0)], 16);
    sound(&version(2));
    sound(&version(3));
    refused(&version(1), "gguf-version", &["expected version 2 or 3", "found 1"]);
    refused(&version(4), "gguf-version", &["found 4"]);
    refused(&version(3u32.swap_bytes()), "gguf-big-endian", &["big-endian", "--bigendian"]);
}

#[test]
fn another_format_is_named() {
    refused(b"", "gguf-magic", &["empty file"]);
    refused(b"GG", "gguf-truncated", &["expected 4 bytes"]);
    refused(b"PK\x03\x04....", "gguf-magic", &["expected `GGUF`", "50 4b 03 04"]);
    refused(b"ggjt....", "gguf-magic", &["predecessors"]);
    refused(b"version https://git-lfs", "gguf-magic", &["Git LFS"]);
    refused(b"<!DOCTYPE html>", "gguf-magic", &["web page"]);
}

#[test]
fn counts_are_held_against_the_file() {
    for (at, what) in [(8, "tensors"), (16, "keys")] {
        let mut bytes = good();
        bytes[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        refused(&bytes, "gguf-count", &[what, "found 18446744073709551615", &format!("at byte {at}")]);
    }
}

#[test]
fn lengths_are_held_against_the_file() {
    let mut bytes = good();
    bytes[24..32].copy_from_slice(&(1u64 << 40).to_le_bytes());
    refused(&bytes, "gguf-name", &["key 0", "at byte 24", "found 1099511627776"]);
    let array = |len: u64, kind: u32| {
        let mut raw = kind.to_le_bytes().to_vec();
        raw.extend(len.to_le_bytes());
        file(3, &[("k", Meta::Raw(9, raw))], &[], 64)
    };
    refused(&array(1 << 60, 4), "gguf-count", &["`k`", "found 1152921504606846976"]);
    refused(&array(1 << 60, 8), "gguf-count", &["`k`"]);
    refused(&array(1, 13), "gguf-value-type", &["`k`", "found 13"]);
    let text = file(3, &[("k", Meta::Raw(8, (1u64 << 50).to_le_bytes().to_vec()))], &[], 0);
    refused(&text, "gguf-truncated", &["`k`", "expected 1125899906842624 bytes"]);
}

#[test]
fn every_type_of_value_is_read() {
    let values: [(u32, usize); 12] =
        [(0, 1), (1, 1), (2, 2), (3, 2), (4, 4), (5, 4), (6, 4), (7, 1), (10, 8), (11, 8), (12, 8), (8, 8)];
    for (kind, len) in values {
        let bytes = file(3, &[("k", Meta::Raw(kind, vec![0; len])), ("l", Meta::U32(1))], &[], 0);
        sound(&bytes);
    }
    let mut nested = 9u32.to_le_bytes().to_vec();
    nested.extend(2u64.to_le_bytes());
    for _ in 0..2 {
        nested.extend(2u32.to_le_bytes());
        nested.extend(3u64.to_le_bytes());
        nested.extend([0; 6]);
    }
    sound(&file(3, &[("k", Meta::Raw(9, nested)), ("l", Meta::U32(1))], &[], 0));
    let mut deep = Vec::new();
    for _ in 0..1000 {
        deep.extend(9u32.to_le_bytes());
        deep.extend(1u64.to_le_bytes());
    }
    refused(&file(3, &[("k", Meta::Raw(9, deep))], &[], 0), "gguf-value", &["`k`", "deeper than 8 levels"]);
    refused(&file(3, &[("k", Meta::Raw(7, vec![2]))], &[], 0), "gguf-value", &["expected 0 or 1", "found 2"]);
    refused(&file(3, &[("k", Meta::Raw(13, vec![0; 8]))], &[], 0), "gguf-value-type", &["from 0 to 12", "found 13"]);
}

#[test]
fn a_key_or_a_tensor_that_is_there_twice() {
    let keys = [("k", Meta::U32(1)), ("k", Meta::U32(1))];
    refused(&file(3, &keys, &[], 0), "gguf-duplicate-key", &["`k` twice"]);
    let tensors = [f32s("a", &[4], 0), f32s("a", &[4], 32)];
    refused(&file(3, &[], &tensors, 48), "gguf-duplicate-tensor", &["`a`", "twice"]);
}

#[test]
fn names_are_text() {
    let mut bytes = file(3, &[("key", Meta::U32(1))], &[], 0);
    bytes[32] = 0xff;
    refused(&bytes, "gguf-name", &["expected UTF-8", "at byte 24"]);
    refused(&file(3, &[], &[f32s("", &[4], 0)], 16), "gguf-name", &["empty"]);
}

#[test]
fn the_alignment_is_any_but_zero() {
    let aligned = |alignment: u32, second: u64, data: usize| {
        let tensors = [f32s("a", &[1], 0), f32s("b", &[1], second)];
        let mut bytes = file(3, &[("general.alignment", Meta::U32(alignment))], &tensors, 0);
        bytes.resize(bytes.len().next_multiple_of(alignment.max(1) as usize) + data, 7);
        bytes
    };
    sound(&aligned(1, 4, 8));
    sound(&aligned(24, 24, 28));
    sound(&aligned(4096, 4096, 4100));
    refused(&aligned(0, 4, 8), "gguf-alignment", &["general.alignment", "found 0"]);
    refused(&aligned(24, 20, 28), "tensor-offsets", &["`b`", "multiple of 24", "found 20"]);
    let text = file(3, &[("general.alignment", Meta::Text("32"))], &[], 0);
    refused(&text, "gguf-alignment", &["found `32`"]);
}

#[test]
fn tensors_cover_the_data() {
    let two = |second: u64, data: usize| file(3, &[], &[f32s("a", &[12], 0), f32s("b", &[4], second)], data);
    sound(&two(64, 80));
    // The last one may be padded.
    sound(&two(64, 96));
    refused(&two(64, 97), "gguf-trailing-bytes", &["belongs to no tensor"]);
    refused(&two(32, 48), "tensor-overlap", &["`b`", "overlap `a`"]);
    refused(&two(128, 144), "tensor-hole", &["`b`", "expected its offset to be 64", "found 128"]);
    refused(&two(64, 79), "gguf-truncated", &["`b`", "cut off"]);
    refused(&two(u64::MAX - 31, 80), "tensor-offsets", &["beyond what any file can hold"]);
    refused(&file(3, &[], &[f32s("a", &[4], 32)], 48), "tensor-hole", &["expected its offset to be 0"]);
}

#[test]
fn shapes_that_no_file_can_hold() {
    refused(&file(3, &[], &[f32s("a", &[1 << 40, 1 << 40], 0)], 16), "tensor-size", &["`a`"]);
    refused(&file(3, &[], &[f32s("a", &[u64::MAX], 0)], 16), "tensor-size", &["`a`"]);
    refused(&file(3, &[], &[f32s("a", &[1, 1, 1, 1, 1], 0)], 16), "gguf-dimensions", &["at most 4", "found 5"]);
    sound(&file(3, &[], &[f32s("a", &[1, 1, 1, 1], 0)], 4));
    sound(&file(3, &[], &[f32s("a", &[], 0)], 4));
    sound(&file(3, &[], &[f32s("a", &[0, 1 << 40], 0)], 0));
    // No elements; but no number for those of the other dimensions either.
    refused(&file(3, &[], &[f32s("a", &[0, 1 << 40, 1 << 40], 0)], 0), "tensor-size", &["`a`"]);
}

#[test]
fn rows_are_whole_blocks_of_a_known_type() {
    let kind = |kind: u32, cols: u64, data: usize| {
        file(3, &[], &[Tensor { name: "a", dimensions: vec![cols, 2], kind, offset: 0 }], data)
    };
    sound(&kind(2, 32, 36));
    refused(&kind(2, 48, 54), "gguf-row", &["`a`", "multiple of 32", "Q4_0", "found 48"]);
    refused(&kind(12, 32, 36), "gguf-row", &["multiple of 256", "Q4_K"]);
    refused(&kind(99, 32, 36), "gguf-type", &["found 99"]);
    refused(&kind(31, 32, 36), "gguf-type", &["found 31", "withdrawn"]);
    refused(&kind(4, 32, 36), "gguf-type", &["withdrawn"]);
}

/// Parts of a split model.
fn parts(folder: &Folder, change: impl Fn(usize, &mut Vec<(&'static str, Meta<'static>)>)) {
    let tensors = [f32s("a", &[4], 0), f32s("b", &[4], 0)];
    for (i, tensor) in tensors.into_iter().enumerate() {
        let mut keys = vec![
            ("split.no", Meta::U32(i as u32)),
            ("split.count", Meta::U32(2)),
            ("split.tensors.count", Meta::U32(2)),
        ];
        change(i, &mut keys);
        folder.put(&format!("m-0000{}-of-00002.gguf", i + 1), &file(3, &keys, &[tensor], 16));
    }
}

#[test]
fn a_split_model_is_opened_by_its_first_file() {
    let folder = Folder::empty();
    let first = folder.join("m-00001-of-00002.gguf");
    let open = |path| {
        let opened = Gguf::open(path);
        opened.problems.iter().map(|problem| format!("{} {problem}", problem.code)).collect::<Vec<_>>()
    };
    parts(&folder, |_, _| {});
    let opened = Gguf::open(&first);
    assert_eq!(opened.problems, []);
    let gguf = opened.gguf.unwrap();
    assert_eq!(gguf.tensors().len(), 2);
    assert_eq!(gguf.files().len(), 2);
    assert_eq!(gguf.read(&gguf.tensors()["b"], 0..16).unwrap(), [7; 16]);
    let second = folder.join("m-00002-of-00002.gguf");
    assert_says(&open(&second)[0], "gguf-split", &["file 2 of 2", "m-00001-of-00002.gguf"]);

    parts(&folder, |i, keys| keys[0].1 = Meta::U32(if i == 1 { 5 } else { 0 }));
    assert_says(&open(&first)[0], "gguf-split", &["split.no", "expected 1, found 5"]);
    parts(&folder, |_, keys| keys[2].1 = Meta::U32(3));
    assert_says(&open(&first)[0], "gguf-split", &["expected 3 tensors in 2 files, found 2"]);
    parts(&folder, |i, keys| keys.extend((i == 1).then_some(("llama.x", Meta::U32(1)))));
    assert_says(&open(&first)[0], "gguf-split", &["m-00002-of-00002.gguf", "llama.x"]);

    parts(&folder, |_, _| {});
    std::fs::remove_file(&second).unwrap();
    assert_says(&open(&first)[0], "file-missing", &["m-00002-of-00002.gguf"]);
    std::fs::rename(&first, folder.join("n.gguf")).unwrap();
    assert_says(&open(&folder.join("n.gguf"))[0], "gguf-split", &["-00001-of-00002.gguf"]);
}

#[test]
fn a_folder_of_one_model_is_that_model() {
    let folder = Folder::empty();
    let find = || checkpoint_oracle::checkpoint::gguf::find(folder.path());
    assert_eq!(find().unwrap(), None);
    parts(&folder, |_, _| {});
    folder.put("mmproj-m.gguf", &good());
    folder.put("config.json", b"{}");
    assert_eq!(find().unwrap(), Some(folder.join("m-00001-of-00002.gguf")));
    folder.put("n.gguf", &good());
    let problem = find().unwrap_err();
    assert_says(&format!("{} {problem}", problem.code), "gguf-several", &["2 GGUF models", "`n.gguf`"]);
    folder.put("model.safetensors", b"x");
    assert_eq!(find().unwrap(), None, "a folder of safetensors stays one");
}

/// A whole tiny model of one layer, and what it is made of.
fn model() -> Vec<u8> {
    let metadata = [
        ("general.architecture", Meta::Text("llama")),
        ("llama.block_count", Meta::U32(1)),
        ("llama.context_length", Meta::U32(16)),
        ("llama.embedding_length", Meta::U32(4)),
        ("llama.feed_forward_length", Meta::U32(4)),
        ("llama.attention.head_count", Meta::U32(1)),
        ("llama.attention.head_count_kv", Meta::U32(1)),
        ("llama.attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("llama.rope.dimension_count", Meta::U32(4)),
    ];
    let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let names: Vec<String> = names.iter().map(|name| format!("blk.0.{name}.weight")).collect();
    let mut tensors = vec![f32s("token_embd.weight", &[4, 4], 0), f32s("output_norm.weight", &[4], 64)];
    tensors.extend([f32s("blk.0.attn_norm.weight", &[4], 96), f32s("blk.0.ffn_norm.weight", &[4], 128)]);
    tensors.extend(names.iter().enumerate().map(|(i, name)| f32s(name, &[4, 4], 160 + 64 * i as u64)));
    file(3, &metadata, &tensors, 160 + 64 * 7)
}

/// Opens the file, closes its books and reads everything that is offered.
fn use_everything(bytes: &[u8]) -> Result<bool, TestCaseError> {
    let folder = Folder::empty();
    folder.put("m.gguf", bytes);
    let packs = Pack::embedded();
    super::fuzz::watched(|| {
        let opened = model::open(&folder.join("m.gguf"), packs);
        let mut sound = opened.problems.is_empty();
        if let Some(source) = &opened.source {
            for tensor in source.tensors().values() {
                let bytes = source.read(tensor, 0..tensor.len);
                let read = bytes.is_ok_and(|bytes| bytes.len() as u64 == tensor.len);
                prop_assert!(read || !opened.problems.is_empty(), "an offered tensor can be read: {}", tensor.name);
            }
            prop_assert!(source.headers_sha256().is_ok() && source.full_sha256().is_ok());
            if let Some(config) = &opened.config {
                let books = close_books(config, source.as_ref(), &opened.unavailable, packs, &[]);
                sound &= books.problems.is_empty();
            }
        }
        Ok(sound)
    })
}

#[test]
fn the_model_to_spoil_is_sound() {
    assert!(use_everything(&model()).unwrap());
}

proptest! {
    #[test]
    fn random_bytes_as_a_gguf_file(bytes in vec(any::<u8>(), 0..300)) {
        use_everything(&bytes)?;
        use_everything(&[b"GGUF\x03\0\0\0", &bytes[..]].concat())?;
    }

    #[test]
    fn random_bytes_behind_small_counts(tensors in 0u64..4, keys in 0u64..4, bytes in vec(0u8..14, 0..300)) {
        let mut all = b"GGUF\x03\0\0\0".to_vec();
        all.extend(tensors.to_le_bytes());
        all.extend(keys.to_le_bytes());
        all.extend(bytes);
        use_everything(&all)?;
    }

    #[test]
    fn a_truncated_gguf_file_is_always_refused(at in any::<prop::sample::Index>()) {
        let bytes = model();
        prop_assert!(!use_everything(&bytes[..at.index(bytes.len())])?);
    }

    #[test]
    fn a_changed_byte_of_a_gguf_header(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = model();
        let header = bytes.len() - (160 + 64 * 7);
        bytes[at.index(header)] = byte;
        use_everything(&bytes)?;
    }

    #[test]
    fn a_changed_word_of_a_gguf_header(at in any::<prop::sample::Index>(), word in any::<u64>(), shift in 0u32..64) {
        let mut bytes = model();
        let header = bytes.len() - (160 + 64 * 7);
        let at = at.index(header - 8);
        bytes[at..at + 8].copy_from_slice(&(word >> shift).to_le_bytes());
        use_everything(&bytes)?;
    }

    #[test]
    fn a_changed_word_of_a_whole_model(
        file in prop::sample::select(vec!["mixtral-experts", "phi3-longrope", "gemma3-plain", "stablelm-parallel", "glm4_moe-groups",
            "lfm2-published", "granite-blocks", "llama-bias-llama3", "exaone4-hybrid"]),
        at in 8usize..4096,
        word in any::<u64>(),
        shift in 0u32..64,
        len in 1usize..9,
    ) {
        let path = format!("{}/fixtures/gguf/{file}.gguf", env!("CARGO_MANIFEST_DIR"));
        let mut bytes = std::fs::read(path).unwrap();
        bytes[at..at + len].copy_from_slice(&(word >> shift).to_le_bytes()[..len]);
        use_everything(&bytes)?;
    }

    #[test]
    fn random_shapes_and_parts(
        tensors in vec((
            prop::sample::select(vec!["token_embd.weight", "output.weight", "output.bias", "blk.0.attn_q.weight", "blk.0.attn_k.bias",
                "blk.0.attn_norm.weight", "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight", "blk.0.attn_q_norm.weight",
                "blk.0.shortconv.conv.weight", "rope_freqs.weight", "rope_factors_long.weight", "blk.0.ffn_gate_inp_shexp.weight"]),
            vec(prop::sample::select(vec![0u64, 1, 2, 4, 32, 64, 1 << 20, 1 << 40, u64::MAX]), 0..4),
            prop::sample::select(vec![0u32, 1, 2, 8, 24, 30]),
        ), 1..3),
        architecture in prop::sample::select(vec!["llama", "gemma", "granitemoe", "qwen3moe", "stablelm", "lfm2", "phi3"]),
        heads in prop::sample::select(vec![0u32, 1, 2, 3, u32::MAX]),
        tokens in prop::option::of(0u64..40),
    ) {
        let mut metadata = vec![("general.architecture", Meta::Text(architecture))];
        let key = format!("{architecture}.attention.head_count");
        metadata.push((&key, Meta::U32(heads)));
        let mut list = 8u32.to_le_bytes().to_vec();
        if let Some(tokens) = tokens {
            list.extend(tokens.to_le_bytes());
            list.extend(vec![0; 8 * tokens as usize]);
            metadata.push(("tokenizer.ggml.tokens", Meta::Raw(9, list)));
        }
        let tensors: Vec<Tensor<'_>> = tensors
            .into_iter()
            .map(|(name, dimensions, kind)| Tensor { name, dimensions, kind, offset: 0 })
            .collect();
        use_everything(&file(3, &metadata, &tensors, 4096))?;
    }
}
