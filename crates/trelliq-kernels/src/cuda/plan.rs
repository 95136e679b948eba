//! Which kernel runs, and how its work is dealt to the GPU.

use crate::{Axis, Numerics};

/// 8-bit terms that an activation is split into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Terms {
    /// About 16 bits under one step per row and part of the inputs: relative error of a product 1e-4 at
    /// most, 3e-5 for Gaussian activations.
    #[default]
    Two = 2,
    /// About 24 bits: relative error 1e-6, at a cost from 5 rows on.
    Three = 3,
}

/// Choices of kernels; read at every call.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaOptions {
    /// How a decoded weight is rounded. `Exact` leaves the integer kernels for slower ones.
    pub numerics: Numerics,
    pub terms: Terms,
    /// Rows of x (M) from which the tensor is expanded and given to cuBLAS.
    pub expand_from: usize,
    /// Whether products of expanded tensors round f32 operands to 11 significant bits (TF32): several
    /// times the rate, at a relative error of about 3e-4.
    pub tf32: bool,
    /// Whether a kernel may start while the one before it on the stream ends.
    pub overlap: bool,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            numerics: Numerics::Fast,
            terms: Terms::Two,
            expand_from: 17,
            tf32: false,
            overlap: true,
        }
    }
}

/// A launch of an integer kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows of x that the kernel is compiled for.
    pub rows: u32,
    /// Columns of a product that they take.
    pub columns: u32,
    pub warps: u32,
    pub stages: u32,
    pub blocks: u32,
    /// Parts that the inputs are cut into.
    pub chunks: u32,
    /// Groups of outputs that a block touches at most.
    pub segments: u32,
    pub shared: u32,
    /// Whether x is quantized by a kernel before, once for all blocks.
    pub quantized_before: bool,
    /// Floats of partial sums.
    pub partial: usize,
}

/// What a plan is made for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub axis: Axis,
    pub bits: u32,
    pub unit_words: u32,
    /// Units along the inputs a group of outputs, and groups.
    pub inner: u32,
    pub groups: u32,
    pub m: u32,
    pub terms: Terms,
    pub processors: u32,
    pub shared_bytes: u32,
}

/// Units along the inputs in one sum, so that it fits 32 bits: 510 * 127 * 32768 < 2^31.
const SCATTER_UNITS: u32 = 32768 / 8;
const REDUCE_UNITS: u32 = 32768 / 256;

/// Rows that one launch takes at most.
pub(super) fn max_rows(terms: Terms) -> usize {
    match terms {
        Terms::Two => 8,
        Terms::Three => 4,
    }
}

/// Room for what the kernels declare themselves, and what the driver keeps.
const STATIC_SHARED: u32 = 4096;

/// Inputs that a thread quantizes while it waits anyway (BATCH in scatter.cu).
const INPUTS_A_THREAD: u32 = 4;

/// Rounds of such inputs that a thread takes where products are joined.
const JOINED_ROUNDS: u32 = 2;

/// Groups that a block may touch (MAX_SEGMENTS in linear.cuh).
const SEGMENTS: u32 = 64;

/// Plans of products of one row x that run as one launch, every processor taking part of one of them;
/// `None` where they are not of one kind, or have so many units a processor that x is better quantized
/// before.
pub(super) fn joined(works: &[Work]) -> Option<Vec<Plan>> {
    let first = works.first()?;
    let total: u64 = works.iter().map(Work::units).sum();
    let mut left = (first.processors, total);
    let plan = |work: &Work| {
        let share = u64::from(left.0) * work.units() / left.1.max(1);
        let blocks = share.clamp(1, work.units()) as u32;
        left = (left.0.saturating_sub(blocks), left.1 - work.units());
        let plan = work.scatter_by(blocks)?;
        let units = work.units().div_ceil(u64::from(blocks)) as u32;
        let in_rounds = units * 8 <= JOINED_ROUNDS * INPUTS_A_THREAD * 32 * plan.warps;
        (work.axis == Axis::Out && work.m == 1 && in_rounds).then_some(plan)
    };
    works.iter().map(plan).collect()
}

impl Work {
    /// A plan, unless nothing fits the GPU's shared memory.
    pub fn plan(&self) -> Option<Plan> {
        (1..=64).find_map(|waves| match self.axis {
            Axis::Out => self.scatter(waves),
            Axis::In => self.reduce(waves),
        })
    }

    fn rows(&self) -> u32 {
        self.m.next_power_of_two()
    }

    /// Columns of a product: two or four a row.
    fn columns(&self) -> u32 {
        let pairs = if self.terms == Terms::Three { 2 } else { 1 };
        2 * pairs * self.rows()
    }

    fn units(&self) -> u64 {
        u64::from(self.inner) * u64::from(self.groups)
    }

    fn scatter(&self, waves: u32) -> Option<Plan> {
        self.scatter_by(u64::from(self.processors * waves).min(self.units()) as u32)
    }

    fn scatter_by(&self, blocks: u32) -> Option<Plan> {
        let columns = self.columns();
        let sets = columns.div_ceil(8);
        let (warps, stages) = if sets == 1 { (16, 4) } else { (12, 4) };
        let units = self.units().div_ceil(u64::from(blocks)) as u32;
        let segments = units.div_ceil(self.inner) + 1;
        let slot_words = 512 * (columns / 2).min(4);
        let ring = warps * stages * self.unit_words;
        let words =
            u64::from(ring.max(warps * slot_words)) + u64::from((segments - 1) * sets * slot_words);
        let shared = words * 4 + u64::from(units) * u64::from(columns) * 8;
        let fits = shared <= u64::from(self.shared_bytes - STATIC_SHARED)
            && units <= SCATTER_UNITS
            && segments <= SEGMENTS;
        fits.then(|| Plan {
            rows: self.rows(),
            columns,
            warps,
            stages,
            blocks,
            chunks: 1,
            segments,
            shared: shared as u32,
            quantized_before: self.rows() > 1 || units * 8 > INPUTS_A_THREAD * 32 * warps,
            partial: (blocks * segments * self.rows()) as usize * 256,
        })
    }

    fn reduce(&self, waves: u32) -> Option<Plan> {
        (1..=self.inner.min(64)).find_map(|chunks| self.reduce_chunks(waves, chunks))
    }

    fn reduce_chunks(&self, waves: u32, chunks: u32) -> Option<Plan> {
        let columns = self.columns();
        let warps = 16;
        let stages = match self.bits {
            1 | 2 => 4,
            3 | 4 => 3,
            _ => 2,
        };
        let (narrow, wide) = (self.inner / chunks, self.inner.div_ceil(chunks));
        let total = u64::from(self.groups) * u64::from(narrow);
        let share = u64::from((self.processors * waves / chunks).max(1)).min(total) as u32;
        let units = (u64::from(self.groups) * u64::from(wide)).div_ceil(u64::from(share)) as u32;
        let segments = units.div_ceil(narrow) + 1;
        let ring = u64::from(warps * stages * self.unit_words) * 4;
        let sums = u64::from(segments) * 64 * u64::from(columns);
        let totals = u64::from(self.inner / chunks + 1) * u64::from(columns) * 4;
        let x = u64::from(wide) * u64::from(columns) * (1024 + 64);
        let shared = ring + sums + 1024 + totals + 16 + x;
        let fits = shared <= u64::from(self.shared_bytes - STATIC_SHARED) && wide <= REDUCE_UNITS;
        let blocks = share * chunks;
        fits.then(|| Plan {
            rows: self.rows(),
            columns,
            warps,
            stages,
            blocks,
            chunks,
            segments,
            shared: shared as u32,
            quantized_before: true,
            partial: (blocks * segments * self.rows()) as usize * 16,
        })
    }
}
