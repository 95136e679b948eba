//! The forward pass: the best metric of every class after every step.

use super::lanes::{Lanes, Portable};
use super::table::{SMALL_TILE, TILE, Table};
use super::{Seams, metric};
use crate::Trellis;

/// Fills `best`, `[step][block][class]`, for N blocks from their doubled inputs, `[step][block]`.
#[inline(always)]
pub(super) fn forward<S: Lanes, const N: usize, const G: usize>(
    lanes: S,
    trellis: &Trellis,
    table: &Table,
    x2: &[f32],
    seams: Seams,
    best: &mut Vec<f32>,
) {
    const { assert!(S::WIDTH * G == TILE && Portable::WIDTH == SMALL_TILE) };
    let row = N * table.classes;
    best.resize((trellis.block_len() + 1) * row, 0.0);
    init(&mut best[..row], table.classes, seams);
    for (step, x2) in x2.as_chunks::<N>().0.iter().enumerate() {
        let (before, after) = best[step * row..(step + 2) * row].split_at_mut(row);
        let step = Step { table, x2, before };
        match (table.width, table.bits) {
            (TILE, 1) => step.tiles::<S, G, 1>(lanes, after),
            (TILE, 2) => step.tiles::<S, G, 2>(lanes, after),
            (TILE, 3) => step.tiles::<S, G, 3>(lanes, after),
            (TILE, 4) => step.tiles::<S, G, 4>(lanes, after),
            (TILE, _) => step.tiles::<S, G, 5>(lanes, after),
            (SMALL_TILE, 1) => step.tiles::<Portable, 1, 1>(Portable, after),
            (SMALL_TILE, 2) => step.tiles::<Portable, 1, 2>(Portable, after),
            (SMALL_TILE, _) => step.tiles::<Portable, 1, 3>(Portable, after),
            _ => step.classes(after),
        }
    }
}

/// All classes start equal, or only the forced one can start.
fn init(best: &mut [f32], classes: usize, seams: Seams) {
    match seams {
        None => best.fill(0.0),
        Some(seams) => {
            best.fill(f32::NEG_INFINITY);
            for (block, &seam) in seams.iter().enumerate() {
                best[block * classes + seam] = 0.0;
            }
        }
    }
}

/// One step of N blocks.
struct Step<'a, const N: usize> {
    table: &'a Table,
    x2: &'a [f32; N],
    /// `[block][class]`.
    before: &'a [f32],
}

impl<const N: usize> Step<'_, N> {
    /// Fills `after`, `[block][class]`, G vectors of classes at a time. BITS is K, or the least K from
    /// which a tile has but one predecessor class a branch.
    #[inline(always)]
    fn tiles<S: Lanes, const G: usize, const BITS: u32>(&self, lanes: S, after: &mut [f32]) {
        let width = G * S::WIDTH;
        // Where it is known to the compiler, the loop over branches is unrolled.
        let bits = if (1 << BITS) < SMALL_TILE { BITS } else { self.table.bits };
        let classes = self.table.classes;
        let x2 = self.x2.map(|x2| lanes.splat(x2));
        for (tile, values) in self.table.tiles().enumerate() {
            let mut best = [[lanes.splat(f32::NEG_INFINITY); G]; N];
            for branch in 0..1 << bits {
                let values = &values[branch * width..(branch + 1) * width];
                let values: [_; G] = std::array::from_fn(|g| lanes.load(&values[g * S::WIDTH..]));
                let from = (branch * classes + tile * width) >> bits;
                for b in 0..N {
                    let before = &self.before[b * classes + from..][..(width >> BITS).max(1)];
                    for g in 0..G {
                        let before = lanes.spread::<BITS>(&before[(g * S::WIDTH) >> BITS..]);
                        best[b][g] = lanes.step(values[g], x2[b], before, best[b][g]);
                    }
                }
            }
            for b in 0..N {
                let after = &mut after[b * classes + tile * width..][..width];
                for g in 0..G {
                    lanes.store(best[b][g], &mut after[g * S::WIDTH..]);
                }
            }
        }
    }

    /// As `tiles`, class by class.
    #[inline(always)]
    fn classes(&self, after: &mut [f32]) {
        let classes = self.table.classes;
        for (b, after) in after.chunks_exact_mut(classes).enumerate() {
            let before = &self.before[b * classes..(b + 1) * classes];
            for (class, after) in after.iter_mut().enumerate() {
                let values = self.table.values(class);
                *after = f32::NEG_INFINITY;
                for branch in 0..1 << self.table.bits {
                    let before = before[self.table.predecessor(class, branch)];
                    let candidate = metric(values[branch * self.table.width], self.x2[b], before);
                    *after = if candidate > *after { candidate } else { *after };
                }
            }
        }
    }
}
