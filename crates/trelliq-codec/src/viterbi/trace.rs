//! The path of a pass, found again from its best metrics.

use super::metric;
use super::table::Table;

/// What a forward pass over a batch left behind, and which block of it is asked for.
pub(super) struct Trace<'a> {
    pub table: &'a Table,
    /// `[step][block][class]`, one step more than there are inputs.
    pub best: &'a [f32],
    /// Doubled inputs, `[step][block]`.
    pub x2: &'a [f32],
    pub blocks: usize,
    pub block: usize,
}

impl Trace<'_> {
    /// Hands the steps and states of the best path to `put`, last step first. The path ends in the class
    /// `seam`, or in the best of all.
    #[inline(always)]
    pub(super) fn path(&self, seam: Option<usize>, mut put: impl FnMut(usize, u16)) {
        let steps = self.x2.len() / self.blocks;
        let last = self.metrics(steps).iter().copied();
        let mut class = seam.unwrap_or_else(|| first_max(last));
        for step in (0..steps).rev() {
            let (before, x2) = (self.metrics(step), self.x2[step * self.blocks + self.block]);
            let states = self.table.branches(class);
            let branch = first_max(states.map(|(v, from)| metric(v, x2, before[from])));
            put(step, (class + branch * self.table.classes) as u16);
            class = self.table.predecessor(class, branch);
        }
    }

    #[inline(always)]
    fn metrics(&self, step: usize) -> &[f32] {
        let start = (step * self.blocks + self.block) * self.table.classes;
        &self.best[start..start + self.table.classes]
    }
}

/// Index of the first of the greatest elements.
#[inline(always)]
fn first_max(items: impl Iterator<Item = f32>) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, item) in items.enumerate() {
        if item > best.1 {
            best = (index, item);
        }
    }
    best.0
}
