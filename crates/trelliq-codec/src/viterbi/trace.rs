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
        let mut class = seam.unwrap_or_else(|| first_max(self.metrics(steps)));
        for step in (0..steps).rev() {
            let (before, x2) = (self.metrics(step), self.x2[step * self.blocks + self.block]);
            let best = self.metrics(step + 1)[class];
            // A loop: the closures of iterators are not always compiled for the instruction set.
            let (mut branch, values) = (0, self.table.values(class));
            for candidate in 0..1 << self.table.bits {
                let from = self.table.predecessor(class, candidate);
                if metric(values[candidate * self.table.width], x2, before[from]) == best {
                    branch = candidate;
                    break;
                }
            }
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

/// Index of the first of the greatest metrics.
fn first_max(metrics: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, &metric) in metrics.iter().enumerate() {
        if metric > best.1 {
            best = (index, metric);
        }
    }
    best.0
}
