//! Keys and values on a GPU, and what a step says of its rows.

use super::{CudaError, Device};
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, PinnedHostSlice};
use std::ops::Range;
use std::sync::Arc;

/// Positions that a cache has room for at first.
const FIRST_CAPACITY: usize = 256;

/// The widths of a cache: `[position][layer][key, value][width]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheShape {
    pub layers: usize,
    /// Key (or value) elements of one layer and position.
    pub width: usize,
}

impl CacheShape {
    /// Elements of one position.
    pub(super) fn stride(&self) -> u64 {
        (self.layers * 2 * self.width) as u64
    }

    pub(super) fn layer_start(&self, layer: usize) -> u64 {
        (layer * 2 * self.width) as u64
    }
}

/// Keys and values of one sequence as f16, positions outermost, so that ranges of them are contiguous.
pub struct CudaCache {
    device: Arc<Device>,
    shape: CacheShape,
    capacity: usize,
    /// `None` until there is a position.
    values: Option<CudaSlice<u16>>,
}

impl std::fmt::Debug for CudaCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaCache")
            .field("shape", &self.shape)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

impl CudaCache {
    pub fn new(device: &Arc<Device>, shape: CacheShape) -> Self {
        Self { device: device.clone(), shape, capacity: 0, values: None }
    }

    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Bytes of device memory that it holds.
    pub fn bytes(&self) -> usize {
        self.capacity * self.shape.stride() as usize * 2
    }

    /// Makes room for `positions`, keeping the first `kept` of them; room at least doubles when it grows.
    pub fn reserve(&mut self, positions: usize, kept: usize) -> Result<(), CudaError> {
        if positions <= self.capacity {
            return Ok(());
        }
        let capacity = positions.max(2 * self.capacity).max(FIRST_CAPACITY);
        self.resize(capacity, kept)
    }

    fn resize(&mut self, capacity: usize, kept: usize) -> Result<(), CudaError> {
        let stride = self.shape.stride() as usize;
        let _exclusive = self.device.exclusive();
        let mut values = self.device.zeros(capacity * stride)?;
        if let (Some(old), true) = (&self.values, kept > 0) {
            let old = old.slice(..kept * stride);
            self.device.stream().memcpy_dtod(&old, &mut values)?;
        }
        self.values = Some(values);
        self.capacity = capacity;
        Ok(())
    }

    /// A copy of the given positions, with room for no more.
    pub fn copy(&self, positions: Range<usize>) -> Result<Self, CudaError> {
        let mut copy = Self::new(&self.device, self.shape);
        if let (Some(values), false) = (&self.values, positions.is_empty()) {
            let stride = self.shape.stride() as usize;
            copy.resize(positions.len(), 0)?;
            let _exclusive = self.device.exclusive();
            let from = values.slice(positions.start * stride..positions.end * stride);
            let to = copy.values.as_mut().expect("made above");
            self.device.stream().memcpy_dtod(&from, to)?;
        }
        Ok(copy)
    }

    /// Puts the first `count` positions of `other` behind the first `len` of this.
    ///
    /// Errors when the two have different shapes.
    pub fn put(&mut self, len: usize, other: &Self, count: usize) -> Result<(), CudaError> {
        super::error::check_len("cache", other.shape.width, self.shape.width)?;
        super::error::check_len("layers", other.shape.layers, self.shape.layers)?;
        self.reserve(len + count, len)?;
        if let (Some(from), Some(to), true) = (&other.values, &mut self.values, count > 0) {
            let stride = self.shape.stride() as usize;
            let _exclusive = self.device.exclusive();
            let mut to = to.slice_mut(len * stride..(len + count) * stride);
            self.device.stream().memcpy_dtod(&from.slice(..count * stride), &mut to)?;
        }
        Ok(())
    }
}

impl Drop for CudaCache {
    fn drop(&mut self) {
        let _exclusive = self.device.exclusive();
        self.values = None;
    }
}

/// The rows (tokens) of a step: for each the cache of its sequence and its position, in device memory
/// that kernels read, so that recorded launches serve every later step.
#[derive(Debug)]
pub struct CudaStep {
    device: Arc<Device>,
    shape: CacheShape,
    /// Two words a row: address, position.
    words: CudaSlice<u64>,
    rows: usize,
}

impl CudaStep {
    /// Room for `capacity` rows.
    pub fn new(
        device: &Arc<Device>,
        shape: CacheShape,
        capacity: usize,
    ) -> Result<Self, CudaError> {
        let words = device.zeros(2 * capacity)?;
        Ok(Self { device: device.clone(), shape, words, rows: 0 })
    }

    pub fn capacity(&self) -> usize {
        self.words.len() / 2
    }

    /// The rows' caches and positions, sequence after sequence; the caches must stay alive and unchanged
    /// in size until what is queued next is done.
    ///
    /// Errors when a position lies behind its cache's capacity, or a shape differs.
    pub fn fill(&mut self, sequences: &[(&CudaCache, Range<usize>)]) -> Result<(), CudaError> {
        let mut words = Vec::new();
        for (cache, positions) in sequences {
            super::error::check_len("cache", cache.shape.width, self.shape.width)?;
            super::error::check_len("layers", cache.shape.layers, self.shape.layers)?;
            let short =
                CudaError::Length { what: "cache", found: cache.capacity, expected: positions.end };
            let values = cache.values.as_ref().filter(|_| positions.end <= cache.capacity);
            let address = values.ok_or(short)?.device_ptr(self.device.stream()).0;
            words.extend(positions.clone().flat_map(|position| [address, position as u64]));
        }
        super::error::check_len("rows", words.len().max(self.words.len()), self.words.len())?;
        self.rows = words.len() / 2;
        Ok(self.device.stream().memcpy_htod(&words, &mut self.words)?)
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    pub(super) fn pointer(&self) -> u64 {
        self.words.device_ptr(self.device.stream()).0
    }
}

/// A recorded sequence of launches.
pub struct CudaGraph {
    device: Arc<Device>,
    graph: cudarc::driver::CudaGraph,
}

impl std::fmt::Debug for CudaGraph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaGraph").finish_non_exhaustive()
    }
}

// SAFETY: the driver's graphs may be used by any thread, one at a time; `launch` holds the device's lock,
// and an owned graph is destroyed once.
unsafe impl Send for CudaGraph {}

impl CudaGraph {
    /// Records what `work` queues, without running it. Kernels that `work` needs must have run before,
    /// since nothing can be loaded or allocated meanwhile.
    pub fn record<E: From<CudaError>>(
        device: &Arc<Device>,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        use cudarc::driver::sys;
        let _exclusive = device.exclusive();
        let stream = device.stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(CudaError::from)?;
        let done = work();
        let flags = sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = stream.end_capture(flags).map_err(CudaError::from);
        done?;
        let graph = graph?.ok_or(CudaError::Recording)?;
        Ok(Self { device: device.clone(), graph })
    }

    /// Queues what was recorded.
    pub fn launch(&self) -> Result<(), CudaError> {
        let _exclusive = self.device.exclusive();
        Ok(self.graph.launch()?)
    }
}

/// Copies `rows` (indices of rows of `width` elements) of `from` to the start of `to`, in their order.
///
/// Errors when `to` has no room for them.
pub fn gather_rows(
    device: &Device,
    from: &CudaSlice<f32>,
    width: usize,
    rows: &[usize],
    to: &mut CudaSlice<f32>,
) -> Result<(), CudaError> {
    let room = to.len().min(rows.len() * width);
    super::error::check_len("rows", room, rows.len() * width)?;
    for (index, row) in rows.iter().enumerate() {
        let from = from.slice(row * width..(row + 1) * width);
        let mut to = to.slice_mut(index * width..(index + 1) * width);
        device.stream().memcpy_dtod(&from, &mut to)?;
    }
    Ok(())
}

/// Copies `values` to the start of `to`.
pub fn write(device: &Device, values: &[f32], to: &mut CudaSlice<f32>) -> Result<(), CudaError> {
    super::error::check_len("to", to.len().min(values.len()), values.len())?;
    let mut to = to.slice_mut(..values.len());
    let stream = device.stream();
    debug_assert_ne!(to.device_ptr_mut(stream).0, 0);
    Ok(stream.memcpy_htod(values, &mut to)?)
}

/// Floats that [`CudaReader`] holds page-locked at most.
const MOST_LOCKED: usize = 1 << 20;

/// Reads results through page-locked memory, which the driver need not stage.
#[derive(Debug, Default)]
pub struct CudaReader {
    locked: Option<PinnedHostSlice<f32>>,
}

impl CudaReader {
    /// The first `len` elements, after everything queued so far.
    ///
    /// Errors when there are fewer.
    pub fn read(
        &mut self,
        device: &Device,
        from: &CudaSlice<f32>,
        len: usize,
    ) -> Result<Vec<f32>, CudaError> {
        super::error::check_len("from", from.len().min(len), len)?;
        let stream = device.stream();
        if len > MOST_LOCKED {
            return Ok(stream.clone_dtoh(&from.slice(..len))?);
        }
        if self.locked.as_ref().is_none_or(|locked| locked.len() < len) {
            // SAFETY: it is written before it is read.
            self.locked = Some(unsafe { device.context.alloc_pinned_with_flags(len, 0)? });
        }
        // The driver is told the length of the target, so that must be no more than what is read.
        let target = &mut self.locked.as_mut().expect("made above").as_mut_slice()?[..len];
        stream.memcpy_dtoh(&from.slice(..len), target)?;
        stream.synchronize()?;
        Ok(target.to_vec())
    }
}
