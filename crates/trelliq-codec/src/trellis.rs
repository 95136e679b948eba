//! The parameters of a coded tensor, checked once.

use crate::{Code, CodecError};
use std::ops::RangeInclusive;

/// Legal numbers of bits a state (L).
pub const STATE_BITS: RangeInclusive<u32> = 4..=16;
/// Legal numbers of stored bits a weight (K), further bounded by K < L.
pub const BITS: RangeInclusive<u32> = 1..=8;

/// A code and a trellis geometry that are known to fit each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Trellis {
    code: Code,
    state_bits: u32,
    bits: u32,
    block_len: usize,
}

impl Trellis {
    /// Checks `state_bits` (L, 4..=16), `bits` (K, 1..=8 and below L) and `block_len` (T, weights a
    /// tail-biting block: `T * K` a multiple of 32 and at least L).
    pub fn new(
        code: Code,
        state_bits: u32,
        bits: u32,
        block_len: usize,
    ) -> Result<Self, CodecError> {
        if !STATE_BITS.contains(&state_bits) {
            return Err(CodecError::StateBits(state_bits));
        }
        if !BITS.contains(&bits) || bits >= state_bits {
            return Err(CodecError::Bits { bits, state_bits });
        }
        match block_len.checked_mul(bits as usize) {
            Some(total) if total % 32 == 0 && total >= state_bits as usize => {}
            _ => {
                return Err(CodecError::BlockLen { block_len, bits, state_bits });
            }
        }
        Ok(Self { code, state_bits, bits, block_len })
    }

    pub fn code(&self) -> Code {
        self.code
    }

    /// L: bits of a state.
    pub fn state_bits(&self) -> u32 {
        self.state_bits
    }

    /// K: stored bits a weight.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// T: weights a block.
    pub fn block_len(&self) -> usize {
        self.block_len
    }

    /// u32 words a packed block: `T * K / 32`.
    pub fn words_per_block(&self) -> usize {
        self.block_len * self.bits as usize / 32
    }

    /// u32 words a packed row of `cols` weights, or an error when blocks do not divide the row.
    pub fn words_per_row(&self, cols: usize) -> Result<usize, CodecError> {
        if cols == 0 || !cols.is_multiple_of(self.block_len) {
            return Err(CodecError::RowLen { cols, block_len: self.block_len });
        }
        Ok(cols / self.block_len * self.words_per_block())
    }

    /// The values of all `2^L` states.
    pub fn values(&self) -> Vec<f32> {
        crate::code_values(self.code, self.state_bits)
    }

    /// `2^L - 1`.
    pub fn state_mask(&self) -> u32 {
        (1 << self.state_bits) - 1
    }

    /// The block length that suits rows of `cols` weights: the divisor of `cols` nearest to 256
    /// within 32..=512 (the longer of two equally near) that fills whole words at `bits`.
    /// Multiples of 32 come first, since only they let kernels use fixed shifts.
    pub fn choose_block_len(cols: usize, bits: u32) -> Option<usize> {
        let legal = |t: &usize| cols.is_multiple_of(*t) && (t * bits as usize).is_multiple_of(32);
        let best = |step: usize| {
            (32..=512).step_by(step).filter(legal).min_by_key(|&t| (t.abs_diff(256), 512 - t))
        };
        if cols == 0 { None } else { best(32).or_else(|| best(1)) }
    }
}
