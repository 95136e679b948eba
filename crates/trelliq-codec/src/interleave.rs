//! The optional layout `[cols/512, rows, 48]` for K = 3, T = 256, L = 12, `1mad`, axis 0: two coded
//! blocks of a row side by side, groups outermost, so that `out[g][r][w] = codes[r][48 g + w]`.

use crate::{Code, CodecError, Trellis};

/// Words of one group of the interleaved layout: two blocks of 24.
pub const INTERLEAVED_WORDS: usize = 48;

fn groups(trellis: &Trellis, codes: &[u32], rows: usize, cols: usize) -> Result<usize, CodecError> {
    let expected = Trellis::new(Code::OneMad, 12, 3, 256)?;
    if *trellis != expected {
        return Err(CodecError::NotInterleavable {
            code: trellis.code(),
            state_bits: trellis.state_bits(),
            bits: trellis.bits(),
            block_len: trellis.block_len(),
        });
    }
    if cols == 0 || !cols.is_multiple_of(512) {
        return Err(CodecError::RowLen { cols, block_len: 512 });
    }
    let expected = rows * cols / 512 * INTERLEAVED_WORDS;
    if codes.len() != expected {
        return Err(CodecError::Length { what: "codes", found: codes.len(), expected });
    }
    Ok(cols / 512)
}

/// Row-major codes `[rows, cols * 3 / 32]` to `[cols / 512, rows, 48]`.
pub fn interleave(
    trellis: &Trellis,
    codes: &[u32],
    rows: usize,
    cols: usize,
) -> Result<Vec<u32>, CodecError> {
    let groups = groups(trellis, codes, rows, cols)?;
    let mut out = Vec::with_capacity(codes.len());
    for group in 0..groups {
        for row in 0..rows {
            let start = (row * groups + group) * INTERLEAVED_WORDS;
            out.extend_from_slice(&codes[start..start + INTERLEAVED_WORDS]);
        }
    }
    Ok(out)
}

/// The inverse of [`interleave`].
pub fn deinterleave(
    trellis: &Trellis,
    codes: &[u32],
    rows: usize,
    cols: usize,
) -> Result<Vec<u32>, CodecError> {
    let groups = groups(trellis, codes, rows, cols)?;
    let mut out = Vec::with_capacity(codes.len());
    for row in 0..rows {
        for group in 0..groups {
            let start = (group * rows + row) * INTERLEAVED_WORDS;
            out.extend_from_slice(&codes[start..start + INTERLEAVED_WORDS]);
        }
    }
    Ok(out)
}
