//! Products of `1mad` weights by their byte sums, for blocks of whole runs: with activations in 16 bits
//! (`int_kernels.rs`) or in f32 (`float_kernels.rs`).

use super::int_kernels::{HALF, Sums, Weights, ZERO_SUMS};
use super::job::Job;
use super::lanes::{LANES, Lanes, RUN};
use super::quantized::{GROUP, GROUP_VECTORS, Input};
use super::reader::{Reader, groups};
use crate::options::{sized, sized_with};
use std::ops::Range;

/// Coded along the outputs: `out <- x What^T` over the inputs `rows`, from a group's first on, and the
/// coded blocks `blocks`, `[m, blocks * T]`. The scales of rows are in `x`.
pub(super) fn scatter(
    reader: &Reader<'_>,
    x: &Input<'_>,
    rows: Range<usize>,
    blocks: Range<usize>,
    job: &mut Job,
    out: &mut [f32],
) {
    let t = reader.block_len();
    let pitch = blocks.len() * t;
    out.fill(0.0);
    let loaded = reader.loaded_words();
    let sums = &mut { ZERO_SUMS };
    for start in rows.clone().step_by(GROUP) {
        let group = start / GROUP;
        let vectors = x.group_vectors(group);
        for block in blocks.clone() {
            let words = reader.load(start, 2 * vectors, block, &mut job.words);
            // What comes after this block is asked for little by little, as it is computed with.
            let (next, next_block) = if block + 1 < blocks.end {
                (start, block + 1)
            } else {
                (start + GROUP, blocks.start)
            };
            let steps = 2 * reader.runs();
            for step in 0..steps {
                let (run, half) = (step / 2, step % 2);
                let ahead = next + step * GROUP / steps..next + (step + 1) * GROUP / steps;
                reader.prefetch(ahead, next_block);
                let words = &words[reader.run_word(run)..];
                reader.byte_sums(words, loaded, Weights::Rows { half }, vectors, sums);
                let column = (block - blocks.start) * t + run * RUN + half * HALF;
                let out = &mut out[column..];
                match x {
                    Input::Int(x) => reader.kernels.int_scatter(sums, x, group, out, pitch),
                    Input::F32(x) => reader.kernels.float_scatter(sums, x, group, out, pitch),
                }
            }
        }
    }
}

/// Coded along the inputs: `out <- x What^T` for the outputs `rows`, `[m, rows]`.
pub(super) fn reduce(
    reader: &Reader<'_>,
    x: &Input<'_>,
    rows: Range<usize>,
    job: &mut Job,
    out: &mut [f32],
) {
    let totals = sized(&mut job.acc, x.m());
    let acc = sized_with(&mut job.int_acc, x.m(), Lanes::default());
    let sums = &mut { ZERO_SUMS };
    let count = rows.len();
    for first in groups(rows.clone()) {
        totals.fill(Lanes::ZERO);
        acc.fill(Lanes::default());
        for block in 0..reader.blocks() {
            let words = reader.load(first, 1, block, &mut job.words);
            if block + 1 < reader.blocks() {
                reader.prefetch(first..first + LANES, block + 1);
            } else {
                reader.prefetch(first + LANES..first + 2 * LANES, 0);
            }
            reduce_block(reader, x, block, words, acc, totals, sums);
        }
        let factors = reader.factors(first);
        let (start, end) = (first - rows.start, (first - rows.start + LANES).min(count));
        for (totals, out) in totals.iter().zip(out.chunks_exact_mut(count)) {
            let scaled = totals.map2(factors, |total, factor| total * factor);
            out[start..end].copy_from_slice(&scaled.0[..end - start]);
        }
    }
}

/// The runs of one loaded block, in pieces that end with a group of activations or with the block.
fn reduce_block(
    reader: &Reader<'_>,
    x: &Input<'_>,
    block: usize,
    words: &[Lanes<u32>],
    acc: &mut [Lanes<u32>],
    totals: &mut [Lanes<f32>],
    sums: &mut Sums,
) {
    let (start, end) = (block * reader.runs(), (block + 1) * reader.runs());
    let mut vector = start;
    while vector < end {
        let stop = end.min((vector / GROUP_VECTORS + 1) * GROUP_VECTORS);
        let words = &words[reader.run_word(stop - 1 - start)..];
        reader.byte_sums(words, reader.bits(), Weights::Positions, stop - vector, sums);
        let count = stop - vector;
        match x {
            Input::Int(x) => reader.kernels.int_reduce(sums, count, x, vector, acc, totals),
            Input::F32(x) => reader.kernels.float_reduce(sums, count, x, vector, totals),
        }
        vector = stop;
    }
}
