//! The integer kernels: `1mad` weights, few rows of x.

use super::device::Workspace;
use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::matrix::{CudaActivation, CudaMatrix};
use super::plan::{Plan, Work, joined};
use super::program::{Family, Source};
use super::{CudaError, CudaOptions, Device};
use crate::{Axis, Numerics};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};

/// Products that run as one launch at most.
const MOST_PARTS: usize = 3;

/// Several products of one x, as linear.cuh has them.
#[repr(C)]
#[derive(Default)]
struct Parts {
    part: [Params; MOST_PARTS],
    first: [u32; MOST_PARTS + 1],
}

/// The kernels' parameters, as linear.cuh has them.
#[repr(C)]
#[derive(Default)]
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
    fn work(&self, m: usize, options: &CudaOptions) -> Option<Work> {
        let units = self.units()?;
        Some(Work {
            axis: self.axis(),
            bits: self.trellis().bits(),
            unit_words: units.words,
            inner: units.inner,
            groups: units.groups,
            m: m as u32,
            terms: options.terms,
            processors: self.device().processors(),
            shared_bytes: self.device().shared_bytes(),
        })
    }

    /// How `m` rows would be computed by an integer kernel, if this matrix has one.
    pub(super) fn integer_plan(&self, m: usize, options: &CudaOptions) -> Option<Plan> {
        let work = self.work(m, options)?;
        let plan = work.plan()?;
        (work.groups as usize <= Device::counters()).then_some(plan)
    }

    /// Macros of an integer kernel.
    fn integer_macros<A: CudaActivation>(
        &self,
        plan: &Plan,
        options: &CudaOptions,
    ) -> Vec<(&'static str, u32)> {
        let mut macros = self.unit_macros();
        macros.extend([
            ("FIXED_LAYOUT", 1),
            ("RING", self.units().map_or(1, |units| units.ring)),
            ("L", self.trellis().state_bits()),
            ("X", A::TAG),
            ("MM", plan.rows),
            ("TERMS", options.terms as u32),
            ("WARPS", plan.warps),
            ("STAGES", plan.stages),
            ("BLOCKS", 1),
        ]);
        macros
    }

    /// Products of one row x as one launch; false where they have to be launched one by one.
    ///
    /// Errors when a buffer is shorter than `[in]` or `[out]`.
    pub(super) fn multiply_joined(
        matrices: &[&Self],
        x: &CudaSlice<f32>,
        ys: &mut [&mut CudaSlice<f32>],
        options: &CudaOptions,
    ) -> Result<bool, CudaError> {
        let inputs = matrices[0].in_features();
        if matrices.len() > MOST_PARTS || options.numerics != Numerics::Fast {
            return Ok(false);
        }
        let works: Option<Vec<Work>> = matrices.iter().map(|m| m.work(1, options)).collect();
        let Some(plans) = works.as_deref().and_then(joined) else { return Ok(false) };
        let macros = matrices[0].integer_macros::<f32>(&plans[0], options);
        let alike = |(matrix, plan): (&&Self, &Plan)| {
            matrix.in_features() == inputs && matrix.integer_macros::<f32>(plan, options) == macros
        };
        let groups: usize = works.iter().flatten().map(|work| work.groups as usize).sum();
        if !matrices.iter().zip(&plans).all(alike) || groups > Device::counters() {
            return Ok(false);
        }
        check_len("x", x.len().min(inputs), inputs)?;
        for (matrix, y) in matrices.iter().zip(&*ys) {
            let outputs = matrix.out_features();
            check_len("y", y.len().min(outputs), outputs)?;
        }
        let macros = [&macros[..], &[("GIVEN", 0), ("JOINED", 1)]].concat();
        let device = matrices[0].device();
        let kernel =
            device.kernel(Source { family: Family::Scatter, function: "scatter", macros })?;
        let workspace = device.workspace(plans.iter().map(|plan| plan.partial).sum(), 0)?;
        let shared = plans.iter().map(|plan| plan.shared).max().unwrap_or(0);
        kernel.allow_shared(shared)?;
        let stream = device.stream();
        let x = x.device_ptr(stream).0;
        let mut parts = Parts::default();
        let (mut partial, mut counter) = (0, 0);
        for (index, ((matrix, plan), y)) in matrices.iter().zip(&plans).zip(ys).enumerate() {
            let y = y.device_ptr_mut(stream).0;
            let mut params = matrix.params([x, y], 1, plan, &workspace);
            params.partial += 4 * partial as u64;
            params.counters += 4 * counter;
            partial += plan.partial;
            counter += u64::from(params.groups);
            parts.part[index] = params;
            let end = parts.first[index] + plan.blocks;
            parts.first[index + 1..].fill(end);
        }
        let grid = [parts.first[MOST_PARTS], 1, 1];
        let overlap = options.overlap;
        let shape = Shape { grid, block: 32 * plans[0].warps, shared, overlap };
        // SAFETY: as in `multiply_integer`, for every part; the lengths of x and ys were checked.
        unsafe { launch(device, &kernel, shape, &mut arguments![parts])? };
        Ok(true)
    }

    fn params(
        &self,
        [x, y]: [CUdeviceptr; 2],
        m: usize,
        plan: &Plan,
        workspace: &Workspace,
    ) -> Params {
        let stream = self.device().stream();
        let units = self.units().expect("a plan was made from them");
        Params {
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
        }
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
        let (family, function) = match self.axis() {
            Axis::Out => (Family::Scatter, "scatter"),
            Axis::In => (Family::Reduce, "reduce"),
        };
        let mut macros = self.integer_macros::<A>(plan, options);
        macros.push(("GIVEN", u32::from(plan.quantized_before)));
        let kernel = device.kernel(Source { family, function, macros: macros.clone() })?;
        let cells = self.in_features().div_ceil(256);
        let workspace = device.workspace(plan.partial, cells * 64 * plan.columns as usize)?;
        // Under the workspace's lock: another thread may want less for the same kernel.
        kernel.allow_shared(plan.shared)?;
        let params = self.params([x, y], m, plan, &workspace);
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
