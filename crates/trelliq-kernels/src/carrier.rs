//! The fallback for machines where packed decoding loses: the layer's weight, un-rotated and
//! quantized again at load to 8-bit affine groups of 64 inputs.

use crate::cpu::{self, Quants};
use crate::linear::check_len;
use crate::options::sized;
use crate::{Activation, KernelError, KernelOptions, Numerics, Scratch, TrellisLinear};
use rayon::prelude::*;

/// Inputs that share one scale and offset.
const GROUP: usize = 64;
/// Rows of x from which rows of W are made f32 for a matrix multiply.
const PREFILL_FROM: usize = 8;
/// Outputs of one job.
const TILE_OUTPUTS: usize = 64;
/// Rows of W that are in f32 at once while loading, or one block of the output rotation.
const LOADED_ROWS: usize = 64;

/// A dense layer of 8-bit weights: `w = offset + scale * q`, q in 0..=255, per group of 64 inputs
/// (9 bits a weight), and its bias.
#[derive(Clone, Debug)]
pub struct Carrier {
    in_features: usize,
    out_features: usize,
    /// `[out, in]`.
    bytes: Vec<u8>,
    /// `[out, ceil(in / 64)]` of (scale, offset).
    affine: Vec<(f32, f32)>,
    bias: Option<Vec<f32>>,
}

impl Carrier {
    /// Quantizes the un-rotated weight of `layer` as `numerics` reads it. Besides the result, one
    /// block of the output rotation (64 rows where it is smaller) is held in f32 at a time.
    ///
    /// A weight is off by at most half a step, `(max - min) / 510` of its group, and f32 rounding.
    pub fn from_linear(layer: &TrellisLinear, numerics: Numerics) -> Self {
        let (inputs, outputs) = (layer.in_features(), layer.out_features());
        let groups = inputs.div_ceil(GROUP);
        let mut bytes = vec![0; inputs * outputs];
        let mut affine = vec![(0.0, 0.0); outputs * groups];
        let rows = layer.out_block().max(LOADED_ROWS).min(outputs);
        let mut dense = vec![0.0; rows * inputs];
        let pieces = bytes.chunks_mut(rows * inputs).zip(affine.chunks_mut(rows * groups));
        for (index, (bytes, affine)) in pieces.enumerate() {
            let first = index * rows;
            let dense = &mut dense[..bytes.len()];
            layer.expand_weight_rows(first..first + bytes.len() / inputs, numerics, dense);
            let rows = bytes.par_chunks_mut(inputs).zip(affine.par_chunks_mut(groups));
            rows.zip(dense.par_chunks(inputs)).for_each(|((bytes, affine), weights)| {
                quantize_row(weights, bytes, affine);
            });
        }
        let bias = layer.bias().map(<[f32]>::to_vec);
        Self { in_features: inputs, out_features: outputs, bytes, affine, bias }
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// As [`TrellisLinear::forward`]; of the options the instruction set and `prefill_from` count.
    pub fn forward<A: Activation>(
        &self,
        x: &[A],
        m: usize,
        y: &mut [A],
        options: &KernelOptions,
        scratch: &mut Scratch,
    ) -> Result<(), KernelError> {
        check_len("x", x.len(), m * self.in_features)?;
        check_len("y", y.len(), m * self.out_features)?;
        if y.is_empty() {
            return Ok(());
        }
        let input = sized(&mut scratch.x, x.len());
        A::widen(x, input);
        let (input, tiles) = (&*input, sized(&mut scratch.y, y.len()));
        let sums = group_sums(input, self.in_features);
        tiles.par_chunks_mut(m * TILE_OUTPUTS).enumerate().for_each_init(
            Vec::new,
            |dense, (index, tile)| {
                let rows = index * TILE_OUTPUTS..index * TILE_OUTPUTS + tile.len() / m;
                if m >= options.prefill_from.unwrap_or(PREFILL_FROM) {
                    let dense = sized(dense, rows.len() * self.in_features);
                    self.dequantize(rows.start, dense);
                    cpu::multiply_dense(input, dense, m, self.in_features, tile);
                } else {
                    let quants = self.rows(rows.start);
                    cpu::multiply_bytes(options.isa, quants, input, &sums, m, tile);
                }
            },
        );
        self.store(tiles, m, y);
        Ok(())
    }

    /// The numbers of the rows from `first` on.
    fn rows(&self, first: usize) -> Quants<'_> {
        Quants {
            bytes: &self.bytes[first * self.in_features..],
            affine: &self.affine[first * self.in_features.div_ceil(GROUP)..],
            group: GROUP,
        }
    }

    /// Rows of the weight from `first` on, `[rows, in]`.
    fn dequantize(&self, first: usize, dense: &mut [f32]) {
        let Quants { bytes, affine, .. } = self.rows(first);
        let rows = dense.chunks_exact_mut(self.in_features);
        let groups = rows.flat_map(|row| row.chunks_mut(GROUP));
        let bytes = bytes.chunks_exact(self.in_features).flat_map(|row| row.chunks(GROUP));
        for ((out, bytes), (scale, offset)) in groups.zip(bytes).zip(affine) {
            for (out, &q) in out.iter_mut().zip(bytes) {
                *out = offset + scale * f32::from(q);
            }
        }
    }

    /// Tiles `[m, tile]` one after another to `y`: `[m, out]`, with the bias.
    fn store<A: Activation>(&self, tiles: &[f32], m: usize, y: &mut [A]) {
        for (index, tile) in tiles.chunks(m * TILE_OUTPUTS).enumerate() {
            let (first, width) = (index * TILE_OUTPUTS, tile.len() / m);
            for (tile, y) in tile.chunks_exact(width).zip(y.chunks_exact_mut(self.out_features)) {
                for (column, (y, &sum)) in y[first..].iter_mut().zip(tile).enumerate() {
                    let bias = self.bias.as_ref().map_or(0.0, |bias| bias[first + column]);
                    *y = A::from_f32(sum + bias);
                }
            }
        }
    }
}

/// Sums of x by group, `[m, groups]`.
fn group_sums(x: &[f32], inputs: usize) -> Vec<f32> {
    let rows = x.chunks_exact(inputs);
    rows.flat_map(|row| row.chunks(GROUP).map(|group| group.iter().sum())).collect()
}

fn quantize_row(weights: &[f32], bytes: &mut [u8], affine: &mut [(f32, f32)]) {
    let groups = weights.chunks(GROUP).zip(bytes.chunks_mut(GROUP));
    for ((weights, bytes), affine) in groups.zip(affine) {
        let low = weights.iter().copied().fold(f32::INFINITY, f32::min);
        let high = weights.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = (high - low) / 255.0;
        *affine = (scale, low);
        for (byte, weight) in bytes.iter_mut().zip(weights) {
            // 0 / 0 for a constant group is NaN, which converts to 0; larger ratios saturate.
            *byte = ((weight - low) / scale).round() as u8;
        }
    }
}
