use super::*;
use crate::checkpoint::{self, Source};
use crate::exec::reference::Reference;
use crate::model::{Books, Pack, close_books};
use crate::ops::rope::RopeScaling;
use rayon::prelude::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Every fixture that runs: between them they have everything that a fault needs.
fn fixtures() -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let names = names.filter(|entry| entry.path().join("config.json").exists());
    let mut names: Vec<String> = names.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names.retain(|name| opened(name).problems.is_empty());
    assert!(names.len() >= 130, "{names:?}");
    names
}

fn opened(fixture: &str) -> Books {
    let opened = checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture));
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[])
}

fn load(fixture: &str) -> (Plan, Arc<dyn Source>) {
    let opened = checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(fixture));
    let (config, source) = (opened.config.unwrap(), opened.source.unwrap());
    let books = close_books(&config, source.as_ref(), &opened.unavailable, Pack::embedded(), &[]);
    (books.plan.unwrap(), source)
}

/// Whether the fault changes a bit in any of the ways that it is said to be shown by.
fn shows(injection: &Injection, plan: &Plan, source: &Arc<dyn Source>, shown_by: ShownBy) -> bool {
    let reference = Reference::default();
    let kernels = injection.wrap::<f32>(&reference);
    Probe::recommended(plan).iter().any(|probe| {
        let right = Trial::<f32>::new(plan, source, &reference).logits(probe, &Schedule::Whole).unwrap();
        let trial = Trial::with_fault(injection, source, kernels.as_ref());
        let schedules = shown_by.schedules(probe.tokens.len());
        schedules.iter().any(|schedule| trial.logits(probe, schedule).unwrap() != right)
    })
}

#[test]
fn every_fault_that_applies_changes_the_logits() {
    let applied: Vec<BTreeSet<&str>> = fixtures()
        .par_iter()
        .map(|fixture| {
            let (plan, source) = load(fixture);
            // No probe is as long as these windows: they are blind spots, and `oracle probes` says so.
            let windows = plan.layers.iter().filter_map(|layer| layer.mixer.attention_spec()?.sliding_window);
            let blind = windows.min().is_some_and(|window| window > probes::LONGEST);
            let faults = catalogue().iter().filter(|fault| !blind || !fault.name.starts_with("window-"));
            let injections = faults.filter_map(|fault| fault.inject(&plan).ok());
            let shown = injections.map(|injection| {
                let shown_by = injection.fault().shown_by();
                assert!(shows(&injection, &plan, &source, shown_by), "{fixture}: {injection}");
                if shown_by != ShownBy::Pass {
                    assert!(!shows(&injection, &plan, &source, ShownBy::Pass), "{fixture}: {injection} in one pass");
                }
                injection.fault().name
            });
            shown.collect()
        })
        .collect();
    let applied: BTreeSet<&str> = applied.into_iter().flatten().collect();
    let never: Vec<&str> = catalogue().iter().map(|f| f.name).filter(|name| !applied.contains(name)).collect();
    assert!(never.is_empty(), "no fixture has what these need: {never:?}");
}

#[test]
fn without_a_fault_every_schedule_gives_the_same_bits() {
    fixtures().par_iter().for_each(|fixture| {
        let (plan, source) = load(fixture);
        let reference = Reference::default();
        let trial = Trial::<f32>::new(&plan, &source, &reference);
        for probe in Probe::recommended(&plan) {
            let whole = trial.logits(&probe, &Schedule::Whole).unwrap();
            let all = [ShownBy::Chunks, ShownBy::Trim, ShownBy::Fork, ShownBy::Restore];
            // A recurrent state can't be cut back.
            for shown_by in all.into_iter().filter(|&by| by != ShownBy::Trim || !recurrent::any(&plan)) {
                for schedule in shown_by.schedules(probe.tokens.len()) {
                    assert_eq!(trial.logits(&probe, &schedule).unwrap(), whole, "{fixture}, {probe}: {schedule}");
                }
            }
        }
    });
}

#[test]
fn what_does_not_apply_says_why() {
    for (fixture, name, reason) in [
        ("llama-plain", "rope-theta-default", "rope_theta is 10000"),
        ("llama-plain", "rope-scaling-dropped", "RoPE is not scaled"),
        ("llama-plain", "yarn-attention-factor", "multiplied by no factor"),
        ("llama-plain", "longrope-switch", "no short and long factors"),
        ("llama-plain", "partial-rotary-ignored", "whole heads"),
        ("llama-plain", "rope-wrong-layer", "frequencies of their own"),
        ("llama-plain", "window-missing", "no layer has a sliding window"),
        ("llama-plain", "window-off-by-one", "no layer has a sliding window"),
        ("llama-plain", "window-wrong-layer", "no layer has a sliding window"),
        ("llama-plain", "window-rolls-early", "no layer has a sliding window"),
        ("mistral-window", "window-wrong-layer", "every layer has a sliding window"),
        ("llama-plain", "attn-scale", "1 / sqrt(hidden_size / num_attention_heads)"),
        ("mistral-no-window", "gqa-tile", "no groups"),
        ("llama-dynamic", "kv-head-order", "one key/value head"),
        ("llama-plain", "qk-norm-dropped", "queries and keys have no norm"),
        ("llama-plain", "qk-norm-after-rope", "no query or key norm has weights"),
        ("llama-plain", "q-bias-dropped", "query projection"),
        ("llama-plain", "k-bias-dropped", "key projection"),
        ("llama-plain", "v-bias-dropped", "value projection"),
        ("llama-plain", "o-bias-dropped", "output projection"),
        ("llama-plain", "gelu-variant", "not GELU"),
        ("llama-bias-llama3", "head-tied", "the head is the embedding"),
        ("llama-plain", "topk-norm", "there are no experts"),
        ("llama-plain", "conv-state-dropped", "no layer has a short convolution"),
        ("llama-plain", "scan-state-reset", "no layer scans"),
        ("llama-plain", "conv-bias-dropped", "no convolution has a bias"),
        ("llama-plain", "conv-activation-dropped", "no convolution has an activation"),
        ("llama-plain", "conv-gates-swapped", "no layer is a gated short convolution"),
        ("llama-plain", "dt-bias-dropped", "no scan has a step with a bias"),
        ("llama-plain", "dt-limit-dropped", "no layer is Mamba-2"),
        ("llama-plain", "scan-norm-joined", "no scan's result is normalised in groups"),
        ("llama-plain", "delta-gate-dropped", "no layer has a gated delta rule"),
        ("bitnet-plain", "activation-quantization-dropped", "no projection rounds its inputs"),
        ("bitnet-plain", "ternary-scale-dropped", "no weights are ternary"),
    ] {
        let (plan, _) = load(fixture);
        let error = inject(name, &plan).unwrap_err();
        assert!(matches!(error, NotInjected::NotApplicable { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{fixture}, {name}: {error}");
    }
    // Two layers of one kind are needed; here they differ in their windows.
    let (mut plan, _) = load("qwen2-layer-types-dynamic");
    plan.layers.truncate(2);
    assert!(inject("kv-layer-mixup", &plan).unwrap_err().to_string().contains("no two layers"));
    // A single pair per head.
    plan.ropes[0].dim = 2;
    assert!(inject("rope-pairing", &plan).unwrap_err().to_string().contains("a single pair"));
}

#[test]
fn a_name_that_is_not_there_gets_its_nearest() {
    let (plan, _) = load("llama-plain");
    let error = inject("window-mising", &plan).unwrap_err().to_string();
    assert!(
        error.contains("no fault is called `window-mising`") && error.contains("the nearest are window-missing"),
        "{error}"
    );
}

#[test]
fn a_name_without_its_variant_is_the_first_that_applies() {
    let (plan, _) = load("llama-yarn");
    assert_eq!(inject("kv-quantized", &plan).unwrap().fault().name, "kv-quantized:q8_0");
    assert_eq!(inject("yarn-attention-factor:squared", &plan).unwrap().to_string(), "yarn-attention-factor:squared");
    // This factor is 0.85 in the config; its logarithm is taken to be that of no scaling, as without a factor.
    let (mut plan, _) = load("qwen3-bias-yarn");
    assert_eq!(inject("yarn-attention-factor", &plan).unwrap().fault().name, "yarn-attention-factor:dropped");
    let RopeScaling::Yarn { attention_factor, .. } = &mut plan.ropes[0].scaling else { panic!("it is yarn") };
    *attention_factor = 1.0;
    assert!(inject("yarn-attention-factor", &plan).is_err());
}

#[test]
fn another_epsilon_is_another_one_in_float32_as_well() {
    let (mut plan, _) = load("llama-plain");
    for (eps, expected) in [(1e-5, 1e-6), (9.999999747378752e-6, 1e-6), (1e-6, 1e-5), (0.01, 1e-5)] {
        plan.norm.eps = eps;
        assert_eq!(inject("norm-eps", &plan).unwrap().plan.norm.eps, expected, "{eps}");
    }
}

#[test]
fn names_are_unique_and_every_entry_says_what_it_does() {
    let names: BTreeSet<&str> = catalogue().iter().map(|fault| fault.name).collect();
    assert_eq!(names.len(), catalogue().len());
    assert!(catalogue().iter().all(|fault| !fault.what.is_empty()));
    assert_eq!(catalogue().iter().filter(|fault| fault.honest()).count(), 1);
}

#[test]
fn a_cache_that_is_quantized_on_purpose_is_rounded_more_coarsely() {
    let (plan, _) = load("llama-plain");
    let injection = inject("kv-quantized", &plan).unwrap();
    let of = |cache| injection.options(SessionOptions { cache, ..SessionOptions::default() }).cache;
    assert_eq!(of(CacheFormat::Computed), CacheFormat::Q8_0);
    assert_eq!(of(CacheFormat::Q8_0), CacheFormat::Q4_0);
}

#[test]
fn positions_are_wrong_only_after_the_first_pass() {
    let (plan, _) = load("llama-plain");
    let (decode, chunk) = (inject("decode-position-off-by-one", &plan), inject("chunk-position-reset", &plan));
    let (decode, chunk) = (decode.unwrap(), chunk.unwrap());
    assert_eq!(decode.positions(0, &[0]), [0]);
    assert_eq!(decode.positions(3, &[3]), [4]);
    assert_eq!(decode.positions(3, &[3, 4]), [3, 4]);
    assert_eq!(chunk.positions(0, &[0, 1]), [0, 1]);
    assert_eq!(chunk.positions(3, &[3, 4, 9]), [0, 1, 6]);
    assert_eq!(chunk.positions(3, &[3]), [3]);
}

#[test]
fn recommended_probes_are_longer_than_windows_and_reach_beyond_the_trained_length() {
    for (fixture, name, tokens, last) in [
        ("mistral-long", "plain", 19, 18),
        ("llama-plain", "plain", 12, 11),
        ("llama-bias-llama3", "sparse", 8, 383),
        ("llama-longrope", "short", 5, 11),
        ("llama-longrope", "first-long", 6, 12),
    ] {
        let (plan, _) = load(fixture);
        let probes = Probe::recommended(&plan);
        let probe = probes.iter().find(|probe| probe.name == name).unwrap_or_else(|| panic!("{fixture}: {name}"));
        let distinct: BTreeSet<u32> = probe.tokens.iter().copied().collect();
        assert_eq!(distinct.len(), probe.tokens.len(), "{fixture}: {probe}");
        assert!(probe.tokens.iter().all(|&t| (t as usize) < plan.vocab_size), "{fixture}: {probe}");
        assert!(probe.positions.is_sorted_by(|a, b| a < b), "{fixture}: {probe}");
        assert_eq!((probe.tokens.len(), probe.positions.last()), (tokens, Some(&last)), "{fixture}: {probe}");
    }
}
