//! Kernels of the CPU: portable Rust, compiled once per instruction set.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod byte_sums;
mod decode;
mod dense;
mod expand;
mod float_kernels;
mod gemm;
mod generic;
mod int_kernels;
mod isa;
mod job;
mod kernels;
mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod plan;
mod prefill;
mod quantized;
mod reader;
mod reduce;
mod repacked;
mod scalar;
mod scatter;
mod simd;
mod sums;

pub use dense::{DenseRows, multiply_dense_rows};
pub(crate) use generic::Quants;
pub use isa::Isa;
pub(crate) use quantized::Quants16;
pub(crate) use repacked::{Repacked, bytes as repacked_bytes};

use crate::options::{Operand, Work, sized};
use crate::{Activation, Activations, Axis, KernelOptions, Numerics, PackedMatrix};
use job::Job;
use kernels::kernels;
use plan::{Method, Plan};
use quantized::Input;
use rayon::prelude::*;
use reader::Reader;
use std::ops::Range;

/// One product: a matrix, its input `[m, in]`, and how it is computed.
struct Product<'a> {
    reader: Reader<'a>,
    x: &'a [f32],
    m: usize,
    plan: Plan,
    numerics: Numerics,
    /// The expanded matrix, `[out, in]`, where the plan says so.
    dense: &'a [f32],
    /// x as byte sums are multiplied by it, where the plan says so.
    input: Option<Input<'a>>,
}

impl<'a> Product<'a> {
    fn new(
        matrix: &'a PackedMatrix,
        x: &'a [f32],
        m: usize,
        options: &KernelOptions,
        memory: &'a mut Operand,
    ) -> Self {
        let Operand { dense, quants } = memory;
        let reader = Reader::new(matrix, kernels(options.isa));
        let plan = Plan::new(matrix, m, options);
        let factor = |row| match matrix.axis() {
            Axis::In => 1.0,
            Axis::Out => reader.factor(row),
        };
        let input = match plan.method {
            Method::Sums(Activations::F32) => Some(Input::F32(quants.arrange(x, m, factor))),
            Method::Sums(_) => Some(Input::Int(quants.quantize(x, m, factor))),
            _ => None,
        };
        let mut expanded = &[][..];
        if plan.method == Method::Expand {
            let dense = sized(dense, matrix.in_features() * matrix.out_features());
            expand::expand(&reader, 0..matrix.out_features(), options.numerics, dense);
            expanded = dense;
        }
        Self { reader, x, m, plan, numerics: options.numerics, dense: expanded, input }
    }

    fn outputs(&self) -> usize {
        self.reader.matrix.out_features()
    }

    /// The outputs of tile `index`.
    fn tile(&self, index: usize) -> Range<usize> {
        index * self.plan.tile..((index + 1) * self.plan.tile).min(self.outputs())
    }

    /// `out <- ` the partial sums of one tile over the inputs of one chunk, `[m, tile]`.
    fn partial(&self, outputs: Range<usize>, chunk: usize, job: &mut Job, out: &mut [f32]) {
        let Self { reader, x, m, numerics, .. } = self;
        let t = reader.block_len();
        if let Some(x) = &self.input {
            return match reader.matrix.axis() {
                Axis::In => byte_sums::reduce(reader, x, outputs, job, out),
                Axis::Out => {
                    let blocks = outputs.start / t..outputs.end / t;
                    byte_sums::scatter(
                        reader,
                        x,
                        self.plan.chunks[chunk].clone(),
                        blocks,
                        job,
                        out,
                    );
                }
            };
        }
        match (self.plan.method, reader.matrix.axis()) {
            (Method::Expand, _) => self.multiply_expanded(outputs, out),
            (Method::Prefill, _) => prefill::prefill(reader, x, *m, outputs, *numerics, job, out),
            (_, Axis::In) => {
                reduce::reduce(reader, x, *m, outputs, *numerics, job, out);
            }
            (_, Axis::Out) => {
                let blocks = outputs.start / t..outputs.end / t;
                let rows = self.plan.chunks[chunk].clone();
                scatter::scatter(reader, x, *m, rows, blocks, *numerics, job, out);
            }
        }
    }

    fn multiply_expanded(&self, outputs: Range<usize>, out: &mut [f32]) {
        let inputs = self.reader.matrix.in_features();
        let weights = &self.dense[outputs.start * inputs..outputs.end * inputs];
        let x = gemm::View { data: self.x, row_stride: inputs, column_stride: 1 };
        let b = gemm::View { data: weights, row_stride: 1, column_stride: inputs };
        gemm::gemm((self.m, outputs.len(), inputs), out, x, b, false);
    }

    /// All sums of one tile, chunks folded in their order.
    fn whole(&self, outputs: Range<usize>, job: &mut Job, out: &mut [f32]) {
        self.partial(outputs.clone(), 0, job, out);
        let mut part = std::mem::take(&mut job.part);
        for chunk in 1..self.plan.chunks.len() {
            let part = sized(&mut part, out.len());
            self.partial(outputs.clone(), chunk, job, part);
            add(out, part);
        }
        job.part = part;
    }
}

fn add(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

/// Calls `body` on consecutive pieces of `data` and their indices, on the pool or in place.
fn for_each_piece(
    parallel: bool,
    data: &mut [f32],
    size: usize,
    body: impl Fn(usize, &mut Job, &mut [f32]) + Sync,
) {
    if parallel {
        data.par_chunks_mut(size)
            .enumerate()
            .for_each_init(Job::default, |job, (index, piece)| body(index, job, piece));
    } else {
        let job = &mut Job::default();
        data.chunks_mut(size).enumerate().for_each(|(index, piece)| body(index, job, piece));
    }
}

/// `y <- x What^T` for `x`: `[m, in]`, `y`: `[m, out]`, lengths checked by the caller.
pub(crate) fn multiply(
    matrix: &PackedMatrix,
    x: &[f32],
    m: usize,
    y: &mut [f32],
    options: &KernelOptions,
    work: &mut Work,
) {
    if y.is_empty() {
        return;
    }
    if options.isa == Some(Isa::Scalar) {
        return scalar::multiply(matrix, x, m, y, options.numerics);
    }
    let product = Product::new(matrix, x, m, options, &mut work.first);
    let (plan, outputs) = (&product.plan, product.outputs());
    let tiles = outputs.div_ceil(plan.tile);
    // Every (chunk, tile) pair has its own place of a full tile's size.
    let place = m * plan.tile;
    let sums = sized(&mut work.tiles, plan.chunks.len() * tiles * place);
    for_each_piece(plan.parallel, sums, place, |index, job, piece| {
        let outputs = product.tile(index % tiles);
        let piece = &mut piece[..m * outputs.len()];
        product.partial(outputs, index / tiles, job, piece);
    });
    let (first, rest) = sums.split_at_mut(tiles * place);
    for part in rest.chunks_exact(tiles * place) {
        add(first, part);
    }
    gather(first, &product, y);
}

/// Tiles `[m, tile]` one after another to `y`: `[m, out]`.
fn gather(tiles: &[f32], product: &Product<'_>, y: &mut [f32]) {
    let place = product.m * product.plan.tile;
    for_each_piece(product.plan.parallel && product.m > 1, y, product.outputs(), |m, _, y| {
        for (index, tile) in tiles.chunks_exact(place).enumerate() {
            let outputs = product.tile(index);
            let from = &tile[m * outputs.len()..(m + 1) * outputs.len()];
            y[outputs].copy_from_slice(from);
        }
    });
}

/// A matrix and its input, `[m, in]`.
type Operands<'a> = (&'a PackedMatrix, &'a [f32]);

/// `y <- combine(output, G x, U x)` for two products of equal geometry; the two are kept a tile at a
/// time. Both are cut into the same tiles, so axis and T agree.
pub(crate) fn multiply_pair(
    [gate, up]: [Operands<'_>; 2],
    m: usize,
    y: &mut [f32],
    options: &KernelOptions,
    work: &mut Work,
    combine: impl Fn(usize, f32, f32) -> f32 + Sync,
) {
    if y.is_empty() {
        return;
    }
    let gate = Product::new(gate.0, gate.1, m, options, &mut work.first);
    let up = Product::new(up.0, up.1, m, options, &mut work.second);
    let (tile, outputs) = (gate.plan.tile, gate.outputs());
    let place = m * tile;
    let tiles = sized(&mut work.tiles, outputs.div_ceil(tile) * place);
    for_each_piece(gate.plan.parallel, tiles, place, |index, job, piece| {
        let outputs = gate.tile(index);
        let piece = &mut piece[..m * outputs.len()];
        gate.whole(outputs.clone(), job, piece);
        let mut sums = std::mem::take(&mut job.sums);
        let ups = sized(&mut sums, piece.len());
        up.whole(outputs.clone(), job, ups);
        let rows = piece.chunks_exact_mut(outputs.len()).zip(ups.chunks_exact(outputs.len()));
        for (gates, ups) in rows {
            for ((output, gate), up) in outputs.clone().zip(gates).zip(ups) {
                *gate = combine(output, *gate, *up);
            }
        }
        job.sums = sums;
    });
    gather(tiles, &gate, y);
}

/// The rows `outputs` of the dense matrix, `[outputs, in]`; length checked by the caller.
pub(crate) fn expand<T: Activation>(
    matrix: &PackedMatrix,
    outputs: Range<usize>,
    numerics: Numerics,
    out: &mut [T],
) {
    expand::expand(&Reader::new(matrix, kernels(None)), outputs, numerics, out);
}

/// Orthonormal Hadamard transform of consecutive blocks; lengths checked by the caller.
pub(crate) fn hadamard(x: &mut [f32], block: usize) {
    kernels(None).hadamard(x, block);
}

/// `y[m, r] <- sum over groups g of scale[r, g] (q[r, g] . x[m, g]) + offset[r, g] sum(x[m, g])`
/// for the rows of 8-bit numbers `quants`; lengths checked by the caller.
pub(crate) fn multiply_bytes(
    isa: Option<Isa>,
    quants: Quants<'_>,
    x: &[f32],
    sums: &[f32],
    m: usize,
    y: &mut [f32],
) {
    let kernels = kernels(isa);
    let (inputs, groups) = (x.len() / m, sums.len() / m);
    let outputs = y.len() / m;
    for row in 0..outputs {
        let quants = Quants {
            bytes: &quants.bytes[row * inputs..(row + 1) * inputs],
            affine: &quants.affine[row * groups..(row + 1) * groups],
            ..quants
        };
        for m in 0..m {
            let x = &x[m * inputs..(m + 1) * inputs];
            let sums = &sums[m * groups..(m + 1) * groups];
            y[m * outputs + row] = kernels.dot_bytes(quants, x, sums);
        }
    }
}

/// `y <- x b^T` for `x`: `[m, k]`, `b`: `[n, k]`, `y`: `[m, n]`, by the platform's matrix multiply on
/// the calling thread.
pub(crate) fn multiply_dense(x: &[f32], b: &[f32], m: usize, k: usize, y: &mut [f32]) {
    let x = gemm::View { data: x, row_stride: k, column_stride: 1 };
    let weights = gemm::View { data: b, row_stride: 1, column_stride: k };
    gemm::gemm((m, b.len() / k, k), y, x, weights, false);
}
