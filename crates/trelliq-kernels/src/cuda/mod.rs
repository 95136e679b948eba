//! Packed linear layers on NVIDIA GPUs, found at run time, and what a decoder needs besides them.
//!
//! Nothing of CUDA is needed to build: the driver, NVRTC and cuBLAS are loaded when a [`Device`] is
//! opened, and kernels are compiled for the device at their first use and kept on disk. A machine
//! without them gets [`CudaError::NoDriver`] and the like, or 0 from [`device_count`].

mod blas;
mod decoder;
mod dense;
mod device;
mod encoder;
mod error;
mod kv;
mod launch;
mod linear;
mod matrix;
mod plan;
mod program;
mod tensor_core;

pub use cudarc::driver::CudaSlice;
pub use decoder::{
    Addition, CudaGate, CudaHeads, HeadSides, HeadWeights, MAX_ROTATED_WIDTH, add_norm, apply_gate,
    apply_rotated_gate,
};
pub use dense::CudaDense;
pub use device::{Device, device_count};
pub use encoder::CudaEncoder;
pub use error::CudaError;
pub use kv::{CacheShape, CudaCache, CudaGraph, CudaReader, CudaStep, gather_rows, write};
pub use linear::{CudaLinear, CudaScratch, RotationSide};
pub use matrix::{CudaActivation, CudaMatrix};
pub use plan::{CudaOptions, Terms};
