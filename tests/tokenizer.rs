//! Text by a checkpoint's tokenizer.json.

mod common;

use checkpoint_oracle::engine::Tokenizer;
use checkpoint_oracle::engine::tokenizer::FILE;
use common::{Copy, assert_says, oracle, outcome};
use serde_json::{Value, json};
use std::fs;

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
    let tokenizer = Tokenizer::beside(&copy.path()).unwrap();
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
    let tokenizer = Tokenizer::beside(&copy.path()).unwrap();
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
