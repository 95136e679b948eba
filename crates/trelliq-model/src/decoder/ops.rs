//! Small f32 operations with a fixed order of summation: results do not depend on threads.

use gemm::Parallelism;
use pulp::{Arch, Simd, WithSimd};
use std::sync::LazyLock;

/// sum of `a[i] * b[i]`, with the widest vectors that the machine has.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    static ARCH: LazyLock<Arch> = LazyLock::new(Arch::new);
    assert_eq!(a.len(), b.len());
    ARCH.dispatch(Dot { a, b })
}

/// [`dot`] in four vectors of partial sums: the order depends on the machine's vectors alone.
struct Dot<'a> {
    a: &'a [f32],
    b: &'a [f32],
}

impl WithSimd for Dot<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(self.a), S::as_simd_f32s(self.b));
        let ((a, a_last), (b, b_last)) = (a.as_chunks::<4>(), b.as_chunks::<4>());
        let zero = simd.splat_f32s(0.0);
        let [mut s0, mut s1, mut s2, mut s3] = [zero; 4];
        for (a, b) in a.iter().zip(b) {
            s0 = simd.mul_add_f32s(a[0], b[0], s0);
            s1 = simd.mul_add_f32s(a[1], b[1], s1);
            s2 = simd.mul_add_f32s(a[2], b[2], s2);
            s3 = simd.mul_add_f32s(a[3], b[3], s3);
        }
        for (a, b) in a_last.iter().zip(b_last) {
            s0 = simd.mul_add_f32s(*a, *b, s0);
        }
        let tail: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
        let sums = simd.add_f32s(simd.add_f32s(s0, s1), simd.add_f32s(s2, s3));
        simd.reduce_sum_f32s(sums) + tail
    }
}

/// `y += a * x`.
pub(crate) fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `a += b`.
pub(crate) fn add(a: &mut [f32], b: &[f32]) {
    for (a, b) in a.iter_mut().zip(b) {
        *a += b;
    }
}

/// Adds `bias` to every row of `x`.
pub(crate) fn add_rows(x: &mut [f32], bias: &[f32]) {
    for row in x.chunks_exact_mut(bias.len()) {
        add(row, bias);
    }
}

/// Root-mean-square norm of every row of `x`, in place: `x / sqrt(mean(x^2) + eps) * weight`.
pub(crate) fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) {
    for row in x.chunks_exact_mut(weight.len()) {
        let mean = dot(row, row) / weight.len() as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        for (x, w) in row.iter_mut().zip(weight) {
            *x = *x * scale * w;
        }
    }
}

/// `x * sigmoid(x)`.
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))` (<https://arxiv.org/abs/1606.08415>).
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    0.5 * x * (1.0 + (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh())
}

/// Replaces `x` by its softmax.
pub(crate) fn softmax(x: &mut [f32]) {
    let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0;
    for x in &mut *x {
        *x = (*x - max).exp();
        sum += *x;
    }
    for x in x {
        *x /= sum;
    }
}

/// Rows of `cols` values that start `stride` apart.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    pub data: &'a [f32],
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
}

impl<'a> Rows<'a> {
    pub fn dense(data: &'a [f32], cols: usize) -> Self {
        Self { data, rows: data.len() / cols, cols, stride: cols }
    }

    fn check(&self) {
        let end = self.rows.saturating_sub(1) * self.stride + self.cols;
        assert!(self.rows == 0 || end <= self.data.len(), "rows leave their slice");
    }
}

/// A block of a row-major matrix that one thread writes while others write elsewhere.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub start: *mut f32,
    pub stride: usize,
}

/// `dst[m][n] = alpha * sum_k a[m][k] * b[n][k]`, on the calling thread.
///
/// # Safety
/// `dst` must be valid for writes of `b.rows` elements at each of `a.rows` multiples of its
/// stride, and nothing else may access these elements meanwhile.
pub(crate) unsafe fn matmul_nt_raw(alpha: f32, a: Rows, b: Rows, dst: Block) {
    a.check();
    b.check();
    assert_eq!(a.cols, b.cols);
    // SAFETY: both operands were checked to lie in their slices; the caller vouches for `dst`.
    unsafe {
        gemm::gemm(
            a.rows,
            b.rows,
            a.cols,
            dst.start,
            1,
            dst.stride as isize,
            false,
            a.data.as_ptr(),
            1,
            a.stride as isize,
            b.data.as_ptr(),
            b.stride as isize,
            1,
            0.0,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

/// `dst[m][n] = alpha * sum_k a[m][k] * b[n][k]`; `dst` is `[a.rows, b.rows]`, dense.
pub(crate) fn matmul_nt(alpha: f32, a: Rows, b: Rows, dst: &mut [f32]) {
    assert_eq!(dst.len(), a.rows * b.rows);
    let block = Block { start: dst.as_mut_ptr(), stride: b.rows };
    // SAFETY: `dst` is borrowed exclusively and has one dense row of `b.rows` a row of `a`.
    unsafe { matmul_nt_raw(alpha, a, b, block) }
}

/// `dst[m][n] = sum_k a[m][k] * b[k][n]`; `dst` is `[a.rows, b.cols]`, dense.
pub(crate) fn matmul_nn(a: Rows, b: Rows, dst: &mut [f32]) {
    dst.fill(0.0);
    add_matmul_nn(a, b, dst);
}

/// `dst[m][n] += sum_k a[m][k] * b[k][n]`; `dst` is `[a.rows, b.cols]`, dense.
pub(crate) fn add_matmul_nn(a: Rows, b: Rows, dst: &mut [f32]) {
    assert_eq!(a.cols, b.rows);
    add_matmul(a, [a.rows, a.cols], [1, a.stride], b, dst);
}

/// `dst[k][n] += sum_m a[m][k] * b[m][n]`; `dst` is `[a.cols, b.cols]`, dense.
pub(crate) fn add_matmul_tn(a: Rows, b: Rows, dst: &mut [f32]) {
    assert_eq!(a.rows, b.rows);
    add_matmul(a, [a.cols, a.rows], [a.stride, 1], b, dst);
}

/// `dst += A b` for the `[rows, inner]` matrix A whose columns and rows are `strides` apart in `a`.
fn add_matmul(a: Rows, [rows, inner]: [usize; 2], strides: [usize; 2], b: Rows, dst: &mut [f32]) {
    a.check();
    b.check();
    assert_eq!((inner, dst.len()), (b.rows, rows * b.cols));
    // SAFETY: both operands were checked to lie in their slices, and A is `a` or its transpose; `dst` is
    // borrowed exclusively and dense.
    unsafe {
        gemm::gemm(
            rows,
            b.cols,
            inner,
            dst.as_mut_ptr(),
            1,
            b.cols as isize,
            true,
            a.data.as_ptr(),
            strides[0] as isize,
            strides[1] as isize,
            b.data.as_ptr(),
            1,
            b.stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin()).collect()
    }

    #[test]
    fn dot_agrees_with_f64_at_odd_lengths() {
        for n in [0, 1, 15, 16, 17, 100, 577] {
            let (a, b) = (values(n, 0.7), values(n, 1.3));
            let exact: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-5, "{n}");
        }
    }

    #[test]
    fn products_agree_with_f64() {
        let (m, n, k, pad) = (3, 5, 7, 2);
        let (a, b) = (values(m * (k + pad), 0.3), values(n * k, 0.9));
        let rows = Rows { data: &a, rows: m, cols: k, stride: k + pad };
        let (mut nt, mut nn, mut tn) = (vec![0.0; m * n], vec![0.0; m * n], vec![1.0; m * n]);
        matmul_nt(0.5, rows, Rows::dense(&b, k), &mut nt);
        let b_t: Vec<f32> = (0..k * n).map(|i| b[(i % n) * k + i / n]).collect();
        matmul_nn(rows, Rows::dense(&b_t, n), &mut nn);
        let a_t: Vec<f32> = (0..k * m).map(|i| a[(i % m) * (k + pad) + i / m]).collect();
        add_matmul_tn(Rows::dense(&a_t, m), Rows::dense(&b_t, n), &mut tn);
        for i in 0..m {
            for j in 0..n {
                let at = |l: usize| f64::from(a[i * (k + pad) + l]) * f64::from(b[j * k + l]);
                let exact: f64 = (0..k).map(at).sum();
                assert!((f64::from(nt[i * n + j]) - 0.5 * exact).abs() < 1e-6);
                assert!((f64::from(nn[i * n + j]) - exact).abs() < 1e-6);
                assert!((f64::from(tn[i * n + j]) - 1.0 - exact).abs() < 1e-6);
            }
        }
    }

    /// Values of `torch.nn.functional.silu` and `gelu(approximate="tanh")`.
    #[test]
    fn activations_have_their_published_values() {
        for (x, expected) in [(1.0, 0.731_058_6), (-2.0, -0.238_405_84), (0.0, 0.0)] {
            assert!((silu(x) - expected).abs() < 1e-6);
        }
        for (x, expected) in [(1.0, 0.841_192), (-1.0, -0.158_808), (3.0, 2.996_363)] {
            assert!((gelu_tanh(x) - expected).abs() < 1e-5, "{}", gelu_tanh(x));
        }
    }

    #[test]
    fn rms_norm_of_a_known_row() {
        let mut x = [3.0, 4.0];
        rms_norm(&mut x, &[1.0, 2.0], 0.0);
        let rms = 12.5f32.sqrt();
        assert!((x[0] - 3.0 / rms).abs() < 1e-6 && (x[1] - 8.0 / rms).abs() < 1e-6);
    }
}
