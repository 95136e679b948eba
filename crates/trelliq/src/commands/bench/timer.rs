//! Times of repeated calls.

use std::time::{Duration, Instant};

/// A sample takes at least this long, so that the clock's own steps do not count.
const SAMPLE: Duration = Duration::from_micros(500);
/// Samples at least, whatever the budget.
const SAMPLES: usize = 5;

/// Seconds of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    pub median: f64,
    pub best: f64,
}

impl Times {
    fn of(mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        Self { median: samples[samples.len() / 2], best: samples[0] }
    }
}

/// Calls `call` once to warm up, then for as long as `budget`.
///
/// Errors are those of the first call that fails.
pub fn time<E>(budget: Duration, mut call: impl FnMut() -> Result<(), E>) -> Result<Times, E> {
    call()?;
    let started = Instant::now();
    call()?;
    let once = started.elapsed().max(Duration::from_nanos(1));
    let calls = SAMPLE.as_nanos().div_ceil(once.as_nanos()) as usize;
    let mut samples = Vec::new();
    let started = Instant::now();
    while started.elapsed() < budget || samples.len() < SAMPLES {
        let before = Instant::now();
        for _ in 0..calls {
            call()?;
        }
        samples.push(before.elapsed().as_secs_f64() / calls as f64);
    }
    Ok(Times::of(samples))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sample_counts_once() {
        let times = Times::of(vec![3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!(times, Times { median: 3.0, best: 1.0 });
    }

    #[test]
    fn a_failing_call_ends_the_measurement() {
        let mut calls = 0;
        let result = time(Duration::from_secs(60), || {
            calls += 1;
            if calls == 3 { Err("third") } else { Ok(()) }
        });
        assert_eq!((result, calls), (Err("third"), 3));
    }
}
