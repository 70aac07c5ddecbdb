//! `oracle diff --tolerance auto`: bounds computed by hand, and the neighbours on both sides of each.

mod hand;

use hand::{FLOAT64, Folder, Tsv};
use predicates::prelude::*;
use predicates::str::{contains, starts_with};
use serde_json::{Value, json};

const AUTO: [&str; 4] = ["--tolerance", "auto", "--truth", "truth.tsv"];

const TRUTH: [f64; 4] = [1.0, -1.0, 2.0, 4.0];

/// 2^n.
fn power(n: i32) -> f64 {
    2f64.powi(n)
}

/// The truth's row in float32, moved by `by`; every sum is exact.
fn moved(by: [f64; 4]) -> Tsv {
    let row: Vec<f32> = TRUTH.iter().zip(by).map(|(value, by)| (value + by) as f32).collect();
    assert!(row.iter().zip(TRUTH).zip(by).all(|((&value, truth), by)| f64::from(value) - truth == by));
    Tsv::f32(&row)
}

fn folder(reference: [f64; 4], candidate: [f64; 4]) -> Folder {
    let folder = Folder::pair(&moved(reference), &moved(candidate));
    folder.put("truth.tsv", Tsv::f64(&TRUTH).text());
    folder
}

/// The reference is 2^-10 away at one of four logits: max 2^-10, RMS 2^-11.
const OFF: [f64; 4] = [1.0 / 1024.0, 0.0, 0.0, 0.0];

fn receipts(max_abs: &str, rms: &str) -> String {
    format!("truth_max_abs\t{max_abs}\ntruth_rms\t{rms}\n")
}

fn codes(report: &Value) -> Vec<&str> {
    report["reasons"].as_array().unwrap().iter().map(|reason| reason["code"].as_str().unwrap()).collect()
}

/// K = 8: the largest difference may be 8 * 2^-10 = 2^-7, and the float32 after it may not.
#[test]
fn the_largest_difference_passes_up_to_the_factor_and_not_a_bit_beyond() {
    let at = |d: f64| folder(OFF, [d, 0.0, 0.0, 0.0]);
    at(power(-7)).diff(&AUTO).assert().code(0).stdout(starts_with("within-tolerance"));
    // RMS 2^-8 + 2^-24 is beyond its bound 2^-8 as well: both are said.
    let says = starts_with("different").and(contains("distance from the truth: max of the candidate 0.007812619"));
    at(power(-7) + power(-23)).diff(&AUTO).assert().code(1).stdout(says);
    // Elsewhere, and with the other sign.
    folder(OFF, [0.0, 0.0, 0.0, -power(-7)]).diff(&AUTO).assert().code(0);
}

/// All four logits off by d: max d is far within 2^-7, and RMS d may be 8 * 2^-11 = 2^-8.
#[test]
fn the_rms_is_bounded_as_well() {
    folder(OFF, [power(-8); 4]).diff(&AUTO).assert().code(0);
    let over = power(-8) + power(-21);
    let folder = folder(OFF, [over; 4]);
    folder
        .diff(&AUTO)
        .assert()
        .code(1)
        .stdout(contains("beyond the bound 0.003906250").and(contains("within the bound")));
    let auto = &folder.json(&AUTO)["auto"];
    assert_eq!((&auto["passes"], &auto["candidate"]["rms"]), (&json!(false), &json!(over)));
}

#[test]
fn the_factor_is_the_users() {
    let with = |factor, d, code| {
        folder(OFF, [d, 0.0, 0.0, 0.0]).diff(&AUTO).args(["--factor", factor]).assert().code(code);
    };
    with("1", power(-10), 0);
    with("1", -power(-10), 0);
    with("1", power(-10) + power(-23), 1);
    with("2.5", 2.5 * power(-10), 0);
    with("2.5", 2.5 * power(-10) + power(-23), 1);
    for value in ["0.5", "0", "-1", "nan", "inf", "x"] {
        let says = contains("expected a finite number that is not below 1");
        folder(OFF, OFF).diff(&AUTO).arg(format!("--factor={value}")).assert().code(2).stdout("").stderr(says);
    }
    folder(OFF, OFF).diff(&["--factor", "3"]).assert().code(2).stderr(contains("--tolerance"));
}

/// The largest logit is 4, where float32 steps by 2^-21: the floor is 2^-22, the bound 2^-19.
#[test]
fn an_exact_reference_counts_as_half_a_unit_in_the_last_place() {
    let at = |d: f64| folder([0.0; 4], [d, 0.0, 0.0, 0.0]);
    at(power(-19)).diff(&AUTO).assert().code(0).stdout(contains("(counted as the floor)"));
    at(power(-19) + power(-23)).diff(&AUTO).assert().code(1);
    let auto = &at(power(-19)).json(&AUTO)["auto"];
    assert_eq!((&auto["floor"], &auto["reference"]["max_abs"]), (&json!(power(-22)), &json!(0.0)));
    assert_eq!(auto["ratio"]["max_abs"], 8.0);
    // A candidate of float64 has a smaller floor: steps of 2^-50 at 4, so 2^-51, and a bound of 2^-48.
    let wide = |d: f64| {
        let folder = folder([0.0; 4], [0.0; 4]);
        folder.put("cand.tsv", Tsv::f64(&[1.0 + d, -1.0, 2.0, 4.0]).text());
        folder.put("ref.tsv", Tsv::f64(&TRUTH).text());
        folder
    };
    wide(power(-48)).diff(&AUTO).assert().code(0);
    wide(power(-48) + power(-52)).diff(&AUTO).assert().code(1);
    // The candidate's own logits don't widen it.
    let mut candidate = moved([0.0; 4]);
    candidate.bits[3] = format!("{:08x}", 4e30f32.to_bits());
    let folder = folder([0.0; 4], [0.0; 4]);
    folder.put("cand.tsv", candidate.text());
    folder.diff(&AUTO).assert().code(1);
}

#[test]
fn equal_bits_are_identical() {
    folder(OFF, OFF)
        .diff(&AUTO)
        .assert()
        .code(0)
        .stdout(starts_with("identical").and(contains("1.000000 times the reference's")));
}

#[test]
fn the_argmax_must_agree_unless_ignored() {
    let truth = [1.0, -1.0, 4.0, 4.0 + power(-10)];
    let row = |a: f64, b: f64| Tsv::f32(&[1.0, -1.0, a as f32, b as f32]);
    let noisy = |a: f64, b: f64| Tsv::f32(&[1.0 + power(-10) as f32, -1.0, a as f32, b as f32]);
    let folder = Folder::pair(&noisy(4.0, 4.0 + power(-10)), &row(4.0 + power(-9), 4.0 + power(-10)));
    folder.put("truth.tsv", Tsv::f64(&truth).text());
    let says = contains("argmax: the reference's largest logit is 3, the candidate's is 2")
        .and(contains("a near tie explains it"))
        .and(contains("distance from the truth\n  max of the candidate"));
    folder.diff(&AUTO).assert().code(1).stdout(says);
    assert_eq!(codes(&folder.json(&AUTO)), ["argmax-differs"]);
    folder.diff(&AUTO).arg("--ignore-argmax").assert().code(0).stdout(starts_with("within-tolerance"));
}

#[test]
fn a_nan_never_passes() {
    let mut candidate = moved(OFF);
    candidate.bits[0] = "7fc00000".into();
    let folder = folder(OFF, OFF);
    folder.put("cand.tsv", candidate.text());
    folder.diff(&AUTO).assert().code(1).stdout(contains("NaN or infinity"));
    assert_eq!(folder.json(&AUTO)["auto"], Value::Null);
    folder.put("cand.tsv", moved(OFF).text());
    folder.put("truth.tsv", Tsv::f64(&[f64::NAN, -1.0, 2.0, 4.0]).text());
    folder.diff(&AUTO).assert().code(1).stdout(contains("the truth holds 1"));
}

#[test]
fn it_takes_no_guessed_tolerance_beside_it() {
    for option in [&["--atol", "1"][..], &["--rtol", "1"], &["--gate", "memra"]] {
        folder(OFF, OFF).diff(&AUTO).args(option).assert().code(2).stdout("").stderr(contains("cannot be used with"));
    }
}

#[test]
fn without_a_truth_it_is_refused() {
    let folder = folder(OFF, OFF);
    let says = starts_with("refused").and(contains(
        "--tolerance auto: needs --truth FILE, or a reference whose receipts truth_max_abs and truth_rms say how far it \
         is from the truth; ref.tsv has no truth_max_abs",
    ));
    folder.diff(&["--tolerance", "auto"]).assert().code(2).stdout(says);
    folder.diff(&["--tolerance", "auto", "-q"]).assert().code(2).stdout("").stderr("");
    // The candidate's receipts say nothing of the reference.
    folder.put("cand.tsv", moved(OFF).records(&receipts("1e-3", "1e-3")).text());
    folder.diff(&["--tolerance", "auto"]).assert().code(2);
    folder.put("ref.tsv", moved(OFF).records("truth_max_abs\t1e-3\n").text());
    folder.diff(&["--tolerance", "auto"]).assert().code(2).stdout(contains("ref.tsv has no truth_rms"));
}

#[test]
fn only_a_float64_truth_gives_a_tolerance() {
    let folder = folder(OFF, OFF);
    folder.put("truth.tsv", moved([0.0; 4]).text());
    let says =
        contains("truth.tsv: a tolerance can only be taken from a truth of numeric class").and(contains(FLOAT64));
    folder.diff(&AUTO).assert().code(2).stdout(says);
    // It may still inform, with a remark.
    let report = folder.json(&["--truth", "truth.tsv"]);
    assert_eq!((&report["verdict"], &report["hints"][0]["code"]), (&json!("identical"), &json!("truth-class")));
    folder.put("truth.tsv", Tsv::f64(&TRUTH).text());
    assert_eq!(folder.json(&["--truth", "truth.tsv"])["hints"], json!([]));
}

/// The truth's RMS is sqrt(22 / 4) = 2.3452; one in a hundred of it, as RMS, is 0.0469 at one of four logits.
#[test]
fn a_reference_that_is_no_rounding_of_the_truth_gives_no_tolerance() {
    let at = |d: f64| folder([d, 0.0, 0.0, 0.0], [d, 0.0, 0.0, power(-20)]);
    at(0.046875 - power(-12)).diff(&AUTO).assert().code(0);
    let says = starts_with("refused").and(contains("ref.tsv: is 0.02355957 (RMS) from the truth"));
    at(0.046875 + power(-12)).diff(&AUTO).assert().code(2).stdout(says);
    assert_eq!(codes(&at(1.0).json(&AUTO)), ["reference-far-from-truth"]);
    let folder = folder(OFF, OFF);
    folder.put("ref.tsv", moved(OFF).records(&receipts("0.5", "0.25")).text());
    assert_eq!(codes(&folder.json(&["--tolerance", "auto"])), ["reference-far-from-truth"]);
}

/// K = 8, the reference says max 2^-10 and RMS 2^-11 of itself: |c - r| may be 9 * 2^-10, and RMS 9 * 2^-11.
#[test]
fn the_references_receipts_give_a_weaker_bound() {
    let at = |d: [f64; 4]| {
        let folder = folder([0.0; 4], d);
        folder.put("ref.tsv", moved([0.0; 4]).records(&receipts("9.765625e-4", "0.00048828125")).text());
        folder
    };
    let auto = ["--tolerance", "auto"];
    at([9.0 * power(-10), 0.0, 0.0, 0.0]).diff(&auto).assert().code(0).stdout(contains("distance from the reference"));
    at([9.0 * power(-10) + power(-23), 0.0, 0.0, 0.0]).diff(&auto).assert().code(1);
    at([9.0 * power(-11); 4]).diff(&auto).assert().code(0);
    at([9.0 * power(-11) + power(-21); 4]).diff(&auto).assert().code(1);
    at([4.0 * power(-10), 0.0, 0.0, 0.0]).diff(&auto).args(["--factor", "3", "--strict"]).assert().code(0);
    at([4.0 * power(-10) + power(-23), 0.0, 0.0, 0.0]).diff(&auto).args(["--factor", "3"]).assert().code(1);
    let report = at([power(-10), 0.0, 0.0, 0.0]).json(&auto);
    assert_eq!((&report["auto"]["basis"], &report["truth"]), (&json!("receipts"), &Value::Null));
    assert_eq!(report["auto"]["bound"], json!({"max_abs": 9.0 * power(-10), "rms": 9.0 * power(-11)}));
    // A reference that says it is exact: 9 times half a step of 2^-21.
    let exact = |d: f64| {
        let folder = at([d, 0.0, 0.0, 0.0]);
        folder.put("ref.tsv", moved([0.0; 4]).records(&receipts("0", "0")).text());
        folder
    };
    exact(9.0 * power(-22)).diff(&auto).assert().code(0);
    exact(9.0 * power(-22) + power(-23)).diff(&auto).assert().code(1);
    // A truth that is given goes before them.
    assert_eq!(at(OFF).json(&AUTO)["auto"]["basis"], "truth");
}

#[test]
fn receipts_that_are_no_distances_are_refused() {
    for wrong in ["-1", "nan", "inf", "1e999", "0x1p-3", "small"] {
        let folder = folder(OFF, OFF);
        folder.put("ref.tsv", moved(OFF).records(&receipts(wrong, "1e-4")).text());
        let says =
            format!("ref.tsv: receipt truth_max_abs: expected a finite number that is not negative, found {wrong}");
        folder.diff(&["--tolerance", "auto"]).assert().code(2).stdout(contains(says));
        folder.diff(&[]).assert().code(0);
    }
}

#[test]
fn json_has_its_documented_keys() {
    let report = folder(OFF, [power(-9), 0.0, 0.0, 0.0]).json(&AUTO);
    assert_eq!(report["gate"], json!({"name": "auto", "factor": 8.0}));
    assert_eq!((&report["verdict"], &report["exit_code"]), (&json!("within-tolerance"), &json!(0)));
    let mut auto = report["auto"].clone();
    let message = auto.as_object_mut().unwrap().remove("message").unwrap();
    let expected = json!({
        "basis": "truth",
        "factor": 8.0,
        "floor": power(-22),
        "reference": {"max_abs": power(-10), "rms": power(-11)},
        "candidate": {"max_abs": power(-9), "rms": power(-10)},
        "bound": {"max_abs": power(-7), "rms": power(-8)},
        "ratio": {"max_abs": 2.0, "rms": 2.0},
        "passes": true
    });
    assert_eq!(auto, expected);
    let sentence = "max of the candidate 0.001953125, 2.000000 times the reference's 9.765625e-4, within the bound \
                    0.007812500; RMS of the candidate 9.765625e-4, 2.000000 times the reference's 4.882812e-4, within the \
                    bound 0.003906250; up to 8 times passes";
    assert_eq!(message, sentence);
}

#[test]
fn every_format_shows_it_whether_it_passes_or_not() {
    for (d, code, csv) in [(power(-9), 0, "within-tolerance,0,auto,"), (power(-6), 1, "different,1,auto,")] {
        let folder = folder(OFF, [d, 0.0, 0.0, 0.0]);
        for format in ["text", "json", "junit", "github"] {
            let says = contains("times the reference").and(contains("up to 8 times passes"));
            folder.diff(&AUTO).args(["--format", format]).assert().code(code).stdout(says);
        }
        let output = folder.diff(&AUTO).args(["--format", "csv"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.lines().nth(1).unwrap().starts_with(csv), "{text}");
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers().unwrap().clone();
        let row = reader.records().next().unwrap().unwrap();
        let cell = |name: &str| &row[header.iter().position(|column| column == name).unwrap()];
        assert_eq!((cell("auto_factor"), cell("auto_basis"), cell("auto_bound_max_abs")), ("8", "truth", "0.0078125"));
        assert_eq!(cell("auto_ratio_max_abs"), if code == 0 { "2" } else { "16" });
    }
}
