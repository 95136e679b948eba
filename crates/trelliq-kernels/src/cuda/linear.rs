//! A linear layer with its rotations and bias on a GPU: `y = sv * H_out(What (H_in (su * x))) + bias`.

use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::program::{Family, Source};
use super::{CudaActivation, CudaError, CudaMatrix, CudaOptions, Device};
use crate::TrellisLinear;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use std::sync::Arc;

/// Elements that a thread block of the rotation takes at least.
const CHUNK: usize = 1024;

/// One side's channel factors and Hadamard block.
#[derive(Debug)]
struct Side {
    block: usize,
    channels: CudaSlice<f32>,
    /// Of the input side, to find layers that share it.
    host: Vec<f32>,
}

/// A [`TrellisLinear`] in a GPU's memory.
#[derive(Debug)]
pub struct CudaLinear {
    matrix: CudaMatrix,
    input: Option<Side>,
    output: Option<Side>,
    bias: Option<CudaSlice<f32>>,
}

/// Buffers that calls reuse; they grow to the largest layer seen.
#[derive(Debug, Default)]
pub struct CudaScratch {
    x: Option<CudaSlice<f32>>,
    y: Option<CudaSlice<f32>>,
    wide: Option<CudaSlice<f32>>,
}

impl CudaScratch {
    /// Room for a dense weight in f32.
    pub(super) fn wide(
        &mut self,
        device: &Device,
        len: usize,
    ) -> Result<&mut CudaSlice<f32>, CudaError> {
        sized(device, &mut self.wide, len)
    }
}

impl CudaLinear {
    pub fn upload(device: &Arc<Device>, layer: &TrellisLinear) -> Result<Self, CudaError> {
        let side = |block, channels: &[f32]| -> Result<Option<Side>, CudaError> {
            let idle = block == 1 && channels.iter().all(|&c| c == 1.0);
            Ok(if idle {
                None
            } else {
                Some(Side { block, channels: device.upload(channels)?, host: channels.to_vec() })
            })
        };
        let (input, mut output) = match layer.rotation() {
            Some(r) => (side(r.in_block(), r.su())?, side(r.out_block(), r.sv())?),
            None => (None, None),
        };
        if output.is_none() && layer.bias().is_some() {
            let channels = device.upload(&vec![1.0; layer.out_features()])?;
            output = Some(Side { block: 1, channels, host: Vec::new() });
        }
        Ok(Self {
            matrix: CudaMatrix::upload(device, layer.matrix())?,
            input,
            output,
            bias: layer.bias().map(|bias| device.upload(bias)).transpose()?,
        })
    }

    pub fn matrix(&self) -> &CudaMatrix {
        &self.matrix
    }

    pub fn in_features(&self) -> usize {
        self.matrix.in_features()
    }

    pub fn out_features(&self) -> usize {
        self.matrix.out_features()
    }

    /// `y <- x W^T + bias` for `x`: `[m, in]`, `y`: `[m, out]`, row-major; queued on the device's
    /// stream. Between the rotations numbers are f32.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn forward<A: CudaActivation>(
        &self,
        x: &CudaSlice<A>,
        m: usize,
        y: &mut CudaSlice<A>,
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        Self::forward_shared(&[self], x, m, &mut [y], options, scratch)
    }

    /// As [`forward`](Self::forward) for several layers of one input: neighbours in the list that rotate
    /// it in the same way share the rotated input.
    ///
    /// Errors when a buffer is too short.
    pub fn forward_shared<A: CudaActivation>(
        layers: &[&Self],
        x: &CudaSlice<A>,
        m: usize,
        ys: &mut [&mut CudaSlice<A>],
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        check_len("ys", ys.len(), layers.len())?;
        let mut rotated: Option<&Self> = None;
        for (layer, y) in layers.iter().zip(ys) {
            let (inputs, outputs) = (layer.in_features(), layer.out_features());
            check_len("x", x.len().min(m * inputs), m * inputs)?;
            check_len("y", y.len().min(m * outputs), m * outputs)?;
            if m == 0 {
                continue;
            }
            if layer.input.is_none() && layer.output.is_none() {
                layer.matrix.multiply(x, m, y, options)?;
                continue;
            }
            let device = layer.matrix.device();
            let stream = device.stream();
            let input = sized(device, &mut scratch.x, m * inputs)?;
            if rotated.is_none_or(|before| !layer.rotates_like(before)) {
                let (from, to) = (x.device_ptr(stream).0, input.device_ptr_mut(stream).0);
                // SAFETY: both hold [m, inputs].
                unsafe {
                    layer.rotate::<A, f32>(layer.input.as_ref(), false, [from, to], m, options)?;
                }
                rotated = Some(layer);
            }
            let sums = sized(device, &mut scratch.y, m * outputs)?;
            layer.matrix.multiply(input, m, sums, options)?;
            let (from, to) = (sums.device_ptr(stream).0, y.device_ptr_mut(stream).0);
            // SAFETY: both hold [m, outputs].
            unsafe {
                layer.rotate::<f32, A>(layer.output.as_ref(), true, [from, to], m, options)?;
            }
        }
        Ok(())
    }

    /// Whether the two layers rotate their inputs in the same way.
    fn rotates_like(&self, other: &Self) -> bool {
        self.in_features() == other.in_features()
            && match (&self.input, &other.input) {
                (None, None) => true,
                (Some(a), Some(b)) => a.block == b.block && a.host == b.host,
                _ => false,
            }
    }

    /// One side's rotation, or a change of type where it has none.
    ///
    /// # Safety
    /// The pointers are device memory of `[m, dim]` values of types I and O.
    unsafe fn rotate<I: CudaActivation, O: CudaActivation>(
        &self,
        side: Option<&Side>,
        output: bool,
        [from, to]: [CUdeviceptr; 2],
        m: usize,
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        let device = self.matrix.device();
        let stream = device.stream();
        let dim = if output { self.out_features() } else { self.in_features() };
        let block = side.map_or(1, |side| side.block);
        let channels = side.map_or(0, |side| side.channels.device_ptr(stream).0);
        let bias = if output { self.bias.as_ref() } else { None };
        let bias = bias.map_or(0, |bias| bias.device_ptr(stream).0);
        let chunk = block.max(CHUNK);
        let macros = vec![("IN", I::TAG), ("OUT", O::TAG), ("OUTPUT", u32::from(output))];
        let kernel =
            device.kernel(Source { family: Family::Rotate, function: "rotate", macros })?;
        let shared = 4 * chunk as u32;
        if shared > 48 << 10 {
            kernel.allow_shared(shared)?;
        }
        let shape = Shape {
            grid: [dim.div_ceil(chunk) as u32, m as u32, 1],
            block: 256,
            shared,
            overlap: options.overlap,
        };
        let norm = 1.0 / (block as f32).sqrt();
        let (dim, block, chunk) = (dim as u32, block as u32, chunk as u32);
        let mut arguments = arguments![from, to, channels, bias, dim, block, chunk, norm];
        // SAFETY: the caller's memory; channels and bias have `dim` elements or are null.
        unsafe { launch(device, &kernel, shape, &mut arguments) }
    }
}

/// At least `len` floats of a buffer that only grows.
fn sized<'a>(
    device: &Device,
    buffer: &'a mut Option<CudaSlice<f32>>,
    len: usize,
) -> Result<&'a mut CudaSlice<f32>, CudaError> {
    if buffer.as_ref().is_none_or(|b| b.len() < len) {
        device.note_move();
        *buffer = None;
        *buffer = Some(device.zeros(len)?);
    }
    Ok(buffer.as_mut().expect("made above"))
}
