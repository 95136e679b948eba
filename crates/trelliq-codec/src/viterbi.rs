//! The Viterbi encoder with tail-biting (QTIP, Algorithm 4).
//!
//! The metric of state n at step t is `best[t-1][n >> K] + v (2x - v)`, to be maximised; the best of
//! the `2^K` predecessors of n depends only on `n >> K`, so a step keeps one array
//! `best[t][j] = max over m of metric(j + m 2^(L-K))` and nothing a state. No back-pointers are
//! stored: the one path is found again from `best`, with the same arithmetic. Ties go to the
//! smallest j, then the smallest m, on every machine.

use crate::{CodecError, Trellis};

/// Passes below which a walk is not tail-biting.
pub const MIN_PASSES: usize = 2;

/// Blocks that are coded together, sharing each load of the code's values.
const BATCH: usize = 4;

/// Encodes blocks of one trellis. Immutable and shared between threads; [`Scratch`] is per thread.
#[derive(Debug, Clone)]
pub struct BlockEncoder {
    trellis: Trellis,
    values: Vec<f32>,
    passes: usize,
}

/// Working memory of one thread: `best` of all steps of a batch, and the doubled inputs.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    best: Vec<f32>,
    expanded: Vec<f32>,
    doubled: Vec<f32>,
}

/// The forced overlap at the seam of each block of a batch, or none for a free pass.
type Seams<'a> = Option<&'a [usize]>;

impl BlockEncoder {
    /// `passes` is 2 for Algorithm 4; each further pass moves the seam half a block and codes again
    /// under the overlap found so far, which never raises the error.
    pub fn new(trellis: Trellis, passes: usize) -> Result<Self, CodecError> {
        if passes < MIN_PASSES {
            return Err(CodecError::Passes(passes));
        }
        Ok(Self { trellis, values: trellis.values(), passes })
    }

    pub fn trellis(&self) -> &Trellis {
        &self.trellis
    }

    /// The values of all `2^L` states.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Codes whole blocks: `x` and `states` have the same length, a multiple of T. `x` must be
    /// finite and already divided by its scale.
    pub fn encode(&self, x: &[f32], states: &mut [u16]) -> Result<(), CodecError> {
        self.encode_with(&mut Scratch::default(), x, states)
    }

    pub(crate) fn encode_with(
        &self,
        scratch: &mut Scratch,
        x: &[f32],
        states: &mut [u16],
    ) -> Result<(), CodecError> {
        let t = self.trellis.block_len();
        if !x.len().is_multiple_of(t) {
            return Err(CodecError::RowLen { cols: x.len(), block_len: t });
        }
        if states.len() != x.len() {
            return Err(CodecError::Length {
                what: "states",
                found: states.len(),
                expected: x.len(),
            });
        }
        let batches = x.chunks(BATCH * t).zip(states.chunks_mut(BATCH * t));
        for (x, states) in batches {
            if x.len() == BATCH * t {
                self.encode_batch::<BATCH>(scratch, x, states);
            } else {
                for (x, states) in x.chunks_exact(t).zip(states.chunks_exact_mut(t)) {
                    self.encode_batch::<1>(scratch, x, states);
                }
            }
        }
        Ok(())
    }

    fn encode_batch<const N: usize>(&self, scratch: &mut Scratch, x: &[f32], states: &mut [u16]) {
        let t = self.trellis.block_len();
        let half = t / 2;
        let mut seams = [0usize; N];
        // A free pass over the block rotated right by half finds the overlap at original t = 0.
        self.pass::<N>(scratch, x, half, None, states);
        for pass in 1..self.passes {
            // The seam lies before original position 0 in odd passes, before T - half in even ones.
            let shift = if pass % 2 == 1 { 0 } else { half };
            let first = (t - shift) % t;
            for (seam, states) in seams.iter_mut().zip(states.chunks_exact(t)) {
                *seam = usize::from(states[first]) >> self.trellis.bits();
            }
            self.pass::<N>(scratch, x, shift, Some(&seams), states);
        }
    }

    /// One Viterbi pass over N blocks, each rotated right by `shift`; `states` come back unrotated.
    fn pass<const N: usize>(
        &self,
        scratch: &mut Scratch,
        x: &[f32],
        shift: usize,
        seams: Seams,
        states: &mut [u16],
    ) {
        let t = self.trellis.block_len();
        scratch.doubled.clear();
        for step in 0..t {
            let position = (step + t - shift) % t;
            scratch.doubled.extend((0..N).map(|b| 2.0 * x[b * t + position]));
        }
        forward::<N>(&self.trellis, &self.values, scratch, seams);
        for block in 0..N {
            let seam = seams.map(|s| s[block]);
            self.trace::<N>(scratch, block, shift, seam, &mut states[block * t..(block + 1) * t]);
        }
    }

    /// Finds the best path again, last step first.
    fn trace<const N: usize>(
        &self,
        scratch: &Scratch,
        block: usize,
        shift: usize,
        seam: Option<usize>,
        states: &mut [u16],
    ) {
        let t = self.trellis.block_len();
        let classes = 1usize << (self.trellis.state_bits() - self.trellis.bits());
        let best = |step: usize| {
            let start = (step * N + block) * classes;
            &scratch.best[start..start + classes]
        };
        let mut class = seam.unwrap_or_else(|| first_max(best(t).iter().copied()));
        for step in (0..t).rev() {
            let (before, x2) = (best(step), scratch.doubled[step * N + block]);
            let metrics = (0..1usize << self.trellis.bits()).map(|m| {
                let n = class + m * classes;
                metric(self.values[n], x2, before[n >> self.trellis.bits()])
            });
            let state = class + first_max(metrics) * classes;
            states[(step + t - shift) % t] = state as u16;
            class = state >> self.trellis.bits();
        }
    }
}

/// Index of the first of the greatest elements.
fn first_max(items: impl Iterator<Item = f32>) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (index, item) in items.enumerate() {
        if item > best.1 {
            best = (index, item);
        }
    }
    best.0
}

/// Path metric of a state: `before + v (2x - v)`, that is `before + x^2 - (x - v)^2`.
#[inline(always)]
pub(crate) fn metric(value: f32, x2: f32, before: f32) -> f32 {
    value.mul_add(x2 - value, before)
}

/// Fills `scratch.best[step + 1]` for all steps, on the widest vectors that the machine has. The
/// same Rust is compiled once per instruction set; every step is elementwise, so results are equal.
fn forward<const N: usize>(trellis: &Trellis, values: &[f32], scratch: &mut Scratch, seams: Seams) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the features that the function was compiled for were just detected.
            return unsafe { forward_avx512::<N>(trellis, values, scratch, seams) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { forward_avx2::<N>(trellis, values, scratch, seams) };
        }
    }
    forward_portable::<N>(trellis, values, scratch, seams);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx2,fma")]
fn forward_avx512<const N: usize>(
    trellis: &Trellis,
    values: &[f32],
    scratch: &mut Scratch,
    seams: Seams,
) {
    forward_portable::<N>(trellis, values, scratch, seams);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn forward_avx2<const N: usize>(
    trellis: &Trellis,
    values: &[f32],
    scratch: &mut Scratch,
    seams: Seams,
) {
    forward_portable::<N>(trellis, values, scratch, seams);
}

#[inline(always)]
fn forward_portable<const N: usize>(
    trellis: &Trellis,
    values: &[f32],
    scratch: &mut Scratch,
    seams: Seams,
) {
    let (bits, steps) = (trellis.bits(), trellis.block_len());
    let classes = 1usize << (trellis.state_bits() - bits);
    let row = N * classes;
    scratch.best.resize((steps + 1) * row, 0.0);
    init::<N>(&mut scratch.best[..row], classes, seams);
    // States with one predecessor class form runs of `run` contiguous j.
    let run = classes.min(1 << bits);
    for step in 0..steps {
        let (before, after) = scratch.best[step * row..(step + 2) * row].split_at_mut(row);
        let x2: [f32; N] = std::array::from_fn(|b| scratch.doubled[step * N + b]);
        if run.is_multiple_of(16) {
            step_runs::<N, 16>(values, bits, classes, run, &x2, before, after);
        } else if run == 8 {
            step_runs::<N, 8>(values, bits, classes, run, &x2, before, after);
        } else {
            step_expanded::<N>(values, bits, classes, &x2, before, after, &mut scratch.expanded);
        }
    }
}

/// All classes start equal, or only the forced one can start.
#[inline(always)]
fn init<const N: usize>(best: &mut [f32], classes: usize, seams: Seams) {
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

/// One step where runs of W or more states share their predecessor class.
#[inline(always)]
fn step_runs<const N: usize, const W: usize>(
    values: &[f32],
    bits: u32,
    classes: usize,
    run: usize,
    x2: &[f32; N],
    before: &[f32],
    after: &mut [f32],
) {
    for j in (0..classes).step_by(W) {
        let mut acc = [[f32::NEG_INFINITY; W]; N];
        for m in 0..1usize << bits {
            let n = m * classes + j;
            let v: &[f32; W] = values[n..n + W].try_into().expect("W values");
            for b in 0..N {
                let base = before[b * classes + (n >> bits)];
                for lane in 0..W {
                    let candidate = metric(v[lane], x2[b], base);
                    let kept = acc[b][lane];
                    acc[b][lane] = if candidate > kept { candidate } else { kept };
                }
            }
        }
        for b in 0..N {
            after[b * classes + j..b * classes + j + W].copy_from_slice(&acc[b]);
        }
    }
    debug_assert!(run.is_multiple_of(W));
}

/// One step where runs are short: the predecessor metrics are first repeated, one a state.
#[inline(always)]
fn step_expanded<const N: usize>(
    values: &[f32],
    bits: u32,
    classes: usize,
    x2: &[f32; N],
    before: &[f32],
    after: &mut [f32],
    expanded: &mut Vec<f32>,
) {
    expanded.resize(values.len(), 0.0);
    for b in 0..N {
        let before = &before[b * classes..(b + 1) * classes];
        match bits {
            1 => expand::<2>(before, expanded),
            2 => expand::<4>(before, expanded),
            _ => expanded.iter_mut().enumerate().for_each(|(n, e)| *e = before[n >> bits]),
        }
        let after = &mut after[b * classes..(b + 1) * classes];
        if classes.is_multiple_of(EXPANDED_LANES) {
            keep_best(values, expanded, classes, x2[b], after);
            continue;
        }
        after.fill(f32::NEG_INFINITY);
        for (v, e) in values.chunks_exact(classes).zip(expanded.chunks_exact(classes)) {
            for ((kept, &v), &e) in after.iter_mut().zip(v).zip(e) {
                let candidate = metric(v, x2[b], e);
                *kept = if candidate > *kept { candidate } else { *kept };
            }
        }
    }
}

/// States of a class set whose best metrics are kept in registers over all branches.
const EXPANDED_LANES: usize = 16;

/// `after[j] <- ` the best metric of the states `j + m classes`. Lanes are arrays: slices that are zipped
/// are not vectorised for AVX2, where this loop then took seven times as long.
#[inline(always)]
fn keep_best(values: &[f32], before: &[f32], classes: usize, x2: f32, after: &mut [f32]) {
    let (after, _) = after.as_chunks_mut::<EXPANDED_LANES>();
    for (index, after) in after.iter_mut().enumerate() {
        let mut acc = [f32::NEG_INFINITY; EXPANDED_LANES];
        for n in (index * EXPANDED_LANES..values.len()).step_by(classes) {
            let lanes = n..n + EXPANDED_LANES;
            let v: &[f32; EXPANDED_LANES] = values[lanes.clone()].try_into().expect("16 values");
            let e: &[f32; EXPANDED_LANES] = before[lanes].try_into().expect("16 metrics");
            for lane in 0..EXPANDED_LANES {
                let candidate = metric(v[lane], x2, e[lane]);
                acc[lane] = if candidate > acc[lane] { candidate } else { acc[lane] };
            }
        }
        *after = acc;
    }
}

#[inline(always)]
fn expand<const R: usize>(before: &[f32], expanded: &mut [f32]) {
    for (copies, &base) in expanded.chunks_exact_mut(R).zip(before) {
        copies.fill(base);
    }
}
