//! Dense products through cuBLAS.

use super::{CudaActivation, CudaError};
use cudarc::cublas::{CudaBlas, result, sys};
use cudarc::driver::{CudaStream, sys::CUdeviceptr};
use std::sync::Arc;

pub(super) struct Blas(CudaBlas);

impl Blas {
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self, CudaError> {
        // SAFETY: loads cuBLAS's library, whose initialization has no preconditions.
        if !unsafe { sys::is_culib_present() } {
            return Err(CudaError::NoBlas);
        }
        Ok(Self(CudaBlas::new(stream.clone())?))
    }

    /// `y <- x w^T`, row-major: `x` `[m, inputs]`, `w` `[outputs, inputs]`, `y` `[m, outputs]`, sums in
    /// f32; with `tf32` f32 operands are rounded to 11 significant bits on the way.
    ///
    /// # Safety
    /// The pointers are device memory of these shapes and of type A.
    pub unsafe fn multiply<A: CudaActivation>(
        &self,
        [x, w, y]: [CUdeviceptr; 3],
        [m, inputs, outputs]: [usize; 3],
        tf32: bool,
    ) -> Result<(), CudaError> {
        let (alpha, beta) = (1.0f32, 0.0f32);
        let compute = if tf32 {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32
        } else {
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F
        };
        let [rows, inner, cols] = [m as i32, inputs as i32, outputs as i32];
        // SAFETY: in cuBLAS's column-major terms this is y^T = (w^T)^T x^T over the caller's shapes.
        let done = unsafe {
            result::gemm_ex(
                *self.0.handle(),
                sys::cublasOperation_t::CUBLAS_OP_T,
                sys::cublasOperation_t::CUBLAS_OP_N,
                cols,
                rows,
                inner,
                std::ptr::from_ref(&alpha).cast(),
                w as *const _,
                A::BLAS_TYPE,
                inner,
                x as *const _,
                A::BLAS_TYPE,
                inner,
                std::ptr::from_ref(&beta).cast(),
                y as *mut _,
                A::BLAS_TYPE,
                cols,
                compute,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        Ok(done?)
    }
}
