//! Coded along the outputs: `y[m, c] = sum over r of value(r, c) * scale[r] * x[m, r]`.
//!
//! A lane is a stored row, so a lane sums its own rows' products at every position, in cache, and the
//! lanes are added at the end.

use super::job::Job;
use super::kernels::SCATTER_GROUPS;
use super::lanes::{LANES, Lanes, Run, ZERO_RUN};
use super::quantized::GROUP;
use super::reader::Reader;
use crate::Numerics;
use crate::options::{sized, sized_with};
use std::ops::Range;

/// Stored rows whose words are brought into lanes at once, as many as a repacked matrix has together.
const LOADED_ROWS: usize = GROUP;

/// `out <- x What^T` over the inputs `rows` and the coded blocks `blocks`, `[m, blocks * T]`; a
/// weight is decoded once for all of x.
#[allow(clippy::too_many_arguments)] // operands, the part of them that is meant, and memory
pub(super) fn scatter(
    reader: &Reader<'_>,
    x: &[f32],
    m: usize,
    rows: Range<usize>,
    blocks: Range<usize>,
    numerics: Numerics,
    job: &mut Job,
    out: &mut [f32],
) {
    let t = reader.block_len();
    let pitch = blocks.len() * t;
    out.fill(0.0);
    for (index, block) in blocks.enumerate() {
        sized_with(&mut job.run_acc, m * reader.runs(), ZERO_RUN).fill(ZERO_RUN);
        for start in rows.clone().step_by(LOADED_ROWS) {
            let part = start..(start + LOADED_ROWS).min(rows.end);
            scatter_rows(reader, x, m, part, block, numerics, job);
        }
        for run in 0..reader.runs() {
            let positions = reader.positions(run);
            let column = index * t + positions.start;
            let acc = &job.run_acc[m * run..m * (run + 1)];
            for (acc, out) in acc.iter().zip(out.chunks_exact_mut(pitch)) {
                reader.kernels.fold(acc, &mut out[column..column + positions.len()]);
            }
        }
    }
}

/// Adds the products of at most [`LOADED_ROWS`] rows and one block to `job.run_acc`: `[runs, m]`.
fn scatter_rows(
    reader: &Reader<'_>,
    x: &[f32],
    m: usize,
    rows: Range<usize>,
    block: usize,
    numerics: Numerics,
    job: &mut Job,
) {
    let count = rows.len().div_ceil(LANES);
    let loaded = reader.loaded_words();
    let words = reader.load(rows.start, count, block, &mut job.words);
    let scaled = sized(&mut job.x, m * count);
    scale_inputs(reader, x, m, rows.clone(), numerics, scaled);
    let buffer = sized_with(&mut job.runs, SCATTER_GROUPS, ZERO_RUN);
    for run in 0..reader.runs() {
        let acc = &mut job.run_acc[m * run..m * (run + 1)];
        let mut taken = 0;
        for words in words.chunks(SCATTER_GROUPS * loaded) {
            let together = words.len() / loaded;
            let slots = buffer.iter_mut().zip(words.chunks_exact(loaded));
            for (g, (slot, words)) in slots.enumerate() {
                decode(reader, words, run, rows.start + (taken + g) * LANES, numerics, slot);
            }
            let scaled = &scaled[m * taken..m * (taken + together)];
            reader.kernels.scatter(&buffer[..together], scaled, acc);
            taken += together;
        }
    }
}

/// Numbers under `fast`, whose scale is in the inputs; weights under `exact`.
#[inline(always)]
fn decode(
    reader: &Reader<'_>,
    words: &[Lanes<u32>],
    run: usize,
    first: usize,
    numerics: Numerics,
    out: &mut Run,
) {
    match numerics {
        Numerics::Fast => reader.decode(words, run, out),
        exact => reader.weights(words, run, &reader.scales(first), reader.weighing(exact), out),
    };
}

/// Inputs in lanes, times their scales under `fast`, 0 past the last row: for each set of
/// [`SCATTER_GROUPS`] groups `[m, groups]`.
fn scale_inputs(
    reader: &Reader<'_>,
    x: &[f32],
    m: usize,
    rows: Range<usize>,
    numerics: Numerics,
    out: &mut [Lanes<f32>],
) {
    let inputs = reader.matrix.rows();
    let sets = rows.clone().step_by(SCATTER_GROUPS * LANES);
    for (set, out) in sets.zip(out.chunks_mut(m * SCATTER_GROUPS)) {
        let together = out.len() / m;
        for g in 0..together {
            let first = set + g * LANES;
            let valid = LANES.min(rows.end - first);
            let factors = reader.factors(first);
            for m in 0..m {
                let from = &x[m * inputs + first..][..valid];
                let mut lanes = Lanes::ZERO;
                lanes.0[..valid].copy_from_slice(from);
                if numerics == Numerics::Fast {
                    lanes = lanes.map2(factors, |x, factor| x * factor);
                }
                out[m * together + g] = lanes;
            }
        }
    }
}
