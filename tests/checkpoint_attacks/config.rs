//! config.json, and folders that are not checkpoints.

use super::made::{Folder, assert_says};
use checkpoint_oracle::checkpoint::{self, Config};

fn with_config(bytes: &[u8]) -> Folder {
    let folder = Folder::empty();
    folder.write_good("model.safetensors", &["a"]);
    folder.put("config.json", bytes);
    folder
}

#[test]
fn a_good_config_keeps_its_keys_in_order_and_its_hash() {
    let folder = with_config(b"{\"z\": 1, \"a\": {\"b\": [1e-6]}}\n");
    folder.assert_sound();
    let config = Config::read(folder.path()).unwrap();
    assert_eq!(config.root.keys().collect::<Vec<_>>(), ["z", "a"]);
    assert_eq!(config.root["a"]["b"][0].as_f64(), Some(1e-6));
    assert_eq!(config.path, folder.join("config.json"));
    // printf '{"z": 1, "a": {"b": [1e-6]}}\n' | sha256sum
    assert_eq!(config.sha256, "75b03fe88cf1ec0659c4d6adfa05157c64276ec114ee28934d18a28bc09f8307");
}

#[test]
fn no_such_folder_is_said_once() {
    let folder = Folder::empty();
    let problems = checkpoint::open(&folder.join("nowhere")).problems;
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].code, "folder-missing");
    assert!(problems[0].place.ends_with("nowhere"));
    assert_eq!(checkpoint::open("".as_ref()).problems[0].code, "folder-missing");
}

#[test]
fn a_file_in_place_of_the_folder() {
    let folder = Folder::empty();
    for (name, hint) in [
        ("model.safetensors", "give the folder that holds it"),
        ("m.gguf", "a GGUF file is opened by itself"),
        ("tokens.txt", "a checkpoint is a folder"),
    ] {
        folder.put(name, b"x");
        let problem = Config::read(&folder.join(name)).unwrap_err();
        assert_says(
            &format!("{} {problem}", problem.code),
            "folder-is-file",
            &[name, "expected a folder, found a file", hint],
        );
        assert_eq!(checkpoint::open(&folder.join(name)).problems.len(), 1);
    }
}

#[test]
fn a_folder_without_config_says_what_it_looks_like() {
    for (names, hint) in [
        (&[][..], "the folder is empty"),
        (&["adapter_config.json", "adapter_model.safetensors"], "a LoRA adapter"),
        (&["model_index.json"], "a diffusers pipeline"),
        (&["snapshots/x/config.json", "refs/main"], "below `snapshots`"),
        (&["params.json", "consolidated.00.pth"], "the original Meta or Mistral layout"),
        (&["consolidated.safetensors"], "the original Meta or Mistral layout"),
        (&["hf/config.json"], "the folder `hf` below it has one"),
        (&["pytorch_model.bin"], "PyTorch pickles only (`pytorch_model.bin`)"),
        (&["m.Q4_K_M.gguf"], "GGUF files only (`m.Q4_K_M.gguf`)"),
        (&["README.md", "vocab.txt"], "the folder holds `README.md`, `vocab.txt`"),
    ] {
        let folder = Folder::empty();
        for name in names {
            std::fs::create_dir_all(folder.join(name).parent().unwrap()).unwrap();
            folder.put(name, b"{}");
        }
        let problem = Config::read(folder.path()).unwrap_err();
        assert_says(&format!("{} {problem}", problem.code), "config-missing", &["has no config.json", hint]);
    }
}

#[test]
fn config_and_weights_are_reported_together() {
    let folder = Folder::with_config();
    folder.put("config.json", b"[]");
    let problems = folder.problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert_says(&problems[0], "json-not-object", &["config.json"]);
    assert_says(&problems[1], "weights-missing", &["model.safetensors"]);
}

#[test]
fn an_empty_config() {
    with_config(b"").assert_refused("json-empty", &["config.json", "expected a JSON object, found nothing (0 bytes)"]);
    with_config(b" \n\n").assert_refused("json-empty", &["(3 bytes)"]);
    with_config(b"{}").assert_sound();
}

#[test]
fn a_truncated_config() {
    let whole = br#"{"model_type": "llama", "rope_scaling": {"factor": 8.0}}"#;
    with_config(whole).assert_sound();
    for len in 1..whole.len() {
        let problems = with_config(&whole[..len]).problems();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("json-truncated "), "{len}: {problems:?}");
    }
    with_config(&whole[..whole.len() - 5])
        .assert_refused("json-truncated", &["config.json", "line 1", "at the key `rope_scaling.factor`"]);
}

#[test]
fn a_config_in_another_encoding() {
    with_config(b"\xef\xbb\xbf{}").assert_refused("json-encoding", &["config.json", "byte order mark"]);
    with_config(b"\xff\xfe{\0}\0").assert_refused("json-encoding", &["UTF-16"]);
    with_config(b"{\n\"a\": \"\xe9\"}").assert_refused("json-encoding", &["not UTF-8", "byte 8 (line 2) is 0xe9"]);
    with_config("{\"a\": \"\u{e9}\"}".as_bytes()).assert_sound();
}

#[test]
fn a_config_that_is_not_json() {
    with_config(b"<!DOCTYPE html>").assert_refused("json-syntax", &["config.json", "is not JSON", "line 1, column 1"]);
    with_config(b"{\"a\": 1,}").assert_refused("json-syntax", &["trailing comma", "line 1, column 9"]);
    with_config(b"{'a': 1}").assert_refused("json-syntax", &["key must be a string"]);
    with_config(b"{\"a\": 1}\n{}").assert_refused("json-syntax", &["trailing characters", "line 2, column 1"]);
    with_config(b"{\"a\":\n0x10}").assert_refused("json-syntax", &["line 2"]);
}

#[test]
fn a_config_that_is_not_an_object() {
    for (text, found) in
        [("[]", "an array"), ("3", "a number"), ("\"x\"", "a string"), ("null", "null"), ("true", "a boolean")]
    {
        let words = ["config.json", "expected a JSON object, found ", found];
        with_config(text.as_bytes()).assert_refused("json-not-object", &words);
    }
}

#[test]
fn a_config_with_a_key_twice() {
    let text = b"{\"rope_scaling\": {\"factor\": 8,\n \"factor\": 4}}";
    with_config(text).assert_refused("json-duplicate-key", &["config.json", "`rope_scaling.factor` twice", "line 2"]);
    with_config(b"{\"factor\": 1, \"rope_scaling\": {\"factor\": 8}}").assert_sound();
}

#[test]
fn a_config_with_pythons_numbers() {
    let text = b"{\n \"attn_scale\": NaN}";
    with_config(text).assert_refused("json-nonfinite", &["config.json", "`NaN` at line 2", "`attn_scale`"]);
    with_config(b"{\"x\": -Infinity}").assert_refused("json-nonfinite", &["`-Infinity`", "`x`"]);
    with_config(b"{\"x\": \"Infinity\"}").assert_sound();
}

#[test]
fn a_config_that_nests_too_deep() {
    let nested = |levels: usize| format!("{{\"a\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
    with_config(nested(120).as_bytes()).assert_sound();
    with_config(nested(100_000).as_bytes()).assert_refused("json-too-deep", &["config.json", "128 levels"]);
}

#[test]
fn a_huge_config_is_not_read() {
    let folder = with_config(b"{}");
    let file = std::fs::File::options().write(true).open(folder.join("config.json")).unwrap();
    file.set_len(16_000_001).unwrap();
    folder.assert_refused("file-too-large", &["config.json", "expected at most 16000000 bytes, found 16000001"]);
    let mut text = b"{}".to_vec();
    text.resize(100_000, b' ');
    with_config(&text).assert_sound();
}

#[test]
fn a_folder_named_config_json() {
    let folder = Folder::empty();
    folder.write_good("model.safetensors", &["a"]);
    std::fs::create_dir(folder.join("config.json")).unwrap();
    folder.assert_refused("file-not-regular", &["config.json", "expected a regular file, found a folder"]);
}
