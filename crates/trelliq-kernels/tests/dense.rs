//! Dense rows against f64.

use half::{bf16, f16};
use trelliq_kernels::{DenseRows, multiply_dense_rows};

fn values(n: usize, step: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * step).sin()).collect()
}

/// `y[r, m]` in f64 from the stored elements.
fn reference(weight: &[f64], x: &[f32], m: usize, cols: usize) -> Vec<f64> {
    let rows = weight.chunks_exact(cols);
    rows.flat_map(|w| {
        let products = move |x: &[f32]| w.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
        x.chunks_exact(cols).take(m).map(products)
    })
    .collect()
}

#[test]
fn products_agree_with_f64_and_do_not_depend_on_the_number_of_rows() {
    for cols in [1, 7, 16, 67, 128, 577] {
        let (rows, m) = (5, 9);
        let (w, x) = (values(rows * cols, 0.37), values(m * cols, 0.11));
        let (halves, brains): (Vec<f16>, Vec<bf16>) =
            w.iter().map(|w| (f16::from_f32(*w), bf16::from_f32(*w))).unzip();
        let cases: [(DenseRows<'_>, Vec<f64>); 3] = [
            (DenseRows::F32(&w), w.iter().map(|w| f64::from(*w)).collect()),
            (DenseRows::F16(&halves), halves.iter().map(|w| w.to_f64()).collect()),
            (DenseRows::Bf16(&brains), brains.iter().map(|w| w.to_f64()).collect()),
        ];
        for (weight, stored) in cases {
            let mut alone = vec![0.0; rows * m];
            for (i, x) in x.chunks_exact(cols).enumerate() {
                let mut y = vec![f32::NAN; rows];
                multiply_dense_rows(weight, x, 1, &mut y);
                y.iter().enumerate().for_each(|(r, y)| alone[r * m + i] = *y);
            }
            for (y, exact) in alone.iter().zip(reference(&stored, &x, m, cols)) {
                assert!((f64::from(*y) - exact).abs() < 1e-4, "{cols}: {y} {exact}");
            }
            for some in [2, 3, 5, 8, m] {
                let mut y = vec![f32::NAN; rows * some];
                multiply_dense_rows(weight, &x[..some * cols], some, &mut y);
                for (y, alone) in y.chunks_exact(some).zip(alone.chunks_exact(m)) {
                    assert_eq!(y, &alone[..some], "{cols} {some}");
                }
            }
        }
    }
}
