//! How one multiplication is cut into jobs. The cut follows from shapes and options alone, never
//! from the number of threads, and so do the results.

use super::lanes::LANES;
use super::quantized::GROUP;
use super::reader::Reader;
use crate::{Activations, Axis, Isa, KernelOptions, Numerics, PackedMatrix};
use std::ops::Range;

/// Which kernel multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// Weights are decoded into registers' reach and used for all rows of x: reduce or scatter.
    Decode,
    /// The same by way of byte sums (`byte_sums.rs`), in integers or in f32.
    Sums(Activations),
    /// Tiles are decoded for a matrix multiply.
    Prefill,
    /// The tensor is decoded for a matrix multiply.
    Expand,
}

/// Weights that a job decodes at least, where it can: less is not worth handing to a thread.
const JOB_WEIGHTS: usize = 16 << 10;
/// Outputs of a prefill job, or of the blocks of one scatter job, at least.
const TILE_OUTPUTS: usize = 128;
/// Stored rows that a scatter job adds up at least, and most parts that the rows are split into.
const CHUNK_ROWS: usize = 192;
const MAX_CHUNKS: usize = 8;
/// Weights of a job of the scatter of byte sums, where there are as many, and most parts that the rows are
/// split into: long pieces of few rows, because rows lie one after another in memory.
const SUMS_JOB_WEIGHTS: usize = 128 << 10;
const SUMS_CHUNKS: usize = 16;
/// Multiply-adds below which threads cost more than they give.
const SERIAL_WORK: usize = 48 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    pub method: Method,
    /// Outputs a tile; the last may have fewer.
    pub tile: usize,
    /// Inputs of each partial sum, in the order of folding.
    pub chunks: Vec<Range<usize>>,
    /// Whether jobs go to the pool.
    pub parallel: bool,
}

impl Plan {
    pub fn new(matrix: &PackedMatrix, m: usize, options: &KernelOptions) -> Self {
        let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
        let method = method(matrix, m, options);
        let t = matrix.trellis().block_len();
        let tile = match (method, matrix.axis()) {
            (Method::Decode | Method::Sums(_), Axis::In) => {
                (JOB_WEIGHTS / inputs).next_multiple_of(LANES).max(LANES)
            }
            (Method::Sums(_), Axis::Out) => {
                (SUMS_JOB_WEIGHTS / sums_chunk(inputs)).next_multiple_of(t)
            }
            (Method::Expand, _) | (_, Axis::In) => TILE_OUTPUTS,
            (_, Axis::Out) => TILE_OUTPUTS.div_ceil(t) * t,
        };
        let chunk = match (method, matrix.axis()) {
            (Method::Decode, Axis::Out) => {
                let parts = (inputs / CHUNK_ROWS).clamp(1, MAX_CHUNKS);
                inputs.div_ceil(parts).next_multiple_of(4 * LANES)
            }
            (Method::Sums(_), Axis::Out) => sums_chunk(inputs),
            _ => inputs.max(1),
        };
        let chunks =
            (0..inputs).step_by(chunk).map(|start| start..(start + chunk).min(inputs)).collect();
        let parallel = inputs * outputs * m > SERIAL_WORK;
        Self { method, tile: tile.min(outputs.max(1)), chunks, parallel }
    }
}

/// Stored rows of a job of the scatter of byte sums, whole groups of activations.
fn sums_chunk(inputs: usize) -> usize {
    GROUP * inputs.div_ceil(GROUP * SUMS_CHUNKS).max(1)
}

/// What byte sums are multiplied by, `None` where they are slower than floats from the start.
fn on_sums(options: &KernelOptions) -> Option<Activations> {
    match options.activations.on(options.isa) {
        Activations::F32 if !Isa::chosen(options.isa).has_integer_products() => None,
        activations => Some(activations),
    }
}

fn method(matrix: &PackedMatrix, m: usize, options: &KernelOptions) -> Method {
    let bytes = (matrix.in_features() * matrix.out_features()).saturating_mul(size_of::<f32>());
    let prefill_from = options.prefill_from(matrix.axis());
    if m >= options.expand_from && bytes <= options.memory_ceiling {
        Method::Expand
    } else if m >= prefill_from.min(options.expand_from) {
        Method::Prefill
    } else if options.numerics == Numerics::Fast
        && Reader::has_int(matrix)
        && let Some(activations) = on_sums(options)
    {
        Method::Sums(activations)
    } else {
        Method::Decode
    }
}
