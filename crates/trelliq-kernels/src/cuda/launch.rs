//! Launching a kernel.

use super::program::Kernel;
use super::{CudaError, Device};
use cudarc::driver::sys;
use std::ffi::c_void;

/// The shape of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub grid: [u32; 3],
    pub block: u32,
    pub shared: u32,
    /// Whether the kernel may start while the one before it ends; it then waits by itself before it
    /// touches anything but weights.
    pub overlap: bool,
}

impl Shape {
    /// One thread an element.
    pub fn elements(count: u64) -> Self {
        let block = 256;
        Self { grid: [count.div_ceil(256) as u32, 1, 1], block, shared: 0, overlap: false }
    }
}

/// Queues `kernel` on the device's stream.
///
/// # Safety
/// `arguments` point to values of the kernel's parameter types, and the device memory among them is
/// as long as the kernel assumes and alive until the stream is done.
pub(super) unsafe fn launch(
    device: &Device,
    kernel: &Kernel,
    shape: Shape,
    arguments: &mut [*mut c_void],
) -> Result<(), CudaError> {
    device.context.bind_to_thread()?;
    let mut attribute = sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let overlap = shape.overlap && device.architecture().0 >= 9;
    let config = sys::CUlaunchConfig {
        gridDimX: shape.grid[0],
        gridDimY: shape.grid[1],
        gridDimZ: shape.grid[2],
        blockDimX: shape.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: shape.shared,
        hStream: device.stream.cu_stream(),
        attrs: &mut attribute,
        numAttrs: u32::from(overlap),
    };
    // SAFETY: the configuration lives through the call; the arguments are the caller's part.
    let done = unsafe {
        sys::cuLaunchKernelEx(&config, kernel.raw(), arguments.as_mut_ptr(), std::ptr::null_mut())
    };
    Ok(done.result()?)
}

/// Pointers to the arguments of a launch.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => {
        [$(std::ptr::from_ref(&$value).cast_mut().cast::<std::ffi::c_void>()),*]
    };
}
pub(super) use arguments;
