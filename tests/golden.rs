//! Every fixture against transformers: the float64 truth and transformers' own float32 logits (oracles/README.md).

mod truth;

use checkpoint_oracle::exec::reference::Reference;
use checkpoint_oracle::ops::Float;
use truth::{fixtures, goldens, load, max_distance, other_argmax, run, spread};

#[test]
fn the_reference_is_as_near_the_truth_as_transformers_is() {
    println!("{:32} {:10} {:>10} {:>10} {:>6}", "fixture", "prompt", "ours", "theirs", "ratio");
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        for golden in goldens(&fixture) {
            let ours = run::<f32>(&plan, &source, &golden, &Reference::default());
            assert_eq!((ours.rows(), ours.cols()), (golden.tokens.len(), golden.vocab), "{fixture}");
            let distance = max_distance(ours.data().iter().map(|v| v.to_f64()), &golden.truth);
            let theirs = max_distance(golden.theirs.iter().copied(), &golden.truth);
            println!("{fixture:32} {:10} {distance:10.2e} {theirs:10.2e} {:6.2}", golden.prompt, distance / theirs);
            if distance.is_nan() || distance > 4.0 * theirs + 1e-6 * spread(&golden.truth) {
                failures.push(format!("{fixture} {}: {distance:e} against {theirs:e}", golden.prompt));
            }
            failures.extend(other_argmax(&ours, &golden).iter().map(|f| format!("{fixture} {f}")));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn the_same_operations_in_float64_are_the_truth() {
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        for golden in goldens(&fixture) {
            let ours = run::<f64>(&plan, &source, &golden, &Reference::default());
            let distance = max_distance(ours.data().iter().copied(), &golden.truth);
            println!("{fixture:32} {:10} {distance:10.2e}", golden.prompt);
            if distance.is_nan() || distance > 1e-9 {
                failures.push(format!("{fixture} {}: {distance:e}", golden.prompt));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
