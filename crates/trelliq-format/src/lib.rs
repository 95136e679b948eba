//! Models as tensors: directories of safetensors, GGUF files and hub repositories, and the packed
//! model format of `docs/spec/format.md`.
//!
//! Whatever holds a model, its tensors have their Hugging Face names, and its configuration is a
//! Hugging Face `config.json`. Tensors stay in mapped files and are read one at a time, so that a
//! model may be larger than memory.

mod cursor;
mod directory;
mod dtype;
mod elements;
mod error;
mod gguf;
#[cfg(feature = "hub")]
mod hub;
mod mapped;
mod packed;
mod quantization;
mod safetensors_header;
mod source;
mod staging;
mod widen;
mod writer;

pub use dtype::{BlockType, TensorType};
pub use error::FormatError;
pub use gguf::header::{GgufArray, GgufHeader, GgufTensor, GgufValue, parse_gguf_header};
#[cfg(feature = "hub")]
pub use hub::{HubOptions, HubProgress, HubReporter};
pub use packed::{PackedLayer, load_packed};
pub use quantization::{LayerQuantization, QuantizationConfig, QuantizationError, RotationBlocks};
pub use safetensors::Dtype;
pub use safetensors_header::{HeaderTensor, parse_safetensors_header};
pub use source::{ModelSource, RawTensor, TensorInfo};
pub use writer::{ModelWriter, TensorSink, WriterOptions, Written};
