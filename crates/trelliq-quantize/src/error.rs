use crate::FactorError;
use std::io;
use std::path::{Path, PathBuf};
use trelliq_codec::CodecError;
use trelliq_format::FormatError;
use trelliq_kernels::KernelError;
use trelliq_model::ModelError;

/// What can stop a quantization or a decoding.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuantizeError {
    #[error(transparent)]
    Format(#[from] FormatError),
    #[error("tensor `{tensor}`: {source}")]
    Codec { tensor: String, source: CodecError },
    #[error("tensor `{tensor}`: {source}")]
    Kernel { tensor: String, source: KernelError },
    #[error("tensor `{tensor}`: {source}")]
    Hessian { tensor: String, source: FactorError },
    #[error("calibration: {0}")]
    Calibration(#[from] ModelError),
    #[error(
        "a budget of bits or bytes needs to know what each layer's error costs: pass a calibration text, or Hessians that weight tokens"
    )]
    BudgetWithoutHessians,
    #[error(
        "a budget of bits or bytes is for layers coded along their outputs: leave the axis at auto"
    )]
    BudgetAxis,
    #[error("average bits of {0}: from 1 to 8 are possible")]
    AverageBits(f64),
    #[error(
        "no widths fit the budget: at their least the codes take {least} bytes, {budget} are left for them"
    )]
    BudgetTooSmall { least: u64, budget: u64 },
    #[error("cannot start threads: {0}")]
    Threads(String),
    #[error("options: {0}")]
    Options(CodecError),
    #[error("`{pattern}` is not a glob: {reason}")]
    Glob { pattern: String, reason: String },
    #[error("tensor `{tensor}` of {} holds {value} at index {index}: only finite weights can be stored", file.display())]
    NonFinite { tensor: String, file: PathBuf, index: usize, value: f32 },
    #[error(
        "tensor `{tensor}`: no block length in 32..=512 divides its {cols} coded weights a row at {bits} bits; \
         leave it dense with --exclude '{path}', or code the other dimension with --axis"
    )]
    NoBlockLength { tensor: String, path: String, cols: usize, bits: u32 },
    #[error("nothing to code: no linear layer of the model matches the include and exclude globs")]
    NothingToCode,
    #[error("the model has no {0} of its own to code (a tied head is the embedding: code that)")]
    NoSuchTensor(&'static str),
    #[error("the model is already quantized: quantize its source instead")]
    AlreadyQuantized,
    #[error("the model is not quantized: there is nothing to decode")]
    NotQuantized,
    #[error(
        "{} holds parts of a run with other options ({difference}); repeat that run's options, or discard its parts with --resume off",
        path.display()
    )]
    OtherRun { path: PathBuf, difference: String },
    #[error("{} already holds something else than this run's result; choose another name or pass --overwrite", path.display())]
    OutputExists { path: PathBuf },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{} is damaged: {reason}", path.display())]
    Part { path: PathBuf, reason: String },
}

impl QuantizeError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }

    pub(crate) fn codec(tensor: &str) -> impl FnOnce(CodecError) -> Self {
        move |source| Self::Codec { tensor: tensor.to_owned(), source }
    }

    pub(crate) fn kernel(tensor: &str) -> impl FnOnce(KernelError) -> Self {
        move |source| Self::Kernel { tensor: tensor.to_owned(), source }
    }

    /// Whether the source or the options are at fault, so that no repetition can succeed.
    pub(crate) fn is_final(&self) -> bool {
        matches!(
            self,
            Self::Codec { .. }
                | Self::Kernel { .. }
                | Self::NonFinite { .. }
                | Self::Hessian { .. }
                | Self::BudgetTooSmall { .. }
        )
    }
}
