//! Stored elements to f32 and back to the bytes of a safetensors file.

use half::{bf16, f16};
use safetensors::Dtype;

/// Widens little-endian elements of a float dtype; `false` when `dtype` is none.
///
/// `bytes` holds exactly `out.len()` elements.
pub(crate) fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) -> bool {
    fn each<const N: usize>(bytes: &[u8], out: &mut [f32], to_f32: impl Fn([u8; N]) -> f32) {
        let (elements, _) = bytes.as_chunks::<N>();
        for (out, element) in out.iter_mut().zip(elements) {
            *out = to_f32(*element);
        }
    }
    match dtype {
        Dtype::F32 => each(bytes, out, f32::from_le_bytes),
        Dtype::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => return false,
    }
    true
}

/// Appends `values` as little-endian `dtype` (F16, BF16, anything else as F32).
pub(crate) fn narrow(dtype: Dtype, values: &[f32], bytes: &mut Vec<u8>) {
    match dtype {
        Dtype::F16 => bytes.extend(values.iter().flat_map(|&v| f16::from_f32(v).to_le_bytes())),
        Dtype::BF16 => bytes.extend(values.iter().flat_map(|&v| bf16::from_f32(v).to_le_bytes())),
        _ => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
    }
}
