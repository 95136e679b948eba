//! A packed model back to a dense one.

use crate::assemble::{add_files, finish};
use crate::{Event, Progress, QuantizeError};
use half::bf16;
use safetensors::Dtype;
use std::path::Path;
use trelliq_format::{
    ModelSource, ModelWriter, PackedLayer, TensorSink, WriterOptions, load_packed,
};
use trelliq_kernels::{Numerics, TrellisLinear};

/// Writes a packed model as a directory of dense bf16 weights that any reader of the source's
/// family loads. Layers without a rotation have the format's `exact` numerics, bit for bit; a
/// rotated layer is computed in f32 and rounded to bf16 once. Dense tensors stay as they are.
///
/// Memory: one tensor in f32 and in bf16.
///
/// Errors: a model that is not quantized, a layer that cannot be loaded, an output that exists (unless
/// `writer.overwrite`), any failure to read or write.
pub fn decode(
    source: &ModelSource,
    out: &Path,
    writer: WriterOptions,
    progress: Progress,
) -> Result<(), QuantizeError> {
    let quantization = source.quantization().ok_or(QuantizeError::NotQuantized)?;
    let mut writer: ModelWriter<QuantizeError> = ModelWriter::new(out, writer)?;
    for path in quantization.layers().keys() {
        let layer = load_packed(source, path, None)?;
        let shape = [layer.matrix.out_features(), layer.matrix.in_features()];
        let name = format!("{path}.weight");
        let supply = {
            let name = name.clone();
            move |sink: &mut TensorSink| {
                progress(Event::Tensor(path));
                Ok(sink.write(&dense_bytes(&name, layer)?)?)
            }
        };
        writer.add_tensor(&name, Dtype::BF16, &shape, supply)?;
    }
    for info in source.tensors() {
        if !belongs_to_code(source, &info.name) {
            writer.copy_tensor(source, &info.name)?;
        }
    }
    add_files(&mut writer, source, None)?;
    finish(writer, progress)
}

/// Whether a tensor is part of a coded layer's codes, rather than dense.
fn belongs_to_code(source: &ModelSource, tensor: &str) -> bool {
    let (path, part) = tensor.rsplit_once('.').unwrap_or((tensor, ""));
    let coded = source.quantization().is_some_and(|q| q.layer(path).is_some());
    coded && matches!(part, "weight" | "scales" | "su" | "sv")
}

/// The weight of a layer as bf16 bytes, `[out, in]`.
fn dense_bytes(tensor: &str, layer: PackedLayer) -> Result<Vec<u8>, QuantizeError> {
    let numerics = if layer.rotation.is_some() { Numerics::Fast } else { Numerics::Exact };
    let error = QuantizeError::kernel(tensor);
    let linear = TrellisLinear::new(layer.matrix, layer.rotation, None);
    let mut weight = Vec::new();
    linear
        .and_then(|linear| {
            weight.resize(linear.in_features() * linear.out_features(), 0.0);
            linear.expand_weight(numerics, &mut weight)
        })
        .map_err(error)?;
    Ok(weight.iter().flat_map(|&w| bf16::from_f32(w).to_le_bytes()).collect())
}
