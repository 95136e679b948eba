//! What this machine can do without codes: memory bandwidth and dense products.

use super::timer::{Times, time};
use rayon::prelude::*;
use std::convert::Infallible;
use std::hint::black_box;
use std::time::Duration;

/// Bytes that no cache holds.
pub const BEYOND_CACHES: usize = 512 << 20;
const BUDGET: Duration = Duration::from_millis(500);

/// Figures that rows are compared with.
pub struct Machine {
    /// 10^9 bytes a second that the pool's threads read.
    pub bandwidth: f64,
}

impl Machine {
    /// Measures on the current pool.
    pub fn measure() -> Self {
        let words = vec![1u64; BEYOND_CACHES / 8];
        let share = words.len().div_ceil(rayon::current_num_threads());
        let times = infallible(time(BUDGET, || {
            let sum: u64 = words
                .par_chunks(share)
                .map(|words| words.iter().fold(0u64, |sum, &word| sum.wrapping_add(word)))
                .reduce(|| 0, u64::wrapping_add);
            black_box(sum);
            Ok(())
        }));
        Self { bandwidth: BEYOND_CACHES as f64 / times.best / 1e9 }
    }
}

/// `[m, in]` times the transpose of `[out, in]` in dense f32, by the gemm crate on the current pool.
pub fn dense_product(m: usize, inputs: usize, outputs: usize, budget: Duration) -> Times {
    let values = |len: usize| -> Vec<f32> { (0..len).map(|i| (i as f32 * 0.37).sin()).collect() };
    let (x, weight) = (values(m * inputs), values(outputs * inputs));
    let mut y = vec![0f32; m * outputs];
    let threads = match rayon::current_num_threads() {
        1 => gemm::Parallelism::None,
        threads => gemm::Parallelism::Rayon(threads),
    };
    infallible(time(budget, || {
        let (pitch_y, pitch) = (outputs as isize, inputs as isize);
        // SAFETY: y is [m, outputs], x is [m, inputs] and weight is [outputs, inputs], contiguous.
        unsafe {
            gemm::gemm(
                m,
                outputs,
                inputs,
                y.as_mut_ptr(),
                1,
                pitch_y,
                false,
                x.as_ptr(),
                1,
                pitch,
                weight.as_ptr(),
                pitch,
                1,
                0.0,
                1.0,
                false,
                false,
                false,
                threads,
            );
        }
        black_box(&y);
        Ok(())
    }))
}

fn infallible(times: Result<Times, Infallible>) -> Times {
    match times {
        Ok(times) => times,
        Err(never) => match never {},
    }
}
