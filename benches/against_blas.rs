//! `linear` (bf16 weights) of the reference and of the accelerated executor side by side with a BLAS sgemm of the same
//! shape (decoded f32 weights), interleaved in one run; for 1 token also with plainly reading the same bytes.
//! Needs a BLAS: `cargo bench --features blas --bench against_blas [-- TOKENS...]`.

#[cfg(not(feature = "blas"))]
fn main() {
    println!("needs a BLAS to compare with: cargo bench --features blas --bench against_blas");
}

#[cfg(feature = "blas")]
fn main() {
    blas::main();
}

#[cfg(feature = "blas")]
mod blas {
    use checkpoint_oracle::checkpoint::Dtype;
    use checkpoint_oracle::exec::accelerated::{Accelerated, Backend, Blas, View, ViewMut, by_name};
    use checkpoint_oracle::exec::{Kernels, reference::Reference, weights::Tile};
    use checkpoint_oracle::ops::Matrix;
    use rayon::prelude::*;
    use std::time::Instant;

    #[cfg(not(target_os = "macos"))]
    #[link(name = "openblas")]
    unsafe extern "C" {
        fn openblas_set_num_threads(n: i32);
        fn openblas_get_corename() -> *const std::ffi::c_char;
    }

    fn set_threads(_threads: usize) {
        #[cfg(not(target_os = "macos"))]
        // SAFETY: no product is running.
        unsafe {
            openblas_set_num_threads(_threads as i32)
        }
    }

    fn noise(n: usize) -> Vec<f32> {
        let mut state = 1u32;
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    fn median(mut times: Vec<f64>) -> f64 {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    fn time(f: impl FnOnce()) -> f64 {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    }

    /// The gemm crate's own product with its own threads: `c = x * w^T`.
    fn gemm_on(threads: usize, x: &Matrix<f32>, w: &[f32], c: &mut [f32]) {
        let (m, k) = (x.rows(), x.cols());
        let n = c.len() / m;
        let parallelism = if threads == 1 { gemm::Parallelism::None } else { gemm::Parallelism::Rayon(threads) };
        let (a, b, c) = (x.data().as_ptr(), w.as_ptr(), c.as_mut_ptr());
        let (n_stride, k_stride) = (n as isize, k as isize);
        assert_eq!(w.len(), n * k);
        // SAFETY: `x` is `[m, k]`, `w` `[n, k]`, `c` `[m, n]`.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c,
                1,
                n_stride,
                false,
                a,
                1,
                k_stride,
                b,
                k_stride,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                parallelism,
            );
        }
    }

    /// Reads every byte, each thread its part.
    fn read(bytes: &[u8]) {
        let sum: u64 = bytes
            .par_chunks(bytes.len().div_ceil(rayon::current_num_threads()))
            .map(|part| {
                let mut lanes = [0u64; 64];
                for chunk in part.as_chunks::<512>().0 {
                    for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
                        *lane ^= u64::from_le_bytes(*word);
                    }
                }
                lanes.into_iter().fold(0, |a, b| a ^ b)
            })
            .sum();
        std::hint::black_box(sum);
    }

    pub fn main() {
        #[cfg(not(target_os = "macos"))]
        // SAFETY: a constant string.
        let core = unsafe { std::ffi::CStr::from_ptr(openblas_get_corename()) }.to_string_lossy();
        #[cfg(target_os = "macos")]
        let core = "Accelerate";
        let wanted: Vec<usize> = std::env::args().filter_map(|a| a.parse().ok()).collect();
        println!("BLAS kernels: {core}. GFLOP/s, medians; reading is 1 token's rate if the weights' bytes were all.\n");
        println!(
            "| shape | threads | tokens | reference | accelerated-gemm | accelerated-blas | gemm | BLAS | reading | reference / BLAS \
             | acc-gemm / gemm | acc-blas / BLAS | acc-gemm / reference | reference / reading |"
        );
        println!("|---|{}", "---:|".repeat(13));
        for (cols, rows) in [(4096usize, 4096usize), (1024, 8192)] {
            let weights = noise(rows * cols);
            // Several copies in turn: together far larger than the last cache.
            let one: Vec<u8> = weights.iter().flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
            let copies: Vec<Vec<u8>> = vec![one; 320_000_000 / (rows * cols * 2)];
            let exact: Vec<f32> = weights.iter().map(|w| f32::from_bits(w.to_bits() & 0xffff_0000)).collect();
            for threads in [1usize, 2] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                for tokens in [1usize, 2, 4, 8, 16, 64, 256] {
                    if !wanted.is_empty() && !wanted.contains(&tokens) {
                        continue;
                    }
                    let x = Matrix::from_vec(tokens, cols, noise(tokens * cols));
                    let ours: [Box<dyn Kernels<f32>>; 3] = [
                        Box::new(Reference::default()),
                        Box::new(Accelerated::new(by_name("gemm").unwrap())),
                        Box::new(Accelerated::new(by_name("blas").unwrap())),
                    ];
                    let mut out = Matrix::filled(tokens, rows, 0.0f32);
                    let mut c = vec![0.0f32; tokens * rows];
                    let mut times: [Vec<f64>; 6] = Default::default();
                    let mut next = copies.iter().cycle();
                    let mut tile =
                        || Tile { decoder: Dtype::BF16.decoder().unwrap(), rows, cols, bytes: next.next().unwrap() };
                    let (a, b) = (View::of_rows(x.data(), tokens, cols, cols), View::of_rows(&exact, rows, cols, cols));
                    for _ in 0..(400 / tokens).clamp(7, 41) {
                        set_threads(1);
                        for (kernels, times) in ours.iter().zip(&mut times) {
                            let tile = tile();
                            times.push(pool.install(|| time(|| kernels.linear(&x, &tile, &mut out, 0))));
                        }
                        times[3].push(pool.install(|| time(|| gemm_on(threads, &x, &exact, &mut c))));
                        set_threads(threads);
                        times[4].push(time(|| Blas.sgemm(a, b, ViewMut::new(&mut c, tokens, rows, rows), false)));
                        let off = c.iter().zip(out.data()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(off < 1e-1, "the two compute the same: {off}");
                        let bytes = tile().bytes;
                        times[5].push(pool.install(|| time(|| read(bytes))));
                    }
                    let flops = 2.0 * (tokens * rows * cols) as f64 / 1e9;
                    let [r, ag, ab, g, b, read] = times.map(|t| flops / median(t));
                    let (reading, of_reading) = match tokens {
                        1 => (format!("{read:.1}"), format!("{:.2}", r / read)),
                        _ => (String::new(), String::new()),
                    };
                    println!(
                        "| {cols} -> {rows} | {threads} | {tokens} | {r:.1} | {ag:.1} | {ab:.1} | {g:.1} | {b:.1} | {reading} \
                         | {:.2} | {:.2} | {:.2} | {:.2} | {of_reading} |",
                        r / b,
                        ag / g,
                        ab / b,
                        ag / r
                    );
                }
            }
        }
    }
}
