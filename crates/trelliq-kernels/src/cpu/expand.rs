//! The dense matrix.

use super::job::Job;
use super::lanes::{LANES, RUN, ZERO_RUN};
use super::reader::{Reader, groups};
use crate::{Activation, Axis, Numerics};
use rayon::prelude::*;
use std::ops::Range;

/// Outputs of one piece of work where outputs are coded.
const CODED_OUTPUTS: usize = 256;

/// The rows `outputs` of What, `[outputs, in]` row-major, to the last bit of `numerics`.
pub(super) fn expand<T: Activation>(
    reader: &Reader<'_>,
    outputs: Range<usize>,
    numerics: Numerics,
    out: &mut [T],
) {
    let inputs = reader.matrix.in_features();
    let size = match reader.matrix.axis() {
        Axis::In => LANES,
        Axis::Out => CODED_OUTPUTS,
    };
    out.par_chunks_mut(size * inputs).enumerate().for_each_init(Job::default, |job, (i, out)| {
        let start = outputs.start + i * size;
        match reader.matrix.axis() {
            Axis::In => expand_rows(reader, start, numerics, job, out),
            Axis::Out => expand_columns(reader, start, numerics, job, out),
        }
    });
}

/// Up to sixteen stored rows, which are rows of `out`: `[rows, in]`.
fn expand_rows<T: Activation>(
    reader: &Reader<'_>,
    first: usize,
    numerics: Numerics,
    job: &mut Job,
    out: &mut [T],
) {
    let inputs = reader.matrix.in_features();
    let buffer = &mut { ZERO_RUN };
    let (scales, weighing) = (reader.scales(first), reader.weighing(numerics));
    for block in 0..reader.blocks() {
        let words = reader.load(first, 1, block, &mut job.words);
        for run in 0..reader.runs() {
            let start = block * reader.block_len() + run * RUN;
            let weights = reader.weights(words, run, &scales, weighing, buffer);
            for (lane, row) in out.chunks_exact_mut(inputs).enumerate() {
                for (weights, out) in weights.iter().zip(&mut row[start..]) {
                    *out = T::from_f32(weights.0[lane]);
                }
            }
        }
    }
}

/// Columns of all stored rows from `start` on, which are rows of `out`: `[columns, in]`.
fn expand_columns<T: Activation>(
    reader: &Reader<'_>,
    start: usize,
    numerics: Numerics,
    job: &mut Job,
    out: &mut [T],
) {
    let (inputs, t) = (reader.matrix.in_features(), reader.block_len());
    let end = start + out.len() / inputs;
    let buffer = &mut { ZERO_RUN };
    for first in groups(0..inputs) {
        let lanes = LANES.min(inputs - first);
        let (scales, weighing) = (reader.scales(first), reader.weighing(numerics));
        for block in start / t..end.div_ceil(t) {
            let words = reader.load(first, 1, block, &mut job.words);
            for run in 0..reader.runs() {
                let column = block * t + run * RUN;
                if column >= end || column + RUN <= start {
                    continue;
                }
                let weights = reader.weights(words, run, &scales, weighing, buffer);
                for (column, weights) in (column..end).zip(weights.iter()) {
                    if column >= start {
                        let at = (column - start) * inputs + first;
                        T::narrow(&weights.0[..lanes], &mut out[at..at + lanes]);
                    }
                }
            }
        }
    }
}
