//! A packed matrix in a GPU's memory.

use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::plan::max_rows;
use super::program::{Family, Source};
use super::{CudaError, CudaOptions, Device};
use crate::{Activation, Axis, Numerics, PackedMatrix};
use cudarc::cublas::sys::cudaDataType;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};
use std::sync::Arc;
use trelliq_codec::{Code, Trellis};

/// An activation type that kernels know.
pub trait CudaActivation: Activation + DeviceRepr + ValidAsZeroBits {
    /// Its number in the kernels' sources.
    const TAG: u32;
    /// Its name for cuBLAS.
    const BLAS_TYPE: cudaDataType;
}

impl CudaActivation for f32 {
    const TAG: u32 = 0;
    const BLAS_TYPE: cudaDataType = cudaDataType::CUDA_R_32F;
}

impl CudaActivation for f16 {
    const TAG: u32 = 1;
    const BLAS_TYPE: cudaDataType = cudaDataType::CUDA_R_16F;
}

impl CudaActivation for bf16 {
    const TAG: u32 = 2;
    const BLAS_TYPE: cudaDataType = cudaDataType::CUDA_R_16BF;
}

/// The repacked layout of kernels/packed.cuh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Units {
    pub words: u32,
    pub inner: u32,
    pub groups: u32,
    /// Runs of 32 in a block's ring, where that divides 8; 1 where spill words are stored.
    pub ring: u32,
    pub explicit: bool,
}

impl Units {
    /// The layout of a `1mad` matrix whose blocks are whole runs of 32.
    fn of(matrix: &PackedMatrix) -> Option<Self> {
        let trellis = matrix.trellis();
        if trellis.code() != Code::OneMad || !trellis.block_len().is_multiple_of(32) {
            return None;
        }
        let runs = trellis.block_len() as u32 / 32;
        let explicit = 8 % runs != 0;
        let streams = match matrix.axis() {
            Axis::Out => 2,
            Axis::In => 4,
        };
        let (inner, groups) = match matrix.axis() {
            Axis::Out => (matrix.in_features().div_ceil(8), matrix.out_features().div_ceil(256)),
            Axis::In => (matrix.in_features().div_ceil(256), matrix.out_features().div_ceil(16)),
        };
        let words = 32 * streams * (trellis.bits() + u32::from(explicit));
        let ring = if explicit { 1 } else { runs };
        let fits = (inner * groups) < 1 << 31;
        fits.then_some(Self { words, inner: inner as u32, groups: groups as u32, ring, explicit })
    }

    fn len(&self) -> usize {
        self.words as usize * self.inner as usize * self.groups as usize
    }
}

/// Packed codes of a weight `[out, in]` on a GPU: repacked for tensor cores where the code and the
/// block length allow, as stored otherwise.
#[derive(Debug)]
pub struct CudaMatrix {
    device: Arc<Device>,
    trellis: Trellis,
    axis: Axis,
    in_features: usize,
    out_features: usize,
    units: Option<Units>,
    codes: CudaSlice<u32>,
    scales: CudaSlice<f32>,
    /// The code's values, for a code that is a table; else one unused element.
    table: CudaSlice<f32>,
}

impl CudaMatrix {
    /// Copies a matrix to the GPU and repacks it there.
    pub fn upload(device: &Arc<Device>, matrix: &PackedMatrix) -> Result<Self, CudaError> {
        let table = match matrix.trellis().code() {
            Code::OneMad | Code::ThreeInst => device.zeros(1)?,
            _ => device.upload(matrix.values())?,
        };
        let mut this = Self {
            device: device.clone(),
            trellis: *matrix.trellis(),
            axis: matrix.axis(),
            in_features: matrix.in_features(),
            out_features: matrix.out_features(),
            units: Units::of(matrix),
            codes: device.upload(matrix.words())?,
            scales: device.upload(matrix.scales())?,
            table,
        };
        if let Some(units) = this.units {
            this.codes = this.repacked(&units)?;
            // Launches that overlap read weights before they wait for what precedes them.
            device.synchronize()?;
        }
        Ok(this)
    }

    fn repacked(&self, units: &Units) -> Result<CudaSlice<u32>, CudaError> {
        let device = &*self.device;
        let mut to: CudaSlice<u32> = device.zeros(units.len())?;
        let runs = self.trellis.block_len() as u32 / 32;
        let mut macros = self.unit_macros();
        macros.extend([("RUNS", runs), ("L", self.trellis.state_bits())]);
        let kernel =
            device.kernel(Source { family: Family::Repack, function: "repack", macros })?;
        let (rows, count) = (self.rows() as u32, units.len() as u64);
        let runs_per_row = self.cols() as u32 / 32;
        let from = self.codes.device_ptr(&device.stream).0;
        let target = to.device_ptr_mut(&device.stream).0;
        let mut arguments = arguments![from, target, rows, runs_per_row, count, units.inner];
        // SAFETY: the kernel reads stored codes inside rows x runs and writes `count` words of `to`.
        unsafe { launch(device, &kernel, Shape::elements(count), &mut arguments)? };
        // The stored codes are freed on the same stream, after the kernel.
        Ok(to)
    }

    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub fn trellis(&self) -> &Trellis {
        &self.trellis
    }

    pub fn axis(&self) -> Axis {
        self.axis
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// Bytes of device memory that the codes and scales take.
    pub fn bytes(&self) -> usize {
        self.codes.num_bytes() + self.scales.num_bytes() + self.table.num_bytes()
    }

    fn rows(&self) -> usize {
        match self.axis {
            Axis::Out => self.in_features,
            Axis::In => self.out_features,
        }
    }

    fn cols(&self) -> usize {
        match self.axis {
            Axis::Out => self.out_features,
            Axis::In => self.in_features,
        }
    }

    pub(super) fn units(&self) -> Option<&Units> {
        self.units.as_ref()
    }

    pub(super) fn codes(&self) -> &CudaSlice<u32> {
        &self.codes
    }

    pub(super) fn scales(&self) -> &CudaSlice<f32> {
        &self.scales
    }

    /// Macros of packed.cuh.
    pub(super) fn unit_macros(&self) -> Vec<(&'static str, u32)> {
        let explicit = self.units.is_some_and(|units| units.explicit);
        vec![
            ("K", self.trellis.bits()),
            ("AXIS", self.axis as u32),
            ("EXPLICIT", u32::from(explicit)),
        ]
    }

    /// Macros of the kernels that decode from either layout.
    fn decode_macros<A: CudaActivation>(&self, numerics: Numerics) -> Vec<(&'static str, u32)> {
        let code = match self.trellis.code() {
            Code::OneMad => 0,
            Code::ThreeInst => 1,
            _ => 2,
        };
        let mut macros = self.unit_macros();
        macros.extend([
            ("CODE", code),
            ("L", self.trellis.state_bits()),
            ("EXACT", u32::from(numerics == Numerics::Exact)),
            ("X", A::TAG),
            ("UNITS", u32::from(self.units.is_some())),
        ]);
        macros
    }

    /// The dense matrix, `[out, in]` row-major, as the CPU's `expand` gives it bit for bit.
    pub fn expand<A: CudaActivation>(
        &self,
        numerics: Numerics,
        out: &mut CudaSlice<A>,
    ) -> Result<(), CudaError> {
        check_len("out", out.len(), self.in_features * self.out_features)?;
        let device = &*self.device;
        let runs = self.trellis.block_len().is_multiple_of(32);
        let (rows, cols) = (self.rows() as u32, self.cols() as u32);
        let per_lane = if A::TAG != f32::TAG && rows.is_multiple_of(2) { 2 } else { 1 };
        let mut macros = self.decode_macros::<A>(numerics);
        macros.extend([("RUNS", u32::from(runs)), ("ROWS", per_lane)]);
        let kernel =
            device.kernel(Source { family: Family::Expand, function: "expand", macros })?;
        let shape = match (runs, self.axis) {
            (false, _) => Shape::elements(u64::from(rows) * u64::from(cols)),
            (true, Axis::In) => {
                let count = u64::from(rows) * u64::from(cols / 32);
                let grid = [count.div_ceil(128) as u32, 1, 1];
                Shape { grid, block: 128, shared: 0, overlap: false }
            }
            (true, Axis::Out) => {
                let grid = [rows.div_ceil(32 * per_lane), (cols / 32).div_ceil(8), 1];
                Shape { grid, block: 256, shared: 0, overlap: false }
            }
        };
        let stream = &device.stream;
        let codes = self.codes.device_ptr(stream).0;
        let scales = self.scales.device_ptr(stream).0;
        let table = self.table.device_ptr(stream).0;
        let to = out.device_ptr_mut(stream).0;
        let block_len = self.trellis.block_len() as u32;
        let inner = self.units.map_or(0, |units| units.inner);
        let mut arguments = arguments![codes, scales, table, to, rows, cols, block_len, inner];
        // SAFETY: codes, scales and table have the sizes of this matrix, and `out` was checked.
        unsafe { launch(device, &kernel, shape, &mut arguments) }
    }

    /// `y <- x What^T` for `x`: `[m, in]` and `y`: `[m, out]`, row-major, `y` overwritten; queued on the
    /// device's stream. The result does not depend on the run.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn multiply<A: CudaActivation>(
        &self,
        x: &CudaSlice<A>,
        m: usize,
        y: &mut CudaSlice<A>,
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        let (inputs, outputs) = (self.in_features, self.out_features);
        check_len("x", x.len().min(m * inputs), m * inputs)?;
        check_len("y", y.len().min(m * outputs), m * outputs)?;
        if m == 0 {
            return Ok(());
        }
        if m >= options.expand_from {
            return self.multiply_expanded(x, m, y, options);
        }
        let integer = options.numerics == Numerics::Fast;
        let most = if integer { max_rows(options.terms) } else { 8 };
        let (x, y) = (x.device_ptr(&self.device.stream).0, y.device_ptr_mut(&self.device.stream).0);
        for start in (0..m).step_by(most) {
            let rows = most.min(m - start);
            let x = x + (start * inputs * size_of::<A>()) as u64;
            let y = y + (start * outputs * size_of::<A>()) as u64;
            let plan = if integer { self.integer_plan(rows, options) } else { None };
            // SAFETY: rows start.. of x and y, whose lengths were checked.
            unsafe {
                match plan {
                    Some(plan) => self.multiply_integer::<A>([x, y], rows, &plan, options)?,
                    None => self.multiply_generic::<A>([x, y], rows, options.numerics)?,
                }
            }
        }
        Ok(())
    }

    /// Expands the whole tensor, once, and multiplies by cuBLAS.
    fn multiply_expanded<A: CudaActivation>(
        &self,
        x: &CudaSlice<A>,
        m: usize,
        y: &mut CudaSlice<A>,
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        let device = &*self.device;
        // SAFETY: `expand` writes every element before cuBLAS reads it, in stream order.
        let mut dense = unsafe { device.stream.alloc(self.in_features * self.out_features)? };
        self.expand::<A>(options.numerics, &mut dense)?;
        let stream = &device.stream;
        let pointers =
            [x.device_ptr(stream).0, dense.device_ptr(stream).0, y.device_ptr_mut(stream).0];
        // SAFETY: the caller checked the lengths of x and y.
        device.with_blas(|blas| unsafe {
            let shape = [m, self.in_features, self.out_features];
            blas.multiply::<A>(pointers, shape, options.tf32 && A::TAG == f32::TAG)
        })
    }

    /// # Safety
    /// `x` and `y` are device memory of `[m, in]` and `[m, out]` values of type A, `m` at most 8.
    unsafe fn multiply_generic<A: CudaActivation>(
        &self,
        [x, y]: [CUdeviceptr; 2],
        m: usize,
        numerics: Numerics,
    ) -> Result<(), CudaError> {
        let device = &*self.device;
        let stream = &device.stream;
        let function = |name| {
            let macros = self.decode_macros::<A>(numerics);
            device.kernel(Source { family: Family::Generic, function: name, macros })
        };
        let codes = self.codes.device_ptr(stream).0;
        let scales = self.scales.device_ptr(stream).0;
        let table = self.table.device_ptr(stream).0;
        let (rows, cols) = (self.rows() as u32, self.cols() as u32);
        let block_len = self.trellis.block_len() as u32;
        let inner = self.units.map_or(0, |units| units.inner);
        let rows_of_x = m as u32;
        let shape = |grid| Shape { grid, block: 128, shared: 0, overlap: false };
        match self.axis {
            Axis::In => {
                let grid = [rows.div_ceil(4), 1, 1];
                let kernel = function("generic_reduce")?;
                let mut arguments =
                    arguments![codes, scales, table, x, y, rows_of_x, rows, cols, block_len, inner];
                // SAFETY: as this function's contract has it.
                unsafe { launch(device, &kernel, shape(grid), &mut arguments) }
            }
            Axis::Out => {
                let splits = rows.div_ceil(128).min(64);
                let workspace = device.workspace(splits as usize * m * cols as usize, 0)?;
                let partial = workspace.partial.device_ptr(stream).0;
                let kernel = function("generic_scatter")?;
                let mut arguments = arguments![
                    codes, scales, table, x, partial, rows_of_x, rows, cols, block_len, inner
                ];
                // SAFETY: as above; the workspace holds [splits, m, cols].
                unsafe {
                    let grid = [cols.div_ceil(128), splits, 1];
                    launch(device, &kernel, shape(grid), &mut arguments)?;
                    let (fold, count) = (function("fold")?, rows_of_x * cols);
                    let mut arguments = arguments![partial, y, splits, count];
                    launch(device, &fold, Shape::elements(u64::from(count)), &mut arguments)
                }
            }
        }
    }
}
