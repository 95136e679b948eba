//! A linear layer with its rotations and bias on a GPU: `y = sv * H_out(What (H_in (su * x))) + bias`.

use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::program::{Family, Source};
use super::{CudaActivation, CudaError, CudaMatrix, CudaOptions, Device};
use crate::TrellisLinear;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use std::marker::PhantomData;
use std::sync::Arc;

/// Elements that a thread block of the rotation takes at least.
const CHUNK: usize = 1024;
/// Elements that are rotated together, in blocks of at most so many, and threads that do it where each
/// holds 4 (PIECE in hadamard.cuh).
pub(super) const PIECE: usize = 512;
pub(super) const PIECE_THREADS: u32 = 128;

/// One side's channel factors and Hadamard block.
#[derive(Debug)]
struct Side {
    block: usize,
    channels: CudaSlice<f32>,
    /// Of the input side, to find layers that share it.
    host: Vec<f32>,
}

/// One side of a layer's rotation for the kernels around its product: `channels * H(v) + bias` of its
/// sums, or `H(channels * v)` of its inputs. By default it changes nothing.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RotationSide<'a> {
    // As `Side` in hadamard.cuh.
    channels: CUdeviceptr,
    bias: CUdeviceptr,
    block: u32,
    norm: f32,
    layer: PhantomData<&'a CudaLinear>,
}

impl Default for RotationSide<'_> {
    fn default() -> Self {
        Self { channels: 0, bias: 0, block: 1, norm: 1.0, layer: PhantomData }
    }
}

impl RotationSide<'_> {
    pub(super) fn block(&self) -> usize {
        self.block as usize
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.channels == 0 && self.bias == 0 && self.block == 1
    }
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

    /// The rotation of its inputs, to be done before [`sums`](Self::sums).
    pub fn input_side(&self) -> RotationSide<'_> {
        self.rotation_side(self.input.as_ref(), None)
    }

    /// The rotation of its sums, with its bias.
    pub fn output_side(&self) -> RotationSide<'_> {
        self.rotation_side(self.output.as_ref(), self.bias.as_ref())
    }

    fn rotation_side(
        &self,
        side: Option<&Side>,
        bias: Option<&CudaSlice<f32>>,
    ) -> RotationSide<'_> {
        let stream = self.matrix.device().stream();
        let Some(side) = side else { return RotationSide::default() };
        RotationSide {
            channels: side.channels.device_ptr(stream).0,
            bias: bias.map_or(0, |bias| bias.device_ptr(stream).0),
            block: side.block as u32,
            norm: 1.0 / (side.block as f32).sqrt(),
            layer: PhantomData,
        }
    }

    /// Whether the kernels around its product can do its rotations: blocks are no longer than theirs.
    pub fn rotates_outside(&self) -> bool {
        let short = |side: &Option<Side>| side.as_ref().is_none_or(|side| side.block <= PIECE);
        short(&self.input) && short(&self.output)
    }

    /// The product alone: `y <- x What^T` for `x` whose input side has been applied, `y` before its
    /// output side.
    ///
    /// Errors when a buffer is shorter than `[m, in]` and `[m, out]`.
    pub fn sums(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        self.matrix.multiply(x, m, y, options)
    }

    /// [`sums`](Self::sums) of several layers of one input; of one row they are one launch where they are
    /// coded alike.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn joined_sums(
        layers: &[&Self],
        x: &CudaSlice<f32>,
        m: usize,
        ys: &mut [&mut CudaSlice<f32>],
        options: &CudaOptions,
    ) -> Result<(), CudaError> {
        check_len("ys", ys.len(), layers.len())?;
        let matrices: Vec<&CudaMatrix> = layers.iter().map(|layer| &layer.matrix).collect();
        if m == 1 && CudaMatrix::multiply_joined(&matrices, x, ys, options)? {
            return Ok(());
        }
        layers.iter().zip(ys).try_for_each(|(layer, y)| layer.sums(x, m, y, options))
    }

    /// [`sums`](Self::sums) of an `x` whose input side is still to be applied.
    ///
    /// Errors when a buffer is shorter than that.
    pub fn sums_of_inputs(
        &self,
        x: &CudaSlice<f32>,
        m: usize,
        y: &mut CudaSlice<f32>,
        options: &CudaOptions,
        scratch: &mut CudaScratch,
    ) -> Result<(), CudaError> {
        let inputs = self.in_features();
        check_len("x", x.len().min(m * inputs), m * inputs)?;
        if self.input.is_none() {
            return self.sums(x, m, y, options);
        }
        let device = self.matrix.device();
        let rotated = sized(device, &mut scratch.x, m * inputs)?;
        let stream = device.stream();
        let (from, to) = (x.device_ptr(stream).0, rotated.device_ptr_mut(stream).0);
        // SAFETY: both hold [m, inputs].
        unsafe {
            self.rotate::<f32, f32>(self.input.as_ref(), false, [from, to], m, options)?;
        }
        self.matrix.multiply(rotated, m, y, options)
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
    pub fn rotates_like(&self, other: &Self) -> bool {
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
        let norm = 1.0 / (block as f32).sqrt();
        let macros = vec![("IN", I::TAG), ("OUT", O::TAG), ("OUTPUT", u32::from(output))];
        let source = |function| Source { family: Family::Rotate, function, macros };
        if block <= PIECE {
            let kernel = device.kernel(source("rotate_pieces"))?;
            let shape = Shape {
                grid: [dim.div_ceil(PIECE) as u32, m as u32, 1],
                block: PIECE_THREADS,
                shared: 0,
                overlap: options.overlap,
            };
            let (dim, block) = (dim as u32, block as u32);
            let mut arguments = arguments![from, to, channels, bias, dim, block, norm];
            // SAFETY: the caller's memory; channels and bias have `dim` elements or are null.
            return unsafe { launch(device, &kernel, shape, &mut arguments) };
        }
        let kernel = device.kernel(source("rotate"))?;
        let chunk = block.max(CHUNK);
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
