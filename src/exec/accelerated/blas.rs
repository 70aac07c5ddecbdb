//! A BLAS: Accelerate on macOS, OpenBLAS elsewhere.

use super::backend::{Backend, Blocking, Order, View, ViewMut, check_product};
#[cfg(target_os = "macos")]
use accelerate_src as _;

pub(super) const NAME: &str = "blas";

/// The matrix product of a BLAS.
#[derive(Debug, Clone, Copy)]
pub struct Blas;

const ROW_MAJOR: i32 = 101;
const NO_TRANSPOSE: i32 = 111;
const TRANSPOSE: i32 = 112;

#[cfg_attr(not(target_os = "macos"), link(name = "openblas"))]
unsafe extern "C" {
    fn cblas_sgemm(
        order: i32,
        transpose_a: i32,
        transpose_b: i32,
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
    #[cfg(not(target_os = "macos"))]
    fn openblas_set_num_threads(threads: i32);
}

/// Each product runs on the thread that asks for it: the caller has one for every thread of its pool.
fn one_thread() {
    #[cfg(not(target_os = "macos"))]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: no product is running yet.
        ONCE.call_once(|| unsafe { openblas_set_num_threads(1) });
    }
}

impl Backend for Blas {
    fn name(&self) -> &'static str {
        NAME
    }

    /// It packs both operands, whatever their order; the larger the weights' part, the less often the tokens'.
    fn blocking(&self) -> Blocking {
        Blocking { rows: 512, depth: 4096, order: Order::Rows, few: 32 }
    }

    fn sgemm(&self, a: View<'_>, b: View<'_>, mut c: ViewMut<'_>, add: bool) {
        check_product(&a, &b, &c);
        one_thread();
        let int = |n: usize| i32::try_from(n).expect("a BLAS counts up to 2^31");
        // b is wanted transposed, so rows that lie together are what BLAS calls transposed.
        let (transpose_a, lda) =
            if a.col_stride == 1 { (NO_TRANSPOSE, a.row_stride) } else { (TRANSPOSE, a.col_stride) };
        let (transpose_b, ldb) =
            if b.col_stride == 1 { (TRANSPOSE, b.row_stride) } else { (NO_TRANSPOSE, b.col_stride) };
        // SAFETY: each matrix lies within its memory, and the shapes belong together.
        unsafe {
            cblas_sgemm(
                ROW_MAJOR,
                transpose_a,
                transpose_b,
                int(c.rows),
                int(c.cols),
                int(a.cols),
                1.0,
                a.as_ptr(),
                int(lda),
                b.as_ptr(),
                int(ldb),
                f32::from(u8::from(add)),
                c.as_mut_ptr(),
                int(c.stride),
            );
        }
    }
}
