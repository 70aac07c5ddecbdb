//! What decoding costs: `linear` of the reference with every block format against bf16, in turns.
//!
//! `cargo bench --bench formats`, or with a format's name behind `--` that one only. Ratio: the time with bf16 weights / the
//! time with this format's, so above 1 it is faster; medians.

use checkpoint_oracle::checkpoint::{Block, Decoder};
use checkpoint_oracle::exec::{Kernels, reference::Reference, weights::Tile};
use checkpoint_oracle::ops::Matrix;
use std::time::Instant;

/// Of each matrix.
const COLS: usize = 4096;
const ROWS: usize = 4096;
const TOKENS: [(usize, usize); 2] = [(1, 41), (64, 9)];

/// Bytes that are ordinary numbers, wherever a format has its scales.
fn bytes(n: usize) -> Vec<u8> {
    let mut state = 1u32;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        0x2c + (state >> 29) as u8
    };
    (0..n).map(next).collect()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let kernels = Reference::default();
    let stored = |decoder: Decoder| bytes(ROWS * (COLS / decoder.block_elements() * decoder.block_bytes()));
    let plain = stored(Decoder::BF16);
    let time = |decoder: Decoder, bytes: &[u8], tokens: usize| {
        let x = Matrix::filled(tokens, COLS, 0.5f32);
        let mut out = Matrix::filled(tokens, ROWS, 0.0);
        let tile = Tile { decoder, rows: ROWS, cols: COLS, bytes };
        let start = Instant::now();
        kernels.linear(&x, &tile, &mut out, 0);
        std::hint::black_box(&out);
        start.elapsed().as_secs_f64()
    };
    println!("{ROWS} x {COLS}, {} threads; ratio to bf16, and 10^9 weights per second", rayon::current_num_threads());
    println!("{:8} {:>9} {:>8} {:>9} {:>8}", "format", "1 token", "", "64 tokens", "");
    for block in Block::ALL {
        if !wanted.is_empty() && !wanted.iter().any(|name| name == block.name()) {
            continue;
        }
        let decoder = Decoder::Block(*block);
        let bytes = stored(decoder);
        let mut line = format!("{:8}", block.name());
        for (tokens, runs) in TOKENS {
            let (mut mine, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..runs {
                theirs.push(time(Decoder::BF16, &plain, tokens));
                mine.push(time(decoder, &bytes, tokens));
            }
            let (mine, theirs) = (median(mine), median(theirs));
            line += &format!(" {:9.2} {:8.2}", theirs / mine, (ROWS * COLS) as f64 / mine / 1e9);
        }
        println!("{line}");
    }
}
