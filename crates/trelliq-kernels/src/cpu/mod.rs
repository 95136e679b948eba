//! Kernels of the CPU.

mod isa;
mod scalar;

pub use isa::Isa;

use crate::options::Work;
use crate::{Activation, KernelOptions, Numerics, PackedMatrix};

/// `y <- x What^T` for `x`: `[m, in]`, `y`: `[m, out]`, lengths checked by the caller.
pub(crate) fn multiply(
    matrix: &PackedMatrix,
    x: &[f32],
    m: usize,
    y: &mut [f32],
    options: &KernelOptions,
    _work: &mut Work,
) {
    scalar::multiply(matrix, x, m, y, options.numerics);
}

/// The dense `[out, in]` matrix; length checked by the caller.
pub(crate) fn expand<T: Activation>(matrix: &PackedMatrix, numerics: Numerics, out: &mut [T]) {
    scalar::expand(matrix, numerics, out);
}
