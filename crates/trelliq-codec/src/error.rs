use crate::Code;

/// What can be wrong with codec parameters, weights or packed words.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    #[error("state_bits (L) is {0}, it must lie in 4..=16")]
    StateBits(u32),
    #[error("bits (K) is {bits}, it must lie in 1..=8 and below state_bits (L = {state_bits})")]
    Bits { bits: u32, state_bits: u32 },
    #[error(
        "block_len (T) is {block_len}: T * K must be a multiple of 32 and at least L (K = {bits}, L = {state_bits})"
    )]
    BlockLen { block_len: usize, bits: u32, state_bits: u32 },
    #[error("unknown code `{0}`: known codes are 1mad, 3inst and rand")]
    UnknownCode(String),
    #[error("unknown scale rule `{0}`: known rules are baseline, tuned and grid")]
    UnknownScaleRule(String),
    #[error("passes is {0}: a tail-biting walk takes at least 2")]
    Passes(usize),
    #[error("a row of {cols} weights is not a whole number of blocks of {block_len}")]
    RowLen { cols: usize, block_len: usize },
    #[error("{what} has {found} elements, expected {expected}")]
    Length { what: &'static str, found: usize, expected: usize },
    #[error("weight {index} is {value}: only finite weights can be coded")]
    NonFinite { index: usize, value: f32 },
    #[error("row {row} needs a scale of {scale:e}, more than f16 holds (65504)")]
    ScaleOverflow { row: usize, scale: f64 },
    #[error(
        "the interleaved layout needs code 1mad, L = 12, K = 3, T = 256, not {code} L = {state_bits} K = {bits} T = {block_len}"
    )]
    NotInterleavable { code: Code, state_bits: u32, bits: u32, block_len: usize },
}
