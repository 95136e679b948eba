//! The Viterbi encoder on a GPU.

use super::error::check_len;
use super::launch::{Shape, arguments, launch};
use super::program::{Family, Kernel, Source};
use super::{CudaError, Device};
use crate::KernelError;
use cudarc::driver::{CudaSlice, DevicePtr, DevicePtrMut};
use std::sync::Arc;
use trelliq_codec::{Code, CodecError, MIN_PASSES, ONE_MAD_DIVISOR, Trellis, code_values};

/// States whose values a thread keeps.
const STATES_A_THREAD: u32 = 64;
/// Threads that a multiprocessor takes at most of this kernel: its registers are full then.
const RESIDENT_THREADS: u32 = 640;
/// Weights that go to the GPU at once.
const CHUNK: usize = 16 << 20;

/// Codes blocks of one trellis, as [`trelliq_codec::BlockEncoder`] does: the same two or more
/// passes, whose path metrics are f32 sums of squared errors with K low bits taken for the branch. Walks
/// differ from the CPU's only where paths are equally good up to that rounding.
pub struct CudaEncoder {
    device: Arc<Device>,
    trellis: Trellis,
    passes: usize,
    kernel: Kernel,
    values: CudaSlice<f32>,
    factor: f32,
    blocks: u32,
    shared: u32,
    pointers: CudaSlice<u32>,
}

impl std::fmt::Debug for CudaEncoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CudaEncoder").field("trellis", &self.trellis).finish_non_exhaustive()
    }
}

impl CudaEncoder {
    /// `passes`: 2 for Algorithm 4.
    ///
    /// Errors: fewer than 2 passes, L outside 11..=16 or K outside 1..=6 (the CPU codes those), a
    /// block too long for shared memory.
    pub fn new(device: &Arc<Device>, trellis: Trellis, passes: usize) -> Result<Self, CudaError> {
        let (state_bits, bits) = (trellis.state_bits(), trellis.bits());
        if passes < MIN_PASSES {
            return Err(KernelError::from(CodecError::Passes(passes)).into());
        }
        // A word a class; the kernel leaves out 4 words after 16 where it reads vectors.
        let classes = (4u32 << (state_bits - bits)) / 16 * if bits <= 2 { 20 } else { 16 };
        let inputs = 4 * trellis.block_len() as u64;
        let limit = u64::from(device.shared_bytes()) - 1024;
        let fits = |buffers: u32| u64::from(buffers * classes) + inputs <= limit;
        if state_bits < 11 || bits > 6 || !fits(1) {
            return Err(CudaError::Trellis { state_bits, bits });
        }
        let double = fits(2);
        let threads = (1 << state_bits) / STATES_A_THREAD;
        let macros = vec![
            ("K", bits),
            ("L", state_bits),
            ("PACKED", u32::from(state_bits == 16)),
            ("DOUBLE", u32::from(double)),
        ];
        let source = Source { family: Family::Viterbi, function: "viterbi", macros };
        let kernel = device.kernel(source)?;
        let shared = if double { 2 * classes } else { classes } + inputs as u32;
        kernel.allow_shared(shared)?;
        // Byte sums of 1mad are exact in f16, their values are not: work on sums then.
        let integer = trellis.code() == Code::OneMad && state_bits == 16;
        let factor = if integer { ONE_MAD_DIVISOR } else { 1.0 };
        let mut values = code_values(trellis.code(), state_bits);
        if integer {
            values.iter_mut().for_each(|v| *v = (*v * factor).round());
        }
        let resident = (RESIDENT_THREADS / threads).max(1).min(limit as u32 / shared);
        let blocks = device.processors() * resident;
        let words = blocks as usize * trellis.block_len() * threads as usize;
        Ok(Self {
            values: device.upload(&values)?,
            pointers: device.zeros(words)?,
            device: device.clone(),
            trellis,
            passes,
            kernel,
            factor,
            blocks,
            shared,
        })
    }

    pub fn trellis(&self) -> &Trellis {
        &self.trellis
    }

    /// Codes whole blocks in the GPU's memory: `x` and `states` have the same length, a multiple of T.
    /// `x` is finite and already divided by its scale. Queued on the device's stream.
    pub fn encode_on_device(
        &mut self,
        x: &CudaSlice<f32>,
        states: &mut CudaSlice<u16>,
    ) -> Result<(), CudaError> {
        check_len("states", states.len(), x.len())?;
        self.launch(x, states, x.len())
    }

    fn launch(
        &mut self,
        x: &CudaSlice<f32>,
        states: &mut CudaSlice<u16>,
        len: usize,
    ) -> Result<(), CudaError> {
        let block_len = self.trellis.block_len();
        if !len.is_multiple_of(block_len) {
            let error = CodecError::RowLen { cols: len, block_len };
            return Err(KernelError::from(error).into());
        }
        let blocks = (len / block_len) as u32;
        if blocks == 0 {
            return Ok(());
        }
        let stream = &self.device.stream;
        let (from, to) = (x.device_ptr(stream).0, states.device_ptr_mut(stream).0);
        let values = self.values.device_ptr(stream).0;
        let pointers = self.pointers.device_ptr_mut(stream).0;
        let (block_len, passes) = (block_len as u32, self.passes as u32);
        let shape = Shape {
            grid: [self.blocks.min(blocks), 1, 1],
            block: (1 << self.trellis.state_bits()) / STATES_A_THREAD,
            shared: self.shared,
            overlap: false,
        };
        let mut arguments =
            arguments![from, values, to, pointers, self.factor, blocks, block_len, passes];
        // SAFETY: x and states hold whole blocks, `pointers` a word a thread and step of `self.blocks`.
        unsafe { launch(&self.device, &self.kernel, shape, &mut arguments) }
    }

    /// [`BlockEncoder::encode`](trelliq_codec::BlockEncoder::encode) through the GPU, in chunks of
    /// bounded memory; `progress` is told of weights as they are done.
    pub fn encode(
        &mut self,
        x: &[f32],
        states: &mut [u16],
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), CudaError> {
        check_len("states", states.len(), x.len())?;
        let chunk = (CHUNK / self.trellis.block_len()).max(1) * self.trellis.block_len();
        let mut on_device: CudaSlice<u16> = self.device.zeros(chunk.min(x.len()))?;
        for (x, states) in x.chunks(chunk).zip(states.chunks_mut(chunk)) {
            let from = self.device.upload(x)?;
            self.launch(&from, &mut on_device, x.len())?;
            let coded = on_device.slice(0..x.len());
            self.device.stream.memcpy_dtoh(&coded, states)?;
            self.device.synchronize()?;
            progress(x.len());
        }
        Ok(())
    }
}
