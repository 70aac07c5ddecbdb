//! The reference: both kernels in exactly the order of docs/numerics.md.
//!
//! The order binds the sum of one output, not which outputs are computed together: several tokens and several weight
//! rows advance side by side, each with its own accumulator.

use super::{kernels::Kernels, weights::Tile};
use crate::ops::attention::{AttentionSpec, Kv, attend};
use crate::ops::{Float, Matrix};
use rayon::prelude::*;

/// Name in the `engine` record of a file.
pub const ENGINE: &str = "oracle-reference";

/// Tokens that advance together.
const LANES: usize = 8;
/// Weight rows that advance together.
const ROWS: usize = 4;

/// The reference kernels; they run on the rayon pool that they are called in.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;

impl<F: Float> Kernels<F> for Reference {
    fn linear(&self, x: &Matrix<F>, w: &Tile<'_>, out: &mut Matrix<F>, first: usize) {
        let tokens = x.rows();
        let lanes = TokenLanes::new(x);
        // [rows, tokens]: each thread owns whole weight rows.
        let mut columns = vec![F::ZERO; w.rows * tokens];
        columns.par_chunks_mut(ROWS * tokens).enumerate().for_each_init(
            || (Vec::new(), vec![F::ZERO; ROWS * w.cols]),
            |(scratch, decoded), (block, columns)| {
                let count = columns.len() / tokens;
                for (r, row) in decoded.chunks_exact_mut(w.cols).take(count).enumerate() {
                    w.decode_row(block * ROWS + r, scratch, row);
                }
                lanes.dot_rows(decoded, count, columns);
            },
        );
        for (o, column) in columns.chunks_exact(tokens).enumerate() {
            for (t, &y) in column.iter().enumerate() {
                out.row_mut(t)[first + o] = y;
            }
        }
    }

    fn attend(&self, spec: &AttentionSpec, q: &Matrix<F>, past: usize, kv: &Kv<F>) -> Matrix<F> {
        let mut out = Matrix::filled(q.rows(), q.cols(), F::ZERO);
        out.data_mut().par_chunks_mut(spec.head_dim).enumerate().for_each_init(Vec::new, |scores, (at, out)| {
            let (t, head) = (at / spec.num_attention_heads, at % spec.num_attention_heads);
            let q = &q.row(t)[head * spec.head_dim..][..spec.head_dim];
            attend(spec, head, past + t, q, kv, scores, out);
        });
        out
    }
}

/// Activations laid out so that LANES tokens lie side by side: `[token blocks, in, LANES]`.
struct TokenLanes<F> {
    blocks: Vec<[F; LANES]>,
    cols: usize,
}

impl<F: Float> TokenLanes<F> {
    fn new(x: &Matrix<F>) -> Self {
        let mut blocks = vec![[F::ZERO; LANES]; x.rows().div_ceil(LANES) * x.cols()];
        for (t, row) in x.iter_rows().enumerate() {
            let block = &mut blocks[t / LANES * x.cols()..][..x.cols()];
            for (lanes, &v) in block.iter_mut().zip(row) {
                lanes[t % LANES] = v;
            }
        }
        Self { blocks, cols: x.cols() }
    }

    /// The dot products of `count` decoded weight rows (`[ROWS, in]`) with every token, into `[count, tokens]`.
    fn dot_rows(&self, weights: &[F], count: usize, out: &mut [F]) {
        let tokens = out.len() / count;
        let mut rows = weights.chunks_exact(self.cols);
        let rows: [&[F]; ROWS] = std::array::from_fn(|_| rows.next().unwrap_or(&[]));
        for (b, block) in self.blocks.chunks_exact(self.cols).enumerate() {
            let sums = dot_block(block, rows);
            let here = LANES.min(tokens - b * LANES);
            for (sums, out) in sums.iter().zip(out.chunks_exact_mut(tokens)) {
                out[b * LANES..][..here].copy_from_slice(&sums[..here]);
            }
        }
    }
}

/// `sums[r][l] = sum_i x[i][l] * rows[r][i]`, each sum in ascending i from zero.
#[inline]
fn dot_block<F: Float>(x: &[[F; LANES]], rows: [&[F]; ROWS]) -> [[F; LANES]; ROWS] {
    let mut sums = [[F::ZERO; LANES]; ROWS];
    let rows = rows.map(|row| &row[..x.len()]);
    for (i, x) in x.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(rows) {
            let w = row[i];
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum += x * w;
            }
        }
    }
    sums
}
