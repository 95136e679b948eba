//! Choices that a call makes between kernels, and the memory that it works in.

use crate::cpu::Quants16;
use crate::{Axis, Isa, Numerics};

/// How the CPU multiplies activations by decoded weights, where a weight is not rounded
/// ([`Numerics::Fast`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// [`Int`](Self::Int) on instruction sets that multiply and add pairs of 16-bit numbers in one
    /// instruction (AVX2, AVX-512, NEON), [`F32`](Self::F32) on others.
    #[default]
    Auto,
    /// Activations in 16 bits with a scale for each 128 of them, products and their sums in integers.
    /// The relative error is 2.5e-5 where activations are normally distributed, where rounding them
    /// to f16 makes 2e-4, and about 1e-4 where one of each 128 dwarfs the others. For `1mad` with
    /// blocks of a multiple of 32; others run in f32, as does prefill.
    Int,
    /// In f32.
    F32,
}

impl Activations {
    /// What `Auto` stands for on an instruction set, or on the best where `None` is asked for.
    pub fn on(self, isa: Option<Isa>) -> Self {
        match self {
            Self::Auto if Isa::chosen(isa).has_integer_products() => Self::Int,
            Self::Auto => Self::F32,
            asked => asked,
        }
    }
}

/// Which kernels run; read at every call, so that two settings can be compared on one loaded model.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelOptions {
    /// How a decoded weight is rounded.
    pub numerics: Numerics,
    /// What activations are multiplied in.
    pub activations: Activations,
    /// Rows of x (M) from which tiles are decoded into cache and given to a matrix multiply; `None`
    /// for what was measured, [`PREFILL_FROM`].
    pub prefill_from: Option<usize>,
    /// Rows of x from which one whole tensor is expanded to f32 first, if `memory_ceiling` allows.
    pub expand_from: usize,
    /// Bytes that an expanded tensor may take; a larger one is multiplied tile by tile.
    pub memory_ceiling: usize,
    /// The instruction set of the kernels; `None`, or one that the machine lacks, is the best it has.
    pub isa: Option<Isa>,
}

/// Measured crossovers to prefill for layers coded along outputs and along inputs, as
/// `benches/linear.rs` shows them on one core with AVX-512 (1536 x 1536, K = 3). Along inputs a
/// decoded weight feeds eight sums in registers, which stays ahead of a general matrix multiply for
/// longer.
pub const PREFILL_FROM: [usize; 2] = [32, 96];

impl KernelOptions {
    pub(crate) fn prefill_from(&self, axis: Axis) -> usize {
        self.prefill_from.unwrap_or(PREFILL_FROM[axis as usize])
    }
}

impl Default for KernelOptions {
    /// Decoding a tile costs what expanding it does and leaves it in cache, so expanding whole tensors
    /// never won and is left to an explicit choice.
    fn default() -> Self {
        Self {
            numerics: Numerics::Fast,
            activations: Activations::default(),
            prefill_from: None,
            expand_from: usize::MAX,
            memory_ceiling: 256 << 20,
            isa: None,
        }
    }
}

/// Buffers that calls reuse; they grow to the largest layer seen. One a caller, not shared.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) x: Vec<f32>,
    pub(crate) x2: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) y2: Vec<f32>,
    pub(crate) work: Work,
}

/// Buffers of one multiplication.
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub tiles: Vec<f32>,
    pub first: Operand,
    pub second: Operand,
}

/// Buffers of one matrix and its input.
#[derive(Debug, Default)]
pub(crate) struct Operand {
    pub dense: Vec<f32>,
    pub quants: Quants16,
}

/// The first `len` elements of a buffer that only grows; what they hold is left from earlier calls.
pub(crate) fn sized<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> &mut [T] {
    sized_with(buffer, len, T::default())
}

/// [`sized`] for a type without a default: new elements are `fresh`.
pub(crate) fn sized_with<T: Copy>(buffer: &mut Vec<T>, len: usize, fresh: T) -> &mut [T] {
    if buffer.len() < len {
        buffer.resize(len, fresh);
    }
    &mut buffer[..len]
}
