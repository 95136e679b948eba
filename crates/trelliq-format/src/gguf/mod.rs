//! GGUF files as Hugging Face models: names, configuration and tokenizer are translated, and what
//! llama.cpp's converter did to the weights is undone when they are read.

pub(crate) mod blocks;
mod config;
pub(crate) mod header;
mod metadata;
mod names;
mod pre_tokenizer;
mod rope;
mod sentencepiece;
mod tokenizer;

use crate::elements::Elements;
use crate::mapped::MappedFile;
use crate::source::{Parts, Stored, TensorInfo, Transform};
use crate::{FormatError, gguf::config::Heads};
use header::{GgufTensor, parse_gguf_header};
use metadata::{Architecture, Metadata};
use names::Mapped;
use std::path::Path;

/// Opens a GGUF file.
pub(crate) fn open(path: &Path) -> Result<Parts, FormatError> {
    parts(MappedFile::open(path)?)
}

/// Reads a GGUF file that is mapped.
pub(crate) fn parts(file: MappedFile) -> Result<Parts, FormatError> {
    let path = file.path.as_path();
    let header = parse_gguf_header(path, &file.map)?;
    let metadata = Metadata { file: path, header: &header };
    let architecture = metadata.architecture()?;
    let heads = config::heads(&metadata, architecture.name())?;
    let mut tensors = Vec::new();
    let mut rope_factors = None;
    for tensor in &header.tensors {
        match names::map(architecture, tensor.name) {
            Mapped::Name(name) => tensors.push(store(path, architecture, heads, tensor, name)?),
            Mapped::RopeFactors => rope_factors = Some(read_all(path, tensor, &file.map)?),
            Mapped::Unknown => {
                return Err(FormatError::UnmappedTensor {
                    file: path.to_owned(),
                    tensor: tensor.name.to_owned(),
                    architecture: architecture.name().to_owned(),
                });
            }
        }
    }
    tensors.sort_by_key(|tensor| tensor.bytes.start);
    let config = config::synthesise(&metadata, architecture, rope_factors.as_deref())?;
    let sidecars = tokenizer::synthesise(metadata)?;
    let root = path.to_owned();
    Ok(Parts { root, config, files: vec![file], tensors, sidecars })
}

fn store(
    path: &Path,
    architecture: Architecture,
    heads: Heads,
    tensor: &GgufTensor,
    name: String,
) -> Result<Stored, FormatError> {
    let transform = transform(path, architecture, heads, tensor, &name)?;
    let GgufTensor { dtype, shape, bytes, .. } = tensor.clone();
    Ok(Stored { name, dtype, shape, file: 0, bytes, transform })
}

/// What the converter did to a tensor: it permutes q and k of the llama family (the biases too),
/// and adds one to the norms of Gemma, whose model multiplies by one plus the weight.
fn transform(
    path: &Path,
    architecture: Architecture,
    heads: Heads,
    tensor: &GgufTensor,
    name: &str,
) -> Result<Transform, FormatError> {
    let heads = match () {
        () if name.contains(".q_proj.") => heads.query,
        () if name.contains(".k_proj.") => heads.key_value,
        () if architecture == Architecture::Gemma3 && name.ends_with("norm.weight") => {
            return Ok(Transform::SubtractOne);
        }
        () => return Ok(Transform::None),
    };
    if architecture != Architecture::Llama {
        return Ok(Transform::None);
    }
    let rows = tensor.shape.first().copied().unwrap_or(1);
    if rows == 0 || !rows.is_multiple_of(2 * heads) {
        let reason = format!("{rows} rows are not {heads} heads of an even size");
        return Err(FormatError::tensor(path, tensor.name, reason));
    }
    Ok(Transform::Unpermute { head_dim: rows / heads })
}

/// A tensor that is needed while opening.
fn read_all(path: &Path, tensor: &GgufTensor, map: &[u8]) -> Result<Vec<f32>, FormatError> {
    let info = TensorInfo {
        name: tensor.name.to_owned(),
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        file: path.to_owned(),
    };
    let mut values = vec![0.0; info.elements()];
    let bytes = &map[tensor.bytes.clone()];
    let rows = 0..info.rows();
    Elements { info: &info, bytes, transform: Transform::None }.read_rows(rows, &mut values)?;
    Ok(values)
}
