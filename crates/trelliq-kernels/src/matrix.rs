//! A weight matrix as packed codes and one scale a stored row.

use crate::cpu::{Repacked, repacked_bytes};
use crate::{KernelError, Words};
use half::bf16;
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};
use trelliq_codec::{Code, Trellis, code_values, decode_block};

/// The values of a code, made once a process: at L = 16 a table takes 256 KiB, too much a layer.
fn values(code: Code, state_bits: u32) -> &'static [f32] {
    type Tables = HashMap<(Code, u32), &'static [f32]>;
    static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);
    let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
    tables.entry((code, state_bits)).or_insert_with(|| code_values(code, state_bits).leak())
}

/// Which dimension of a layer's weight runs along the coded rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Axis {
    /// Coded along the outputs: stored `[in, out]`, a scale belongs to an input.
    Out = 0,
    /// Coded along the inputs: stored `[out, in]`, a scale belongs to an output.
    In = 1,
}

/// How a decoded weight is rounded (`docs/spec/format.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Numerics {
    /// `f32(value) * f32(scale)`, not rounded.
    #[default]
    Fast,
    /// `bf16(f32(value) * f32(scale))`: what a dense bf16 copy holds.
    Exact,
}

impl Numerics {
    /// A weight from its code's value and its row's scale.
    #[inline(always)]
    pub fn weight(self, value: f32, scale: f32) -> f32 {
        match self {
            Numerics::Fast => value * scale,
            Numerics::Exact => bf16::from_f32(value * scale).to_f32(),
        }
    }
}

/// Packed codes of a weight of `out_features` x `in_features`, row-major over stored rows.
#[derive(Clone, Debug)]
pub struct PackedMatrix {
    trellis: Trellis,
    axis: Axis,
    in_features: usize,
    out_features: usize,
    words: Words,
    scales: Vec<f32>,
    values: &'static [f32],
    repacked: Option<Repacked>,
}

impl PackedMatrix {
    /// `words`: `[rows, cols * K / 32]` row-major, `scales`: `[rows]`, where (rows, cols) is
    /// (in, out) for [`Axis::Out`] and (out, in) for [`Axis::In`].
    ///
    /// Errors when a length disagrees, blocks do not divide a row, or a scale is not finite.
    pub fn new(
        trellis: Trellis,
        axis: Axis,
        in_features: usize,
        out_features: usize,
        words: Words,
        scales: Vec<f32>,
    ) -> Result<Self, KernelError> {
        let values = values(trellis.code(), trellis.state_bits());
        let this = Self {
            trellis,
            axis,
            in_features,
            out_features,
            words,
            scales,
            values,
            repacked: None,
        };
        let expected = trellis.words_per_row(this.cols())? * this.rows();
        if this.words.len() != expected {
            return Err(KernelError::Length { what: "words", found: this.words.len(), expected });
        }
        if this.scales.len() != this.rows() {
            let found = this.scales.len();
            return Err(KernelError::Length { what: "scales", found, expected: this.rows() });
        }
        match this.scales.iter().position(|s| !s.is_finite()) {
            Some(row) => Err(KernelError::NonFiniteScale { row, value: this.scales[row] }),
            None => Ok(this),
        }
    }

    pub fn trellis(&self) -> &Trellis {
        &self.trellis
    }

    pub fn axis(&self) -> Axis {
        self.axis
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Stored rows: inputs for [`Axis::Out`], outputs for [`Axis::In`].
    pub fn rows(&self) -> usize {
        match self.axis {
            Axis::Out => self.in_features,
            Axis::In => self.out_features,
        }
    }

    /// Weights a stored row.
    pub fn cols(&self) -> usize {
        match self.axis {
            Axis::Out => self.out_features,
            Axis::In => self.in_features,
        }
    }

    /// One scale a stored row.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// Copies the words into the order in which the CPU's kernels read them, on the current rayon
    /// pool: products get faster, and take [`repacked_bytes`](Self::repacked_bytes) more memory. The
    /// words themselves stay, for what else reads them; those of a mapped file need no memory then.
    pub fn repack(&mut self) {
        if self.repacked.is_none() {
            self.repacked = Some(Repacked::new(self));
        }
    }

    /// Bytes that [`repack`](Self::repack) takes for `rows` stored rows of `cols` weights: one word in
    /// each block and up to 31 rows more than the words themselves.
    pub fn repacked_bytes(trellis: &Trellis, axis: Axis, rows: usize, cols: usize) -> usize {
        repacked_bytes(trellis, axis, rows, cols)
    }

    pub(crate) fn repacked(&self) -> Option<&Repacked> {
        self.repacked.as_ref()
    }

    /// All packed words.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The packed words of stored row `row`.
    pub fn row_words(&self, row: usize) -> &[u32] {
        let per_row = self.words.len() / self.rows();
        &self.words[row * per_row..(row + 1) * per_row]
    }

    /// The values of all `2^L` states, from a table that layers of one code share.
    pub fn values(&self) -> &'static [f32] {
        self.values
    }

    /// Decodes stored row `row` into `out` (length [`cols`](Self::cols)); `values` are
    /// [`Trellis::values`] of this matrix.
    pub fn decode_row(
        &self,
        row: usize,
        values: &[f32],
        numerics: Numerics,
        out: &mut [f32],
    ) -> Result<(), KernelError> {
        if out.len() != self.cols() {
            let found = out.len();
            return Err(KernelError::Length { what: "out", found, expected: self.cols() });
        }
        let blocks = self.row_words(row).chunks_exact(self.trellis.words_per_block());
        for (block, out) in blocks.zip(out.chunks_exact_mut(self.trellis.block_len())) {
            decode_block(&self.trellis, values, block, out)?;
        }
        for weight in out {
            *weight = numerics.weight(*weight, self.scales[row]);
        }
        Ok(())
    }
}
