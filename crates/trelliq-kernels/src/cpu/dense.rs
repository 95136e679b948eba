//! Rows of a dense weight against a few rows of x: an output head that is not coded.

use super::kernels::kernels;
use super::simd::Floats;
use half::{bf16, f16};

/// Rows of a dense weight, one after another.
#[derive(Debug, Clone, Copy)]
pub enum DenseRows<'a> {
    F32(&'a [f32]),
    F16(&'a [f16]),
    Bf16(&'a [bf16]),
}

/// `y[r, m] <- ` row r of `weight`, of `x.len() / m` elements, times row m of `x`, in f32, on the calling
/// thread. A product is to the last bit the same whatever the number of rows.
///
/// # Panics
/// When the lengths disagree.
pub fn multiply_dense_rows(weight: DenseRows<'_>, x: &[f32], m: usize, y: &mut [f32]) {
    let (rows, cols) = (y.len() / m, x.len() / m);
    let elements = match weight {
        DenseRows::F32(w) => w.len(),
        DenseRows::F16(w) => w.len(),
        DenseRows::Bf16(w) => w.len(),
    };
    assert!(y.len() == rows * m && x.len() == cols * m && elements == rows * cols);
    kernels(None).dense_rows(weight, x, m, y);
}

/// An element of a dense weight.
trait Element: Copy {
    fn load<S: Floats>(simd: S, from: &[Self]) -> S::F;
    fn widen(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Floats>(simd: S, from: &[f32]) -> S::F {
        simd.load_f32(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<S: Floats>(simd: S, from: &[f16]) -> S::F {
        simd.load_f16(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Floats>(simd: S, from: &[bf16]) -> S::F {
        simd.load_bf16(from)
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
}

/// The body of [`multiply_dense_rows`].
#[inline(always)]
pub(super) fn dense_rows<S: Floats>(
    simd: S,
    weight: DenseRows<'_>,
    x: &[f32],
    m: usize,
    y: &mut [f32],
) {
    match weight {
        DenseRows::F32(w) => rows(simd, w, x, m, y),
        DenseRows::F16(w) => rows(simd, w, x, m, y),
        DenseRows::Bf16(w) => rows(simd, w, x, m, y),
    }
}

#[inline(always)]
fn rows<S: Floats, T: Element>(simd: S, weight: &[T], x: &[f32], m: usize, y: &mut [f32]) {
    let cols = x.len() / m;
    if cols == 0 {
        return y.fill(0.0);
    }
    for (row, y) in weight.chunks_exact(cols).zip(y.chunks_exact_mut(m)) {
        let (fours, rest) = y.as_chunks_mut::<4>();
        let done = 4 * fours.len();
        for (y, x) in fours.iter_mut().zip(x.chunks_exact(4 * cols)) {
            dot(simd, row, x, y);
        }
        for (y, x) in rest.iter_mut().zip(x[done * cols..].chunks_exact(cols)) {
            dot(simd, row, x, std::array::from_mut(y));
        }
    }
}

/// Four vectors of partial sums for each row of x, whose order is the same for every M.
#[inline(always)]
fn dot<S: Floats, T: Element, const M: usize>(simd: S, row: &[T], x: &[f32], y: &mut [f32; M]) {
    let cols = row.len();
    let mut sums = [[simd.zero(); 4]; M];
    let step = 4 * S::WIDTH;
    let whole = cols / step * step;
    for start in (0..whole).step_by(step) {
        for part in 0..4 {
            let at = start + part * S::WIDTH;
            let weights = T::load(simd, &row[at..at + S::WIDTH]);
            for (m, sums) in sums.iter_mut().enumerate() {
                let x = simd.load_f32(&x[m * cols + at..][..S::WIDTH]);
                sums[part] = simd.multiply_add(weights, x, sums[part]);
            }
        }
    }
    let vectors = cols / S::WIDTH * S::WIDTH;
    for at in (whole..vectors).step_by(S::WIDTH) {
        let weights = T::load(simd, &row[at..at + S::WIDTH]);
        for (m, sums) in sums.iter_mut().enumerate() {
            let x = simd.load_f32(&x[m * cols + at..][..S::WIDTH]);
            sums[0] = simd.multiply_add(weights, x, sums[0]);
        }
    }
    for (m, (y, [a, b, c, d])) in y.iter_mut().zip(sums).enumerate() {
        let x = &x[m * cols + vectors..(m + 1) * cols];
        let tail: f32 = row[vectors..].iter().zip(x).map(|(w, x)| w.widen() * x).sum();
        *y = simd.sum(simd.add(simd.add(a, b), simd.add(c, d))) + tail;
    }
}

#[cfg(test)]
mod tests {
    use super::super::Isa;
    use super::*;

    #[test]
    fn every_instruction_set_gives_the_products() {
        let (rows, cols, m) = (3, 77, 5);
        let w: Vec<f16> = (0..rows * cols).map(|i| f16::from_f32((i as f32).sin())).collect();
        let b: Vec<bf16> = w.iter().map(|w| bf16::from_f32(w.to_f32())).collect();
        let x: Vec<f32> = (0..m * cols).map(|i| (i as f32 * 0.3).cos()).collect();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.available()) {
            for weight in [DenseRows::F16(&w), DenseRows::Bf16(&b)] {
                let mut y = vec![0.0; rows * m];
                kernels(Some(isa)).dense_rows(weight, &x, m, &mut y);
                for (i, y) in y.iter().enumerate() {
                    let (row, m) = (i / m * cols, i % m * cols);
                    let stored = |i: usize| match weight {
                        DenseRows::F16(_) => w[i].to_f64(),
                        _ => b[i].to_f64(),
                    };
                    let products = (0..cols).map(|i| stored(row + i) * f64::from(x[m + i]));
                    assert!((f64::from(*y) - products.sum::<f64>()).abs() < 1e-5, "{isa:?} {i}");
                }
            }
        }
    }
}
