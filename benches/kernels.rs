//! The kernels by themselves: `cargo bench --bench kernels`.

use checkpoint_oracle::checkpoint::Dtype;
use checkpoint_oracle::exec::accelerated::{self, Accelerated};
use checkpoint_oracle::exec::{Kernels, reference::Reference, weights::Tile};
use checkpoint_oracle::ops::Matrix;
use checkpoint_oracle::ops::attention::{AttentionSpec, Kv};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

fn noise(n: usize) -> Vec<f32> {
    let mut state = 1u32;
    (0..n)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

fn stored(dtype: &Dtype, weights: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::F16 => weights.iter().flat_map(|&w| half::f16::from_f32(w).to_le_bytes()).collect(),
        Dtype::BF16 => weights.iter().flat_map(|&w| half::bf16::from_f32(w).to_le_bytes()).collect(),
        _ => weights.iter().flat_map(|w| w.to_le_bytes()).collect(),
    }
}

/// The reference and every backend of this build.
fn executors() -> Vec<(String, Box<dyn Kernels<f32>>)> {
    let accelerated = accelerated::BACKENDS.iter().map(|name| {
        let kernels = Accelerated::new(accelerated::by_name(name).expect("it is in this build"));
        ((*name).to_owned(), Box::new(kernels) as Box<dyn Kernels<f32>>)
    });
    std::iter::once(("reference".to_owned(), Box::new(Reference::default()) as Box<dyn Kernels<f32>>))
        .chain(accelerated)
        .collect()
}

fn linear(c: &mut Criterion) {
    let (cols, rows) = (1024, 2048);
    let weights = noise(rows * cols);
    for (executor, kernels) in executors() {
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let bytes = stored(&dtype, &weights);
            let tile = Tile { decoder: dtype.decoder().expect("decodable"), rows, cols, bytes: &bytes };
            let mut group = c.benchmark_group(format!("linear/{executor}/{dtype}"));
            for tokens in [1usize, 8, 64, 256] {
                let x = Matrix::from_vec(tokens, cols, noise(tokens * cols));
                let mut out = Matrix::filled(tokens, rows, 0.0);
                group.throughput(Throughput::Elements((tokens * rows * cols) as u64));
                group.bench_function(BenchmarkId::from_parameter(tokens), |b| {
                    b.iter(|| kernels.linear(&x, &tile, &mut out, 0));
                });
            }
        }
    }
}

fn attend(c: &mut Criterion) {
    let spec = AttentionSpec {
        num_attention_heads: 8,
        num_key_value_heads: 2,
        head_dim: 64,
        scale: 0.125,
        sliding_window: None,
        ..AttentionSpec::new(1, 1, 1)
    };
    for (executor, kernels) in executors() {
        let mut group = c.benchmark_group(format!("attend/{executor}"));
        group.sample_size(10);
        for tokens in [64usize, 512, 2000] {
            let matrix = |heads: usize| Matrix::from_vec(tokens, heads * 64, noise(tokens * heads * 64));
            let (q, kv) = (matrix(8), Kv { first: 0, keys: matrix(2), values: matrix(2) });
            group.bench_function(BenchmarkId::from_parameter(tokens), |b| {
                b.iter(|| kernels.attend(&spec, &q, 0, &kv, None));
            });
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_secs(1));
    targets = linear, attend
}
criterion_main!(benches);
