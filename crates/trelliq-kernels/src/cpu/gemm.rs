//! The platform's matrix multiply (the gemm crate), behind bounds checks, on the calling thread.

/// A strided view of an f32 matrix.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    pub data: &'a [f32],
    pub row_stride: usize,
    pub column_stride: usize,
}

impl View<'_> {
    fn holds(&self, rows: usize, columns: usize) -> bool {
        let last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride;
        last < self.data.len()
    }
}

/// `y <- x b`, or `y <- y + x b`, for `y`: `[m, n]` contiguous, `x`: `[m, k]`, `b`: `[k, n]`.
///
/// # Panics
/// When a view is shorter than its dimensions say.
pub(super) fn gemm(
    (m, n, k): (usize, usize, usize),
    y: &mut [f32],
    x: View<'_>,
    b: View<'_>,
    accumulate: bool,
) {
    if m == 0 || n == 0 || k == 0 {
        return;
    }
    assert!(y.len() == m * n && x.holds(m, k) && b.holds(k, n));
    // SAFETY: every element that the strides reach lies inside its slice, as just checked, and y is
    // borrowed exclusively.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            n as isize,
            accumulate,
            x.data.as_ptr(),
            x.column_stride as isize,
            x.row_stride as isize,
            b.data.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
