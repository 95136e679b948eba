use crate::KernelError;
use cudarc::cublas::result::CublasError;
use cudarc::driver::DriverError;

/// What can go wrong on an NVIDIA GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    #[error("no NVIDIA driver is installed (libcuda was not found)")]
    NoDriver,
    #[error("GPU {ordinal} does not exist: {count} found")]
    NoDevice { ordinal: usize, count: usize },
    #[error("GPU {name} has compute capability {major}.{minor}, 8.0 or newer is needed")]
    TooOld { name: String, major: i32, minor: i32 },
    #[error("NVRTC, CUDA's run-time compiler, was not found: put libnvrtc on the library path")]
    NoCompiler,
    #[error("cuBLAS was not found: put libcublas on the library path")]
    NoBlas,
    #[error("compiling kernel {kernel}: {log}")]
    Compile { kernel: String, log: String },
    #[error(
        "the GPU codes 11 to 16 state bits and 1 to 6 bits a weight, not {state_bits} and {bits}"
    )]
    Trellis { state_bits: u32, bits: u32 },
    #[error("{what} on the GPU holds {found} elements, expected {expected}")]
    Length { what: &'static str, found: usize, expected: usize },
    #[error("GPU {name} has {free} bytes free, {wanted} are needed")]
    Memory { name: String, free: usize, wanted: usize },
    #[error("the driver recorded no launches")]
    Recording,
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error("cuBLAS: {0:?}")]
    Blas(CublasError),
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl From<CublasError> for CudaError {
    fn from(error: CublasError) -> Self {
        Self::Blas(error)
    }
}

pub(super) fn check_len(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), CudaError> {
    if found == expected { Ok(()) } else { Err(CudaError::Length { what, found, expected }) }
}
