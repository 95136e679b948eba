//! Everything that can be wrong with a model's files, naming the file and the tensor.

use crate::QuantizationError;
use std::io;
use std::path::{Path, PathBuf};
use trelliq_codec::CodecError;
use trelliq_kernels::KernelError;

/// What can be wrong with the files of a model, or with a request for what they hold.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is not valid JSON: {source}", path.display())]
    Json { path: PathBuf, source: serde_json::Error },
    #[error("{} is not a model: {reason}", path.display())]
    NotAModel { path: PathBuf, reason: String },
    /// A file as a whole is malformed.
    #[error("{} is malformed: {reason}", file.display())]
    Header { file: PathBuf, reason: String },
    /// A file's description of one tensor is malformed.
    #[error("tensor `{tensor}` of {} is malformed: {reason}", file.display())]
    TensorHeader { file: PathBuf, tensor: String, reason: String },
    #[error(
        "tensor `{tensor}` of {} ends at byte {end}, but the file has {len} bytes: it is truncated",
        file.display()
    )]
    Truncated { file: PathBuf, tensor: String, end: u64, len: u64 },
    #[error("tensors `{tensor}` and `{other}` of {} overlap", file.display())]
    Overlap { file: PathBuf, tensor: String, other: String },
    #[error("tensor `{tensor}` is in {} and again in {}", first.display(), second.display())]
    DuplicateTensor { tensor: String, first: PathBuf, second: PathBuf },
    #[error("tensor `{tensor}` is missing from {}", file.display())]
    MissingTensor { tensor: String, file: PathBuf },
    #[error("tensor `{tensor}` of {} has dtype {found}, expected {expected}", file.display())]
    Dtype { file: PathBuf, tensor: String, found: String, expected: &'static str },
    #[error("tensor `{tensor}` of {} has shape {found:?}, expected {expected:?}", file.display())]
    Shape { file: PathBuf, tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error(
        "tensor `{tensor}` of {} codes a layer of [in, out] = {found:?}, expected {expected:?}",
        file.display()
    )]
    LayerShape { file: PathBuf, tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("rows {start}..{end} of tensor `{tensor}` of {} were asked for: it has {rows}", file.display())]
    Rows { file: PathBuf, tensor: String, start: usize, end: usize, rows: usize },
    #[error("a buffer of {found} elements was given for {expected} of tensor `{tensor}`")]
    Buffer { tensor: String, found: usize, expected: usize },
    #[error("layer `{layer}` has no entry under `quantization` in {}", file.display())]
    NotCoded { layer: String, file: PathBuf },
    #[error("{}: {source}", file.display())]
    Quantization { file: PathBuf, source: QuantizationError },
    #[error("tensor `{tensor}` of {}: {source}", file.display())]
    Codec { file: PathBuf, tensor: String, source: CodecError },
    #[error("tensor `{tensor}` of {}: {source}", file.display())]
    Kernel { file: PathBuf, tensor: String, source: KernelError },
    #[error("{} lacks the metadata key `{key}`", file.display())]
    MissingMetadata { file: PathBuf, key: String },
    #[error("metadata key `{key}` of {} is not usable: {reason}", file.display())]
    Metadata { file: PathBuf, key: String, reason: String },
    #[error(
        "{} is a `{architecture}` model: known architectures are llama, qwen2, qwen3 and gemma3",
        file.display()
    )]
    Architecture { file: PathBuf, architecture: String },
    #[error("tensor `{tensor}` of {} has no Hugging Face name for a `{architecture}` model", file.display())]
    UnmappedTensor { file: PathBuf, tensor: String, architecture: String },
    #[error("repository `{repository}`: cannot get {file}: {reason}")]
    Hub { repository: String, file: String, reason: String },
    #[error("{} exists and is not empty", path.display())]
    OutputExists { path: PathBuf },
    #[error("tensor `{tensor}` for {}: {reason}", file.display())]
    Supplied { file: PathBuf, tensor: String, reason: String },
}

impl FormatError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn json(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        move |source| Self::Json { path: path.to_owned(), source }
    }

    pub(crate) fn header(file: &Path, reason: impl Into<String>) -> Self {
        Self::Header { file: file.to_owned(), reason: reason.into() }
    }

    pub(crate) fn tensor(file: &Path, tensor: &str, reason: impl Into<String>) -> Self {
        let (file, tensor) = (file.to_owned(), tensor.to_owned());
        Self::TensorHeader { file, tensor, reason: reason.into() }
    }
}
