//! Packed linear layers on NVIDIA GPUs, found at run time.
//!
//! Nothing of CUDA is needed to build: the driver, NVRTC and cuBLAS are loaded when a [`Device`] is
//! opened, and kernels are compiled for the device at their first use and kept on disk. A machine
//! without them gets [`CudaError::NoDriver`] and the like, or 0 from [`device_count`].

mod blas;
mod device;
mod encoder;
mod error;
mod launch;
mod linear;
mod matrix;
mod plan;
mod program;
mod tensor_core;

pub use cudarc::driver::CudaSlice;
pub use device::{Device, device_count};
pub use encoder::CudaEncoder;
pub use error::CudaError;
pub use linear::{CudaLinear, CudaScratch};
pub use matrix::{CudaActivation, CudaMatrix};
pub use plan::{CudaOptions, Terms};
