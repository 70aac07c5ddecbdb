//! Text by a checkpoint's tokenizer.json, and by the tokenizer in a GGUF file: llama.cpp's tokens of the same file.

mod common;

use checkpoint_oracle::engine::Tokenizer;
use checkpoint_oracle::engine::tokenizer::FILE;
use common::{Copy, assert_says, oracle, outcome, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Words of a small vocabulary, with a token at the beginning.
fn words_with_bos() -> Value {
    json!({
        "version": "1.0",
        // What training batches were cut to; a prompt is not.
        "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "<s>"},
        "added_tokens": [{"id": 7, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [7], "tokens": ["<s>"]}}
        },
        "decoder": null,
        "model": {"type": "WordLevel", "unk_token": "?",
                  "vocab": {"?": 0, "the": 1, "quick": 2, "brown": 3, "fox": 4, "<s>": 7}}
    })
}

/// Bytes and one merge, cut by an expression that looks ahead, as the tokenizers of recent models do.
fn bytes_with_look_ahead() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\s?[a-z]+|\\s+"}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "vocab": {"a": 0, "b": 1, "\u{120}": 2, "ab": 3}, "merges": ["a b"]}
    })
}

fn with(tokenizer: &Value) -> Copy {
    let copy = Copy::of("llama-plain");
    fs::write(copy.file(FILE), tokenizer.to_string()).unwrap();
    copy
}

fn kv(copy: &Copy, further: &[&str]) -> (i32, String, String) {
    let mut command = oracle();
    command.arg("kv-equivalence").arg(copy.path()).args(further);
    outcome(command)
}

#[test]
fn words_become_ids_and_an_added_beginning_is_told() {
    let copy = with(&words_with_bos());
    let tokenizer = Tokenizer::of(&copy.path()).unwrap();
    let found = tokenizer.tokenize("the quick brown fox").unwrap();
    assert_eq!((found.tokens, found.added_bos), (vec![7, 1, 2, 3, 4], Some(7)));
    // The text's own first token is the same as the added one.
    let found = tokenizer.tokenize("<s> the").unwrap();
    assert_eq!((found.tokens, found.added_bos), (vec![7, 7, 1], Some(7)));
    assert_eq!(tokenizer.detokenize(&[7, 1, 4]).unwrap(), "<s> the fox");
    let error = tokenizer.detokenize(&[1, 60]).unwrap_err().to_string();
    assert_says(&error, &["tokenizer.json", "no token 60"]);
}

#[test]
fn expressions_that_look_ahead_are_understood() {
    let copy = with(&bytes_with_look_ahead());
    let tokenizer = Tokenizer::of(&copy.path()).unwrap();
    let found = tokenizer.tokenize("ab  ab").unwrap();
    assert_eq!((found.tokens, found.added_bos), (vec![3, 2, 2, 3], None));
    assert_eq!(tokenizer.detokenize(&[3, 2, 2, 3]).unwrap(), "ab  ab");
    let error = tokenizer.tokenize("").unwrap_err().to_string();
    assert_says(&error, &["the text gives no token"]);
}

#[test]
fn a_check_takes_text_and_shows_the_ids() {
    let copy = with(&words_with_bos());
    let (code, stdout, stderr) = kv(&copy, &["--text", "the quick fox"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_eq!(stderr, "tokens: 7 1 2 4; the first, 7, is not of the text: the tokenizer adds it\n");
    assert_says(&stdout, &["7,1,2,4"]);
    let (_, by_ids, _) = kv(&copy, &["7", "1", "2", "4"]);
    assert_eq!(stdout, by_ids);
    let (code, stdout, stderr) = kv(&copy, &["--text", "the quick fox", "-q"]);
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (0, "", ""));
    let (_, _, stderr) = kv(&with(&bytes_with_look_ahead()), &["--text", "ab ab"]);
    assert_eq!(stderr, "tokens: 3 2 3\n");
}

#[test]
fn a_missing_or_broken_tokenizer_is_a_sentence() {
    let copy = Copy::of("llama-plain");
    let refused = |wanted: &[&str]| {
        let (code, stdout, stderr) = kv(&copy, &["--text", "the fox"]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, wanted);
    };
    refused(&["tokenizer.json", "found no such file", "give token ids instead"]);
    for broken in ["", "{", "[]", "{\"version\": \"1.0\", \"model\": {\"type\": \"Wordy\"}}"] {
        fs::write(copy.file(FILE), broken).unwrap();
        refused(&["tokenizer.json: describes no tokenizer"]);
    }
    let (code, _, stderr) = kv(&copy, &["--text", "a", "1", "2"]);
    assert_eq!(code, 2);
    assert_says(&stderr, &["cannot be used with"]);
}

/// What llama.cpp gave: for each text the distinct answers, and which of them each variant of the file gives.
fn captured(name: &str) -> Value {
    let path = root("oracles/tokenizers").join(name).with_extension("json");
    serde_json::from_str(&fs::read_to_string(path).expect("the file exists")).expect("JSON")
}

fn answer(text: &Value, variant: usize) -> Vec<u32> {
    let which = text["which"][variant].as_u64().expect("an index") as usize;
    serde_json::from_value(text["ids"][which].clone()).expect("ids")
}

/// A text as a value of a GGUF file.
fn text(value: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

fn flag(value: bool) -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &[value.into()]].concat()
}

fn number(value: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), value.to_le_bytes()].concat()
}

/// An array of values that have this type.
fn list(values: &[Vec<u8>], kind: u32) -> Vec<u8> {
    let head = [&9u32.to_le_bytes()[..], &kind.to_le_bytes(), &(values.len() as u64).to_le_bytes()].concat();
    let bodies: Vec<u8> = values.iter().flat_map(|value| value[4..].to_vec()).collect();
    [head, bodies].concat()
}

fn texts(values: &[&str]) -> Vec<u8> {
    list(&values.iter().map(|value| text(value)).collect::<Vec<_>>(), 8)
}

fn scores(values: &[f32]) -> Vec<u8> {
    list(&values.iter().map(|value| [[0; 4], value.to_le_bytes()].concat()).collect::<Vec<_>>(), 6)
}

fn types(values: &[i32]) -> Vec<u8> {
    list(&values.iter().map(|value| [[0; 4], value.to_le_bytes()].concat()).collect::<Vec<_>>(), 5)
}

type Keys = Vec<(String, Vec<u8>)>;

fn keys(keys: &[(&str, Vec<u8>)]) -> Keys {
    keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// A file of `keys`, before those of `file` where there is one.
fn gguf(file: Option<&str>, keys: &Keys) -> (tempfile::TempDir, PathBuf) {
    let empty = [b"GGUF\x03\0\0\0".as_slice(), &[0; 16]].concat();
    let old = file.map_or(empty, |file| fs::read(root("fixtures/tokenizers").join(file)).expect("the file exists"));
    let count = u64::from_le_bytes(old[16..24].try_into().expect("8 bytes")) + keys.len() as u64;
    let mut bytes = [&old[..16], &count.to_le_bytes()].concat();
    for (key, value) in keys {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend([key.as_bytes(), value].concat());
    }
    bytes.extend(&old[24..]);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).expect("written");
    (folder, path)
}

/// The keys of a variant, as scripts/capture_tokenizers.py added them.
fn of_variant(variant: &Value) -> Keys {
    let value = |value: &Value| value.as_str().map_or_else(|| flag(value.as_bool().expect("a flag")), text);
    variant.as_object().expect("keys").iter().map(|(key, v)| (key.clone(), value(v))).collect()
}

/// How many of the ways in which variants answer differ.
fn agrees_with_llama_cpp(name: &str) -> usize {
    let captured = captured(name);
    let (variants, texts) = (captured["variants"].as_array().unwrap(), captured["texts"].as_array().unwrap());
    assert!(texts.len() > 100);
    let mut answers = BTreeSet::new();
    for (number, variant) in variants.iter().enumerate() {
        let (_folder, path) = gguf(Some(&format!("{name}.gguf")), &of_variant(variant));
        assert_same_tokens(&path, texts, number, &variant.to_string());
        answers.insert(texts.iter().map(|text| answer(text, number)).collect::<Vec<_>>());
    }
    answers.len()
}

fn assert_same_tokens(path: &Path, texts: &[Value], number: usize, what: &str) {
    let tokenizer = Tokenizer::of(path).unwrap();
    for text in texts {
        let (expected, text) = (answer(text, number), text["text"].as_str().unwrap());
        match tokenizer.tokenize(text) {
            Ok(found) => assert_eq!(found.tokens, expected, "{what}: {text:?}"),
            Err(error) => assert!(expected.is_empty(), "{what}: {text:?}: {error}"),
        }
    }
}

#[test]
fn each_way_to_cut_a_text_gives_llama_cpps_tokens() {
    assert_eq!(agrees_with_llama_cpp("bytes"), 32, "and they differ");
}

#[test]
fn bpe_of_characters_gives_llama_cpps_tokens() {
    assert_eq!(agrees_with_llama_cpp("characters"), 2, "Gemma 4 begins with BOS even where the file says no");
}

#[test]
fn sentencepiece_gives_llama_cpps_tokens() {
    assert_eq!(agrees_with_llama_cpp("spm"), 4);
}

#[test]
fn gemma4_is_the_same_under_its_own_name() {
    let bytes = fs::read(root("fixtures/tokenizers/characters.gguf")).unwrap();
    let model = [b"tokenizer.ggml.model".as_slice(), &text("gpt2")].concat();
    let at = bytes.windows(model.len()).position(|window| window == model).unwrap();
    let own = [&bytes[..at + 20], &text("gemma4"), &bytes[at + model.len()..]].concat();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, own).unwrap();
    assert_same_tokens(&path, captured("characters")["texts"].as_array().unwrap(), 0, "gemma4");
}

#[test]
fn every_way_to_cut_that_is_known_has_been_compared() {
    let captured: BTreeSet<String> = ["bytes", "characters"]
        .iter()
        .flat_map(|name| captured(name)["variants"].as_array().unwrap().clone())
        .filter_map(|variant| Some(variant["tokenizer.ggml.pre"].as_str()?.to_owned()))
        .collect();
    let (_folder, path) = gguf(Some("bytes.gguf"), &keys(&[("tokenizer.ggml.pre", text("wordy"))]));
    let error = Tokenizer::of(&path).err().unwrap().to_string();
    assert_says(&error, &["model.gguf, key `tokenizer.ggml.pre`", "`wordy`", "give token ids instead"]);
    let known = error.split_once("Known: ").unwrap().1;
    assert_eq!(known.split(", ").map(str::to_owned).collect::<BTreeSet<_>>(), captured);
}

#[test]
fn a_long_text_is_cut_too() {
    for pre in captured("bytes")["variants"].as_array().unwrap() {
        let (_folder, path) = gguf(Some("bytes.gguf"), &of_variant(pre));
        let tokenizer = Tokenizer::of(&path).unwrap();
        for piece in ["a", " ", "1", "\n", "\u{e9}", "\u{4e16}", ".", " \u{645}", "'", "a ", "\u{301}"] {
            let text = format!("x{}x", piece.repeat(5000));
            let found = tokenizer.tokenize(&text).map_err(|error| error.to_string()[..200].to_owned());
            assert!(found.is_ok(), "{pre}, {piece:?}: {found:?}");
        }
    }
}

/// Real files, where they lie: those of docs/real-models.md.
#[test]
fn trained_vocabularies_give_llama_cpps_tokens() {
    for (variable, name) in [("ORACLE_SMOLLM2_GGUF", "smollm2"), ("ORACLE_GEMMA3_GGUF", "gemma3")] {
        let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
            eprintln!("skipped: set {variable} to the file");
            continue;
        };
        assert_same_tokens(&path, captured(name)["texts"].as_array().unwrap(), 0, name);
    }
}

#[test]
fn tokens_become_the_text_again() {
    let variants = [
        ("bytes.gguf", keys(&[("tokenizer.ggml.pre", text("qwen2"))]), ""),
        ("characters.gguf", keys(&[("tokenizer.ggml.pre", text("gemma4"))]), "<s>"),
        ("spm.gguf", keys(&[("tokenizer.ggml.add_space_prefix", flag(false))]), "<s>"),
        ("spm.gguf", keys(&[("tokenizer.ggml.add_bos_token", flag(false))]), ""),
    ];
    for (file, keys, bos) in variants {
        let (_folder, path) = gguf(Some(file), &keys);
        let tokenizer = Tokenizer::of(&path).unwrap();
        for text in captured("spm")["texts"].as_array().unwrap() {
            let text = text["text"].as_str().unwrap();
            // U+2581 is a space, bytes written out are bytes, and a space comes back after each special token.
            let other = text.is_empty() || text.contains(['\u{2581}', '<', '[']);
            if other && file != "bytes.gguf" || text.is_empty() {
                continue;
            }
            let ids = tokenizer.tokenize(text).unwrap().tokens;
            assert_eq!(tokenizer.detokenize(&ids).unwrap(), format!("{bos}{text}"), "{file}");
        }
        let error = tokenizer.detokenize(&[1, 1_000_000]).unwrap_err().to_string();
        assert_says(&error, &["model.gguf", "no token 1000000"]);
    }
}

#[test]
fn a_run_takes_text_by_the_tokenizer_in_the_file() {
    let run = |words: &[&str]| {
        let mut command = oracle();
        command.arg("run").arg(root("fixtures/tokenizers/spm.gguf")).args(words);
        outcome(command)
    };
    let texts = captured("spm");
    let text = texts["texts"].as_array().unwrap().iter().find(|text| text["text"] == "Hello world").unwrap();
    let ids: Vec<String> = answer(text, 0).iter().map(u32::to_string).collect();
    let (code, stdout, stderr) = run(&["--text", "Hello world", "-q"]);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let (_, by_ids, _) = run(&[&ids.iter().map(String::as_str).collect::<Vec<_>>()[..], &["-q"]].concat());
    assert_eq!(stdout, by_ids);
    let (_, _, stderr) = run(&["--text", "Hello world"]);
    let told = format!("tokens: {}; the first, {}, is not of the text: the tokenizer adds it\n", ids.join(" "), ids[0]);
    assert!(stderr.starts_with(&told), "{stderr}");
    let (_, other, _) = run(&["--text", "Hello  world", "-q"]);
    assert_ne!(stdout, other);
}

/// A small SentencePiece vocabulary, and a byte-level one.
fn small(model: &str) -> Keys {
    let mut all = keys(&[
        ("tokenizer.ggml.model", text(model)),
        ("tokenizer.ggml.tokens", texts(&["<s>", "a", "b", "ab", "\u{2581}", "<0x63>"])),
        ("tokenizer.ggml.bos_token_id", number(0)),
    ]);
    all.extend(match model {
        "gpt2" => keys(&[("tokenizer.ggml.pre", text("gpt-2")), ("tokenizer.ggml.merges", texts(&["a b"]))]),
        _ => keys(&[("tokenizer.ggml.scores", scores(&[0., 0., 0., -1., 0., 0.]))]),
    });
    all
}

#[test]
fn metadata_that_contradicts_itself_is_refused_by_key() {
    let found = |model: &str| Tokenizer::of(&gguf(None, &small(model)).1).unwrap().tokenize("abc");
    assert_eq!(found("llama").unwrap().tokens, [0, 4, 3, 5]);
    assert_says(&found("gpt2").unwrap_err().to_string(), &["model.gguf", "no token for `c`"]);
    let refused = |model: &str, key: &str, value: Option<Vec<u8>>, wanted: &[&str]| {
        let mut all = small(model);
        all.retain(|(other, _)| other != key);
        all.extend(value.map(|value| (key.to_owned(), value)));
        let (_folder, path) = gguf(None, &all);
        let mut command = oracle();
        command.arg("kv-equivalence").arg(&path).args(["--text", "ab"]);
        let (code, stdout, stderr) = outcome(command);
        assert_eq!((code, stdout.as_str()), (2, ""), "{stderr}");
        assert_says(&stderr, wanted);
    };
    const MODEL: &str = "tokenizer.ggml.model";
    refused("llama", MODEL, None, &["has no tokenizer", "give token ids"]);
    refused("llama", MODEL, Some(number(1)), &["expected a text, found 1"]);
    refused("llama", MODEL, Some(text("t5")), &["found `t5` (SentencePiece's Unigram); give token ids"]);
    refused("llama", MODEL, Some(text("wordy")), &["expected gpt2, llama or gemma4, found `wordy`"]);
    const TOKENS: &str = "tokenizer.ggml.tokens";
    refused("llama", TOKENS, None, &["key `tokenizer.ggml.tokens`: missing"]);
    refused("llama", TOKENS, Some(text("a")), &["expected an array, found `a`"]);
    refused("llama", TOKENS, Some(scores(&[1.])), &["value 0: expected a text, found 1"]);
    refused("llama", TOKENS, Some(texts(&["a", "b", "a"])), &["found `a` as token 0 and 2"]);
    refused("llama", TOKENS, Some(texts(&[&"a".repeat(5000)])), &["value 0: expected a short text in UTF-8"]);
    const TYPES: &str = "tokenizer.ggml.token_type";
    refused("llama", TYPES, Some(types(&[1, 1])), &["one value for each of the 6 tokens, found 2"]);
    refused("llama", TYPES, Some(types(&[1, 1, 1, 1, 1, 7])), &["token 5: expected a type from 0 to 6, found 7"]);
    const SCORES: &str = "tokenizer.ggml.scores";
    refused("llama", SCORES, None, &["key `tokenizer.ggml.scores`: missing"]);
    refused("llama", SCORES, Some(scores(&[0.; 7])), &["one value for each of the 6 tokens, found 7"]);
    refused("llama", SCORES, Some(scores(&[0., f32::NAN, 0., 0., 0., 0.])), &["token 1: expected a finite number"]);
    const MERGES: &str = "tokenizer.ggml.merges";
    refused("gpt2", MERGES, None, &["key `tokenizer.ggml.merges`: missing"]);
    refused("gpt2", MERGES, Some(texts(&["a b", "ab"])), &["merge 1: expected two tokens", "found `ab`"]);
    refused("gpt2", MERGES, Some(texts(&["b a"])), &["merge 0, `b a`: expected `ba` among the tokens"]);
    refused("gpt2", MERGES, Some(texts(&["a bbbbbbbbbb"])), &["expected `bbbbbbbbbb` among the tokens"]);
    refused("gpt2", "tokenizer.ggml.pre", None, &["key `tokenizer.ggml.pre`: missing"]);
    const BOS: &str = "tokenizer.ggml.bos_token_id";
    refused("llama", BOS, Some(number(6)), &["expected the id of one of the 6 tokens, found 6"]);
    refused("llama", "tokenizer.ggml.eos_token_id", Some(text("</s>")), &["one of the 6 tokens, found `</s>`"]);
    refused("llama", "tokenizer.ggml.add_bos_token", Some(number(1)), &["expected true or false, found 1"]);
    refused("gpt2", "tokenizer.ggml.add_eos_token", Some(flag(true)), &["eos_token_id`: missing"]);
}

#[test]
fn an_array_that_is_too_long_is_refused() {
    let head = [&9u32.to_le_bytes()[..], &0u32.to_le_bytes(), &((1u64 << 22) + 1).to_le_bytes()].concat();
    let mut all = small("llama");
    all.retain(|(key, _)| key != "tokenizer.ggml.scores");
    all.push(("tokenizer.ggml.scores".to_owned(), [head, vec![0; (1 << 22) + 1]].concat()));
    let (_folder, path) = gguf(None, &all);
    let error = Tokenizer::of(&path).err().unwrap().to_string();
    assert_says(&error, &["model.gguf", "tokenizer.ggml.scores", "at most 4194304 values", "found 4194305"]);
}
