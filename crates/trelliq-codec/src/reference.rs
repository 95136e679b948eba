//! The encoder as a textbook writes it, the oracle of the fast one: a metric and a back-pointer for
//! every state and step.

use crate::viterbi::metric;
use crate::{CodecError, Trellis};

/// Codes one block of T inputs (already divided by their scale) with QTIP's Algorithm 4 and
/// `passes - 2` further passes, exactly as [`crate::BlockEncoder`] defines them. Slow; for tests.
pub fn encode_block_reference(
    trellis: &Trellis,
    x: &[f32],
    passes: usize,
) -> Result<Vec<u16>, CodecError> {
    let t = trellis.block_len();
    if x.len() != t {
        return Err(CodecError::Length { what: "x", found: x.len(), expected: t });
    }
    if passes < crate::MIN_PASSES {
        return Err(CodecError::Passes(passes));
    }
    let values = trellis.values();
    let mut states = free_or_forced(trellis, &values, x, t / 2, None);
    for pass in 1..passes {
        let shift = if pass % 2 == 1 { 0 } else { t / 2 };
        let seam = usize::from(states[(t - shift) % t]) >> trellis.bits();
        states = free_or_forced(trellis, &values, x, shift, Some(seam));
    }
    Ok(states)
}

fn free_or_forced(
    trellis: &Trellis,
    values: &[f32],
    x: &[f32],
    shift: usize,
    seam: Option<usize>,
) -> Vec<u16> {
    let (t, bits) = (x.len(), trellis.bits());
    let classes = values.len() >> bits;
    let rotated: Vec<f32> = (0..t).map(|step| x[(step + t - shift) % t]).collect();
    let mut metrics: Vec<f32> = (0..values.len())
        .map(|n| {
            let start = if seam.is_none_or(|s| s == n >> bits) { 0.0 } else { f32::NEG_INFINITY };
            metric(values[n], 2.0 * rotated[0], start)
        })
        .collect();
    let mut from = vec![vec![0usize; values.len()]];
    for &x in &rotated[1..] {
        let best: Vec<usize> = (0..values.len())
            .map(|n| first_best((0..1 << bits).map(|m| (n >> bits) + m * classes), &metrics))
            .collect();
        metrics = (0..values.len()).map(|n| metric(values[n], 2.0 * x, metrics[best[n]])).collect();
        from.push(best);
    }
    let last = match seam {
        Some(class) => first_best((0..1 << bits).map(|m| class + m * classes), &metrics),
        None => {
            let by_class = (0..classes).flat_map(|j| (0..1 << bits).map(move |m| j + m * classes));
            first_best(by_class, &metrics)
        }
    };
    let mut states = vec![0u16; t];
    let mut state = last;
    for step in (0..t).rev() {
        states[(step + t - shift) % t] = state as u16;
        state = from[step][state];
    }
    states
}

fn first_best(candidates: impl Iterator<Item = usize>, metrics: &[f32]) -> usize {
    let mut best: Option<usize> = None;
    for n in candidates {
        if best.is_none_or(|b| metrics[n] > metrics[b]) {
            best = Some(n);
        }
    }
    best.expect("a state has predecessors")
}
