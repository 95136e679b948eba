//! The bodies of the integer kernels, compiled per instruction set (`kernels.rs`): one that decodes a
//! half-run of all rows or runs of a group, to the first-level cache, and two that multiply what was
//! decoded by every row of x. What is loaded and stored in between costs next to nothing, since the
//! arithmetic is what the time goes to.
//!
//! All sums are of integers, mod 2^32, until 128 products of one output are together, so no result
//! depends on the width of vectors.

use super::lanes::{LANES, Lanes, RUN};
use super::quantized::{GROUP_VECTORS, Quantized};
use super::simd::Simd;
use super::sums::{HalfWords, Hash, positions_words, rows_words};

/// Positions of a half-run.
pub(super) const HALF: usize = RUN / 2;

/// Byte sums of a group's vectors at sixteen positions, in the lanes of `quantized.rs`.
pub(super) type Sums = [[Lanes<u32>; HALF]; GROUP_VECTORS];

pub(super) const ZERO_SUMS: Sums = [[Lanes([0; LANES]); HALF]; GROUP_VECTORS];

/// Which weights are decoded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Weights {
    /// The positions `16 half..` of one run of 32 rows a vector: rows `i` and `i + 16` share a lane.
    Rows { half: usize },
    /// One run of sixteen rows a vector: positions `i` and `i + 16` share a lane.
    Positions,
}

/// Packed words in lanes.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupWords<'a> {
    /// Words of the first vector's run, or of the last one's: time runs backwards.
    pub words: &'a [Lanes<u32>],
    /// From one set of sixteen rows to the next, or from one run to the next.
    pub pitch: usize,
    /// `2^L - 1`.
    pub state_mask: u32,
    pub weights: Weights,
    /// Vectors of the group, at most [`GROUP_VECTORS`].
    pub count: usize,
}

/// Evaluates the body with each position of a half-run as a constant.
macro_rules! positions {
    ($i:ident => $body:expr) => {
        positions!(@ $i $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $i:ident $body:expr; $($n:literal)*) => { $( { const $i: usize = $n; $body; } )* };
}

pub(super) use positions;

/// `sums[vector][i] <- ` the byte sums of `group`.
#[inline(always)]
pub(super) fn decode<S: Simd, const K: usize, const WIDE: bool>(
    simd: S,
    group: GroupWords<'_>,
    sums: &mut Sums,
) {
    let hash = Hash::new(simd, group.state_mask);
    for (vector, sums) in sums.iter_mut().enumerate().take(group.count) {
        for part in 0..S::PARTS {
            let words = vector_words::<S, K>(simd, &group, vector, part);
            positions!(I => {
                simd.store(hash.sums::<K, WIDE>(&words, I), &mut sums[I], part)
            });
        }
    }
}

#[inline(always)]
fn vector_words<S: Simd, const K: usize>(
    simd: S,
    group: &GroupWords<'_>,
    vector: usize,
    part: usize,
) -> HalfWords<S::V> {
    let at = |index: usize| &group.words[index * group.pitch..];
    match group.weights {
        Weights::Rows { half: 0 } => {
            rows_words::<S, K, 0>(simd, at(2 * vector), at(2 * vector + 1), part)
        }
        Weights::Rows { .. } => {
            rows_words::<S, K, 1>(simd, at(2 * vector), at(2 * vector + 1), part)
        }
        Weights::Positions => positions_words::<S, K>(simd, at(group.count - 1 - vector), part),
    }
}

/// `out[m][i] += scale[m, group] * (sum over the group's rows of y(row, i) q(m, row))` for sixteen
/// positions, rows of `out` `pitch` apart; y are the integers of `1mad`.
#[inline(always)]
pub(super) fn scatter<S: Simd>(
    simd: S,
    sums: &Sums,
    x: &Quantized<'_>,
    group: usize,
    out: &mut [f32],
    pitch: usize,
) {
    for m in 0..x.m {
        let acc = match x.group(m, group) {
            [a, b, c, d] => dot_rows(simd, sums, [a, b, c, d]),
            [a, b, c] => dot_rows(simd, sums, [a, b, c]),
            [a, b] => dot_rows(simd, sums, [a, b]),
            [a] => dot_rows(simd, sums, [a]),
            _ => continue,
        };
        let mut totals = [0; HALF];
        simd.fold(&acc, &mut totals);
        let at = m * x.groups() + group;
        let (scale, offset) = (x.scales[at], x.offsets[at]);
        for (out, total) in out[m * pitch..][..HALF].iter_mut().zip(totals) {
            *out += scale * total.wrapping_sub(offset) as f32;
        }
    }
}

/// The sums of N vectors' products at every position, lane by lane.
#[inline(always)]
fn dot_rows<S: Simd, const N: usize>(
    simd: S,
    sums: &Sums,
    quants: [&Lanes<u32>; N],
) -> [S::V; HALF] {
    let mut acc = [simd.splat32(0); HALF];
    // Not by parts outside: sixteen sums and the quants do not fit sixteen registers. A loop, not
    // unrolled: all byte sums would be copied to the stack before the loop over rows of x.
    for (position, acc) in acc.iter_mut().enumerate() {
        for (quants, sums) in quants.iter().zip(sums) {
            for part in 0..S::PARTS {
                let sums = simd.load(&sums[position], part);
                *acc = simd.dot16(*acc, sums, simd.load(quants, part));
            }
        }
    }
    acc
}

/// Adds the products of `count` runs of sixteen rows, the first at vector `first` of x. `acc` are sums
/// of a group, lanes of rows, mod 2^32, for every row of x; at a group's end they are scaled and go to
/// `totals`.
#[inline(always)]
pub(super) fn reduce<S: Simd>(
    simd: S,
    sums: &Sums,
    count: usize,
    x: &Quantized<'_>,
    first: usize,
    acc: &mut [Lanes<u32>],
    totals: &mut [Lanes<f32>],
) {
    let mut done = 0;
    let (fours, rest) = acc.as_chunks_mut::<4>();
    for acc in fours {
        dot_runs(simd, sums, count, x, done, first, acc);
        done += 4;
    }
    for acc in rest {
        dot_runs(simd, sums, count, x, done, first, std::array::from_mut(acc));
        done += 1;
    }
    let end = first + count;
    if end.is_multiple_of(GROUP_VECTORS) || end == x.per_row {
        for (m, (acc, total)) in acc.iter_mut().zip(totals).enumerate() {
            let at = m * x.groups() + first / GROUP_VECTORS;
            let (scale, offset) = (x.scales[at], x.offsets[at]);
            for (acc, total) in acc.0.iter_mut().zip(&mut total.0) {
                *total += scale * (*acc as i32).wrapping_sub(offset) as f32;
                *acc = 0;
            }
        }
    }
}

/// M rows of x from row `m` on; what is decoded is read once for all.
#[inline(always)]
fn dot_runs<S: Simd, const M: usize>(
    simd: S,
    sums: &Sums,
    count: usize,
    x: &Quantized<'_>,
    m: usize,
    first: usize,
    acc: &mut [Lanes<u32>; M],
) {
    let mut quants = [&x.vectors[..0]; M];
    for (i, quants) in quants.iter_mut().enumerate() {
        *quants = &x.vectors[(m + i) * x.per_row + first..][..count.min(GROUP_VECTORS)];
    }
    for part in 0..S::PARTS {
        // Several chains, since each would wait for itself.
        let mut even = [simd.splat32(0); M];
        let mut odd = [simd.splat32(0); M];
        for (vector, sums) in sums.iter().enumerate().take(quants[0].len()) {
            positions!(I => {
                let sums = simd.load(&sums[I], part);
                let chains = if I.is_multiple_of(2) { &mut even } else { &mut odd };
                for (chain, quants) in chains.iter_mut().zip(&quants) {
                    *chain = simd.dot16(*chain, sums, simd.splat32(quants[vector].0[I]));
                }
            });
        }
        for ((acc, even), odd) in acc.iter_mut().zip(even).zip(odd) {
            let sum = simd.add32(simd.load(acc, part), simd.add32(even, odd));
            simd.store(sum, acc, part);
        }
    }
}
