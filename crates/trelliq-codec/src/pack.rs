//! Packed bits: time runs backwards inside a block, so that the L-bit window that starts at a
//! weight's symbol, wrapping around the block's end, is its state.

use crate::{CodecError, Trellis};

/// State of weight `t` of a packed block.
///
/// # Panics
/// When `block` is shorter than `trellis.words_per_block()` or `t` is not below `block_len`.
#[inline]
pub fn state_at(trellis: &Trellis, block: &[u32], t: usize) -> u32 {
    let words = trellis.words_per_block();
    let offset = (trellis.block_len() - 1 - t) * trellis.bits() as usize;
    let word = offset / 32;
    let next = if word + 1 == words { 0 } else { word + 1 };
    let window = (u64::from(block[next]) << 32) | u64::from(block[word]);
    (window >> (offset % 32)) as u32 & trellis.state_mask()
}

fn check_len(what: &'static str, found: usize, expected: usize) -> Result<(), CodecError> {
    if found == expected { Ok(()) } else { Err(CodecError::Length { what, found, expected }) }
}

/// Packs the walk `states` (length T) into `words` (length `T * K / 32`); every state's low K bits
/// are its symbol. That the walk obeys the trellis is the caller's part.
pub fn pack_block(trellis: &Trellis, states: &[u16], words: &mut [u32]) -> Result<(), CodecError> {
    check_len("states", states.len(), trellis.block_len())?;
    check_len("words", words.len(), trellis.words_per_block())?;
    let bits = trellis.bits() as usize;
    words.fill(0);
    for (t, &state) in states.iter().enumerate() {
        let symbol = u64::from(state) & ((1 << bits) - 1);
        let offset = (trellis.block_len() - 1 - t) * bits;
        let placed = symbol << (offset % 32);
        words[offset / 32] |= placed as u32;
        if placed >> 32 != 0 {
            words[offset / 32 + 1] |= (placed >> 32) as u32;
        }
    }
    Ok(())
}

/// The walk of a packed block: the inverse of [`pack_block`].
pub fn unpack_block(
    trellis: &Trellis,
    words: &[u32],
    states: &mut [u16],
) -> Result<(), CodecError> {
    check_len("words", words.len(), trellis.words_per_block())?;
    check_len("states", states.len(), trellis.block_len())?;
    for (t, state) in states.iter_mut().enumerate() {
        *state = state_at(trellis, words, t) as u16;
    }
    Ok(())
}

/// Decodes a packed block to unscaled values through `values` (all `2^L` of the code).
pub fn decode_block(
    trellis: &Trellis,
    values: &[f32],
    words: &[u32],
    out: &mut [f32],
) -> Result<(), CodecError> {
    check_len("words", words.len(), trellis.words_per_block())?;
    check_len("out", out.len(), trellis.block_len())?;
    check_len("values", values.len(), 1 << trellis.state_bits())?;
    for (t, value) in out.iter_mut().enumerate() {
        *value = values[state_at(trellis, words, t) as usize];
    }
    Ok(())
}
