//! Dense layers: weights of any element type, activations and sums in f32.

use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::program::{Family, Source};
use super::{CudaError, CudaScratch, Device};
use crate::DenseRows;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use half::{bf16, f16};
use std::sync::Arc;

/// Rows of x of one launch of the kernel for few rows, and from which cuBLAS takes over.
const FEW_ROWS: usize = 8;

#[derive(Debug)]
enum Elements {
    F32(CudaSlice<f32>),
    F16(CudaSlice<f16>),
    Bf16(CudaSlice<bf16>),
}

/// `y = x W^T + bias` with a dense W `[rows, cols]` in a GPU's memory.
#[derive(Debug)]
pub struct CudaDense {
    device: Arc<Device>,
    elements: Elements,
    bias: Option<CudaSlice<f32>>,
    rows: usize,
    cols: usize,
}

impl CudaDense {
    /// Copies a weight of `cols` columns, row-major, and its bias.
    ///
    /// Errors when the weight is not whole rows, or the bias not one element a row.
    pub fn upload(
        device: &Arc<Device>,
        weight: DenseRows,
        cols: usize,
        bias: Option<&[f32]>,
    ) -> Result<Self, CudaError> {
        let (elements, len) = match weight {
            DenseRows::F32(w) => (Elements::F32(device.upload(w)?), w.len()),
            DenseRows::F16(w) => (Elements::F16(device.upload(w)?), w.len()),
            DenseRows::Bf16(w) => (Elements::Bf16(device.upload(w)?), w.len()),
        };
        let rows = len / cols;
        check_len("weight", len, rows * cols)?;
        check_len("bias", bias.map_or(rows, <[f32]>::len), rows)?;
        let bias = bias.map(|bias| device.upload(bias)).transpose()?;
        Ok(Self { device: device.clone(), elements, bias, rows, cols })
    }

    pub fn in_features(&self) -> usize {
        self.cols
    }

    pub fn out_features(&self) -> usize {
        self.rows
    }

    /// `x`: `[m, in]`, `y`: `[m, out]`, overwritten; queued on the device's stream. Many rows of a 16-bit
    /// weight go through a copy of it in f32.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn forward(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        check_len("x", x.len().min(m * self.cols), m * self.cols)?;
        check_len("y", y.len().min(m * self.rows), m * self.rows)?;
        if m > FEW_ROWS {
            return self.forward_many(x, m, y, scratch);
        }
        let stream = self.device.stream();
        let vector = if self.cols.is_multiple_of(8) && self.tag() != 0 { 8 } else { 1 };
        let kernel = self.kernel("dense", m.max(1) as u32, vector)?;
        let (weight, bias) = (self.weight(), self.bias());
        let (x, y) = (x.device_ptr(stream).0, y.device_ptr_mut(stream).0);
        let (inputs, outputs) = (self.cols as u32, self.rows as u32);
        let grid = [outputs.div_ceil(8), 1, 1];
        let shape = Shape { grid, block: 256, shared: 0, overlap: true };
        let mut arguments = arguments![weight, bias, x, y, inputs, outputs];
        // SAFETY: x and y were checked; weight and bias are this layer's.
        unsafe { launch(&self.device, &kernel, shape, &mut arguments) }
    }

    fn forward_many(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        let (device, stream) = (&*self.device, self.device.stream());
        let weight = match &self.elements {
            Elements::F32(weight) => weight.device_ptr(stream).0,
            _ => {
                let count = self.rows * self.cols;
                let wide = scratch.wide(device, count)?.device_ptr_mut(stream).0;
                let kernel = self.kernel("widen_weight", 1, 1)?;
                let (from, count) = (self.weight(), count as u64);
                let shape = Shape::elements(count);
                // SAFETY: both hold `count` elements.
                unsafe { launch(device, &kernel, shape, &mut arguments![from, wide, count])? };
                wide
            }
        };
        let (x, y) = (x.device_ptr(stream).0, y.device_ptr_mut(stream).0);
        // SAFETY: x and y were checked, and the weight is [rows, cols].
        device.with_blas(|blas| unsafe {
            blas.multiply::<f32>([x, weight, y], [m, self.cols, self.rows], false)
        })?;
        if self.bias.is_some() {
            let kernel = self.kernel("add_bias", 1, 1)?;
            let (bias, outputs, count) = (self.bias(), self.rows as u32, (m * self.rows) as u64);
            let mut arguments = arguments![y, bias, outputs, count];
            // SAFETY: y holds m rows of the bias's length.
            unsafe { launch(device, &kernel, Shape::elements(count), &mut arguments)? };
        }
        Ok(())
    }

    fn tag(&self) -> u32 {
        match self.elements {
            Elements::F32(_) => 0,
            Elements::F16(_) => 1,
            Elements::Bf16(_) => 2,
        }
    }

    fn weight(&self) -> u64 {
        let stream = self.device.stream();
        match &self.elements {
            Elements::F32(w) => w.device_ptr(stream).0,
            Elements::F16(w) => w.device_ptr(stream).0,
            Elements::Bf16(w) => w.device_ptr(stream).0,
        }
    }

    fn bias(&self) -> u64 {
        self.bias.as_ref().map_or(0, |bias| bias.device_ptr(self.device.stream()).0)
    }

    fn kernel(
        &self,
        function: &'static str,
        m: u32,
        vector: u32,
    ) -> Result<super::program::Kernel, CudaError> {
        let macros = vec![("DENSE", 1), ("W", self.tag()), ("MM", m), ("VECTOR", vector)];
        self.device.kernel(Source { family: Family::Decoder, function, macros })
    }
}
