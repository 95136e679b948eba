//! Reads groups of sixteen stored rows of a packed matrix.

use super::decode::{States, divisor};
use super::generic::Weighing;
use super::int_kernels::{GroupWords, Sums, Weights};
use super::kernels::{Decoders, IntDecoder, Kernels};
use super::lanes::{LANES, Lanes, RUN, Run};
use super::repacked::Repacked;
use crate::options::sized;
use crate::{Numerics, PackedMatrix};
use std::ops::Range;
use trelliq_codec::Code;

/// A matrix with the kernels that decode it.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub matrix: &'a PackedMatrix,
    pub kernels: &'static Kernels,
    words: &'a [u32],
    repacked: Option<&'a Repacked>,
    words_per_row: usize,
    decoders: Decoders,
    int: IntDecoder,
    states: States<'a>,
    divisor: f32,
}

impl<'a> Reader<'a> {
    pub fn new(matrix: &'a PackedMatrix, kernels: &'static Kernels) -> Self {
        let trellis = matrix.trellis();
        Self {
            matrix,
            kernels,
            words: matrix.words(),
            repacked: matrix.repacked(),
            words_per_row: matrix.words().len() / matrix.rows().max(1),
            decoders: kernels.decoders(trellis),
            int: kernels.int_decoder(trellis),
            states: States { mask: trellis.state_mask(), values: matrix.values() },
            divisor: divisor(trellis.code()),
        }
    }

    /// Blocks a stored row.
    pub fn blocks(&self) -> usize {
        self.matrix.cols() / self.block_len()
    }

    /// T.
    pub fn block_len(&self) -> usize {
        self.matrix.trellis().block_len()
    }

    /// Runs a block; the last is shorter where T is not a multiple of 32.
    pub fn runs(&self) -> usize {
        self.block_len().div_ceil(RUN)
    }

    /// The positions of run `run` of a block.
    pub fn positions(&self, run: usize) -> Range<usize> {
        run * RUN..((run + 1) * RUN).min(self.block_len())
    }

    /// Vectors of a set that [`load`](Self::load) gives: a block and its first word again, because the ring
    /// closes there.
    pub fn loaded_words(&self) -> usize {
        self.matrix.trellis().words_per_block() + 1
    }

    /// Block `block` of `sets` times sixteen rows from `first` on, in lanes, set after set: a repacked
    /// matrix has them so, else they are brought into `buffer`, which grows. Lanes past the last row
    /// repeat it; their scale is 0.
    pub fn load<'b>(
        &'b self,
        first: usize,
        sets: usize,
        block: usize,
        buffer: &'b mut Vec<Lanes<u32>>,
    ) -> &'b [Lanes<u32>] {
        if let Some(words) = self.repacked.and_then(|words| words.sets(first, sets, block)) {
            return words;
        }
        let loaded = self.loaded_words();
        let buffer = sized(buffer, sets * loaded);
        for (set, words) in buffer.chunks_exact_mut(loaded).enumerate() {
            self.transpose(first + set * LANES, block, words);
        }
        buffer
    }

    fn transpose(&self, first: usize, block: usize, words: &mut [Lanes<u32>]) {
        let count = words.len() - 1;
        let rows = std::array::from_fn(|lane| {
            let row = (first + lane).min(self.matrix.rows() - 1);
            &self.words[row * self.words_per_row + block * count..][..count]
        });
        self.kernels.transpose(&rows, &mut words[..count]);
        words[count] = words[0];
    }

    /// Asks for block `block` of `rows`, at most a group of activations, which will be loaded later.
    pub fn prefetch(&self, rows: Range<usize>, block: usize) {
        if let Some(repacked) = self.repacked {
            return prefetch(repacked.share(rows, block));
        }
        let count = self.loaded_words() - 1;
        for row in rows.start..rows.end.min(self.matrix.rows()) {
            prefetch(&self.words[row * self.words_per_row + block * count..][..count]);
        }
    }

    /// Decodes run `run` of a loaded block to the first elements of `out`; gives them back.
    pub fn decode<'o>(
        &self,
        words: &[Lanes<u32>],
        run: usize,
        out: &'o mut Run,
    ) -> &'o mut [Lanes<f32>] {
        let positions = self.positions(run);
        let bits = self.matrix.trellis().bits() as usize;
        let first_bit = (self.block_len() - positions.end) * bits;
        if positions.len() == RUN && first_bit.is_multiple_of(32) {
            self.decoders.run(&words[first_bit / 32..], bits, self.states, out);
        } else {
            let out = &mut out[..positions.len()];
            self.decoders.any(words, first_bit, bits, self.states, out);
        }
        &mut out[..positions.len()]
    }

    /// As [`decode`](Self::decode), and to weights under `weighing` with the scales of the rows from
    /// `first` on.
    pub fn weights<'o>(
        &self,
        words: &[Lanes<u32>],
        run: usize,
        scales: &Lanes<f32>,
        weighing: Weighing,
        out: &'o mut Run,
    ) -> &'o mut [Lanes<f32>] {
        let out = self.decode(words, run, out);
        self.kernels.weigh(out, scales, weighing);
        out
    }

    /// Whether the integer kernels know the code, and runs fill its blocks.
    pub fn has_int(matrix: &PackedMatrix) -> bool {
        matrix.trellis().code() == Code::OneMad && matrix.trellis().block_len().is_multiple_of(RUN)
    }

    /// K.
    pub fn bits(&self) -> usize {
        self.matrix.trellis().bits() as usize
    }

    /// Where run `run` of a loaded block starts, if all runs are whole.
    pub fn run_word(&self, run: usize) -> usize {
        (self.runs() - 1 - run) * self.bits()
    }

    /// Decodes a group of `count` vectors, whose words start at the first of `words`, in the integer
    /// kernels' way.
    pub fn byte_sums(
        &self,
        words: &[Lanes<u32>],
        pitch: usize,
        weights: Weights,
        count: usize,
        sums: &mut Sums,
    ) {
        let state_mask = self.states.mask;
        self.int.decode(GroupWords { words, pitch, state_mask, weights, count }, sums);
    }

    /// The weighing that gives `numerics` to the last bit.
    pub fn weighing(&self, numerics: Numerics) -> Weighing {
        match numerics {
            Numerics::Fast => Weighing::Fast { divisor: self.divisor },
            Numerics::Exact => Weighing::Exact { divisor: self.divisor },
        }
    }

    /// The scales of the rows from `first` on, 0 past the last.
    pub fn scales(&self, first: usize) -> Lanes<f32> {
        let scales = self.matrix.scales();
        Lanes(std::array::from_fn(|lane| scales.get(first + lane).copied().unwrap_or(0.0)))
    }

    /// The factor of row `row` that [`factors`](Self::factors) gives.
    pub fn factor(&self, row: usize) -> f32 {
        self.matrix.scales()[row] / self.divisor
    }

    /// The factors that turn decoded numbers into `fast` weights, but for the rounding.
    pub fn factors(&self, first: usize) -> Lanes<f32> {
        Lanes(self.scales(first).0.map(|scale| scale / self.divisor))
    }
}

/// Brings `words` closer, where the processor has an instruction for that.
#[inline(always)]
fn prefetch<T>(words: &[T]) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = words.as_ptr().cast::<i8>();
        for byte in (0..size_of_val(words)).step_by(64) {
            // SAFETY: SSE is part of x86-64, and a prefetch has no effect but on caches.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(byte)) }
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = words;
}

/// Groups of sixteen rows that start inside `rows`.
pub(super) fn groups(rows: Range<usize>) -> impl Iterator<Item = usize> {
    rows.step_by(LANES)
}
