//! A linear layer over packed weights, `y = x W^T + bias`, with the rotations of
//! `docs/spec/format.md`: `y = sv * H_out(What (H_in (su * x))) + bias`.

use crate::options::sized;
use crate::{
    Activation, Axis, KernelError, KernelOptions, Numerics, PackedMatrix, Rotation, Scratch, cpu,
};
use std::ops::Range;

/// Sums that one multiplication leaves in memory at most, unless that is less than [`SLAB_ROWS`] rows
/// of x: many rows of logits of a large vocabulary are computed in slabs.
const SLAB_OUTPUTS: usize = 16 << 20;
const SLAB_ROWS: usize = 64;

/// A linear layer whose weight exists only as codes.
#[derive(Clone, Debug)]
pub struct TrellisLinear {
    matrix: PackedMatrix,
    rotation: Option<Rotation>,
    bias: Option<Vec<f32>>,
}

impl TrellisLinear {
    /// `bias`: `[out]`, added after the output rotation.
    ///
    /// Errors when the rotation or the bias does not have the matrix's dimensions.
    pub fn new(
        matrix: PackedMatrix,
        rotation: Option<Rotation>,
        bias: Option<Vec<f32>>,
    ) -> Result<Self, KernelError> {
        if let Some(rotation) = &rotation {
            check_len("su", rotation.su().len(), matrix.in_features())?;
            check_len("sv", rotation.sv().len(), matrix.out_features())?;
        }
        if let Some(bias) = &bias {
            check_len("bias", bias.len(), matrix.out_features())?;
        }
        Ok(Self { matrix, rotation, bias })
    }

    pub fn in_features(&self) -> usize {
        self.matrix.in_features()
    }

    pub fn out_features(&self) -> usize {
        self.matrix.out_features()
    }

    pub fn matrix(&self) -> &PackedMatrix {
        &self.matrix
    }

    /// See [`PackedMatrix::repack`].
    pub fn repack(&mut self) {
        self.matrix.repack();
    }

    pub fn rotation(&self) -> Option<&Rotation> {
        self.rotation.as_ref()
    }

    pub fn bias(&self) -> Option<&[f32]> {
        self.bias.as_deref()
    }

    /// `y <- x W^T + bias` for `x`: `[m, in]` and `y`: `[m, out]`, row-major, `y` overwritten.
    /// Runs on the current rayon pool; the result does not depend on its size.
    pub fn forward<A: Activation>(
        &self,
        x: &[A],
        m: usize,
        y: &mut [A],
        options: &KernelOptions,
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        forward_shared(&[self], x, m, &mut [y], options, scratch)
    }

    /// Row `index` of W, that is, the weights of one output (an embedding's vector), to `out`:
    /// `[in]`. Decodes that row only.
    ///
    /// Errors when the index is out of range, or when a row of W takes more than one stored row: a
    /// layer coded along its outputs, or rotated on that side.
    pub fn row(
        &self,
        index: usize,
        numerics: Numerics,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        let rows = self.out_features();
        if index >= rows {
            return Err(KernelError::Row { index, rows });
        }
        if self.matrix.axis() != Axis::In || self.mixes_outputs() {
            return Err(KernelError::RowAccess);
        }
        self.matrix.decode_row(index, self.matrix.values(), numerics, out)?;
        if let Some(rotation) = &self.rotation {
            rotation.unrotate_row(index, out);
        }
        Ok(())
    }

    /// The coded matrix What, dense: `[out, in]` row-major, whatever the axis.
    pub fn expand<T: Activation>(
        &self,
        numerics: Numerics,
        out: &mut [T],
    ) -> Result<(), KernelError> {
        check_len("out", out.len(), self.in_features() * self.out_features())?;
        cpu::expand(&self.matrix, 0..self.out_features(), numerics, out);
        Ok(())
    }

    /// The weight that the layer multiplies by, `W = diag(sv) H_out What H_in diag(su)`: `[out, in]`
    /// row-major, in f32.
    pub fn expand_weight(&self, numerics: Numerics, out: &mut [f32]) -> Result<(), KernelError> {
        check_len("out", out.len(), self.in_features() * self.out_features())?;
        self.expand_weight_rows(0..self.out_features(), numerics, out);
        Ok(())
    }

    /// Outputs that one output of the coded matrix reaches, 1 where there is no output rotation.
    pub(crate) fn out_block(&self) -> usize {
        self.rotation.as_ref().map_or(1, Rotation::out_block)
    }

    /// The rows `outputs` of W, whole blocks of the output rotation: `[outputs, in]`.
    pub(crate) fn expand_weight_rows(
        &self,
        outputs: Range<usize>,
        numerics: Numerics,
        out: &mut [f32],
    ) {
        cpu::expand(&self.matrix, outputs.clone(), numerics, out);
        if let Some(rotation) = &self.rotation {
            rotation.unrotate(outputs.start, out);
        }
    }

    /// Whether an output of the layer depends on more than one output of the coded matrix.
    pub(crate) fn mixes_outputs(&self) -> bool {
        self.out_block() > 1
    }

    /// Whether both layers see one rotated input.
    pub(crate) fn shares_input(&self, other: &Self) -> bool {
        fn input(layer: &TrellisLinear) -> Option<(usize, &[f32])> {
            layer.rotation.as_ref().map(|r| (r.in_block(), r.su()))
        }
        self.in_features() == other.in_features() && input(self) == input(other)
    }

    /// `x <- H_in (su * x)`, `[m, in]`.
    pub(crate) fn rotate_input(&self, x: &mut [f32]) {
        if let Some(rotation) = &self.rotation {
            rotation.rotate_input(x);
        }
    }

    /// [`finish`](Self::finish) for one output that no rotation mixes.
    #[inline(always)]
    pub(crate) fn finish_one(&self, output: usize, sum: f32) -> f32 {
        let scaled = self.rotation.as_ref().map_or(sum, |rotation| rotation.sv()[output] * sum);
        self.bias.as_ref().map_or(scaled, |bias| scaled + bias[output])
    }

    /// Output rotation and bias of `y`: `[m, out]`.
    pub(crate) fn finish(&self, y: &mut [f32]) {
        if let Some(rotation) = &self.rotation {
            rotation.rotate_output(y);
        }
        if let Some(bias) = &self.bias {
            for row in y.chunks_exact_mut(bias.len()) {
                for (y, b) in row.iter_mut().zip(bias) {
                    *y += b;
                }
            }
        }
    }
}

/// Applies layers that read the same input (q, k and v): `ys[i] <- x W_i^T + bias_i`. The input is
/// rotated once for each run of layers whose input rotations agree.
///
/// Errors when the numbers of layers and outputs differ, or a length disagrees with its layer.
pub fn forward_shared<A: Activation>(
    layers: &[&TrellisLinear],
    x: &[A],
    m: usize,
    ys: &mut [&mut [A]],
    options: &KernelOptions,
    scratch: &mut Scratch,
) -> Result<(), KernelError> {
    check_len("outputs", ys.len(), layers.len())?;
    for (layer, y) in layers.iter().zip(ys.iter()) {
        check_len("x", x.len(), m * layer.in_features())?;
        check_len("y", y.len(), m * layer.out_features())?;
    }
    let mut rotated: Option<&TrellisLinear> = None;
    for (layer, y) in layers.iter().zip(ys.iter_mut()) {
        let input = sized(&mut scratch.x, x.len());
        if !rotated.is_some_and(|earlier| earlier.shares_input(layer)) {
            A::widen(x, input);
            layer.rotate_input(input);
        }
        rotated = Some(layer);
        let rows = (SLAB_OUTPUTS / layer.out_features()).max(SLAB_ROWS);
        let slabs = input.chunks(rows * layer.in_features());
        for (input, y) in slabs.zip(y.chunks_mut(rows * layer.out_features())) {
            let m = y.len() / layer.out_features();
            let sums = sized(&mut scratch.y, y.len());
            cpu::multiply(&layer.matrix, input, m, sums, options, &mut scratch.work);
            layer.finish(sums);
            A::narrow(sums, y);
        }
    }
    Ok(())
}

pub(crate) fn check_len(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), KernelError> {
    if found == expected { Ok(()) } else { Err(KernelError::Length { what, found, expected }) }
}
