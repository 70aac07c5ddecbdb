//! The exact matrix kernel: output rows lie in the lanes, each lane's sum is sequential.
//!
//! A panel holds `2 * N` weight rows transposed (`[in, 2 * N]`), so that one load brings the same column of all of
//! them. Each of up to TOKENS tokens then advances its `2 * N` sums by one product. Panels are made slice by slice
//! (DEPTH columns) in the cache; sums wait in memory between two slices, which rounds nothing.

use super::lanes::Lanes;
use crate::ops::{Float, Matrix};

/// Columns of a slice; a multiple of every storage format's block.
pub const DEPTH: usize = 256;
/// Tokens that advance together.
pub const TOKENS: usize = 12;
/// No level has wider panels.
pub const MAX_ROWS: usize = 32;

/// Activations in the order in which the kernel reads them: tokens in blocks of about TOKENS, `[block][in, tokens]`.
pub struct Packed<F> {
    data: Vec<F>,
    cols: usize,
    /// Number of tokens in each block.
    blocks: Vec<usize>,
}

impl<F: Float> Packed<F> {
    /// `rows` are slices of equal length, one per token.
    pub fn new<'a>(rows: impl ExactSizeIterator<Item = &'a [F]>, cols: usize) -> Self {
        let tokens = rows.len();
        // Blocks of nearly equal size: a last block of one token would be slow.
        let count = tokens.div_ceil(TOKENS).max(1);
        let blocks: Vec<usize> = (0..count).map(|b| tokens / count + usize::from(b < tokens % count)).collect();
        let mut data = vec![F::ZERO; tokens * cols];
        let mut rows = rows;
        let mut start = 0;
        for &n in &blocks {
            let block = &mut data[start * cols..(start + n) * cols];
            for (t, row) in rows.by_ref().take(n).enumerate() {
                for (at, &v) in block.chunks_exact_mut(n).zip(row) {
                    at[t] = v;
                }
            }
            start += n;
        }
        Self { data, cols, blocks }
    }

    pub fn of(x: &Matrix<F>) -> Self {
        Self::new((0..x.rows()).map(|t| x.row(t)), x.cols())
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.blocks.iter().sum()
    }
}

/// `sums[t][r] += sum_i x[t][i] * panel[i][r]` over the columns `first .. first + depth`, in ascending order, for every
/// token.
///
/// `panel` is `[depth, 2 * N]`, `sums` `[tokens, 2 * N]`.
///
/// # Safety
/// As [`Work::run`](super::vectors::Work::run).
#[inline(always)]
pub unsafe fn accumulate<F: Float, V: Lanes<F>>(
    x: &Packed<F>,
    first: usize,
    depth: usize,
    panel: &[F],
    sums: &mut [F],
) {
    assert!(first + depth <= x.cols && panel.len() >= depth * 2 * V::N && sums.len() >= x.tokens() * 2 * V::N);
    let mut token = 0;
    for &n in &x.blocks {
        let block = &x.data[(token * x.cols + first * n)..][..depth * n];
        let sums = &mut sums[token * 2 * V::N..][..n * 2 * V::N];
        // SAFETY: the lengths are those that the kernel is told.
        unsafe { by_tokens::<F, V>(n, depth, panel.as_ptr(), block.as_ptr(), sums.as_mut_ptr()) }
        token += n;
    }
}

/// `sums[r] += sum_i x[i] * panel[i][r]` in ascending order, for one token.
///
/// # Safety
/// As [`Work::run`](super::vectors::Work::run).
#[inline(always)]
pub unsafe fn accumulate_one<F: Float, V: Lanes<F>>(x: &[F], panel: &[F], sums: &mut [F]) {
    assert!(panel.len() >= x.len() * 2 * V::N && sums.len() >= 2 * V::N);
    // SAFETY: the lengths are those that the kernel is told.
    unsafe { kernel::<F, V, 1>(x.len(), panel.as_ptr(), x.as_ptr(), sums.as_mut_ptr()) }
}

/// Picks the kernel that is made for `n` tokens.
#[inline(always)]
unsafe fn by_tokens<F: Float, V: Lanes<F>>(n: usize, depth: usize, panel: *const F, x: *const F, sums: *mut F) {
    unsafe {
        match n {
            0 => {}
            1 => kernel::<F, V, 1>(depth, panel, x, sums),
            2 => kernel::<F, V, 2>(depth, panel, x, sums),
            3 => kernel::<F, V, 3>(depth, panel, x, sums),
            4 => kernel::<F, V, 4>(depth, panel, x, sums),
            5 => kernel::<F, V, 5>(depth, panel, x, sums),
            6 => kernel::<F, V, 6>(depth, panel, x, sums),
            7 => kernel::<F, V, 7>(depth, panel, x, sums),
            8 => kernel::<F, V, 8>(depth, panel, x, sums),
            9 => kernel::<F, V, 9>(depth, panel, x, sums),
            10 => kernel::<F, V, 10>(depth, panel, x, sums),
            11 => kernel::<F, V, 11>(depth, panel, x, sums),
            _ => kernel::<F, V, TOKENS>(depth, panel, x, sums),
        }
    }
}

/// `panel` is `[depth, 2 * N]`, `x` `[depth, M]`, `sums` `[M, 2 * N]`.
#[inline(always)]
unsafe fn kernel<F: Float, V: Lanes<F>, const M: usize>(depth: usize, panel: *const F, x: *const F, sums: *mut F) {
    unsafe {
        let mut acc = [[V::zero(); 2]; M];
        for (m, acc) in acc.iter_mut().enumerate() {
            *acc = [V::load(sums.add(m * 2 * V::N)), V::load(sums.add((m * 2 + 1) * V::N))];
        }
        for i in 0..depth {
            let low = V::load(panel.add(i * 2 * V::N));
            let high = V::load(panel.add((i * 2 + 1) * V::N));
            for (m, acc) in acc.iter_mut().enumerate() {
                let x = V::splat(*x.add(i * M + m));
                *acc = [acc[0].plus_product(low, x), acc[1].plus_product(high, x)];
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            acc[0].store(sums.add(m * 2 * V::N));
            acc[1].store(sums.add((m * 2 + 1) * V::N));
        }
    }
}

/// Transposes `2 * N` rows of `depth` columns, `stride` apart, into a panel `[depth, 2 * N]`.
///
/// # Safety
/// As [`Work::run`](super::vectors::Work::run); `rows` holds `2 * N` rows of `depth` columns.
#[inline(always)]
pub unsafe fn transpose<F: Float, V: Lanes<F>>(rows: &[F], stride: usize, depth: usize, panel: &mut [F]) {
    let width = 2 * V::N;
    assert!(depth <= stride && rows.len() >= (width - 1) * stride + depth && panel.len() >= depth * width);
    let whole = depth / V::N * V::N;
    for half in 0..2 {
        let rows = &rows[half * V::N * stride..];
        for column in (0..whole).step_by(V::N) {
            // SAFETY: a square of N by N lies inside both.
            unsafe {
                let to = panel.as_mut_ptr().add(column * width + half * V::N);
                V::transpose(rows.as_ptr().add(column), stride, to, width);
            }
        }
        for column in whole..depth {
            for r in 0..V::N {
                panel[column * width + half * V::N + r] = rows[r * stride + column];
            }
        }
    }
}
