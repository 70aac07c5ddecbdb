//! Sharded checkpoints and their index.

use super::made::{Folder, INDEX, SINGLE, assert_says, shard};

fn cut_one_byte(folder: &Folder, name: &str) -> u64 {
    let len = std::fs::metadata(folder.join(name)).unwrap().len();
    std::fs::File::options().write(true).open(folder.join(name)).unwrap().set_len(len - 1).unwrap();
    len
}

#[test]
fn good_shards() {
    let folder = Folder::with_two_shards();
    folder.assert_sound();
    assert_eq!(folder.notes(), [""; 0]);
    let source = folder.open().source.unwrap();
    assert_eq!(source.tensors().keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    let files: Vec<_> = source.files().iter().map(|file| file.path.clone()).collect();
    assert_eq!(files, [folder.join("a.safetensors"), folder.join("b.safetensors")]);
    assert_eq!(source.tensors()["c"].file, 1);
}

#[test]
fn an_index_of_the_wrong_form() {
    let folder = Folder::with_two_shards();
    for (index, code, words) in [
        ("", "json-empty", "found nothing"),
        ("{\"weight_map\":{", "json-truncated", "cut off"),
        ("weights", "json-syntax", "is not JSON"),
        ("[]", "json-not-object", "found an array"),
        ("{}", "index-weight-map", "expected an object `weight_map`"),
        ("{\"weight_map\":[]}", "index-weight-map", "found an array"),
        (r#"{"weight_map":{"a":"a.safetensors","a":"b.safetensors"}}"#, "json-duplicate-key", "`weight_map.a` twice"),
    ] {
        folder.put(INDEX, index.as_bytes());
        folder.assert_refused(code, &[INDEX, words]);
    }
}

#[test]
fn an_empty_weight_map() {
    let folder = Folder::with_two_shards();
    folder.put_index("{}");
    folder.assert_refused("weights-missing", &["holds no tensors"]);
}

#[test]
fn a_huge_index_is_not_read() {
    let folder = Folder::with_two_shards();
    let file = std::fs::File::options().write(true).open(folder.join(INDEX)).unwrap();
    file.set_len(64_000_001).unwrap();
    folder.assert_refused("file-too-large", &[INDEX, "at most 64000000 bytes, found 64000001"]);
}

#[test]
fn an_index_that_leads_out_of_the_folder() {
    let outside = Folder::with_config();
    outside.write_good("x.safetensors", &["c"]);
    let absolute = outside.join("x.safetensors").display().to_string();
    for (file, reason) in [
        ("../x.safetensors", "leads out of the folder"),
        ("sub/x.safetensors", "leads out of the folder"),
        ("..\\\\x.safetensors", "leads out of the folder"),
        ("..", "leads out of the folder"),
        (".", "leads out of the folder"),
        ("C:x.safetensors", "leads out of the folder"),
        (&absolute.replace('\\', "\\\\"), "leads out of the folder"),
        ("", "is empty"),
        ("a\\u0000.safetensors", "control characters"),
    ] {
        let folder = Folder::with_two_shards();
        folder.put_index(&format!(r#"{{"a":"a.safetensors","b":"a.safetensors","c":"{file}"}}"#));
        folder
            .assert_refused("index-file-name", &[INDEX, "tensor `c`", "expected the name of a file beside it", reason]);
        assert!(folder.open().unavailable.contains("c"));
    }
}

#[test]
fn a_file_name_that_is_not_a_string() {
    let folder = Folder::with_two_shards();
    folder.put_index(r#"{"a":"a.safetensors","b":"a.safetensors","c":7}"#);
    folder.assert_refused("index-file-name", &[INDEX, "tensor `c`", "found a number"]);
}

#[test]
fn a_missing_shard_keeps_the_others_readable() {
    let folder = Folder::with_two_shards();
    std::fs::remove_file(folder.join("a.safetensors")).unwrap();
    folder.assert_refused("file-missing", &["a.safetensors", "no such file", "2 tensors"]);
    let opened = folder.open();
    assert_eq!(opened.unavailable.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(opened.source.as_ref().unwrap().tensors().keys().collect::<Vec<_>>(), ["c"]);
    assert_eq!(opened.into_checkpoint().err().unwrap().len(), 1);
}

#[test]
fn an_empty_shard() {
    let folder = Folder::with_two_shards();
    folder.put("b.safetensors", b"");
    folder.assert_refused("shard-empty", &["b.safetensors", "0 bytes"]);
}

#[test]
fn a_shard_truncated_by_one_byte() {
    let folder = Folder::with_two_shards();
    let len = cut_one_byte(&folder, "b.safetensors");
    let words = ["b.safetensors", &format!("expected {len} bytes"), &format!("found {}", len - 1)];
    folder.assert_refused("shard-truncated", &words);
    assert_eq!(folder.open().unavailable.iter().collect::<Vec<_>>(), ["c"]);
}

#[test]
fn every_broken_shard_is_reported() {
    let folder = Folder::with_two_shards();
    cut_one_byte(&folder, "a.safetensors");
    folder.put("b.safetensors", b"GGUF\x03\0\0\0");
    let problems = folder.problems();
    assert_eq!(problems.len(), 2, "{problems:#?}");
    assert_says(&problems[0], "shard-truncated", &["a.safetensors"]);
    assert_says(&problems[1], "shard-not-safetensors", &["b.safetensors"]);
    assert_eq!(folder.open().unavailable.iter().collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn a_tensor_that_no_shard_holds() {
    let folder = Folder::with_two_shards();
    folder.put_index(r#"{"a":"a.safetensors","b":"a.safetensors","c":"b.safetensors","d":"b.safetensors"}"#);
    folder.assert_refused(
        "index-tensor-missing",
        &[INDEX, "`d`", "expected it in `b.safetensors`", "no other file holds it"],
    );
    assert!(folder.open().unavailable.contains("d"));
}

#[test]
fn a_tensor_in_another_shard_than_the_index_says() {
    let folder = Folder::with_two_shards();
    folder.put_index(r#"{"a":"a.safetensors","b":"b.safetensors","c":"b.safetensors"}"#);
    folder.assert_refused(
        "index-tensor-missing",
        &[INDEX, "`b`", "expected it in `b.safetensors`", "`a.safetensors` holds it"],
    );
}

#[test]
fn a_stray_copy_of_a_tensor_is_not_read() {
    let folder = Folder::with_two_shards();
    folder.write_good("b.safetensors", &["b", "c"]);
    folder.assert_noted("tensor-duplicate", &["b.safetensors", "`b`", "the index decides"]);
    assert_eq!(folder.open().source.unwrap().tensors()["b"].file, 0);
}

#[test]
fn a_broken_stray_copy_does_not_hide_the_tensor() {
    let folder = Folder::with_two_shards();
    let c = r#""c":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}"#;
    let broken = r#""b":{"dtype":"F32","shape":[9],"data_offsets":[24,28]}"#;
    folder.put("b.safetensors", &shard(&format!("{{{c},{broken}}}"), &[0; 28]));
    folder.assert_refused("tensor-size", &["b.safetensors", "`b`"]);
    let opened = folder.open();
    assert!(opened.unavailable.is_empty());
    assert_eq!(opened.source.unwrap().tensors()["b"].file, 0);
}

#[test]
fn a_tensor_without_a_usable_file_name_is_not_read_from_a_file_that_holds_it() {
    let folder = Folder::with_two_shards();
    folder.put_index(r#"{"a":"a.safetensors","b":"../a.safetensors","c":"b.safetensors"}"#);
    folder.assert_refused("index-file-name", &[INDEX, "tensor `b`", "leads out of the folder"]);
    assert_eq!(folder.notes(), [""; 0]);
    let opened = folder.open();
    assert_eq!(opened.unavailable.iter().collect::<Vec<_>>(), ["b"]);
    assert!(!opened.source.unwrap().tensors().contains_key("b"));
}

#[test]
fn a_tensor_that_the_index_does_not_name_counts() {
    let folder = Folder::with_two_shards();
    folder.write_good("b.safetensors", &["c", "d"]);
    folder.assert_noted("tensor-not-in-index", &["b.safetensors", "`d`"]);
    assert!(folder.open().source.unwrap().tensors().contains_key("d"));
}

#[test]
fn a_tensor_in_two_shards_that_the_index_does_not_name() {
    let folder = Folder::with_two_shards();
    folder.write_good("a.safetensors", &["a", "b", "d"]);
    folder.write_good("b.safetensors", &["c", "d"]);
    folder.assert_refused("tensor-ambiguous", &["b.safetensors", "`d`", "also in `a.safetensors`"]);
}

#[test]
fn a_stray_file_is_not_read() {
    let folder = Folder::with_two_shards();
    folder.put("old.safetensors", b"not even a safetensors file");
    folder.assert_noted("shard-stray", &["`old.safetensors`", "is not read", "`a.safetensors`, `b.safetensors`"]);
}

#[test]
fn a_total_size_is_compared_and_only_noted() {
    let folder = Folder::with_two_shards();
    let map = r#"{"a":"a.safetensors","b":"a.safetensors","c":"b.safetensors"}"#;
    for (size, agrees) in [("72", true), ("72.0", true), ("71", false), ("\"72\"", false), ("-1", false)] {
        folder.put(INDEX, format!("{{\"metadata\":{{\"total_size\":{size}}},\"weight_map\":{map}}}").as_bytes());
        if agrees {
            folder.assert_sound();
            assert_eq!(folder.notes(), [""; 0]);
        } else {
            folder.assert_noted("index-total-size", &[INDEX, size, "72 bytes"]);
        }
    }
}

#[test]
fn a_single_file_goes_before_an_index() {
    let folder = Folder::with_two_shards();
    folder.write_good(SINGLE, &["x"]);
    folder.assert_sound();
    assert_eq!(folder.open().source.unwrap().tensors().keys().collect::<Vec<_>>(), ["x"]);
    let notes = folder.notes();
    assert_eq!(notes.len(), 3, "{notes:#?}");
    assert_says(&notes[0], "index-ignored", &[INDEX, "is not used"]);
    assert_says(&notes[1], "shard-stray", &["`a.safetensors`"]);
}

#[test]
fn an_index_that_names_the_single_file_is_ordinary() {
    let folder = Folder::with_config();
    folder.write_good(SINGLE, &["x"]);
    folder.put_index(r#"{"x":"model.safetensors"}"#);
    folder.assert_sound();
    assert_eq!(folder.notes(), [""; 0]);
}

#[test]
fn no_weights_says_what_is_there_instead() {
    for (name, hint) in [
        ("pytorch_model.bin", "PyTorch pickles only (`pytorch_model.bin`)"),
        ("consolidated.00.pth", "PyTorch pickles only"),
        ("m.gguf", "GGUF files only (`m.gguf`)"),
        ("adapter_model.safetensors", "a LoRA adapter"),
        ("model-00001-of-00002.safetensors", "shards need their model.safetensors.index.json"),
        ("tokenizer.json", "the folder holds `config.json`, `tokenizer.json`"),
    ] {
        let folder = Folder::with_config();
        folder.put(name, b"x");
        folder.assert_refused("weights-missing", &["has neither model.safetensors nor", hint]);
    }
}
