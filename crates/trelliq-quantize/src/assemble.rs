//! The output directory from finished parts and the source's dense tensors.

use crate::manifest::{MANIFEST_FILE, Manifest};
use crate::parts::Part;
use crate::plan::LayerPlan;
use crate::{Event, Progress, QuantizeError, QuantizeOptions};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use trelliq_format::{
    ModelSource, ModelWriter, QuantizationConfig, TensorInfo, TensorSink, WriterOptions,
};

/// A planned layer with its finished part.
#[derive(Debug)]
pub(crate) struct CodedLayer<'a> {
    pub plan: &'a LayerPlan,
    pub part: Part,
}

/// The source's tensors that are stored as they are.
fn dense_tensors<'a>(
    source: &'a ModelSource,
    coded: impl Iterator<Item = &'a LayerPlan>,
) -> impl Iterator<Item = &'a TensorInfo> {
    let coded: HashSet<String> = coded.map(LayerPlan::tensor).collect();
    source.tensors().filter(move |info| !coded.contains(&info.name))
}

/// Weights and bytes of the tensors that stay dense.
pub(crate) fn dense_totals(
    source: &ModelSource,
    plans: &[LayerPlan],
) -> Result<(u64, u64), QuantizeError> {
    let mut totals = (0, 0);
    for info in dense_tensors(source, plans.iter()) {
        let elements = info.elements() as u64;
        totals.0 += elements;
        totals.1 += elements * source.dense_dtype(&info.name)?.bitsize() as u64 / 8;
    }
    Ok(totals)
}

/// Streams parts and dense tensors into the output directory, with config, sidecar files and
/// manifest, and gives it its name.
pub(crate) fn write_model(
    source: &ModelSource,
    out: &Path,
    options: &QuantizeOptions,
    coded: &[CodedLayer],
    manifest: &Manifest,
    progress: Progress,
) -> Result<(), QuantizeError> {
    let writer_options =
        WriterOptions { max_shard_bytes: options.max_shard_bytes, overwrite: options.overwrite };
    let mut writer: ModelWriter<QuantizeError> = ModelWriter::new(out, writer_options)?;
    for layer in coded {
        add_part(&mut writer, layer)?;
    }
    for info in dense_tensors(source, coded.iter().map(|c| c.plan)) {
        writer.copy_tensor(source, &info.name)?;
    }
    add_files(&mut writer, source, Some(coded))?;
    let manifest = serde_json::to_vec_pretty(manifest).expect("a manifest is plain data");
    writer.add_file(MANIFEST_FILE, manifest)?;
    finish(writer, progress)
}

/// `config.json`, with the coding of `coded` or without any, and the source's sidecar files.
pub(crate) fn add_files(
    writer: &mut ModelWriter<QuantizeError>,
    source: &ModelSource,
    coded: Option<&[CodedLayer]>,
) -> Result<(), QuantizeError> {
    let mut config = source.config().clone();
    if let Some(fields) = config.as_object_mut() {
        fields.remove("quantization");
        if let Some(coded) = coded {
            let layers: BTreeMap<_, _> =
                coded.iter().map(|c| (c.plan.path.clone(), c.plan.quantization)).collect();
            fields.insert("quantization".into(), QuantizationConfig::new(layers).to_json());
        }
    }
    writer.add_file("config.json", format!("{config:#}\n").into_bytes())?;
    for (name, bytes) in source.sidecar_files() {
        if name != MANIFEST_FILE {
            writer.add_file(name, bytes.clone())?;
        }
    }
    Ok(())
}

/// Writes everything, with progress in bytes.
pub(crate) fn finish(
    writer: ModelWriter<QuantizeError>,
    progress: Progress,
) -> Result<(), QuantizeError> {
    progress(Event::Stage { name: "write", total: writer.tensor_bytes() });
    writer.finish(&mut |bytes| progress(Event::Advance(bytes)))?;
    Ok(())
}

fn add_part<'a>(
    writer: &mut ModelWriter<'a, QuantizeError>,
    layer: &'a CodedLayer,
) -> Result<(), QuantizeError> {
    for tensor in &layer.part.tensors {
        let name = format!("{}.{}", layer.plan.path, tensor.name);
        let supply = |sink: &mut TensorSink| {
            tensor.stream(&layer.part.path, &mut |bytes| Ok(sink.write(bytes)?))
        };
        writer.add_tensor(&name, tensor.dtype, &tensor.shape, supply)?;
    }
    Ok(())
}
