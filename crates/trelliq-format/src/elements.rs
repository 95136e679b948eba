//! The elements of one stored tensor as f32, by rows.

use crate::gguf::blocks;
use crate::source::{TensorInfo, Transform};
use crate::widen::{narrow, widen};
use crate::{FormatError, TensorType};
use safetensors::Dtype;
use std::ops::Range;

/// Elements that are converted at once where a whole tensor passes through f32.
const CHUNK: usize = 1 << 18;

/// A tensor's stored bytes and what turns them into the model's elements.
pub(crate) struct Elements<'a> {
    pub info: &'a TensorInfo,
    pub bytes: &'a [u8],
    pub transform: Transform,
}

impl Elements<'_> {
    /// Rows of the model's tensor, `out` being exactly as long as they are.
    pub fn read_rows(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), FormatError> {
        let row_len = self.info.row_len();
        match self.transform {
            Transform::Unpermute { head_dim } => {
                for (row, out) in rows.zip(out.chunks_exact_mut(row_len.max(1))) {
                    let start = stored_row(row, head_dim) * row_len;
                    self.read_flat(start..start + row_len, out)?;
                }
                Ok(())
            }
            Transform::None => self.read_flat(rows.start * row_len..rows.end * row_len, out),
            Transform::SubtractOne => {
                self.read_flat(rows.start * row_len..rows.end * row_len, out)?;
                out.iter_mut().for_each(|value| *value -= 1.0);
                Ok(())
            }
        }
    }

    /// Elements `range` of the stored tensor, flattened.
    fn read_flat(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), FormatError> {
        let dtype = self.info.dtype;
        let (len, bytes) = (dtype.block_len(), dtype.block_bytes());
        let converted = match dtype {
            TensorType::Plain(plain) if len == 1 => widen(
                plain,
                &self.bytes[range.start * bytes..range.end * bytes],
                out,
            ),
            TensorType::Plain(_) => false,
            TensorType::Block(block) => {
                // Rows are whole blocks, except where a row is one element.
                let blocks = range.start / len..range.end.div_ceil(len);
                let stored = &self.bytes[blocks.start * bytes..blocks.end * bytes];
                let skip = range.start - blocks.start * len;
                blocks::dequantize(block, stored, skip, out);
                true
            }
        };
        if converted {
            Ok(())
        } else {
            Err(self.not_float())
        }
    }

    fn not_float(&self) -> FormatError {
        FormatError::Dtype {
            file: self.info.file.clone(),
            tensor: self.info.name.clone(),
            found: self.info.dtype.to_string(),
            expected: "f32, f16, bf16 or a block format",
        }
    }
}

/// The row of GGUF's q and k projections that holds row `row` of the model's: within a head,
/// llama.cpp's converter stores the two halves of the rotary pairs interleaved
/// (`LlamaModel.permute`: `reshape(heads, 2, head_dim / 2, ..).swapaxes(1, 2)`).
fn stored_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (within % half) + within / half
}

/// All elements as `dtype`, and whether every finite value stayed finite.
pub(crate) fn to_bytes(elements: &Elements, dtype: Dtype) -> Result<(Vec<u8>, bool), FormatError> {
    let (rows, row_len) = (elements.info.rows(), elements.info.row_len());
    let mut bytes = Vec::with_capacity(elements.info.elements() * dtype.bitsize() / 8);
    let mut fit = true;
    if row_len == 0 {
        return Ok((bytes, fit));
    }
    let step = (CHUNK / row_len).max(1);
    let mut values = Vec::new();
    for start in (0..rows).step_by(step) {
        let rows = start..(start + step).min(rows);
        values.resize(rows.len() * row_len, 0.0);
        elements.read_rows(rows, &mut values)?;
        fit &= values
            .iter()
            .all(|&value| !value.is_finite() || stays_finite(dtype, value));
        narrow(dtype, &values, &mut bytes);
    }
    Ok((bytes, fit))
}

/// All elements as f16, bf16 or f32: the first in which every finite value stays finite.
pub(crate) fn to_narrowest(elements: &Elements) -> Result<(Dtype, Vec<u8>), FormatError> {
    for dtype in [Dtype::F16, Dtype::BF16] {
        if let (bytes, true) = to_bytes(elements, dtype)? {
            return Ok((dtype, bytes));
        }
    }
    Ok((Dtype::F32, to_bytes(elements, Dtype::F32)?.0))
}

fn stays_finite(dtype: Dtype, value: f32) -> bool {
    match dtype {
        Dtype::F16 => half::f16::from_f32(value).is_finite(),
        Dtype::BF16 => half::bf16::from_f32(value).is_finite(),
        _ => true,
    }
}
