//! The accelerated executor against the float64 truth, as far from it as a small multiple of the reference is at most,
//! and its kernels against the reference's.

mod truth;

use checkpoint_oracle::checkpoint::Dtype;
use checkpoint_oracle::exec::accelerated::{
    Accelerated, BACKENDS, Backend, Blocking, Gemm, Order, View, ViewMut, by_name,
};
use checkpoint_oracle::exec::weights::{Steps, Tile, Transposed};
use checkpoint_oracle::exec::{Kernels, reference::Reference};
use checkpoint_oracle::ops::Matrix;
use checkpoint_oracle::ops::attention::{AttentionSpec, Kv};
use truth::{fixtures, goldens, load, max_distance, other_argmax, run, spread};

/// How much further from the truth than the reference the accelerated executor may be.
const MULTIPLE: f64 = 8.0;

/// What is wrong with a backend, over every fixture and prompt.
fn failures(backend: impl Fn() -> Box<dyn Backend>) -> Vec<String> {
    let mut failures = Vec::new();
    for fixture in fixtures() {
        let (plan, source) = load(&fixture);
        for golden in goldens(&fixture) {
            let kernels = Accelerated::new(backend());
            let ours = run(&plan, &source, &golden, &kernels);
            let reference = run(&plan, &source, &golden, &Reference::default());
            let distance =
                |logits: &Matrix<f32>| max_distance(logits.data().iter().map(|&v| f64::from(v)), &golden.truth);
            let (ours_off, reference_off) = (distance(&ours), distance(&reference));
            let name = format!("{fixture} {}", golden.prompt);
            println!("{name:44} {ours_off:10.2e} {reference_off:10.2e} {:6.2}", ours_off / reference_off);
            let allowed = MULTIPLE * reference_off + 1e-6 * spread(&golden.truth);
            if ours_off.is_nan() || ours_off > allowed {
                failures.push(format!("{name}: {ours_off:e} from the truth, the reference {reference_off:e}"));
            }
            failures.extend(other_argmax(&ours, &golden).iter().map(|f| format!("{fixture} {f}")));
        }
    }
    failures
}

/// A backend that never leaves the work to the reference, however few tokens there are.
struct Always<B>(B);

impl<B: Backend> Backend for Always<B> {
    fn name(&self) -> &'static str {
        self.0.name()
    }
    fn blocking(&self) -> Blocking {
        Blocking { few: 0, ..self.0.blocking() }
    }
    fn sgemm(&self, a: View<'_>, b: View<'_>, c: ViewMut<'_>, add: bool) {
        self.0.sgemm(a, b, c, add);
    }
}

/// Plain loops over activations that were rounded to bfloat16.
struct Rounding;

impl Backend for Rounding {
    fn name(&self) -> &'static str {
        "rounding"
    }
    fn blocking(&self) -> Blocking {
        Blocking { rows: 64, depth: 100, order: Order::Rows, few: 0 }
    }
    fn sgemm(&self, a: View<'_>, b: View<'_>, c: ViewMut<'_>, add: bool) {
        let rounded: Vec<f32> =
            (0..a.rows * a.cols).map(|i| half::bf16::from_f32(a.at(i / a.cols, i % a.cols)).to_f32()).collect();
        Gemm.sgemm(View::of_rows(&rounded, a.rows, a.cols, a.cols), b, c, add);
    }
}

#[test]
fn every_backend_is_near_the_truth_on_every_fixture() {
    for &name in BACKENDS {
        assert_eq!(failures(|| by_name(name).unwrap()), [""; 0], "{name}");
    }
    assert_eq!(failures(|| Box::new(Always(Gemm))), [""; 0], "gemm for every number of tokens");
    #[cfg(feature = "blas")]
    {
        use checkpoint_oracle::exec::accelerated::Blas;
        assert_eq!(failures(|| Box::new(Always(Blas))), [""; 0], "blas for every number of tokens");
    }
}

#[test]
fn a_backend_that_rounds_to_bfloat16_is_caught() {
    let failures = failures(|| Box::new(Rounding));
    assert!(failures.iter().filter(|f| f.contains("from the truth")).count() >= 12, "{failures:#?}");
}

fn noise(seed: u32, n: usize) -> Vec<f32> {
    let mut state = seed;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn backends() -> Vec<Accelerated> {
    let mut all: Vec<_> = BACKENDS.iter().map(|name| Accelerated::new(by_name(name).unwrap())).collect();
    all.push(Accelerated::new(Box::new(Always(Gemm))));
    #[cfg(feature = "blas")]
    all.push(Accelerated::new(Box::new(Always(checkpoint_oracle::exec::accelerated::Blas))));
    all
}

/// Finite sums of `terms` products nearly alike, others the same.
#[track_caller]
fn assert_near(got: &Matrix<f32>, expected: &Matrix<f32>, terms: usize, what: &str) {
    let tolerance = 1e-7 * terms as f32 + 1e-6;
    assert_eq!((got.rows(), got.cols()), (expected.rows(), expected.cols()));
    for (i, (&g, &e)) in got.data().iter().zip(expected.data()).enumerate() {
        let alike = if e.is_finite() { (g - e).abs() <= tolerance } else { g == e || (g.is_nan() && e.is_nan()) };
        assert!(alike, "{what}: value {i} is {g} and not {e}");
    }
}

#[test]
fn linear_is_that_of_the_reference_at_odd_sizes_on_any_number_of_threads() {
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for (rows, cols) in [(1, 1), (5, 3), (97, 31), (193, 513), (385, 600), (200, 4100)] {
            let weights = noise(1, rows * cols);
            for dtype in [Dtype::F32, Dtype::BF16, Dtype::F16] {
                let bytes: Vec<u8> = match dtype {
                    Dtype::F32 => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
                    Dtype::BF16 => weights.iter().flat_map(|&w| half::bf16::from_f32(w).to_le_bytes()).collect(),
                    _ => weights.iter().flat_map(|&w| half::f16::from_f32(w).to_le_bytes()).collect(),
                };
                let tile = Tile { decoder: dtype.decoder().unwrap(), rows, cols, bytes: &bytes };
                for tokens in [1, 2, 5, 13, 33] {
                    let x = Matrix::from_vec(tokens, cols, noise(2, tokens * cols));
                    let compute = |kernels: &dyn Kernels<f32>| {
                        let mut out = Matrix::filled(tokens, rows + 3, 7.0);
                        pool.install(|| kernels.linear(&x, &tile, &mut out, 2));
                        out
                    };
                    let expected = compute(&Reference::default());
                    for kernels in backends() {
                        let what = format!("{} {dtype} {cols} -> {rows}, {tokens} tokens", kernels.engine());
                        assert_near(&compute(&kernels), &expected, cols, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn transposed_weights_give_what_the_reference_gives() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for (outputs, inputs) in [(1, 1), (97, 31), (193, 600), (385, 70)] {
        let odd = Steps { first: 1, block: 1, stride: 2, count: outputs };
        for (columns, cols) in [(Steps::contiguous(0, outputs), outputs), (odd, 2 * outputs)] {
            let bytes: Vec<u8> = noise(1, inputs * cols).iter().flat_map(|w| w.to_le_bytes()).collect();
            for tokens in [1, 5, 33] {
                let x = Matrix::from_vec(tokens, inputs, noise(2, tokens * inputs));
                let compute = |kernels: &dyn Kernels<f32>| {
                    let mut out = Matrix::filled(tokens, outputs, 0.0);
                    let half = inputs.div_ceil(2);
                    for input in (0..inputs).step_by(half) {
                        let rows = half.min(inputs - input);
                        let bytes = &bytes[input * cols * 4..(input + rows) * cols * 4];
                        let tile = Tile { decoder: Dtype::F32.decoder().unwrap(), rows, cols, bytes };
                        pool.install(|| kernels.accumulate(&x, &Transposed { tile, input, columns }, &mut out));
                    }
                    out
                };
                let expected = compute(&Reference::default());
                for kernels in backends() {
                    let what = format!("{} {inputs} -> {outputs}, {tokens} tokens", kernels.engine());
                    assert_near(&compute(&kernels), &expected, inputs, &what);
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_comes_out_as_from_the_reference() {
    let (rows, cols, tokens) = (100, 70, 20);
    let mut weights = noise(3, rows * cols);
    (weights[5], weights[cols + 6], weights[3 * cols]) = (f32::INFINITY, f32::NAN, f32::NEG_INFINITY);
    let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
    let tile = Tile { decoder: Dtype::F32.decoder().unwrap(), rows, cols, bytes: &bytes };
    let mut x = Matrix::from_vec(tokens, cols, noise(4, tokens * cols));
    (x.row_mut(7)[9], x.row_mut(8)[5], x.row_mut(9)[0]) = (f32::NAN, 0.0, f32::INFINITY);
    let compute = |kernels: &dyn Kernels<f32>| {
        let mut out = Matrix::filled(tokens, rows, 0.0);
        kernels.linear(&x, &tile, &mut out, 0);
        out
    };
    for kernels in backends() {
        assert_near(&compute(&kernels), &compute(&Reference::default()), cols, &kernels.engine());
    }
}

/// Heads, head size, window, slots before, tokens.
fn check_attend(heads: (usize, usize), dim: usize, window: Option<usize>, past: usize, tokens: usize, spoil: bool) {
    let spec = AttentionSpec { sliding_window: window, ..AttentionSpec::new(heads.0, heads.1, dim) };
    check_spec(&spec, past, tokens, None, spoil);
}

fn check_spec(spec: &AttentionSpec, past: usize, tokens: usize, sinks: Option<&[f32]>, spoil: bool) {
    let slots = past + tokens;
    let matrix = |seed, rows, cols: usize| Matrix::from_vec(rows, cols, noise(seed, rows * cols));
    let (dim, kv_heads) = (spec.head_dim, spec.num_key_value_heads);
    let mut q = matrix(1, tokens, spec.num_attention_heads * dim);
    let (keys, values) = (matrix(2, slots, kv_heads * dim), matrix(3, slots, kv_heads * spec.v_head_dim()));
    let mut kv = Kv { first: 0, keys, values };
    let expected = if spoil {
        // Seen by the later tokens alone.
        kv.values.row_mut(slots - 2)[0] = f32::INFINITY;
        kv.keys.row_mut(slots - 1)[0] = f32::NAN;
        q.row_mut(0)[0] = f32::NAN;
        let expected = Reference::default().attend(spec, &q, past, &kv, sinks);
        assert!(expected.row(tokens - 3).iter().all(|v| v.is_finite()), "the mask hides what comes later");
        expected
    } else {
        Reference::default().attend(spec, &q, past, &kv, sinks)
    };
    for kernels in backends() {
        let what = format!("{} {spec:?}, sinks {sinks:?}, {past} + {tokens}", kernels.engine());
        assert_near(&kernels.attend(spec, &q, past, &kv, sinks), &expected, past + tokens + dim, &what);
    }
}

#[test]
fn attend_is_that_of_the_reference_with_chunks_caps_sinks_and_other_widths_of_values() {
    let sinks = noise(4, 6);
    for (past, tokens) in [(0, 17), (5, 40), (100, 33)] {
        for v_head_dim in [None, Some(3), Some(30)] {
            for (chunk, cap) in [(None, None), (Some(8), None), (None, Some(0.5)), (Some(64), Some(5.0))] {
                let spec = AttentionSpec {
                    attention_chunk_size: chunk,
                    v_head_dim,
                    attn_logit_softcapping: cap,
                    ..AttentionSpec::new(6, 2, 10)
                };
                check_spec(&spec, past, tokens, None, false);
                check_spec(&spec, past, tokens, Some(&sinks), false);
                check_spec(&spec, 3, 40, Some(&sinks), true);
            }
        }
    }
}

#[test]
fn attend_is_that_of_the_reference_for_every_mask_and_grouping() {
    for heads in [(1, 1), (3, 3), (6, 2), (5, 1), (200, 1)] {
        for dim in [2, 10, 64] {
            for window in [None, Some(1), Some(7), Some(100)] {
                for (past, tokens) in [(0, 1), (0, 17), (5, 40), (300, 33)] {
                    check_attend(heads, dim, window, past, tokens, false);
                }
                check_attend(heads, dim, window, 3, 40, true);
            }
        }
    }
    // More than one task per head.
    check_attend((2, 1), 16, None, 0, 700, false);
    check_attend((2, 1), 16, Some(90), 0, 700, false);
}
