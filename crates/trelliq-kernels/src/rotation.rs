//! Block Hadamard rotations with channel scales on both sides of a coded weight:
//! `W = diag(sv) H_out What H_in diag(su)` (`docs/spec/format.md`, "Rotations").

use crate::KernelError;
use rayon::prelude::*;

/// The largest rotation block that is chosen by default.
const DEFAULT_BLOCK: usize = 512;

/// The default block for a dimension: the largest power of two up to 512 that divides it.
pub fn choose_rotation_block(dim: usize) -> usize {
    if dim == 0 { 1 } else { DEFAULT_BLOCK.min(1 << dim.trailing_zeros()) }
}

/// Multiplies each consecutive block of `block` elements by the orthonormal Sylvester Hadamard
/// matrix, which is symmetric and its own inverse.
///
/// # Panics
/// When `block` is not a power of two that divides `x.len()`.
pub fn hadamard_in_place(x: &mut [f32], block: usize) {
    assert!(block.is_power_of_two() && x.len().is_multiple_of(block));
    if block > 1 {
        crate::cpu::hadamard(x, block);
    }
}

/// Elements below which rows are rotated on the calling thread.
const SERIAL_ELEMENTS: usize = 32 << 10;

/// Calls `body` on rows of `width`, on the pool where that pays.
fn for_each_row(data: &mut [f32], width: usize, body: impl Fn(&mut [f32]) + Send + Sync) {
    if data.len() < SERIAL_ELEMENTS || data.len() == width {
        data.chunks_exact_mut(width).for_each(body);
    } else {
        data.par_chunks_exact_mut(width).for_each(&body);
    }
}

/// The rotation of one layer: signs (times channel scales) and Hadamard blocks per side.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotation {
    in_block: usize,
    out_block: usize,
    su: Vec<f32>,
    sv: Vec<f32>,
}

impl Rotation {
    /// `su`: `[in]`, `sv`: `[out]`; blocks are powers of two that divide them, 1 for no rotation.
    pub fn new(
        in_block: usize,
        out_block: usize,
        su: Vec<f32>,
        sv: Vec<f32>,
    ) -> Result<Self, KernelError> {
        for (block, channels) in [(in_block, &su), (out_block, &sv)] {
            if !block.is_power_of_two() || !channels.len().is_multiple_of(block) {
                return Err(KernelError::RotationBlock { block, dim: channels.len() });
            }
            if let Some(index) = channels.iter().position(|s| !s.is_finite()) {
                return Err(KernelError::NonFiniteChannel { index, value: channels[index] });
            }
        }
        Ok(Self { in_block, out_block, su, sv })
    }

    pub fn in_block(&self) -> usize {
        self.in_block
    }

    pub fn out_block(&self) -> usize {
        self.out_block
    }

    /// Channel factors of the inputs, `[in]`.
    pub fn su(&self) -> &[f32] {
        &self.su
    }

    /// Channel factors of the outputs, `[out]`.
    pub fn sv(&self) -> &[f32] {
        &self.sv
    }

    /// `x <- H_in (su * x)` for every row of `x`, `[m, in]`.
    pub fn rotate_input(&self, x: &mut [f32]) {
        for_each_row(x, self.su.len(), |row| {
            for (x, s) in row.iter_mut().zip(&self.su) {
                *x *= s;
            }
            hadamard_in_place(row, self.in_block);
        });
    }

    /// `y <- sv * (H_out y)` for every row of `y`, `[m, out]`.
    pub fn rotate_output(&self, y: &mut [f32]) {
        for_each_row(y, self.sv.len(), |row| {
            hadamard_in_place(row, self.out_block);
            for (y, s) in row.iter_mut().zip(&self.sv) {
                *y *= s;
            }
        });
    }

    /// Row `index` of What, `[in]`, to row `index` of W where the outputs are not mixed:
    /// `sv[index] * su * (H_in row)`.
    pub(crate) fn unrotate_row(&self, index: usize, row: &mut [f32]) {
        hadamard_in_place(row, self.in_block);
        for (w, s) in row.iter_mut().zip(&self.su) {
            *w *= self.sv[index] * s;
        }
    }

    /// Rows of What from row `first` on, whole output blocks of them, `[rows, in]`, to rows of W.
    pub(crate) fn unrotate(&self, first: usize, rows: &mut [f32]) {
        let inputs = self.su.len();
        let norm = 1.0 / (self.out_block as f32).sqrt();
        for panel in rows.chunks_exact_mut(self.out_block * inputs) {
            butterflies(panel, inputs, self.out_block);
        }
        rows.par_chunks_exact_mut(inputs).enumerate().for_each(|(index, row)| {
            row.iter_mut().for_each(|w| *w *= norm);
            self.unrotate_row(first + index, row);
        });
    }
}

/// The unnormalised Hadamard transform down the columns of `[block, width]`.
fn butterflies(panel: &mut [f32], width: usize, block: usize) {
    let mut half = 1;
    while half < block {
        for pair in panel.chunks_exact_mut(2 * half * width) {
            let (low, high) = pair.split_at_mut(half * width);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
}
