//! `oracle diff`: verdicts, exit codes, figures and reports, through the binary.

mod hand;

use hand::{FLOAT64, Folder, Tsv};
use predicates::prelude::*;
use predicates::str::{contains, starts_with};
use serde_json::{Value, json};
use std::process::Stdio;

/// d = (0, 0.5, 0, -0.5).
fn hand() -> Folder {
    Folder::pair(&Tsv::f32(&[1.0, 2.0, 3.0, 4.0]), &Tsv::f32(&[1.0, 2.5, 3.0, 3.5]))
}

fn close(value: &Value, expected: f64) {
    let value = value.as_f64().unwrap();
    assert!((value - expected).abs() <= 1e-13 * expected.abs(), "{value} instead of {expected}");
}

fn hint(report: &Value) -> Vec<&str> {
    report["hints"].as_array().unwrap().iter().map(|hint| hint["code"].as_str().unwrap()).collect()
}

fn codes(report: &Value) -> Vec<&str> {
    report["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

#[test]
fn equal_bits_are_identical_and_one_other_bit_is_different() {
    let one = Tsv::f32(&[1.0, 2.0]);
    Folder::pair(&one, &one).diff(&[]).assert().code(0).stdout(starts_with("identical: 2 of 2")).stderr("");
    let mut other = one.clone();
    other.bits[1] = "40000001".into();
    let says = starts_with("different: 1 of 2").and(contains("logit 1: the first of 1 (of 2) that hold other bits"));
    Folder::pair(&one, &other).diff(&[]).assert().code(1).stdout(says).stderr("");
}

#[test]
fn an_identical_pair_takes_a_few_lines_and_keeps_everything_for_machines() {
    let one = Tsv::f32(&[1.0, 2.0, 3.5]);
    let folder = Folder::pair(&one, &one);
    let text = String::from_utf8(folder.diff(&[]).output().unwrap().stdout).unwrap();
    for wanted in ["identical: 3 of 3", "ref.tsv (hand", "cand.tsv (hand", "bit for bit", "margin  1.5"] {
        assert!(text.contains(wanted), "{wanted}:\n{text}");
    }
    assert!(text.lines().count() <= 12, "{text}");
    let metrics = &folder.json(&[])["metrics"];
    assert_eq!((&metrics["rmse"], &metrics["ulp_histogram"][0]["count"]), (&json!(0.0), &json!(3)));
}

#[test]
fn minus_zero_is_another_bit_but_within_any_tolerance() {
    let folder = Folder::pair(&Tsv::f32(&[0.0, 1.0]), &Tsv::f32(&[-0.0, 1.0]));
    folder.diff(&[]).assert().code(1);
    folder.diff(&["--atol", "0"]).assert().code(0).stdout(starts_with("within-tolerance"));
}

#[test]
fn compare_is_another_name_for_diff() {
    hand().oracle(&["compare", "ref.tsv", "cand.tsv"]).assert().code(1);
}

/// mean 1/4; RMSE sqrt(0.5/4); NMSE 0.5/30; cosine 29/sqrt(30 * 28.5). From 2 to 2.5 and from 3.5 to 4 there are
/// 2^21 steps of 2^-22. The smallest tolerances: 0.5; max(0.5/2, 0.5/4); max(0.5/3, 0.5/5).
#[test]
fn the_figures_are_those_computed_by_hand() {
    let report = hand().json(&[]);
    let metrics = &report["metrics"];
    assert_eq!(metrics["equal_bits"], 2);
    assert_eq!(metrics["first_difference"], 1);
    assert_eq!(metrics["max_abs"], json!({"index": 1, "value": 0.5}));
    assert_eq!(metrics["mean_abs"], 0.25);
    assert_eq!(metrics["max_relative"], json!({"index": 1, "value": 0.25}));
    close(&metrics["rmse"], 0.125f64.sqrt());
    close(&metrics["nmse"], 1.0 / 60.0);
    close(&metrics["cosine"], 29.0 / 855f64.sqrt());
    assert_eq!(metrics["ulp_format"], "float32");
    assert_eq!(metrics["max_ulp"], json!({"index": 1, "value": 2097152}));
    let bins = json!([{"from": 0, "to": 0, "count": 2}, {"from": 1048577, "to": 2097152, "count": 2}]);
    assert_eq!(metrics["ulp_histogram"], bins);
    assert_eq!(metrics["reference_top1"], json!({"index": 3, "value": 4.0}));
    assert_eq!(metrics["candidate_top1"], json!({"index": 3, "value": 3.5}));
    assert_eq!(metrics["reference_margin"], 1.0);
    assert_eq!(metrics["smallest_tolerance"]["atol"], 0.5);
    assert_eq!(metrics["smallest_tolerance"]["rtol"], 0.25);
    close(&metrics["smallest_tolerance"]["both"], 1.0 / 6.0);
    let top5 = json!({"k": 5, "of": 4, "overlap": 4, "same_order": true});
    assert_eq!(metrics["top"][1], top5);
    let worst = json!({
        "index": 1, "reference": 2.0, "candidate": 2.5, "reference_bits": "40000000", "candidate_bits": "40200000",
        "abs": 0.5, "ulp": 2097152
    });
    assert_eq!(metrics["worst"][0], worst);
    assert_eq!(metrics["worst"][1]["index"], 3);
}

/// sum p (ln p - ln q), straight from the definition.
#[test]
fn the_divergence_is_that_of_the_definition() {
    let softmax = |row: [f64; 4]| {
        let sum: f64 = row.iter().map(|value| value.exp()).sum();
        row.map(|value| value.exp() / sum)
    };
    let (p, q) = (softmax([1.0, 2.0, 3.0, 4.0]), softmax([1.0, 2.5, 3.0, 3.5]));
    let expected: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
    close(&hand().json(&[])["metrics"]["kl_divergence"], expected);
}

#[test]
fn the_number_of_worst_indices_is_the_users() {
    assert_eq!(hand().json(&["-n", "1"])["metrics"]["worst"].as_array().unwrap().len(), 1);
    assert_eq!(hand().json(&["--worst", "0"])["metrics"]["worst"], json!([]));
    // Only those that differ are listed.
    assert_eq!(hand().json(&["-n", "9"])["metrics"]["worst"].as_array().unwrap().len(), 2);
}

#[test]
fn the_reported_smallest_tolerance_passes_and_a_little_less_does_not() {
    let folder = Folder::pair(&Tsv::f32(&[0.3, -7.7, 11.1]), &Tsv::f32(&[0.37, -7.9, 11.3]));
    let smallest = &folder.json(&[])["metrics"]["smallest_tolerance"];
    let both = |value: f64| [format!("--atol={value}"), format!("--rtol={value}")];
    let run = |args: &[String], code| {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        folder.diff(&args).assert().code(code);
    };
    for (option, key) in [("--atol", "atol"), ("--rtol", "rtol")] {
        let value = smallest[key].as_f64().unwrap();
        run(&[format!("{option}={value}")], 0);
        run(&[format!("{option}={}", value.next_down())], 1);
    }
    let value = smallest["both"].as_f64().unwrap();
    run(&both(value), 0);
    run(&both(value.next_down()), 1);
}

#[test]
fn a_tolerance_is_absolute_plus_relative_to_the_reference() {
    hand().diff(&["--atol", "0.5"]).assert().code(0).stdout(starts_with("within-tolerance"));
    hand().diff(&["--atol", "0.49"]).assert().code(1).stdout(contains("the first of 2 (of 4) that are beyond"));
    hand().diff(&["--rtol", "0.25"]).assert().code(0);
    hand().diff(&["--rtol", "0.24"]).assert().code(1).stdout(contains("logit 1: the first of 1 (of 4)"));
    hand().diff(&["--atol", "0.1", "--rtol", "0.2"]).assert().code(0);
    let one = Tsv::f32(&[1.0]);
    Folder::pair(&one, &one).diff(&["--atol", "1"]).assert().code(0).stdout(starts_with("identical"));
}

#[test]
fn another_argmax_is_different_within_a_tolerance_unless_ignored() {
    let folder = Folder::pair(&Tsv::f32(&[1.0, 2.0, 2.25]), &Tsv::f32(&[1.0, 2.25, 2.0]));
    let says = contains("argmax: the reference's largest logit is 2, the candidate's is 1");
    folder.diff(&["--atol", "0.5"]).assert().code(1).stdout(says);
    folder.diff(&["--atol", "0.5", "--ignore-argmax"]).assert().code(0);
}

#[test]
fn argmax_ties_go_to_the_lowest_index() {
    let folder = Folder::pair(&Tsv::f32(&[2.0, 2.0]), &Tsv::f32(&[2.0, 1.75]));
    folder.diff(&["--atol", "0.25"]).assert().code(0);
    let folder = Folder::pair(&Tsv::f32(&[2.0, 2.0]), &Tsv::f32(&[1.75, 2.0]));
    folder.diff(&["--atol", "0.25"]).assert().code(1).stdout(contains("largest logit is 0, the candidate's is 1"));
}

/// At r = 7.59375 the bound is 0.005 * 8.59375 = 0.04296875, and c = 7.63671875 is that far away. In float32 0.005 is
/// 0.00499999988..., so the bound is 0.04296874627 there, and the other tool says no.
#[test]
fn the_memra_gate_is_computed_in_float32_as_that_tool_does() {
    let folder = Folder::pair(&Tsv::f32(&[7.59375]), &Tsv::f32(&[f32::from_bits(0x40f4_6000)]));
    folder.diff(&["--atol", "0.005", "--rtol", "0.005"]).assert().code(0);
    folder.diff(&["--gate", "memra"]).assert().code(1);
    let folder = Folder::pair(&Tsv::f32(&[7.59375]), &Tsv::f32(&[f32::from_bits(0x40f4_5fff)]));
    folder.diff(&["--gate", "memra"]).assert().code(0).stdout(starts_with("within-tolerance"));
}

#[test]
fn the_memra_gate_takes_the_argmax_and_no_other_options() {
    let folder = Folder::pair(&Tsv::f32(&[1.0, 1.001]), &Tsv::f32(&[1.001, 1.0]));
    folder.diff(&["--gate", "memra"]).assert().code(1).stdout(contains("argmax"));
    // In that tool's order 0.0 is larger than -0.0.
    let folder = Folder::pair(&Tsv::f32(&[0.0, 0.0]), &Tsv::f32(&[-0.0, 0.0]));
    folder.diff(&["--gate", "memra"]).assert().code(1).stdout(contains("largest logit is 0, the candidate's is 1"));
    folder.diff(&["--atol", "0.005"]).assert().code(0);
    for option in [&["--atol", "1"][..], &["--rtol", "1"], &["--ignore-argmax"], &["--allow-class-mismatch"]] {
        let mut args = vec!["--gate", "memra"];
        args.extend(option);
        folder.diff(&args).assert().code(2).stderr(contains("cannot be used with"));
    }
}

#[test]
fn nan_and_infinity_never_pass_even_with_the_same_bits() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let one = Tsv::f32(&[1.0, value]);
        let folder = Folder::pair(&one, &one);
        for args in [&[][..], &["--atol", "1e300"], &["--gate", "memra"], &["--atol", "9", "--ignore-argmax"]] {
            let says = starts_with("different").and(contains("logit 1: the first NaN or infinity"));
            folder.diff(args).assert().code(1).stdout(says);
        }
        let report = folder.json(&["--atol", "1"]);
        assert_eq!(codes(&report), ["nonfinite"]);
        assert_eq!(report["metrics"]["nonfinite"], json!({"reference": 1, "candidate": 1, "first_index": 1}));
        assert_eq!(report["metrics"]["worst"][0]["reference"], Value::Null);
        assert_eq!(report["metrics"]["smallest_tolerance"], json!({"atol": null, "rtol": null, "both": null}));
    }
    Folder::pair(&Tsv::f32(&[1.0]), &Tsv::f32(&[f32::NAN])).diff(&["--atol", "1"]).assert().code(1);
}

#[test]
fn different_tokens_vocab_positions_or_class_are_refused_with_both_values() {
    let one = Tsv::f32(&[1.0, 2.0]);
    let cases = [
        (one.clone().tokens("1,2,4"), "tokens: ref.tsv has 1,2,3, cand.tsv has 1,2,4; they part at token 2"),
        (Tsv::f32(&[1.0, 2.0, 3.0]), "vocab: ref.tsv has 2, cand.tsv has 3"),
        (
            one.clone().records("positions\t0,1,9\n"),
            "positions: ref.tsv has the default 0, 1, 2, ..., cand.tsv has 0,1,9",
        ),
        (
            one.clone().class("bf16"),
            "numeric_class: ref.tsv has source-weights-float32-accumulation, cand.tsv has bf16",
        ),
    ];
    for (candidate, sentence) in cases {
        let folder = Folder::pair(&one, &candidate);
        folder.diff(&["--atol", "9"]).assert().code(2).stdout(starts_with("refused").and(contains(sentence)));
    }
    let folder = Folder::pair(&one, &one.clone().records("positions\t0,1,2\n"));
    folder.diff(&[]).assert().code(0);
}

#[test]
fn every_reason_to_refuse_is_given_at_once() {
    let folder = Folder::pair(&Tsv::f32(&[1.0]), &Tsv::f32(&[1.0, 2.0]).tokens("9").class("x"));
    assert_eq!(codes(&folder.json(&[])), ["tokens-differ", "vocab-differs", "class-differs"]);
}

#[test]
fn a_leading_token_alone_is_named() {
    let one = Tsv::f32(&[1.0]);
    let (plain, with, doubled) =
        (one.clone().tokens("5,6"), one.clone().tokens("1,5,6"), one.clone().tokens("1,1,5,6"));
    let says = |sentence: &str| contains("only a leading token differs").and(contains(sentence.to_string()));
    Folder::pair(&with, &plain).diff(&[]).assert().code(2).stdout(says("missing in cand.tsv, or unwanted in ref.tsv"));
    Folder::pair(&plain, &with).diff(&[]).assert().code(2).stdout(says("missing in ref.tsv, or unwanted in cand.tsv"));
    Folder::pair(&with, &doubled).diff(&[]).assert().code(2).stdout(says("doubled in cand.tsv"));
    Folder::pair(&doubled, &with).diff(&[]).assert().code(2).stdout(says("doubled in ref.tsv"));
    let other = one.tokens("2,5,6");
    Folder::pair(&with, &other).diff(&[]).assert().code(2).stdout(contains("only the first token differs"));
}

#[test]
fn a_class_mismatch_can_be_allowed_and_compares_as_float64() {
    let folder = Folder::pair(&Tsv::f32(&[0.5, 1.0]), &Tsv::f64(&[0.5, 1.5]));
    folder.diff(&[]).assert().code(2);
    let report = folder.json(&["--allow-class-mismatch"]);
    assert_eq!((&report["verdict"], &report["metrics"]["equal_bits"]), (&json!("different"), &json!(1)));
    // From 1 to 1.5 there are 2^51 steps of 2^-52.
    assert_eq!(report["metrics"]["max_ulp"], json!({"index": 1, "value": 1u64 << 51}));
    assert_eq!(report["metrics"]["ulp_format"], "float64");
    let folder = Folder::pair(&Tsv::f32(&[1.0]), &Tsv::f32(&[1.0]).class("bf16"));
    folder.diff(&["--allow-class-mismatch"]).assert().code(0);
}

/// The reference is (1/4, 0) from the truth, the candidate (1/2, 1): max 1/4 and 1; RMS sqrt(1/32), sqrt(5/8).
#[test]
fn a_truth_gives_both_distances_and_their_ratio() {
    let folder = Folder::pair(&Tsv::f32(&[1.25, 2.0]), &Tsv::f32(&[1.5, 3.0]));
    folder.put("truth.tsv", Tsv::f64(&[1.0, 2.0]).text());
    let truth = &folder.json(&["--truth", "truth.tsv"])["truth"];
    assert_eq!((&truth["numeric_class"], &truth["file"]), (&json!(FLOAT64), &json!("truth.tsv")));
    assert_eq!((&truth["reference"]["max_abs"], &truth["candidate"]["max_abs"]), (&json!(0.25), &json!(1.0)));
    close(&truth["reference"]["rms"], (1.0f64 / 32.0).sqrt());
    close(&truth["candidate"]["rms"], 0.625f64.sqrt());
    assert_eq!(truth["ratio"]["max_abs"], 4.0);
    close(&truth["ratio"]["rms"], 20f64.sqrt());
    folder
        .diff(&["--truth", "truth.tsv"])
        .assert()
        .code(1)
        .stdout(contains("distance from the truth, truth.tsv (hand)"));
    assert_eq!(folder.json(&[])["truth"], Value::Null);
}

#[test]
fn a_truth_of_something_else_is_refused_and_one_with_nan_never_passes() {
    let one = Tsv::f32(&[1.0, 2.0]);
    let folder = Folder::pair(&one, &one);
    folder.put("truth.tsv", Tsv::f64(&[1.0, 2.0]).tokens("7").text());
    let says = contains("tokens: ref.tsv has 1,2,3, truth.tsv has 7");
    folder.diff(&["--truth", "truth.tsv"]).assert().code(2).stdout(says);
    folder.put("truth.tsv", Tsv::f64(&[1.0, f64::NAN]).text());
    folder.diff(&["--truth", "truth.tsv"]).assert().code(1).stdout(contains("the truth holds 1"));
    // A reference that is the truth itself leaves no ratio.
    folder.put("truth.tsv", Tsv::f64(&[1.0, 2.0]).text());
    assert_eq!(folder.json(&["--truth", "truth.tsv"])["truth"]["ratio"], json!({"max_abs": null, "rms": null}));
}

/// Sixteen logits without a pattern.
const ROW: [f32; 16] = [0.5, -3.0, 7.25, 1.0, -0.75, 4.5, -6.0, 2.5, 9.0, -1.25, 3.75, -8.5, 5.0, 0.25, -2.0, 6.5];

#[test]
fn a_scaled_an_offset_and_a_shifted_row_are_recognised() {
    let hints = |candidate: &[f32]| {
        let report = Folder::pair(&Tsv::f32(&ROW), &Tsv::f32(candidate)).json(&[]);
        hint(&report).into_iter().filter(|code| !code.starts_with("argmax")).map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(hints(&ROW.map(|value| value * 0.5 + 1.0)), ["scaled"]);
    assert_eq!(hints(&ROW.map(|value| value - 3.0)), ["offset"]);
    let mut later = ROW;
    later.rotate_right(1);
    let mut earlier = ROW;
    earlier.rotate_left(1);
    assert_eq!(hints(&later), ["rows-shifted"]);
    assert_eq!(hints(&earlier), ["rows-shifted"]);
    let mut one_wrong = ROW;
    one_wrong[3] += 1.0;
    assert_eq!(hints(&one_wrong), [""; 0]);
    let mut reversed = ROW;
    reversed.reverse();
    assert_eq!(hints(&reversed), [""; 0]);
    assert_eq!(hints(&ROW), [""; 0]);
}

#[test]
fn a_padded_vocabulary_is_recognised_and_still_refused() {
    let hints = |surplus: &[f32]| {
        let padded = [&ROW[..], surplus].concat();
        let folder = Folder::pair(&Tsv::f32(&ROW), &Tsv::f32(&padded));
        folder.diff(&[]).assert().code(2);
        hint(&folder.json(&[])).into_iter().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(hints(&[0.0, 0.0]), ["padded-vocabulary"]);
    assert_eq!(hints(&[f32::NEG_INFINITY]), ["padded-vocabulary"]);
    assert_eq!(hints(&[-7.5, -7.5]), ["padded-vocabulary"]);
    assert_eq!(hints(&[1.0, 2.0]), [""; 0]);
    assert_eq!(hints(&[1.0]), [""; 0]);
}

#[test]
fn a_flipped_argmax_is_explained_by_a_near_tie_or_it_is_not() {
    // 9 leads 8.99 by 0.01, and noise of 0.01 is everywhere.
    let mut reference = ROW;
    reference[2] = 8.99;
    let mut candidate = reference.map(|value| value + 0.01);
    candidate[8] = 8.985;
    let report = Folder::pair(&Tsv::f32(&reference), &Tsv::f32(&candidate)).json(&[]);
    assert_eq!(hint(&report), ["argmax-near-tie"]);
    // 9 leads 7.25, and one logit alone has gone wrong.
    let mut candidate = ROW;
    candidate[2] = 9.5;
    let report = Folder::pair(&Tsv::f32(&ROW), &Tsv::f32(&candidate)).json(&[]);
    assert_eq!(hint(&report), ["argmax-no-near-tie"]);
}

#[test]
fn a_file_compared_with_itself_is_said_to_be() {
    hand().oracle(&["diff", "ref.tsv", "ref.tsv"]).assert().code(0).stdout(contains("both sides are the same file"));
    hand().diff(&[]).assert().stdout(contains("the same file").not());
}

#[test]
fn one_side_may_be_standard_input_but_not_both() {
    let text = Tsv::f32(&[1.0, 2.0, 3.0, 4.0]).text();
    let folder = hand();
    let says = starts_with("identical").and(contains("standard input"));
    folder.oracle(&["diff", "-", "ref.tsv"]).write_stdin(text.clone()).assert().code(0).stdout(says);
    folder.oracle(&["diff", "cand.tsv", "-"]).write_stdin(text.clone()).assert().code(1);
    // An annotation cannot belong to a stream.
    let args = ["diff", "cand.tsv", "-", "--format", "github"];
    folder.oracle(&args).write_stdin(text).assert().stdout(starts_with("::error title=standard input agrees with"));
    folder
        .oracle(&["diff", "ref.tsv", "-"])
        .write_stdin("junk")
        .assert()
        .code(2)
        .stderr(contains("standard input: is not"));
    for args in [&["diff", "-", "-"][..], &["diff", "ref.tsv", "-", "--truth", "-"]] {
        folder.oracle(args).assert().code(2).stdout("").stderr(contains("only one of the files can be standard input"));
    }
}

#[test]
fn a_tolerance_must_be_a_finite_number_that_is_not_negative() {
    for value in ["-1", "nan", "inf", "1e999", "x", ""] {
        for option in ["--atol", "--rtol"] {
            let says = contains("expected a finite number that is not negative");
            hand().diff(&[&format!("{option}={value}")]).assert().code(2).stdout("").stderr(says);
        }
    }
}

#[test]
fn quiet_writes_nothing_and_keeps_the_exit_code() {
    hand().diff(&["-q"]).assert().code(1).stdout("").stderr("");
    hand().diff(&["-q", "--atol", "1"]).assert().code(0).stdout("").stderr("");
    hand().oracle(&["diff", "-q", "ref.tsv", "none.tsv"]).assert().code(2).stdout("").stderr("");
    hand().diff(&["--quiet", "--format", "json"]).assert().code(1).stdout("");
}

#[test]
fn every_unreadable_file_is_named() {
    let says =
        contains("a.tsv: cannot be read").and(contains("b.tsv: cannot be read")).and(contains("c.tsv: cannot be read"));
    hand().oracle(&["diff", "a.tsv", "b.tsv", "--truth", "c.tsv"]).assert().code(2).stdout("").stderr(says);
}

#[test]
fn an_unreadable_file_gives_machines_a_refused_report() {
    let folder = hand();
    folder.put("cand.tsv", "junk\n");
    let report = folder.json(&[]);
    assert_eq!((&report["verdict"], &report["exit_code"]), (&json!("refused"), &json!(2)));
    assert_eq!((&report["reasons"][0]["place"], &report["metrics"]), (&json!("cand.tsv"), &Value::Null));
    let with = |format| {
        folder.diff(&["--format", format]).assert().code(2).stderr(contains("cand.tsv: is not an oracle file"))
    };
    with("junit").stdout(contains("<error message=\"refused: ").and(contains("cand.tsv: is not an oracle file")));
    with("github").stdout(starts_with("::error file=cand.tsv,title="));
    with("csv").stdout(contains("\nrefused,2,bits,"));
    with("text").stdout("");
}

#[test]
fn json_has_its_documented_keys_in_order() {
    let report = hand().json(&["--atol", "1"]);
    let keys: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "report",
        "exit_code",
        "verdict",
        "gate",
        "ignore_argmax",
        "reference",
        "candidate",
        "reasons",
        "metrics",
        "truth",
        "auto",
        "hints",
    ];
    assert_eq!(keys, expected);
    assert_eq!(report["gate"], json!({"name": "tolerance", "atol": 1.0, "rtol": 0.0}));
    let side = json!({
        "file": "ref.tsv", "engine": "hand", "numeric_class": "source-weights-float32-accumulation", "tokens": 3,
        "vocab": 4
    });
    assert_eq!(report["reference"], side);
    assert_eq!(hand().json(&["--gate", "memra"])["gate"], json!({"name": "memra"}));
}

#[test]
fn csv_has_one_header_and_one_row() {
    let folder = hand();
    folder.put("a,b.tsv", Tsv::f32(&[1.0, 2.0, 3.0, 4.0]).text());
    let output = folder.oracle(&["diff", "a,b.tsv", "cand.tsv", "--format", "csv"]).output().unwrap();
    let mut reader = csv::Reader::from_reader(&output.stdout[..]);
    let header = reader.headers().unwrap().clone();
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 1);
    let cell = |name: &str| &rows[0][header.iter().position(|column| column == name).unwrap()];
    assert_eq!(
        (cell("verdict"), cell("reference"), cell("max_abs"), cell("max_abs_index")),
        ("different", "a,b.tsv", "0.5", "1")
    );
    assert_eq!((cell("truth_ratio_rms"), cell("smallest_rtol"), cell("max_ulp")), ("", "0.25", "2097152"));
}

#[test]
fn junit_counts_a_pass_a_failure_and_an_error() {
    let counts = |failures, errors| contains(format!("tests=\"1\" failures=\"{failures}\" errors=\"{errors}\""));
    let failed = counts(1, 0)
        .and(contains("<failure message=\"different: "))
        .and(contains("name=\"cand.tsv agrees with ref.tsv\""));
    hand().diff(&["--format", "junit"]).assert().code(1).stdout(failed);
    let passed = counts(0, 0).and(contains("<failure").not()).and(contains("<error").not());
    hand().diff(&["--format", "junit", "--atol", "1"]).assert().code(0).stdout(passed);
    let folder = Folder::pair(&Tsv::f32(&[1.0]), &Tsv::f32(&[1.0]).class("<a & b>"));
    let refused = counts(0, 1).and(contains("cand.tsv has &lt;a &amp; b&gt;</error>"));
    folder.diff(&["--format", "junit"]).assert().code(2).stdout(refused);
}

#[test]
fn github_annotations_are_one_escaped_line() {
    let folder = hand();
    folder.put("50%,a:b.tsv", Tsv::f32(&[1.0, 2.5, 3.0, 3.5]).text());
    let says =
        starts_with("::error file=50%25%2Ca%3Ab.tsv,title=50%25%2Ca%3Ab.tsv agrees with ref.tsv::different: 2 of 4 ")
            .and(contains("%0Alogit 1: "))
            .and(contains("\n").count(1));
    folder.oracle(&["diff", "ref.tsv", "50%,a:b.tsv", "--format", "github"]).assert().code(1).stdout(says);
    hand().diff(&["--format", "github", "--atol", "1"]).assert().code(0).stdout(starts_with("::notice file=cand.tsv,"));
}

#[test]
fn a_reader_that_has_gone_away_is_no_error() {
    let folder = hand();
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("oracle"))
        .current_dir(folder.0.path())
        .args(["diff", "-", "cand.tsv"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The report waits for standard input, so its reader is gone by then.
    drop(child.stdout.take());
    let mut input = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, Tsv::f32(&[1.0, 2.0, 3.0, 4.0]).text().as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(1), ""));
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_cannot_be_written_is_trouble() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let folder = hand();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin("oracle"))
        .current_dir(folder.0.path())
        .args(["diff", "ref.tsv", "ref.tsv"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot write the report to standard output: No space left")
    );
}
