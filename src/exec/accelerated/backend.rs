//! The seam to a library's matrix product.

/// A library that multiplies float32 matrices.
pub trait Backend: Send + Sync {
    /// As in `--backend` and at the end of the engine's name.
    fn name(&self) -> &'static str;

    /// In what portions it works best.
    fn blocking(&self) -> Blocking;

    /// `c = a * b^T` in any order, or `c += a * b^T` where `add` holds, on the calling thread: `a` is `[m, k]`, `b`
    /// `[n, k]`, `c` `[m, n]`.
    fn sgemm(&self, a: View<'_>, b: View<'_>, c: ViewMut<'_>, add: bool);
}

/// How weights are handed to a backend.
#[derive(Debug, Clone, Copy)]
pub struct Blocking {
    /// Weight rows of one product.
    pub rows: usize,
    /// Columns of one product.
    pub depth: usize,
    /// How the decoded weights lie.
    pub order: Order,
    /// Up to so many tokens the reference's kernel is faster.
    pub few: usize,
}

/// Which elements of a decoded matrix are neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Those of a row.
    Rows,
    /// Those of a column.
    Columns,
}

/// A matrix in memory: element `(r, c)` is `data[r * row_stride + c * col_stride]`, and one of the strides is 1.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    pub row_stride: usize,
    pub col_stride: usize,
}

impl<'a> View<'a> {
    /// Rows that lie `stride` apart.
    ///
    /// # Panics
    /// `data` is shorter than the matrix.
    pub fn of_rows(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data, rows, cols, stride);
        Self { data, rows, cols, row_stride: stride, col_stride: 1 }
    }

    /// Columns that lie `stride` apart.
    ///
    /// # Panics
    /// `data` is shorter than the matrix.
    pub fn of_columns(data: &'a [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data, cols, rows, stride);
        Self { data, rows, cols, row_stride: 1, col_stride: stride }
    }

    /// # Panics
    /// There is no such element.
    pub fn at(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "the element lies within the matrix");
        self.data[row * self.row_stride + col * self.col_stride]
    }

    pub fn as_ptr(&self) -> *const f32 {
        self.data.as_ptr()
    }
}

/// A matrix to write to, its rows `stride` apart.
#[derive(Debug)]
pub struct ViewMut<'a> {
    data: &'a mut [f32],
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

impl<'a> ViewMut<'a> {
    /// # Panics
    /// `data` is shorter than the matrix.
    pub fn new(data: &'a mut [f32], rows: usize, cols: usize, stride: usize) -> Self {
        check(data, rows, cols, stride);
        Self { data, rows, cols, stride }
    }

    pub fn as_mut_ptr(&mut self) -> *mut f32 {
        self.data.as_mut_ptr()
    }
}

/// `lines` of `length` elements, `stride` apart, lie within `data`.
fn check(data: &[f32], lines: usize, length: usize, stride: usize) {
    let end = if lines == 0 { 0 } else { (lines - 1) * stride + length };
    assert!(length <= stride && end <= data.len(), "a matrix lies within its memory");
}

/// The shapes of a product belong together.
pub(super) fn check_product(a: &View<'_>, b: &View<'_>, c: &ViewMut<'_>) {
    assert!(a.cols == b.cols && (a.rows, b.rows) == (c.rows, c.cols), "the shapes of a product belong together");
}
