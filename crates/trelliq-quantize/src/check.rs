//! What is checked before hours of work: that every weight of the source is finite.

use crate::{Event, Progress, QuantizeError};
use trelliq_codec::{CodecError, check_finite};
use trelliq_format::{ModelSource, TensorInfo};

/// Elements that are widened to f32 at a time.
pub(crate) const CHUNK: usize = 1 << 21;

/// Fails on the first NaN or infinity of any tensor, naming tensor and index.
pub(crate) fn check_source(source: &ModelSource, progress: Progress) -> Result<(), QuantizeError> {
    let floats = || source.tensors().filter(|info| info.dtype.is_float());
    let total = floats().map(|info| info.elements() as u64).sum();
    progress(Event::Stage { name: "check", total });
    for info in floats() {
        check_tensor(source, info, progress)?;
        source.release(&info.name);
    }
    Ok(())
}

fn check_tensor(
    source: &ModelSource,
    info: &TensorInfo,
    progress: Progress,
) -> Result<(), QuantizeError> {
    let row_len = info.row_len();
    if info.elements() == 0 {
        return Ok(());
    }
    let rows_a_chunk = (CHUNK / row_len).max(1);
    let mut buffer = Vec::new();
    for start in (0..info.rows()).step_by(rows_a_chunk) {
        let rows = start..(start + rows_a_chunk).min(info.rows());
        buffer.resize(rows.len() * row_len, 0.0);
        source.read_rows_f32(&info.name, rows, &mut buffer)?;
        if let Err(CodecError::NonFinite { index, value }) = check_finite(&buffer) {
            return Err(QuantizeError::NonFinite {
                tensor: info.name.clone(),
                file: info.file.clone(),
                index: start * row_len + index,
                value,
            });
        }
        progress(Event::Advance(buffer.len() as u64));
    }
    Ok(())
}
