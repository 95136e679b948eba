//! The Viterbi encoder with tail-biting (QTIP, Algorithm 4).
//!
//! The metric of state n at step t is `best[t-1][n >> K] + v (2x - v)`, to be maximised; the best of
//! the `2^K` predecessors of n depends only on `n >> K`, so a step keeps one array
//! `best[t][j] = max over m of metric(j + m 2^(L-K))` and nothing a state. No back-pointers are
//! stored: the one path is found again from `best`, with the same arithmetic. Ties go to the
//! smallest j, then the smallest m, on every machine. In what follows j is the *class* of a state and m
//! the *branch* that leads to it.

mod forward;
mod lanes;
mod table;
mod trace;

use crate::{CodecError, Trellis};
use forward::forward;
use lanes::{Lanes, Portable};
use std::cell::RefCell;
use table::Table;
use trace::Trace;

/// Passes below which a walk is not tail-biting.
pub const MIN_PASSES: usize = 2;

/// Blocks that are coded together, sharing each load of the code's values: their metrics and these
/// values fit the first level of cache at L = 12, K >= 3.
const BATCH: usize = 2;

/// Encodes blocks of one trellis. Immutable and shared between threads.
#[derive(Debug, Clone)]
pub struct BlockEncoder {
    trellis: Trellis,
    values: Vec<f32>,
    table: Table,
    passes: usize,
}

/// Working memory of a pass over a batch.
#[derive(Debug, Default)]
struct Scratch {
    /// Best metrics before the first and after every step, `[step][block][class]`.
    best: Vec<f32>,
    /// Doubled inputs, `[step][block]`.
    doubled: Vec<f32>,
}

thread_local! {
    /// Kept, because rows are often coded one at a time: what is allocated anew must be zeroed by the
    /// kernel first, page by page.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
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
        let values = trellis.values();
        let table = Table::new(&trellis, &values);
        Ok(Self { trellis, values, table, passes })
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
        SCRATCH.with_borrow_mut(|scratch| self.encode_batches(scratch, x, states));
        Ok(())
    }

    fn encode_batches(&self, scratch: &mut Scratch, x: &[f32], states: &mut [u16]) {
        let t = self.trellis.block_len();
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

    /// One Viterbi pass over N blocks, each rotated right by `shift`; `states` come back unrotated. The same
    /// code is compiled once per instruction set, and its operations are the same, so results are equal.
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
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
                // SAFETY: the features that the function was compiled for were just detected.
                return unsafe { self.pass_avx512::<N>(scratch, shift, seams, states) };
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                // SAFETY: as above.
                return unsafe { self.pass_avx2::<N>(scratch, shift, seams, states) };
            }
        }
        #[cfg(target_arch = "aarch64")]
        return self.pass_on::<_, N, 8>(lanes::neon::Neon, scratch, shift, seams, states);
        #[cfg(not(target_arch = "aarch64"))]
        self.pass_on::<_, N, 4>(Portable, scratch, shift, seams, states);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx2,fma")]
    fn pass_avx512<const N: usize>(
        &self,
        scratch: &mut Scratch,
        shift: usize,
        seams: Seams,
        states: &mut [u16],
    ) {
        // SAFETY: this function runs only where the features are.
        let lanes = unsafe { lanes::x86::Avx512::new() };
        self.pass_on::<_, N, 2>(lanes, scratch, shift, seams, states);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn pass_avx2<const N: usize>(
        &self,
        scratch: &mut Scratch,
        shift: usize,
        seams: Seams,
        states: &mut [u16],
    ) {
        // SAFETY: this function runs only where the features are.
        let lanes = unsafe { lanes::x86::Avx2::new() };
        self.pass_on::<_, N, 4>(lanes, scratch, shift, seams, states);
    }

    /// G vectors of S make a tile.
    #[inline(always)]
    fn pass_on<S: Lanes, const N: usize, const G: usize>(
        &self,
        lanes: S,
        scratch: &mut Scratch,
        shift: usize,
        seams: Seams,
        states: &mut [u16],
    ) {
        let t = self.trellis.block_len();
        let Scratch { best, doubled } = scratch;
        forward::<S, N, G>(lanes, &self.trellis, &self.table, doubled, seams, best);
        for (block, states) in states.chunks_exact_mut(t).enumerate() {
            let trace = Trace { table: &self.table, best, x2: doubled, blocks: N, block };
            trace.path(seams.map(|seams| seams[block]), |step, state| {
                states[(step + t - shift) % t] = state;
            });
        }
    }
}

/// Path metric of a state: `before + v (2x - v)`, that is `before + x^2 - (x - v)^2`.
#[inline(always)]
pub(crate) fn metric(value: f32, x2: f32, before: f32) -> f32 {
    value.mul_add(x2 - value, before)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    /// The arrays stand for machines whose vectors are not written out.
    #[test]
    fn arrays_find_the_walks_that_vectors_find() {
        for (state_bits, bits) in [(12, 1), (12, 2), (12, 3), (12, 4), (12, 6), (12, 8), (8, 5)] {
            let trellis = Trellis::new(Code::OneMad, state_bits, bits, 64).unwrap();
            let encoder = BlockEncoder::new(trellis, 2).unwrap();
            let x: Vec<f32> = (0..128u32).map(|i| (i as f32 * 0.7).sin() * 2.0).collect();
            let (mut scratch, mut states, mut expected) = (Scratch::default(), [0; 128], [0; 128]);
            for (shift, seams) in [(32, None), (0, Some([5, 2].as_slice()))] {
                encoder.pass::<2>(&mut scratch, &x, shift, seams, &mut expected);
                encoder.pass_on::<_, 2, 4>(Portable, &mut scratch, shift, seams, &mut states);
                assert_eq!(states, expected, "L {state_bits} K {bits}");
            }
        }
    }
}
