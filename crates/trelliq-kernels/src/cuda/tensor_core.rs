//! The integer kernels: `1mad` weights, few rows of x.

use super::launch::{Shape, arguments, launch};
use super::matrix::{CudaActivation, CudaMatrix};
use super::plan::{Plan, Work};
use super::program::{Family, Source};
use super::{CudaError, CudaOptions, Device};
use crate::Axis;
use cudarc::driver::DevicePtr;
use cudarc::driver::sys::CUdeviceptr;

/// The kernels' parameters, as linear.cuh has them.
#[repr(C)]
struct Params {
    units: CUdeviceptr,
    scales: CUdeviceptr,
    x: CUdeviceptr,
    y: CUdeviceptr,
    partial: CUdeviceptr,
    counters: CUdeviceptr,
    terms: CUdeviceptr,
    totals: CUdeviceptr,
    steps: CUdeviceptr,
    m: u32,
    inputs: u32,
    outputs: u32,
    inner: u32,
    groups: u32,
    chunks: u32,
    max_segments: u32,
}

impl CudaMatrix {
    /// How `m` rows would be computed by an integer kernel, if this matrix has one.
    pub(super) fn integer_plan(&self, m: usize, options: &CudaOptions) -> Option<Plan> {
        let units = self.units()?;
        let work = Work {
            axis: self.axis(),
            bits: self.trellis().bits(),
            unit_words: units.words,
            inner: units.inner,
            groups: units.groups,
            m: m as u32,
            terms: options.terms,
            processors: self.device().processors(),
            shared_bytes: self.device().shared_bytes(),
        };
        let plan = work.plan()?;
        (units.groups as usize <= Device::counters()).then_some(plan)
    }

    /// `y <- x What^T` for at most [`max_rows`](super::plan::max_rows) rows.
    ///
    /// # Safety
    /// `x` and `y` are device memory of `[m, in]` and `[m, out]` values of type A.
    pub(super) unsafe fn multiply_integer<A: CudaActivation>(
        &self,
        [x, y]: [CUdeviceptr; 2],
        m: usize,
        plan: &Plan,
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        let device = self.device();
        let units = self.units().expect("a plan was made from them");
        let (family, function) = match self.axis() {
            Axis::Out => (Family::Scatter, "scatter"),
            Axis::In => (Family::Reduce, "reduce"),
        };
        let mut macros = self.unit_macros();
        macros.extend([
            ("FIXED_LAYOUT", 1),
            ("RING", units.ring),
            ("L", self.trellis().state_bits()),
            ("X", A::TAG),
            ("MM", plan.rows),
            ("TERMS", options.terms as u32),
            ("WARPS", plan.warps),
            ("STAGES", plan.stages),
            ("BLOCKS", 1),
            ("GIVEN", u32::from(plan.quantized_before)),
        ]);
        let kernel = device.kernel(Source { family, function, macros: macros.clone() })?;
        kernel.allow_shared(plan.shared)?;
        let cells = self.in_features().div_ceil(256);
        let workspace = device.workspace(plan.partial, cells * 64 * plan.columns as usize)?;
        let stream = device.stream();
        let params = Params {
            units: self.codes().device_ptr(stream).0,
            scales: self.scales().device_ptr(stream).0,
            x,
            y,
            partial: workspace.partial.device_ptr(stream).0,
            counters: workspace.counters.device_ptr(stream).0,
            terms: workspace.terms.device_ptr(stream).0,
            totals: workspace.totals.device_ptr(stream).0,
            steps: workspace.steps.device_ptr(stream).0,
            m: m as u32,
            inputs: self.in_features() as u32,
            outputs: self.out_features() as u32,
            inner: units.inner,
            groups: units.groups,
            chunks: plan.chunks,
            max_segments: plan.segments,
        };
        if plan.quantized_before {
            let source = Source { family: Family::Quantize, function: "quantize", macros };
            let quantize = device.kernel(source)?;
            let shape =
                Shape { grid: [plan.rows, 1, 1], block: 1024, shared: 0, overlap: options.overlap };
            let p = &params;
            let cells = cells as u32;
            let mut arguments =
                arguments![p.x, p.scales, p.terms, p.totals, p.steps, p.m, p.inputs, cells];
            // SAFETY: the workspace was made as long as the kernel needs, x is the caller's part.
            unsafe { launch(device, &quantize, shape, &mut arguments)? };
        }
        let shape = Shape {
            grid: [plan.blocks, 1, 1],
            block: 32 * plan.warps,
            shared: plan.shared,
            overlap: options.overlap,
        };
        // SAFETY: the one parameter is this structure; the plan sized the workspace, and x and y are
        // the caller's part.
        unsafe { launch(device, &kernel, shape, &mut arguments![params]) }
    }
}
