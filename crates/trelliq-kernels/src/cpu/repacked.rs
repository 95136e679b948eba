//! Packed words in the order in which the kernels read them.
//!
//! In the format a stored row lies by itself, and sixteen rows must be brought side by side before
//! lanes can work on them. A copy that has them so costs memory, and saves that work at every product.

use super::kernels::kernels;
use super::lanes::{LANES, Lanes};
use super::quantized::GROUP;
use crate::{Axis, PackedMatrix};
use rayon::prelude::*;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use trelliq_codec::Trellis;

/// The words of sets of sixteen stored rows, a lane a row: `[groups, blocks, sets, words + 1]`. A
/// block ends with its first word again, because the ring closes there. A group has the sets of
/// [`GROUP`] rows for scatter, which adds their products up, and one set for reduce, which goes along
/// rows. Rows past the last repeat it.
#[derive(Clone)]
pub(crate) struct Repacked {
    order: Order,
    words: Arc<Vec<Lanes<u32>>>,
}

/// Where things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Order {
    /// Words of a block and its first word again.
    words: usize,
    /// Blocks a row.
    blocks: usize,
    /// Sets of sixteen rows, and how many a whole group has.
    sets: usize,
    together: usize,
}

impl Order {
    fn new(trellis: &Trellis, axis: Axis, rows: usize, cols: usize) -> Self {
        // The integer scatter takes two sets a vector.
        let (together, unit) = if axis == Axis::Out { (GROUP / LANES, 2) } else { (1, 1) };
        Self {
            words: trellis.words_per_block() + 1,
            blocks: cols / trellis.block_len(),
            sets: rows.div_ceil(unit * LANES) * unit,
            together,
        }
    }

    fn len(&self) -> usize {
        self.sets * self.blocks * self.words
    }

    /// Where block `block` of set `set` starts.
    fn start(&self, set: usize, block: usize) -> usize {
        let first = set / self.together * self.together;
        let here = self.together.min(self.sets - first);
        (first * self.blocks + block * here + set - first) * self.words
    }
}

impl fmt::Debug for Repacked {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Repacked").field("order", &self.order).finish_non_exhaustive()
    }
}

impl Repacked {
    /// Copies on the current rayon pool.
    pub fn new(matrix: &PackedMatrix) -> Self {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let order = Order::new(matrix.trellis(), matrix.axis(), rows, cols);
        let mut words = vec![Lanes::default(); order.len()];
        let group = order.together * order.blocks * order.words;
        if group > 0 {
            words.par_chunks_mut(group).enumerate().for_each(|(index, words)| {
                copy_group(matrix, &order, index * order.together, words);
            });
        }
        Self { order, words: Arc::new(words) }
    }

    /// Block `block` of `count` sets, the first of which starts with stored row `first`, one after the
    /// other; `None` where they do not lie so.
    pub(super) fn sets(&self, first: usize, count: usize, block: usize) -> Option<&[Lanes<u32>]> {
        let order = &self.order;
        let set = first / LANES;
        let fits = set % order.together + count <= order.together || count == 1;
        if !first.is_multiple_of(LANES) || !fits {
            return None;
        }
        let start = order.start(set, block);
        Some(&self.words[start..start + count * order.words])
    }
}

impl Repacked {
    /// What is to be asked for when block `block` of `rows`, part of one group, comes next: their
    /// share of that block of the group. Nothing past the last row.
    pub(super) fn share(&self, rows: Range<usize>, block: usize) -> &[Lanes<u32>] {
        let order = &self.order;
        let set = rows.start / LANES;
        if set >= order.sets || block >= order.blocks {
            return &[];
        }
        let first = set / order.together * order.together;
        let here = order.together.min(order.sets - first);
        let start = order.start(first, block);
        let words = &self.words[start..start + here * order.words];
        let at =
            |row: usize| ((row - first * LANES) * words.len() / (here * LANES)).min(words.len());
        &words[at(rows.start)..at(rows.end)]
    }
}

/// All blocks of the sets of one group, which starts at `set`.
fn copy_group(matrix: &PackedMatrix, order: &Order, set: usize, out: &mut [Lanes<u32>]) {
    let kernels = kernels(None);
    let (here, count) = (order.together.min(order.sets - set), order.words - 1);
    for (index, out) in out.chunks_exact_mut(order.words).enumerate() {
        let (block, first) = (index / here, (set + index % here) * LANES);
        let rows = std::array::from_fn(|lane| {
            let row = (first + lane).min(matrix.rows() - 1);
            &matrix.row_words(row)[block * count..][..count]
        });
        kernels.transpose(&rows, &mut out[..count]);
        out[count] = out[0];
    }
}

/// Bytes of the copy of a matrix of `rows` stored rows of `cols` weights.
pub(crate) fn bytes(trellis: &Trellis, axis: Axis, rows: usize, cols: usize) -> usize {
    Order::new(trellis, axis, rows, cols).len() * size_of::<Lanes<u32>>()
}
