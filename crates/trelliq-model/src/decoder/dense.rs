//! Dense weights in the dtype of their source, and products with them in f32.

use super::ops::{Block, Rows, add_matmul_nn, matmul_nt_raw};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;
use rayon::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use trelliq_kernels::{DenseRows, multiply_dense_rows};

/// Output rows of one task of a product with one row of activations.
const VECTOR_ROWS: usize = 32;
/// Rows of activations up to which each is multiplied as if it were alone.
const FEW_ROWS: usize = 16;
/// Output rows of one task of a product with several: what is widened to f32 at a time.
const MATRIX_ROWS: usize = 128;
/// Rows of gradients of one task of a transposed product.
const BACK_ROWS: usize = 64;

/// The element type of a dense weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    fn bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::Bf16 => 2,
        }
    }
}

/// A matrix `[rows, cols]`, row-major.
#[derive(Debug)]
pub(crate) struct DenseWeight {
    storage: Storage,
    dtype: Dtype,
    rows: usize,
    cols: usize,
}

#[derive(Debug)]
enum Storage {
    Mapped {
        map: Arc<Mmap>,
        bytes: Range<usize>,
    },
    F32(Vec<f32>),
    /// Bytes in words, so that every element type is aligned.
    Copied(Vec<u32>),
}

impl DenseWeight {
    /// From f32 values, `values.len() == rows * cols`.
    pub fn from_f32(values: Vec<f32>, rows: usize, cols: usize) -> Self {
        assert_eq!(values.len(), rows * cols);
        Self { storage: Storage::F32(values), dtype: Dtype::F32, rows, cols }
    }

    /// From the bytes of a mapped file, in place when they are aligned; copied otherwise.
    /// `None` when the window is not exactly the matrix.
    pub fn mapped(
        map: &Arc<Mmap>,
        bytes: Range<usize>,
        dtype: Dtype,
        rows: usize,
        cols: usize,
    ) -> Option<Self> {
        let window = map.get(bytes.clone())?;
        if window.len() != rows.checked_mul(cols)?.checked_mul(dtype.bytes())? {
            return None;
        }
        let storage = if window.as_ptr().align_offset(dtype.bytes()) == 0 {
            Storage::Mapped { map: Arc::clone(map), bytes }
        } else {
            Storage::Copied(words(window))
        };
        Some(Self { storage, dtype, rows, cols })
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    /// All elements, row-major.
    #[cfg(feature = "cuda")]
    pub fn all(&self) -> DenseRows<'_> {
        self.elements(0..self.rows)
    }

    #[cfg(feature = "cuda")]
    pub fn cols(&self) -> usize {
        self.cols
    }

    fn elements(&self, rows: Range<usize>) -> DenseRows<'_> {
        let bytes: &[u8] = match &self.storage {
            Storage::Mapped { map, bytes } => &map[bytes.clone()],
            Storage::F32(values) => bytemuck::cast_slice(values),
            Storage::Copied(words) => bytemuck::cast_slice(words),
        };
        let width = self.cols * self.dtype.bytes();
        let bytes = &bytes[rows.start * width..rows.end * width];
        match self.dtype {
            Dtype::F32 => DenseRows::F32(bytemuck::cast_slice(bytes)),
            Dtype::F16 => DenseRows::F16(bytemuck::cast_slice(bytes)),
            Dtype::Bf16 => DenseRows::Bf16(bytemuck::cast_slice(bytes)),
        }
    }

    /// Rows as f32, in place or in `buffer`.
    fn widened<'a>(&'a self, rows: Range<usize>, buffer: &'a mut Vec<f32>) -> &'a [f32] {
        match self.elements(rows.clone()) {
            DenseRows::F32(weights) => weights,
            elements => {
                buffer.resize(rows.len() * self.cols, 0.0);
                widen(&elements, buffer);
                buffer
            }
        }
    }

    /// Row `row` as f32 into `out`, `[cols]`.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        widen(&self.elements(row..row + 1), out);
    }

    /// `y = x W^T` with the first `y.len() / m` rows of W; x: `[m, cols]`, y: `[m, rows used]`.
    pub fn product(&self, x: &[f32], m: usize, y: &mut [f32]) {
        assert!(x.len() == m * self.cols && y.len().is_multiple_of(m.max(1)));
        match m {
            0 => {}
            1 => self.vector_product(x, y),
            2..=FEW_ROWS => self.few_vectors_product(x, m, y),
            _ => self.matrix_product(x, m, y),
        }
    }

    /// The products of several rows of x, each to the last bit what
    /// [`vector_product`](Self::vector_product) makes of it alone, while a row of W is in cache: what
    /// a sequence generates does not depend on how many others share its steps.
    fn few_vectors_product(&self, x: &[f32], m: usize, y: &mut [f32]) {
        let width = y.len() / m;
        // `[rows used, m]`, so that every task writes its own part.
        let mut by_row = vec![0f32; y.len()];
        by_row.par_chunks_mut(VECTOR_ROWS * m).enumerate().for_each(|(task, part)| {
            let first = task * VECTOR_ROWS;
            multiply_dense_rows(self.elements(first..first + part.len() / m), x, m, part);
        });
        for (index, y) in y.chunks_exact_mut(width).enumerate() {
            for (y, row) in y.iter_mut().zip(by_row.chunks_exact(m)) {
                *y = row[index];
            }
        }
    }

    /// `x = g W` with the first `g.len() / m` rows of W; g: `[m, rows used]`, x: `[m, cols]`.
    pub fn product_transposed(&self, g: &[f32], m: usize) -> Vec<f32> {
        let width = g.len() / m;
        assert!(width <= self.rows && g.len() == m * width);
        let mut x = vec![0f32; m * self.cols];
        let parts = x.par_chunks_mut(BACK_ROWS * self.cols).zip(g.par_chunks(BACK_ROWS * width));
        parts.for_each_init(Vec::new, |buffer, (x, g)| {
            for start in (0..width).step_by(MATRIX_ROWS) {
                let rows = start..width.min(start + MATRIX_ROWS);
                let weights = self.widened(rows.clone(), buffer);
                let g = Rows {
                    data: &g[start..],
                    rows: g.len() / width,
                    cols: rows.len(),
                    stride: width,
                };
                add_matmul_nn(g, Rows::dense(weights, self.cols), x);
            }
        });
        x
    }

    fn vector_product(&self, x: &[f32], y: &mut [f32]) {
        y.par_chunks_mut(VECTOR_ROWS).enumerate().for_each(|(task, y)| {
            let first = task * VECTOR_ROWS;
            multiply_dense_rows(self.elements(first..first + y.len()), x, 1, y);
        });
    }

    fn matrix_product(&self, x: &[f32], m: usize, y: &mut [f32]) {
        let width = y.len() / m;
        assert!(width <= self.rows);
        let y = SharedRows { start: y.as_mut_ptr(), width };
        let x = Rows::dense(x, self.cols);
        let tasks = width.div_ceil(MATRIX_ROWS);
        (0..tasks).into_par_iter().for_each_init(Vec::new, |buffer, task| {
            let rows = task * MATRIX_ROWS..width.min((task + 1) * MATRIX_ROWS);
            let weights = self.widened(rows.clone(), buffer);
            let dst = y.columns_from(rows.start);
            // SAFETY: `y` has `m` rows of `width`, borrowed exclusively by this function; this
            // task alone writes its columns `rows`.
            unsafe { matmul_nt_raw(1.0, x, Rows::dense(weights, self.cols), dst) }
        });
    }
}

/// The output of a product whose tasks write disjoint columns.
struct SharedRows {
    start: *mut f32,
    width: usize,
}

// SAFETY: tasks only write through it, each its own columns (see `matrix_product`).
unsafe impl Sync for SharedRows {}

impl SharedRows {
    fn columns_from(&self, column: usize) -> Block {
        assert!(column < self.width);
        Block { start: self.start.wrapping_add(column), stride: self.width }
    }
}

/// Little-endian bytes as words, the last one filled up with zeros.
fn words(bytes: &[u8]) -> Vec<u32> {
    let mut words = vec![0u32; bytes.len().div_ceil(4)];
    bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
    words
}

fn widen(elements: &DenseRows, out: &mut [f32]) {
    match elements {
        DenseRows::F32(w) => out.copy_from_slice(w),
        DenseRows::F16(w) => widen_f16(w, out),
        DenseRows::Bf16(w) => widen_bf16(w, out),
    }
}

fn widen_f16(w: &[f16], out: &mut [f32]) {
    w.convert_to_f32_slice(out);
}

/// Unlike [`bf16::to_f32`] without a branch for NaN, so that it vectorises.
fn widen_bf16(w: &[bf16], out: &mut [f32]) {
    for (out, w) in out.iter_mut().zip(w) {
        *out = f32::from_bits(u32::from(w.to_bits()) << 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn values(n: usize, step: f32) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * step).sin()).collect()
    }

    fn stored(values: &[f32], dtype: Dtype) -> Vec<u8> {
        match dtype {
            Dtype::F32 => bytemuck::cast_slice(values).to_vec(),
            Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        }
    }

    fn rounded(value: f32, dtype: Dtype) -> f64 {
        f64::from(match dtype {
            Dtype::F32 => value,
            Dtype::F16 => f16::from_f32(value).to_f32(),
            Dtype::Bf16 => bf16::from_f32(value).to_f32(),
        })
    }

    fn mapped(bytes: &[u8], skip: usize) -> Arc<Mmap> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![7; skip]).unwrap();
        file.write_all(bytes).unwrap();
        // SAFETY: the file is private to this test and stays as it is.
        Arc::new(unsafe { Mmap::map(&file) }.unwrap())
    }

    #[test]
    fn products_agree_with_f64_in_every_dtype_aligned_or_not() {
        let (rows, cols) = (300, 531);
        let w = values(rows * cols, 0.37);
        for (dtype, skip) in [(Dtype::F32, 0), (Dtype::F16, 8), (Dtype::Bf16, 1), (Dtype::F32, 2)] {
            let bytes = stored(&w, dtype);
            let map = mapped(&bytes, skip);
            let weight =
                DenseWeight::mapped(&map, skip..skip + bytes.len(), dtype, rows, cols).unwrap();
            for m in [1, 2, 9, 19] {
                let x = values(m * cols, 0.11);
                let mut y = vec![0.0; m * rows];
                weight.product(&x, m, &mut y);
                for (i, y) in y.iter().enumerate() {
                    let (row, out) = (i / rows, i % rows);
                    let exact: f64 = (0..cols)
                        .map(|c| rounded(w[out * cols + c], dtype) * f64::from(x[row * cols + c]))
                        .sum();
                    assert!((f64::from(*y) - exact).abs() < 2e-4, "{dtype:?} {m} {y} {exact}");
                }
            }
            let mut row = vec![0.0; cols];
            weight.row(299, &mut row);
            assert!((0..cols).all(|c| f64::from(row[c]) == rounded(w[299 * cols + c], dtype)));
        }
    }

    #[test]
    fn a_row_among_few_is_to_the_bit_what_it_is_alone() {
        let (rows, cols) = (70, 1100);
        let w = values(rows * cols, 0.37);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            let bytes = stored(&w, dtype);
            let map = mapped(&bytes, 0);
            let weight = DenseWeight::mapped(&map, 0..bytes.len(), dtype, rows, cols).unwrap();
            let x = values(FEW_ROWS * cols, 0.11);
            for used in [rows, 33] {
                let mut alone = vec![0.0; FEW_ROWS * used];
                for (x, y) in x.chunks_exact(cols).zip(alone.chunks_exact_mut(used)) {
                    weight.product(x, 1, y);
                }
                for m in [2, 5, FEW_ROWS] {
                    let mut together = vec![0.0; m * used];
                    weight.product(&x[..m * cols], m, &mut together);
                    assert_eq!(together, alone[..m * used], "{dtype:?} {m}");
                }
            }
        }
    }

    #[test]
    fn a_window_of_another_size_is_refused() {
        let map = mapped(&[0; 64], 0);
        assert!(DenseWeight::mapped(&map, 0..64, Dtype::F32, 4, 4).is_some());
        assert!(DenseWeight::mapped(&map, 0..60, Dtype::F32, 4, 4).is_none());
        assert!(DenseWeight::mapped(&map, 16..80, Dtype::F32, 4, 4).is_none());
    }
}
