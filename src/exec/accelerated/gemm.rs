//! The `gemm` crate: pure Rust, the default.

use super::backend::{Backend, Blocking, Order, View, ViewMut, check_product};

pub(super) const NAME: &str = "gemm";

/// The matrix product of the `gemm` crate.
#[derive(Debug, Clone, Copy)]
pub struct Gemm;

impl Backend for Gemm {
    fn name(&self) -> &'static str {
        NAME
    }

    /// It packs operands element by element unless what goes into the vectors lies together, hence columns; a panel of
    /// 192 by 512 stays in a second-level cache of 1 MiB, and its kernels take 48 rows on AVX-512, 24 on AVX2.
    fn blocking(&self) -> Blocking {
        Blocking { rows: 192, depth: 512, order: Order::Columns, few: 32 }
    }

    fn sgemm(&self, a: View<'_>, b: View<'_>, mut c: ViewMut<'_>, add: bool) {
        check_product(&a, &b, &c);
        let stride = |n: usize| n as isize;
        // SAFETY: each matrix lies within its memory, and the shapes belong together.
        unsafe {
            gemm::gemm(
                c.rows,
                c.cols,
                a.cols,
                c.as_mut_ptr(),
                1,
                stride(c.stride),
                add,
                a.as_ptr(),
                stride(a.col_stride),
                stride(a.row_stride),
                b.as_ptr(),
                stride(b.row_stride),
                stride(b.col_stride),
                1.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}
