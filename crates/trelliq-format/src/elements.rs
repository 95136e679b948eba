//! The elements of one stored tensor as f32, by rows.

use crate::gguf::blocks;
use crate::source::{TensorInfo, Transform};
use crate::widen::widen;
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
            TensorType::Plain(plain) if len == 1 => {
                widen(plain, &self.bytes[range.start * bytes..range.end * bytes], out)
            }
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
        if converted { Ok(()) } else { Err(self.not_float()) }
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

/// Passes all elements through `each` in pieces of bounded size, in order.
pub(crate) fn for_each_chunk<E: From<FormatError>>(
    elements: &Elements,
    mut each: impl FnMut(&[f32]) -> Result<(), E>,
) -> Result<(), E> {
    let (rows, row_len) = (elements.info.rows(), elements.info.row_len());
    if row_len == 0 {
        return Ok(());
    }
    let step = (CHUNK / row_len).max(1);
    let mut values = Vec::new();
    for start in (0..rows).step_by(step) {
        let rows = start..(start + step).min(rows);
        values.resize(rows.len() * row_len, 0.0);
        elements.read_rows(rows, &mut values)?;
        each(&values)?;
    }
    Ok(())
}

/// The first of f16, bf16 and f32 in which every finite element stays finite.
pub(crate) fn narrowest(elements: &Elements) -> Result<Dtype, FormatError> {
    let (mut f16, mut bf16) = (true, true);
    for_each_chunk::<FormatError>(elements, |values| {
        let fits = |dtype| values.iter().all(|&v| !v.is_finite() || stays_finite(dtype, v));
        f16 = f16 && fits(Dtype::F16);
        bf16 = bf16 && (f16 || fits(Dtype::BF16));
        Ok(())
    })?;
    Ok(match (f16, bf16) {
        (true, _) => Dtype::F16,
        (_, true) => Dtype::BF16,
        _ => Dtype::F32,
    })
}

fn stays_finite(dtype: Dtype, value: f32) -> bool {
    match dtype {
        Dtype::F16 => half::f16::from_f32(value).is_finite(),
        Dtype::BF16 => half::bf16::from_f32(value).is_finite(),
        _ => true,
    }
}
