//! From a dense model to a packed one: which tensors are coded and how, rotation, coding, and a
//! pipeline that can be killed at any moment and continued.

mod allocate;
mod assemble;
mod budget;
mod channels;
mod check;
mod decode;
mod encode;
mod error;
mod factor;
mod feedback;
mod hessian;
mod manifest;
mod options;
mod parts;
mod pipeline;
mod plan;
mod progress;
mod refit;
mod rotate;
mod sensitivity;

pub use decode::decode;
pub use error::QuantizeError;
pub use factor::FactorError;
pub use hessian::{HessianFile, HessianInfo, Hessians};
pub use manifest::{
    FeedbackReport, LayerReport, MANIFEST_FILE, Manifest, ScaleReport, SourceFile, Totals,
};
pub use options::{AxisChoice, Budget, HessianSource, QuantizeOptions, RecordedOptions};
pub use pipeline::quantize;
pub use progress::{Event, Progress};
