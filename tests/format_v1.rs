//! The grammar of the v1 file: what is written, what is accepted, what is refused.

mod common;

use checkpoint_oracle::oracle::file::{FileError, Logits, NumericClass, OracleFile, Reading};
use common::{Folder, Tsv};
use predicates::prelude::*;
use predicates::str::contains;
use proptest::prelude::*;

/// A correct file of three logits: lines 1 to 5 are headers, line 6 is logit 0.
fn good() -> String {
    Tsv::f32(&[0.5, -1.0, 2.0]).text()
}

/// Compares `text` with the correct file: the file is accepted where this is `identical`.
fn compare(text: impl AsRef<[u8]>, args: &[&str]) -> assert_cmd::assert::Assert {
    let folder = Folder::new();
    folder.put("ref.tsv", good());
    folder.put("cand.tsv", text);
    folder.diff(args).assert()
}

fn accepted(text: impl AsRef<[u8]>) {
    compare(text, &[]).code(0).stdout(predicate::str::starts_with("identical: 3 of 3")).stderr("");
}

/// Refused with exit code 2, nothing on standard output, and one sentence that names the file and says `sentence`.
fn refused(text: impl AsRef<[u8]>, sentence: &str) {
    let says = contains(format!("error: cand.tsv: {sentence}")).and(predicate::str::contains("\n").count(1));
    compare(text, &[]).code(2).stdout("").stderr(says);
}

fn read(text: &str) -> Result<OracleFile, FileError> {
    OracleFile::read("memory", text.as_bytes(), Reading::Lenient)
}

fn file(logits: Logits) -> OracleFile {
    let numeric_class = match logits {
        Logits::F32(_) => NumericClass::Float32,
        Logits::F64(_) => NumericClass::Float64,
    };
    OracleFile {
        engine: "oracle-reference".into(),
        numeric_class,
        tokens: vec![2, 818],
        positions: None,
        receipts: vec![],
        logits,
    }
}

fn written(file: &OracleFile) -> String {
    let mut bytes = Vec::new();
    file.write_to(&mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_file_is_written_as_the_format_says() {
    let mut oracle = file(Logits::F32(vec![1.0, -0.0, f32::NAN]));
    oracle.positions = Some(vec![0, 9]);
    oracle.receipts = vec![("oracle_version".into(), "1.0".into()), ("weights_digest".into(), "full".into())];
    let expected = "format\tmemra-checkpoint-oracle-v1\nengine\toracle-reference\n\
                    numeric_class\tsource-weights-float32-accumulation\ntokens\t2,818\nvocab\t3\npositions\t0,9\n\
                    oracle_version\t1.0\nweights_digest\tfull\n\
                    logit\t0\t3f800000\nlogit\t1\t80000000\nlogit\t2\t7fc00000\n";
    assert_eq!(written(&oracle), expected);
}

#[test]
fn float64_bits_have_sixteen_digits() {
    let text = written(&file(Logits::F64(vec![1.0, 5e-324])));
    assert!(text.contains("numeric_class\tsource-weights-float64-accumulation\n"));
    assert!(text.ends_with("logit\t0\t3ff0000000000000\nlogit\t1\t0000000000000001\n"), "{text}");
}

#[test]
fn plain_positions_are_not_written() {
    let mut oracle = file(Logits::F32(vec![1.0]));
    oracle.positions = Some(vec![0, 1]);
    assert!(!written(&oracle).contains("positions"));
}

#[test]
fn what_is_not_a_v1_file_is_not_written() {
    let good = file(Logits::F32(vec![1.0]));
    let bad = [
        OracleFile { tokens: vec![], ..good.clone() },
        OracleFile { logits: Logits::F32(vec![]), ..good.clone() },
        OracleFile { logits: Logits::F64(vec![1.0]), ..good.clone() },
        OracleFile { engine: "two\nlines".into(), ..good.clone() },
        OracleFile { engine: String::new(), ..good.clone() },
        OracleFile { numeric_class: NumericClass::Other("a\tb".into()), ..good.clone() },
        OracleFile { positions: Some(vec![0]), ..good.clone() },
        OracleFile { receipts: vec![("vocab".into(), "1".into())], ..good.clone() },
        OracleFile { receipts: vec![("note".into(), "a\tb".into())], ..good.clone() },
    ];
    for file in bad {
        let mut bytes = Vec::new();
        assert_eq!(file.write_to(&mut bytes).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
        assert!(bytes.is_empty());
    }
    assert!(good.write_to(&mut Vec::new()).is_ok());
}

#[test]
fn unknown_two_field_records_are_kept_as_receipts_and_others_are_skipped() {
    let text = good() + "note\thello\nthree\ta\tb\nalone\n\n";
    let oracle = read(&text).unwrap();
    assert_eq!(oracle.receipts, [("note".to_string(), "hello".to_string())]);
    assert_eq!(oracle.receipt("note"), Some("hello"));
    assert_eq!(oracle.receipt("three"), None);
    accepted(&text);
}

#[test]
fn strict_reading_refuses_unknown_keys_and_takes_our_own_files() {
    for (extra, key) in [("note\thello\n", "note"), ("three\ta\tb\n", "three"), ("\n", "")] {
        let says = format!("error: cand.tsv: line 9: unknown key \"{key}\"");
        compare(good() + extra, &["--strict"]).code(2).stderr(contains(says));
    }
    compare(good() + "oracle_version\t1\nplan_sha256\tab\n", &["--strict"]).code(0);
}

#[test]
fn headers_are_accepted_in_any_order_and_after_the_logits() {
    let text = good();
    let lines: Vec<&str> = text.lines().collect();
    accepted([&lines[5..], &lines[..5]].concat().join("\n"));
    accepted(lines.iter().rev().copied().collect::<Vec<_>>().join("\n"));
}

#[test]
fn crlf_missing_final_newline_upper_case_and_short_hex_are_accepted() {
    accepted(good().replace('\n', "\r\n"));
    accepted(good().trim_end());
    accepted(good().replace("3f000000", "3F000000").replace("bf800000", "BF800000"));
    let short = Tsv { bits: vec!["0".into(), "3f".into()], ..Tsv::f32(&[]) };
    assert_eq!(read(&short.text()).unwrap().logits, Logits::F32(vec![0.0, f32::from_bits(0x3f)]));
}

#[test]
fn a_file_without_its_format_is_refused_with_what_was_found() {
    refused("engine\tx\n", "is not an oracle file: no format record");
    refused("# A recipe\nflour\n", "is not an oracle file: no format record");
    compare("# A recipe\n", &[]).stderr(contains("first line is \"# A recipe\""));
    refused(good().replace("oracle-v1", "oracle-v2"), "line 1: the format is \"memra-checkpoint-oracle-v2\"");
}

#[test]
fn each_missing_header_is_named() {
    for key in ["engine", "numeric_class", "tokens", "vocab"] {
        let text: String =
            good().lines().filter(|line| !line.starts_with(key)).map(|line| format!("{line}\n")).collect();
        refused(text, &format!("has no {key} record"));
        let text: String = good()
            .lines()
            .map(|line| if line.starts_with(key) { format!("{key}\t\n") } else { format!("{line}\n") })
            .collect();
        compare(text, &[]).code(2).stderr(contains(format!("{key} has no value")));
    }
}

#[test]
fn a_header_may_be_repeated_only_with_the_same_value() {
    accepted(good() + "vocab\t3\ntokens\t1,2,3\n");
    refused(good() + "vocab\t4\n", "line 9: vocab is \"4\", but line 5 says \"3\"");
    refused(good() + "engine\tother\n", "line 9: engine is \"other\", but line 2 says \"hand\"");
    refused(
        good() + "weights_digest\tfull\nweights_digest\theaders\n",
        "line 10: weights_digest is \"headers\", but line 9 says \"full\"",
    );
}

#[test]
fn a_record_with_the_wrong_number_of_fields_is_refused() {
    refused(
        good().replace("vocab\t3", "vocab\t3\t4"),
        "line 5: the vocab record has 3 tab-separated fields; expected 2",
    );
    refused(good().replace("engine\thand", "engine"), "line 2: the engine record has 1");
    refused(good().replace("logit\t1\tbf800000", "logit\t1"), "line 7: the logit record has 2 tab-separated fields");
    refused(good().replace("bf800000", "bf800000\tx"), "line 7: the logit record has 4 tab-separated fields");
    refused(good() + "logit\n", "line 9: the logit record has 1");
}

#[test]
fn tokens_vocab_and_positions_must_be_numbers() {
    for (tokens, found) in
        [("1, 2", " 2"), ("1,-2", "-2"), ("1,+2", "+2"), ("1,,2", ""), ("x", "x"), ("4294967296", "4294967296")]
    {
        refused(good().replace("1,2,3", tokens), &format!("line 4: tokens holds \"{found}\""));
    }
    for vocab in ["0", "-3", "3.0", "99999999999"] {
        refused(good().replace("vocab\t3", &format!("vocab\t{vocab}")), &format!("line 5: vocab holds \"{vocab}\""));
    }
    refused(good() + "positions\t0,x,2\n", "line 9: positions holds \"x\"");
    refused(good() + "positions\t0,1\n", "line 9: 2 positions for 3 tokens");
    assert_eq!(read(&(good() + "positions\t0,9,5000\n")).unwrap().positions, Some(vec![0, 9, 5000]));
    assert_eq!(read(&(good() + "positions\t0,1,2\n")).unwrap(), read(&good()).unwrap());
}

#[test]
fn a_duplicate_a_gap_and_an_index_beyond_vocab_are_named_with_their_line() {
    refused(good() + "logit\t1\tbf800000\n", "line 9: logit 1 appears again; line 7 already has it");
    refused(good().replace("logit\t1", "logit\t0"), "line 7: logit 0 appears again; line 6 already has it");
    refused(good().replace("logit\t1\tbf800000\n", ""), "logit 1 is missing; line 7 goes on with logit 2");
    refused(good().replace("logit\t2", "logit\t7"), "line 8: logit 7 is beyond the vocabulary; line 5 says vocab is 3");
    refused(good() + "logit\t3\t00000000\n", "line 9: logit 3 is beyond the vocabulary");
}

#[test]
fn fewer_logits_than_vocab_are_refused() {
    refused(
        good().replace("logit\t2\t40000000\n", ""),
        "holds 2 logits, but line 5 says vocab is 3: logit 2 and what follows are missing after line 7",
    );
    refused(
        Tsv::f32(&[]).text().replace("vocab\t0", "vocab\t4000000000"),
        "holds 0 logits, but line 5 says vocab is 4000000000",
    );
}

#[test]
fn bits_that_are_not_hex_are_refused_with_file_line_and_text() {
    for bits in ["xyz", "0x3f8000", "-3f80000", "+3f80000", "", " 3f80000", "3f8000000", "003f800000", "ｆ"] {
        refused(
            good().replace("bf800000", bits),
            &format!("line 7: the bits of logit 1 are \"{bits}\"; expected 1 to 8 hex digits"),
        );
    }
    refused(good().replace("logit\t1", "logit\t+1"), "line 7: the logit index is \"+1\"");
    refused(good().replace("logit\t1", "logit\t1.0"), "line 7: the logit index is \"1.0\"");
}

#[test]
fn float64_bits_are_read_at_most_sixteen_digits_wide() {
    let text = Tsv::f64(&[1.5, -2.0]).text();
    assert_eq!(read(&text).unwrap().logits, Logits::F64(vec![1.5, -2.0]));
    refused(text.replace("3ff8000000000000", "03ff8000000000000"), "line 6: the bits of logit 0 are");
    // The class may stand after the logits, and still decides.
    let class = "numeric_class\tsource-weights-float64-accumulation\n";
    let late = text.replace(class, "") + class;
    assert_eq!(read(&late).unwrap().logits, Logits::F64(vec![1.5, -2.0]));
}

#[test]
fn float32_bits_under_the_float64_class_are_refused_rather_than_read_as_denormals() {
    refused(Tsv::f32(&[1.0, 2.0]).class(common::FLOAT64).text(), "numeric_class is");
    assert!(read(&Tsv::f32(&[0.0]).class(common::FLOAT64).text()).is_ok());
}

#[test]
fn a_file_that_is_not_plain_text_is_refused_with_which() {
    refused("", "is empty");
    refused(format!("\u{feff}{}", good()), "begins with a byte order mark");
    refused(good().replace("hand", "ha\0nd"), "is not a text file: line 2 holds a NUL byte");
    refused([good().as_bytes(), b"note\t\xff\n"].concat(), "is not a text file: line 9 is not valid UTF-8");
    refused(b"\x7fELF\x02\x01\x01\0\0", "is not a text file: line 1 holds a NUL byte");
    let folder = Folder::new();
    folder.put("ref.tsv", good());
    folder.oracle(&["diff", "ref.tsv", "."]).assert().code(2).stderr(contains("error: .: is a folder"));
    folder
        .oracle(&["diff", "ref.tsv", "none.tsv"])
        .assert()
        .code(2)
        .stderr(contains("error: none.tsv: cannot be read: "));
}

#[test]
fn a_line_without_end_is_refused_before_it_fills_the_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let error = OracleFile::read("endless", endless, Reading::Lenient).unwrap_err();
    assert!(error.to_string().starts_with("endless: is not an oracle file: line 1 has more than"), "{error}");
}

#[test]
fn control_characters_from_a_file_do_not_reach_the_terminal() {
    refused(good().replace("bf800000", "\u{1b}[31m"), "line 7: the bits of logit 1 are \"\\u{1b}[31m\"");
}

#[test]
fn nan_and_infinity_are_read() {
    let values = vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    assert_eq!(read(&Tsv::f32(&values).text()).unwrap().logits, Logits::F32(values));
}

/// Text that may stand in a record.
fn plain() -> impl Strategy<Value = String> {
    "[ -~äöß€]{1,12}"
}

fn any_file() -> impl Strategy<Value = OracleFile> {
    let logits = prop_oneof![
        prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 1..40).prop_map(Logits::F32),
        // One value has more than 32 bits, as every real float64 row has.
        prop::collection::vec(any::<u64>().prop_map(|bits| f64::from_bits(bits | 1 << 40)), 1..40)
            .prop_map(Logits::F64),
    ];
    let tokens = prop::collection::vec(any::<(u32, u32)>(), 1..20);
    let receipts = prop::collection::vec(("x_[a-z]{1,8}", "[ -~äöß€]{0,12}"), 0..4);
    (plain(), tokens, any::<bool>(), receipts, logits).prop_map(|(engine, tokens, explicit, receipts, logits)| {
        let (tokens, positions): (Vec<u32>, Vec<u32>) = tokens.into_iter().unzip();
        // The reader gives back the plain 0, 1, 2, ... as none.
        let plain = positions.iter().enumerate().all(|(index, &position)| index == position as usize);
        OracleFile { engine, tokens, positions: (explicit && !plain).then_some(positions), receipts, ..file(logits) }
    })
}

proptest! {
    #[test]
    fn what_is_written_is_read_back_the_same(oracle in any_file()) {
        prop_assert_eq!(read(&written(&oracle)).unwrap(), oracle);
    }

    #[test]
    fn any_bytes_are_read_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = OracleFile::read("soup", &bytes[..], Reading::Lenient);
    }

    #[test]
    fn a_mutated_file_is_read_or_refused_without_a_panic(
        oracle in any_file(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3u8), 1..6),
    ) {
        let mut bytes = written(&oracle).into_bytes();
        for (place, byte, edit) in edits {
            let place = place.index(bytes.len());
            match edit {
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                _ => bytes.truncate(place + 1),
            }
        }
        if let Ok(file) = OracleFile::read("mutated", &bytes[..], Reading::Lenient) {
            prop_assert!(!file.tokens.is_empty() && file.vocab() > 0);
        }
        let _ = OracleFile::read("mutated", &bytes[..], Reading::Strict);
    }
}
