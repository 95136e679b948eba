//! The oracle: one weight at a time, straight from the specification.

use crate::{Axis, Numerics, PackedMatrix};

/// Calls `visit` with (stored row, decoded row).
fn for_each_row(matrix: &PackedMatrix, numerics: Numerics, mut visit: impl FnMut(usize, &[f32])) {
    let mut row = vec![0.0; matrix.cols()];
    for index in 0..matrix.rows() {
        matrix
            .decode_row(index, matrix.values(), numerics, &mut row)
            .expect("a row of the matrix's own length");
        visit(index, &row);
    }
}

pub(super) fn multiply(
    matrix: &PackedMatrix,
    x: &[f32],
    m: usize,
    y: &mut [f32],
    numerics: Numerics,
) {
    let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
    y.fill(0.0);
    for_each_row(matrix, numerics, |index, row| {
        for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact_mut(outputs)).take(m) {
            match matrix.axis() {
                Axis::In => y[index] = row.iter().zip(x).map(|(w, x)| w * x).sum(),
                Axis::Out => row.iter().zip(y).for_each(|(w, y)| *y += w * x[index]),
            }
        }
    });
}
