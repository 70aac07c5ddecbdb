//! The reference's `linear` (bf16 weights) side by side with a BLAS sgemm of the same shape (decoded f32 weights), in
//! one run, as ratios of medians. Needs a BLAS: `cargo bench --features blas --bench against_blas`.

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
    use checkpoint_oracle::exec::Kernels;
    use checkpoint_oracle::exec::reference::Reference;
    use checkpoint_oracle::exec::weights::Tile;
    use checkpoint_oracle::ops::Matrix;
    use std::time::Instant;

    #[cfg_attr(not(target_os = "macos"), link(name = "openblas"))]
    unsafe extern "C" {
        fn cblas_sgemm(
            order: i32,
            ta: i32,
            tb: i32,
            m: i32,
            n: i32,
            k: i32,
            alpha: f32,
            a: *const f32,
            lda: i32,
            b: *const f32,
            ldb: i32,
            beta: f32,
            c: *mut f32,
            ldc: i32,
        );
        fn openblas_set_num_threads(n: i32);
        fn openblas_get_corename() -> *const std::ffi::c_char;
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

    pub fn main() {
        let core = unsafe { std::ffi::CStr::from_ptr(openblas_get_corename()) };
        println!("OpenBLAS kernels: {}", core.to_string_lossy());
        println!(
            "{:>12} {:>7} {:>6}  {:>12} {:>12} {:>6}",
            "shape", "threads", "tokens", "ours GF/s", "BLAS GF/s", "ratio"
        );
        for (cols, rows) in [(4096usize, 4096usize), (1024, 8192)] {
            let weights = noise(rows * cols);
            let bytes: Vec<u8> = weights.iter().flat_map(|w| ((w.to_bits() >> 16) as u16).to_le_bytes()).collect();
            let exact: Vec<f32> = weights.iter().map(|w| f32::from_bits(w.to_bits() & 0xffff_0000)).collect();
            let tile = Tile { decoder: Dtype::BF16.decoder().unwrap(), rows, cols, bytes: bytes.as_slice().into() };
            for threads in [1usize, 2] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                unsafe { openblas_set_num_threads(threads as i32) };
                for tokens in [1usize, 2, 4, 8, 16, 64, 256] {
                    let x = Matrix::from_vec(tokens, cols, noise(tokens * cols));
                    let mut out = Matrix::filled(tokens, rows, 0.0f32);
                    let mut c = vec![0.0f32; tokens * rows];
                    let (mut ours, mut theirs) = (vec![], vec![]);
                    let kernels = Reference::default();
                    for _ in 0..(400 / tokens).clamp(7, 41) {
                        ours.push(pool.install(|| time(|| Kernels::<f32>::linear(&kernels, &x, &tile, &mut out, 0))));
                        theirs.push(time(|| unsafe {
                            cblas_sgemm(
                                101,
                                111,
                                112,
                                tokens as i32,
                                rows as i32,
                                cols as i32,
                                1.0,
                                x.data().as_ptr(),
                                cols as i32,
                                exact.as_ptr(),
                                cols as i32,
                                0.0,
                                c.as_mut_ptr(),
                                rows as i32,
                            )
                        }));
                    }
                    let off = c.iter().zip(out.data()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(off < 1e-1, "the two compute the same: {off}");
                    let flops = 2.0 * (tokens * rows * cols) as f64 / 1e9;
                    let (ours, theirs) = (median(ours), median(theirs));
                    let shape = format!("{cols}->{rows}");
                    println!(
                        "{shape:>12} {threads:>7} {tokens:>6}  {:12.1} {:12.1} {:6.2}",
                        flops / ours,
                        flops / theirs,
                        theirs / ours
                    );
                }
            }
        }
    }
}
