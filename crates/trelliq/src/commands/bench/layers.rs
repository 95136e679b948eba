//! Packed layers with random codes: every word is a legal one.

use super::machine::{BEYOND_CACHES, Machine, dense_product};
use super::row::{Comparison, Row, What};
use super::timer::time;
use super::{Case, From, Multiply, isa};
use anyhow::{Context, Result};
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;
use trelliq_codec::{Code, Trellis};
use trelliq_kernels::{
    Activations, Axis, Gate, KernelError, KernelOptions, Numerics, PackedMatrix, Scratch,
    TrellisLinear, gate_up,
};

pub fn measure(
    case: &Case,
    kernel: &KernelOptions,
    machine: &Machine,
    repack: bool,
    budget: Duration,
) -> Result<Row> {
    let &Case { what, bits, state_bits, axis, inputs, outputs, m, numerics, from } = case;
    let options = options(case, kernel);
    let layers = layers(case, repack)?;
    let each = if what == What::GateUp { 2 } else { 1 };
    let x: Vec<f32> = (0..m * inputs).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut y = vec![0f32; m * outputs];
    let mut scratch = Scratch::default();
    let mut turn = layers.chunks_exact(each).cycle();
    let times = time(budget, || -> Result<(), KernelError> {
        match turn.next() {
            Some([gate, up]) => {
                gate_up(gate, up, &x, m, &mut y, Gate::Silu, &options, &mut scratch)
            }
            Some([layer]) => layer.forward(&x, m, &mut y, &options, &mut scratch),
            _ => unreachable!("there is at least one layer"),
        }
    })?;
    let weights = (each * inputs * outputs) as f64;
    let rate = |seconds: f64| weights * m as f64 / seconds / 1e9;
    let coded = weights * f64::from(bits) / 8.0 / times.median / 1e9;
    let compared_with = if what == What::Prefill {
        let dense = rate(dense_product(m, inputs, outputs, budget).median);
        Comparison {
            name: "dense f32",
            value: dense,
            unit: "G weights/s",
            ratio: rate(times.median) / dense,
        }
    } else {
        let value = machine.bandwidth;
        Comparison { name: "memory", value, unit: "GB/s", ratio: coded / value }
    };
    let threads = rayon::current_num_threads();
    Ok(Row {
        what,
        device: "cpu",
        isa: isa(kernel),
        threads,
        bits: Some(bits),
        state_bits: Some(state_bits),
        m,
        axis: Some(if axis == Axis::Out { 0 } else { 1 }),
        rows: Some(outputs),
        cols: Some(inputs),
        numerics: match numerics {
            Multiply::Int => "int",
            Multiply::F32 => "f32",
            Multiply::Exact => "exact",
        },
        from: Some(from),
        value: rate(times.median),
        best: rate(times.best),
        unit: "G weights/s",
        per_core: rate(times.median) / threads as f64,
        coded_gb_per_s: Some(coded),
        compared_with: Some(compared_with),
    })
}

/// The settings, with the case's method and numerics.
fn options(case: &Case, kernel: &KernelOptions) -> KernelOptions {
    let (numerics, activations) = match case.numerics {
        Multiply::Int => (Numerics::Fast, Activations::Int),
        Multiply::F32 => (Numerics::Fast, Activations::F32),
        Multiply::Exact => (Numerics::Exact, Activations::F32),
    };
    let prefill_from = if case.what == What::Prefill { 1 } else { usize::MAX };
    KernelOptions {
        numerics,
        activations,
        prefill_from: Some(prefill_from),
        expand_from: usize::MAX,
        ..kernel.clone()
    }
}

/// As many layers as the case runs in turn.
fn layers(case: &Case, repack: bool) -> Result<Vec<TrellisLinear>> {
    let &Case { what, bits, state_bits, axis, inputs, outputs, from, .. } = case;
    let (rows, cols) = if axis == Axis::In { (outputs, inputs) } else { (inputs, outputs) };
    let block_len = Trellis::choose_block_len(cols, bits)
        .with_context(|| format!("no block length divides rows of {cols} weights"))?;
    let trellis = Trellis::new(Code::OneMad, state_bits, bits, block_len)?;
    let words = trellis.words_per_row(cols)? * rows;
    let least = if what == What::GateUp { 2 } else { 1 };
    let count = match from {
        From::Cache => least,
        From::Memory => least * BEYOND_CACHES.div_ceil(4 * words * least),
    };
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let layer = || {
        let words: Vec<u32> = (0..words).map(|_| rng.next_u32()).collect();
        let scales = vec![0.02; rows];
        let matrix = PackedMatrix::new(trellis, axis, inputs, outputs, words.into(), scales)?;
        let mut layer = TrellisLinear::new(matrix, None, None)?;
        if repack {
            layer.repack();
        }
        Ok(layer)
    };
    std::iter::repeat_with(layer).take(count).collect()
}
