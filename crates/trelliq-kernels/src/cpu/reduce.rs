//! Coded along the inputs: `y[m, r] = scale[r] * sum over c of value(r, c) * x[m, c]`.

use super::generic::Weighing;
use super::job::Job;
use super::lanes::{LANES, Lanes, ZERO_RUN};
use super::reader::{Reader, groups};
use crate::Numerics;
use crate::options::sized;
use std::ops::Range;

/// `out <- x What^T` for the outputs `rows`, `[m, rows]`; a weight is decoded once for all of x.
pub(super) fn reduce(
    reader: &Reader<'_>,
    x: &[f32],
    m: usize,
    rows: Range<usize>,
    numerics: Numerics,
    job: &mut Job,
    out: &mut [f32],
) {
    let acc = sized(&mut job.acc, m);
    let run_buffer = &mut { ZERO_RUN };
    let count = rows.len();
    for first in groups(rows.clone()) {
        acc.fill(Lanes::ZERO);
        let scales = reader.scales(first);
        for block in 0..reader.blocks() {
            let words = reader.load(first, 1, block, &mut job.words);
            for run in 0..reader.runs() {
                let position = block * reader.block_len() + reader.positions(run).start;
                let weights = match numerics {
                    Numerics::Fast => reader.decode(words, run, run_buffer),
                    exact => {
                        reader.weights(words, run, &scales, reader.weighing(exact), run_buffer)
                    }
                };
                reader.kernels.reduce(weights, &x[position..], reader.matrix.cols(), acc);
            }
        }
        if numerics == Numerics::Fast {
            reader.kernels.weigh(acc, &reader.factors(first), Weighing::Folded);
        }
        let (start, end) = (first - rows.start, (first - rows.start + LANES).min(count));
        for (acc, out) in acc.iter().zip(out.chunks_exact_mut(count)) {
            out[start..end].copy_from_slice(&acc.0[..end - start]);
        }
    }
}
