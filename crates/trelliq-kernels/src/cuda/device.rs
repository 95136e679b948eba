//! One GPU: its context, stream, compiled kernels and workspace.

use super::CudaError;
use super::blas::Blas;
use super::program::{Kernel, Source, cache_dir, cubin};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Floats of the workspace that partial sums lie in; it grows when a launch needs more.
const WORKSPACE: usize = 8 << 20;
/// Counters of blocks that have reached a group of outputs.
const COUNTERS: usize = 1 << 20;

/// Words of quantized activations, which grow likewise.
const TERMS: usize = 1 << 18;

/// GPUs that the driver shows, 0 without a driver.
pub fn device_count() -> usize {
    if !driver_present() {
        return 0;
    }
    CudaContext::device_count().map_or(0, |count| count as usize)
}

fn driver_present() -> bool {
    // SAFETY: loads the driver's library, whose initialization has no preconditions.
    unsafe { cudarc::driver::sys::is_culib_present() }
}

/// A GPU with one stream, on which all its operations run in order. Cheap to share.
pub struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    name: String,
    architecture: (i32, i32),
    processors: u32,
    shared_bytes: u32,
    cache: Option<PathBuf>,
    kernels: Mutex<HashMap<Source, Kernel>>,
    workspace: Mutex<Workspace>,
    blas: Mutex<Option<Blas>>,
    /// Held while launches are recorded, when nothing may be allocated or freed beside them.
    recording: Mutex<()>,
    /// How often shared buffers have moved.
    moves: AtomicU64,
}

/// Memory that every launch of a stream may use.
pub(super) struct Workspace {
    pub partial: CudaSlice<f32>,
    pub counters: CudaSlice<u32>,
    /// Quantized activations, their sums and their steps.
    pub terms: CudaSlice<u32>,
    pub totals: CudaSlice<u32>,
    pub steps: CudaSlice<f32>,
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Device").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Device {
    /// Opens GPU `ordinal` with a stream of its own.
    ///
    /// Errors without a driver, such a GPU, or compute capability 8.0.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, CudaError> {
        if !driver_present() {
            return Err(CudaError::NoDriver);
        }
        let count = CudaContext::device_count()? as usize;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let context = CudaContext::new(ordinal)?;
        // SAFETY: all memory of this device is used on its one stream, in order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream()?;
        let name = context.name()?;
        let architecture = context.compute_capability()?;
        if architecture.0 < 8 {
            let (major, minor) = architecture;
            return Err(CudaError::TooOld { name, major, minor });
        }
        let attribute = |which| context.attribute(which).map(|value| value as u32);
        let workspace = Workspace {
            partial: stream.alloc_zeros(WORKSPACE)?,
            counters: stream.alloc_zeros(COUNTERS)?,
            terms: stream.alloc_zeros(TERMS)?,
            totals: stream.alloc_zeros(TERMS)?,
            steps: stream.alloc_zeros(16)?,
        };
        Ok(Arc::new(Self {
            processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_bytes: attribute(
                Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            )?,
            cache: cache_dir(),
            kernels: Mutex::default(),
            workspace: Mutex::new(workspace),
            blas: Mutex::new(None),
            recording: Mutex::new(()),
            moves: AtomicU64::new(0),
            context,
            stream,
            name,
            architecture,
        }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Compute capability, (major, minor).
    pub fn architecture(&self) -> (i32, i32) {
        self.architecture
    }

    /// Multiprocessors.
    pub fn processors(&self) -> u32 {
        self.processors
    }

    /// Bytes of shared memory that a block may have.
    pub(super) fn shared_bytes(&self) -> u32 {
        self.shared_bytes
    }

    /// The stream that all operations are queued on.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Free and total bytes of memory.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        Ok(self.context.mem_get_info()?)
    }

    /// Waits for everything queued so far.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        Ok(self.stream.synchronize()?)
    }

    pub fn upload<T: DeviceRepr>(&self, values: &[T]) -> Result<CudaSlice<T>, CudaError> {
        Ok(self.stream.clone_htod(values)?)
    }

    /// Waits for the stream and copies to the host.
    pub fn download<T: DeviceRepr>(&self, values: &CudaSlice<T>) -> Result<Vec<T>, CudaError> {
        Ok(self.stream.clone_dtoh(values)?)
    }

    pub fn zeros<T: DeviceRepr + ValidAsZeroBits>(
        &self,
        len: usize,
    ) -> Result<CudaSlice<T>, CudaError> {
        Ok(self.stream.alloc_zeros(len)?)
    }

    /// The kernel, compiled now if neither this process nor the disk has it.
    pub(super) fn kernel(&self, source: Source) -> Result<Kernel, CudaError> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kernel) = kernels.get(&source) {
            return Ok(kernel.clone());
        }
        let code = cubin(&source, self.architecture, self.cache.as_deref())?;
        let kernel = Kernel::load(&self.context, code, source.function)?;
        if source.family.of_steps() {
            kernel.prefer_shared()?;
        }
        kernels.insert(source, kernel.clone());
        Ok(kernel)
    }

    /// The workspace with room for `floats` partial sums and `terms` words of activations.
    pub(super) fn workspace(
        &self,
        floats: usize,
        terms: usize,
    ) -> Result<MutexGuard<'_, Workspace>, CudaError> {
        let mut workspace = self.workspace.lock().unwrap_or_else(PoisonError::into_inner);
        if workspace.terms.len() < terms {
            self.note_move();
            workspace.terms = self.stream.alloc_zeros(terms)?;
            workspace.totals = self.stream.alloc_zeros(terms)?;
        }
        if workspace.partial.len() < floats {
            self.note_move();
            workspace.partial = self.stream.alloc_zeros(floats)?;
        }
        Ok(workspace)
    }

    /// 10^9 bytes a second that copies of half a gibibyte read and write, the best of several.
    pub fn copy_rate(&self) -> Result<f64, CudaError> {
        const BYTES: usize = 512 << 20;
        const COPIES: usize = 8;
        let from: CudaSlice<u8> = self.zeros(BYTES)?;
        let mut to: CudaSlice<u8> = self.zeros(BYTES)?;
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            self.synchronize()?;
            let started = Instant::now();
            for _ in 0..COPIES {
                self.stream.memcpy_dtod(&from, &mut to)?;
            }
            self.synchronize()?;
            best = best.min(started.elapsed().as_secs_f64());
        }
        Ok((2 * COPIES * BYTES) as f64 / best / 1e9)
    }

    /// How often buffers that launches share have moved: what was recorded before is void.
    pub fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    pub(super) fn note_move(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    /// Errors when kernels cannot be compiled here, or cuBLAS is missing.
    pub fn check_libraries(&self) -> Result<(), CudaError> {
        let macros = vec![("GATED", 1)];
        self.kernel(Source { family: super::program::Family::Decoder, function: "gated", macros })?;
        self.with_blas(|_| Ok(()))
    }

    /// Keeps allocations and recordings apart.
    pub(super) fn exclusive(&self) -> MutexGuard<'_, ()> {
        self.recording.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn with_blas<R>(
        &self,
        run: impl FnOnce(&Blas) -> Result<R, CudaError>,
    ) -> Result<R, CudaError> {
        let mut blas = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        if blas.is_none() {
            *blas = Some(Blas::new(&self.stream)?);
        }
        run(blas.as_ref().expect("made above"))
    }

    pub(super) fn counters() -> usize {
        COUNTERS
    }
}
