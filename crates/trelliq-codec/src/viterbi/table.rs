//! The code's values in the order in which a pass reads them.

use crate::Trellis;

/// Classes that a step takes at a time, where their number allows it.
pub(super) const TILE: usize = 32;

/// As [`TILE`], for trellises of few classes.
pub(super) const SMALL_TILE: usize = 8;

/// Values of all states, `[tile][branch][class of the tile]`.
#[derive(Debug, Clone)]
pub(super) struct Table {
    tiled: Vec<f32>,
    pub bits: u32,
    pub classes: usize,
    /// Classes of a tile: [`TILE`], [`SMALL_TILE`], or 1 where there are fewer still.
    pub width: usize,
}

impl Table {
    /// `values` has one value a state.
    pub(super) fn new(trellis: &Trellis, values: &[f32]) -> Self {
        let bits = trellis.bits();
        let classes = values.len() >> bits;
        let widths = [TILE, SMALL_TILE];
        let width = widths.into_iter().find(|&width| classes >= width).unwrap_or(1);
        let mut tiled = Vec::with_capacity(values.len());
        for tile in 0..classes / width {
            for branch in 0..1 << bits {
                let first = branch * classes + tile * width;
                tiled.extend_from_slice(&values[first..first + width]);
            }
        }
        Self { tiled, bits, classes, width }
    }

    /// Tile by tile, `[branch][class of the tile]`.
    #[inline(always)]
    pub(super) fn tiles(&self) -> impl Iterator<Item = &[f32]> {
        self.tiled.chunks_exact(self.width << self.bits)
    }

    /// The values of the states of a class, `width` apart, branch by branch.
    #[inline(always)]
    pub(super) fn values(&self, class: usize) -> &[f32] {
        let (tile, lane) = (class / self.width, class % self.width);
        &self.tiled[((tile * self.width) << self.bits) + lane..]
    }

    /// The class of the states before the state of this class and branch.
    #[inline(always)]
    pub(super) fn predecessor(&self, class: usize, branch: usize) -> usize {
        (branch * self.classes + class) >> self.bits
    }
}
