//! The encoder on draws of N(0,1), rows in parallel as `quantize` runs them.

use super::row::{Row, What};
use super::timer::time;
use super::{Case, From, Multiply, isa};
use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;
use std::time::Duration;
use trelliq_codec::{BlockEncoder, Code, MIN_PASSES, Trellis};
use trelliq_kernels::{Axis, KernelOptions};

const BLOCK_LEN: usize = 256;
/// Weights that a thread codes at a time.
const ROW: usize = 16 * BLOCK_LEN;

impl Case {
    pub fn encoder(bits: u32, state_bits: u32) -> Self {
        Self {
            what: What::Encode,
            bits,
            state_bits,
            axis: Axis::Out,
            inputs: 1,
            outputs: ROW,
            m: 1,
            numerics: Multiply::F32,
            from: From::Cache,
        }
    }
}

pub fn measure(case: &Case, budget: Duration) -> Result<Row> {
    let &Case { bits, state_bits, .. } = case;
    let trellis = Trellis::new(Code::OneMad, state_bits, bits, BLOCK_LEN)?;
    let encoder = BlockEncoder::new(trellis, MIN_PASSES)?;
    let threads = rayon::current_num_threads();
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let x: Vec<f32> = StandardNormal.sample_iter(&mut rng).take(threads * ROW).collect();
    let mut states = vec![0; x.len()];
    let times = time(budget, || {
        let rows = states.par_chunks_mut(ROW).zip(x.par_chunks(ROW));
        rows.try_for_each(|(states, x)| encoder.encode(x, states).map(drop))
    })?;
    let rate = |seconds: f64| x.len() as f64 / seconds / 1e6;
    Ok(Row {
        what: What::Encode,
        device: "cpu",
        isa: isa(&KernelOptions::default()),
        threads,
        bits: Some(bits),
        state_bits: Some(state_bits),
        m: 1,
        axis: None,
        rows: None,
        cols: None,
        numerics: "f32",
        from: None,
        value: rate(times.median),
        best: rate(times.best),
        unit: "M weights/s",
        per_core: rate(times.median) / threads as f64,
        coded_gb_per_s: None,
        compared_with: None,
    })
}
