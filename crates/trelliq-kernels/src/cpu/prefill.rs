//! Many rows of x: tiles of the weight are decoded into cache and multiplied at once.

use super::gemm::{View, gemm};
use super::generic::Weighing;
use super::job::Job;
use super::lanes::{LANES, Lanes, RUN, ZERO_RUN};
use super::reader::{Reader, groups};
use crate::options::sized;
use crate::{Axis, Numerics};
use std::ops::Range;

/// Inputs that a tile spans at least, where the layer has as many: with 128 outputs 256 KiB of f32.
const TILE_INPUTS: usize = 512;

/// `out <- x What^T` for `outputs`, whole blocks of them where they are coded; `[m, outputs]`.
pub(super) fn prefill(
    reader: &Reader<'_>,
    x: &[f32],
    m: usize,
    outputs: Range<usize>,
    numerics: Numerics,
    job: &mut Job,
    out: &mut [f32],
) {
    let inputs = reader.matrix.in_features();
    let step = match reader.matrix.axis() {
        Axis::In => TILE_INPUTS.div_ceil(reader.block_len()) * reader.block_len(),
        Axis::Out => TILE_INPUTS,
    };
    for start in (0..inputs).step_by(step) {
        let span = start..(start + step).min(inputs);
        let weights = decode_tile(reader, span.clone(), outputs.clone(), numerics, job);
        let x = View { data: &x[start..], row_stride: inputs, column_stride: 1 };
        gemm((m, outputs.len(), span.len()), out, x, weights, start > 0);
    }
}

/// The weights of `inputs` (whole blocks of them where they are coded) and `outputs`, as `[in, out]`.
fn decode_tile<'j>(
    reader: &Reader<'_>,
    inputs: Range<usize>,
    outputs: Range<usize>,
    numerics: Numerics,
    job: &'j mut Job,
) -> View<'j> {
    let (rows, columns) = match reader.matrix.axis() {
        Axis::In => (outputs, inputs),
        Axis::Out => (inputs, outputs),
    };
    let pitch = rows.len().next_multiple_of(LANES);
    let dense = sized(&mut job.dense, columns.len() * pitch);
    for_each_run(reader, rows, columns, numerics, &mut job.words, |r, c, run| {
        for (weights, out) in run.iter().zip(dense[c * pitch..].chunks_mut(pitch)) {
            out[r..r + LANES].copy_from_slice(&weights.0);
        }
    });
    let (row_stride, column_stride) = match reader.matrix.axis() {
        Axis::In => (pitch, 1),
        Axis::Out => (1, pitch),
    };
    View { data: dense, row_stride, column_stride }
}

/// Decodes the stored rows `rows` at `columns`, whole blocks; `visit` gets the first row and the
/// first column of each run, counted from the ranges' starts, and its weights, which are 0 past the
/// matrix's last row. Under `fast` they may be an ulp or two off.
fn for_each_run(
    reader: &Reader<'_>,
    rows: Range<usize>,
    columns: Range<usize>,
    numerics: Numerics,
    words: &mut Vec<Lanes<u32>>,
    mut visit: impl FnMut(usize, usize, &[Lanes<f32>]),
) {
    let t = reader.block_len();
    let buffer = &mut { ZERO_RUN };
    for first in groups(rows.clone()) {
        let (scales, weighing) = match numerics {
            Numerics::Fast => (reader.factors(first), Weighing::Folded),
            exact => (reader.scales(first), reader.weighing(exact)),
        };
        for start in columns.clone().step_by(t) {
            let words = reader.load(first, 1, start / t, words);
            for run in 0..reader.runs() {
                let column = start - columns.start + run * RUN;
                let weights = reader.weights(words, run, &scales, weighing, buffer);
                visit(first - rows.start, column, weights);
            }
        }
    }
}
