//! safetensors headers.

use super::made::{Folder, SINGLE, assert_says, shard};
use checkpoint_oracle::checkpoint::Dtype;

const A: &str = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;

/// A file whose only tensor has this entry, and 8 bytes of data.
fn with_entry(entry: &str) -> Folder {
    Folder::with_single(&format!("{{\"a\":{entry}}}"), &[0; 8])
}

fn with_two(b: &str, data: usize) -> Folder {
    Folder::with_single(&format!("{{{A},\"b\":{b}}}"), &vec![0; data])
}

#[test]
fn a_good_file_of_an_independent_writer() {
    let folder = Folder::with_config();
    folder.write_good(SINGLE, &["model.norm.weight", "lm_head.weight"]);
    folder.assert_sound();
    let opened = folder.open();
    let source = opened.source.unwrap();
    assert_eq!(source.tensors().keys().collect::<Vec<_>>(), ["lm_head.weight", "model.norm.weight"]);
    let tensor = &source.tensors()["lm_head.weight"];
    assert_eq!((&tensor.dtype, &tensor.shape[..], tensor.len), (&Dtype::F32, &[2, 3][..], 24));
    assert!(opened.notes.is_empty());
}

#[test]
fn an_empty_file() {
    let folder = Folder::with_config();
    folder.put(SINGLE, b"");
    folder.assert_refused("shard-empty", &[SINGLE, "found an empty file (0 bytes)"]);
}

#[test]
fn a_file_shorter_than_the_header_length() {
    let folder = Folder::with_config();
    folder.put(SINGLE, &[2, 0, 0]);
    folder.assert_refused("shard-truncated", &[SINGLE, "expected at least 8 bytes", "found 3"]);
}

#[test]
fn a_header_length_of_zero() {
    let folder = Folder::with_config();
    folder.put(SINGLE, &[0; 4096]);
    folder.assert_refused("header-length", &[SINGLE, "header's length as 0"]);
}

#[test]
fn a_header_length_beyond_the_formats_limit() {
    for length in [100_000_001, u64::MAX] {
        let folder = Folder::with_config();
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(*b"{}");
        folder.put(SINGLE, &bytes);
        let words = [SINGLE, &length.to_string(), "limit of 100000000"];
        folder.assert_refused("header-length", &words);
    }
}

#[test]
fn a_header_length_beyond_the_file() {
    let folder = Folder::with_config();
    let mut bytes = shard(&format!("{{{A}}}"), &[0; 8]);
    let rest = bytes.len() as u64 - 8;
    bytes[..8].copy_from_slice(&(rest + 1).to_le_bytes());
    folder.put(SINGLE, &bytes);
    let words = [SINGLE, &format!("expected a header of {} bytes", rest + 1), &format!("found {rest} bytes")];
    folder.assert_refused("shard-truncated", &words);
}

#[test]
fn another_kind_of_file_under_the_name() {
    for (bytes, kind) in [
        (&b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 5\n"[..], "a Git LFS pointer"),
        (b"PK\x03\x04\x00\x00\x00\x00\x00", "a PyTorch pickle"),
        (b"GGUF\x03\x00\x00\x00", "a GGUF file"),
        (b"<!DOCTYPE html><html>", "a web page"),
    ] {
        let folder = Folder::with_config();
        folder.put(SINGLE, bytes);
        folder.assert_refused("shard-not-safetensors", &[SINGLE, "expected a safetensors file, found", kind]);
    }
}

#[test]
fn a_header_that_is_not_utf8() {
    let folder = Folder::with_config();
    folder.put(SINGLE, b"\x06\0\0\0\0\0\0\0{\"\xff\":}");
    folder.assert_refused("json-encoding", &[SINGLE, "header", "byte 2", "0xff"]);
}

#[test]
fn a_header_that_does_not_start_with_a_brace() {
    for header in [" {}", "[]", "\u{feff}{}"] {
        Folder::with_single(header, &[]).assert_refused("header-start", &[SINGLE, "start with `{`"]);
    }
    Folder::with_single(&format!("{{{A}}}   "), &[0; 8]).assert_sound();
}

#[test]
fn a_header_that_is_not_json() {
    Folder::with_single("{\"a\":}", &[]).assert_refused("json-syntax", &[SINGLE, "header", "is not JSON", "column 6"]);
    Folder::with_single("{\"a\":{", &[]).assert_refused("json-truncated", &[SINGLE, "header", "cut off"]);
    Folder::with_single("{}{}", &[]).assert_refused("json-syntax", &[SINGLE, "trailing characters"]);
}

#[test]
fn a_header_that_names_a_tensor_twice() {
    let header = format!("{{{A},{A}}}");
    Folder::with_single(&header, &[0; 8]).assert_refused("json-duplicate-key", &[SINGLE, "the key `a` twice"]);
}

#[test]
fn metadata_is_an_object_of_strings() {
    let with = |metadata: &str| Folder::with_single(&format!("{{\"__metadata__\":{metadata},{A}}}"), &[0; 8]);
    with(r#"{"format":"pt"}"#).assert_sound();
    with("{}").assert_sound();
    let code = "header-metadata";
    with(r#"{"format":1}"#).assert_refused(code, &[SINGLE, "`__metadata__`", "found a number at the key `format`"]);
    with("[]").assert_refused(code, &["expected an object of strings, found an array"]);
    with("null").assert_refused(code, &["found null"]);
}

#[test]
fn an_entry_of_the_wrong_form() {
    with_entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#).assert_sound();
    for (entry, word) in [
        ("[]", "found an array"),
        (r#"{"shape":[2],"data_offsets":[0,8]}"#, "found no dtype"),
        (r#"{"dtype":"F32","data_offsets":[0,8]}"#, "found no shape"),
        (r#"{"dtype":"F32","shape":[2]}"#, "found no data_offsets"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8],"scale":2}"#, "found the key `scale`"),
        (r#"{"dtype":1,"shape":[2],"data_offsets":[0,8]}"#, "expected a string for dtype, found a number"),
        (r#"{"dtype":"F32","shape":2,"data_offsets":[0,8]}"#, "expected an array for shape, found a number"),
        (r#"{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}"#, "whole numbers in shape, found a string"),
        (r#"{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}"#, "in shape, found -2"),
        (r#"{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}"#, "in shape, found 2.0"),
        (r#"{"dtype":"F32","shape":[36893488147419103232],"data_offsets":[0,8]}"#, "in shape, found 3.68"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":[0]}"#, "expected two numbers for data_offsets, found 1"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4,8]}"#, "expected two numbers for data_offsets, found 3"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}"#, "in data_offsets, found -8"),
        (r#"{"dtype":"F32","shape":[2],"data_offsets":{"0":8}}"#, "expected an array for data_offsets"),
    ] {
        let folder = with_entry(entry);
        folder.assert_refused("tensor-entry", &[SINGLE, "tensor `a`", word]);
        assert!(folder.open().unavailable.contains("a"), "{entry}");
    }
}

#[test]
fn offsets_in_descending_order() {
    let folder = with_entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[8,0]}"#);
    folder.assert_refused("tensor-offsets", &[SINGLE, "`a`", "ascending order, found [8, 0]"]);
}

#[test]
fn offsets_beyond_any_file() {
    let folder =
        with_entry(r#"{"dtype":"F32","shape":[2],"data_offsets":[18446744073709551607,18446744073709551615]}"#);
    folder.assert_refused("tensor-offsets", &[SINGLE, "`a`", "18446744073709551615"]);
}

#[test]
fn offsets_beyond_the_file() {
    let b = |end: u64| format!(r#"{{"dtype":"F32","shape":[{}],"data_offsets":[8,{end}]}}"#, (end - 8) / 4);
    with_two(&b(16), 16).assert_sound();
    let folder = with_two(&b(4_000_000_000), 16);
    folder.assert_refused("shard-truncated", &[SINGLE, "`b`", "4000000000 of data", "expected", "found"]);
    let opened = folder.open();
    assert!(opened.unavailable.contains("b"));
    assert!(opened.source.unwrap().tensors().contains_key("a"), "the other tensor is still known");
}

#[test]
fn a_size_that_is_not_the_shapes() {
    for (entry, expected) in [
        (r#"{"dtype":"F32","shape":[3],"data_offsets":[0,8]}"#, "expected 12 bytes for shape [3] of F32, found 8"),
        (r#"{"dtype":"BF16","shape":[2],"data_offsets":[0,8]}"#, "expected 4 bytes for shape [2] of BF16, found 8"),
        (r#"{"dtype":"F4","shape":[8],"data_offsets":[0,8]}"#, "expected 4 bytes for shape [8] of F4, found 8"),
        (r#"{"dtype":"F4","shape":[15],"data_offsets":[0,8]}"#, "expected whole bytes"),
        (r#"{"dtype":"F32","shape":[],"data_offsets":[0,8]}"#, "expected 4 bytes for shape [] of F32, found 8"),
        (r#"{"dtype":"F32","shape":[0,2],"data_offsets":[0,8]}"#, "expected 0 bytes"),
    ] {
        with_entry(entry).assert_refused("tensor-size", &[SINGLE, "`a`", expected]);
    }
    with_entry(r#"{"dtype":"F4","shape":[4,4],"data_offsets":[0,8]}"#).assert_sound();
    with_entry(r#"{"dtype":"I64","shape":[],"data_offsets":[0,8]}"#).assert_sound();
}

#[test]
fn a_shape_whose_product_overflows() {
    for shape in ["[4294967296,4294967296]", "[9223372036854775808,2]", "[18446744073709551615,18446744073709551615,2]"]
    {
        let entry = format!(r#"{{"dtype":"U8","shape":{shape},"data_offsets":[0,8]}}"#);
        with_entry(&entry).assert_refused("tensor-size", &[SINGLE, "`a`", "found 8"]);
    }
}

#[test]
fn an_unknown_dtype_is_kept_by_its_name() {
    let folder = with_entry(r#"{"dtype":"NEW_3","shape":[20],"data_offsets":[0,8]}"#);
    folder.assert_sound();
    let source = folder.open().source.unwrap();
    assert_eq!(source.tensors()["a"].dtype, Dtype::Other("NEW_3".into()));
    assert!(source.tensors()["a"].dtype.decoder().is_none());
}

#[test]
fn overlapping_tensors_are_both_named() {
    let folder = with_two(r#"{"dtype":"F32","shape":[2],"data_offsets":[4,12]}"#, 12);
    folder.assert_refused("tensor-overlap", &[SINGLE, "tensor `b`", "4..12 overlap 0..8 of `a`"]);
    with_two(r#"{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#, 8)
        .assert_refused("tensor-overlap", &["`a`", "`b`"]);
    let by_one_byte = with_two(r#"{"dtype":"U8","shape":[2],"data_offsets":[7,9]}"#, 9);
    by_one_byte.assert_refused("tensor-overlap", &["`b`", "7..9 overlap 0..8 of `a`"]);
    with_two(r#"{"dtype":"F32","shape":[1],"data_offsets":[8,12]}"#, 12).assert_sound();
}

#[test]
fn a_hole_between_tensors() {
    let folder = with_two(r#"{"dtype":"F32","shape":[1],"data_offsets":[12,16]}"#, 16);
    folder.assert_refused(
        "tensor-hole",
        &[SINGLE, "tensor `b`", "expected its data to start at byte 8", "`a`", "found 12"],
    );
    let first = with_entry(r#"{"dtype":"F32","shape":[1],"data_offsets":[4,8]}"#);
    first.assert_refused("tensor-hole", &["`a`", "where the header ends", "found 4"]);
}

#[test]
fn a_file_truncated_by_one_byte() {
    let folder = Folder::with_config();
    folder.write_good(SINGLE, &["a", "b"]);
    folder.assert_sound();
    let len = std::fs::metadata(folder.join(SINGLE)).unwrap().len();
    std::fs::File::options().write(true).open(folder.join(SINGLE)).unwrap().set_len(len - 1).unwrap();
    let words = [SINGLE, &format!("expected {len} bytes"), &format!("found {}", len - 1), "tensor `b`", "cut off"];
    folder.assert_refused("shard-truncated", &words);
}

#[test]
fn a_file_one_byte_too_long() {
    let folder = Folder::with_config();
    folder.write_good(SINGLE, &["a", "b"]);
    let mut bytes = std::fs::read(folder.join(SINGLE)).unwrap();
    let len = bytes.len();
    bytes.push(0);
    folder.put(SINGLE, &bytes);
    let words = [SINGLE, &format!("expected {len} bytes"), &format!("found {}", len + 1), "1 belong to no tensor"];
    folder.assert_refused("shard-trailing-bytes", &words);
}

#[test]
fn tensors_without_elements_and_scalars_are_legal() {
    for offsets in ["[0,0]", "[8,8]"] {
        let folder = with_two(&format!(r#"{{"dtype":"F32","shape":[0,5],"data_offsets":{offsets}}}"#), 8);
        folder.assert_sound();
        let source = folder.open().source.unwrap();
        assert_eq!(source.read(&source.tensors()["b"], 0..0).unwrap().len(), 0);
    }
    with_two(r#"{"dtype":"F32","shape":[],"data_offsets":[8,12]}"#, 12).assert_sound();
}

#[test]
fn a_file_without_tensors() {
    Folder::with_single("{}", &[]).assert_refused("weights-missing", &["holds no tensors"]);
}

#[test]
fn every_problem_of_a_header_is_reported() {
    let header = r#"{"__metadata__":3,"a":{"dtype":"F32","shape":[9],"data_offsets":[0,8]},"b":[],"c":7}"#;
    let problems = Folder::with_single(header, &[0; 8]).problems();
    assert_eq!(problems.len(), 4, "{problems:#?}");
    for (code, words) in
        [("header-metadata", "number"), ("tensor-entry", "`b`"), ("tensor-entry", "`c`"), ("tensor-size", "`a`")]
    {
        let found = problems.iter().find(|problem| problem.starts_with(code) && problem.contains(words));
        assert_says(found.expect(words), code, &[SINGLE]);
    }
}

#[test]
fn a_name_with_terminal_commands_is_shown_escaped() {
    let header = r#"{"\u001b[2J\u0007":[]}"#;
    Folder::with_single(header, &[]).assert_refused("tensor-entry", &[r"`\u{1b}[2J\u{7}`"]);
}
