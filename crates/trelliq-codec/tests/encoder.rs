//! The encoder against its oracle, against exhaustive search and against simpler quantizers.

mod common;

use common::gaussian;
use trelliq_codec::*;

fn cost(values: &[f32], x: &[f32], states: &[u16]) -> f64 {
    let error = |(&x, &s): (&f32, &u16)| (f64::from(x) - f64::from(values[usize::from(s)])).powi(2);
    x.iter().zip(states).map(error).sum()
}

fn assert_walk(trellis: &Trellis, states: &[u16]) {
    for t in 0..states.len() {
        let before = u32::from(states[(t + states.len() - 1) % states.len()]);
        let symbol = u32::from(states[t]) & ((1 << trellis.bits()) - 1);
        let expected = ((before << trellis.bits()) | symbol) & trellis.state_mask();
        assert_eq!(u32::from(states[t]), expected, "{trellis:?} step {t}");
    }
}

#[test]
fn same_walk_as_the_textbook_encoder() {
    // All shapes of the step: long and short runs, L < 2K, odd T, full and partial batches.
    for (l, k, t) in [
        (12, 1, 64),
        (12, 2, 48),
        (12, 3, 96),
        (12, 4, 72),
        (12, 5, 32),
        (12, 8, 36),
        (9, 3, 32),
        (8, 7, 32),
        (5, 4, 40),
        (4, 3, 32),
        (4, 1, 32),
        (6, 2, 16),
        (10, 6, 32),
        (13, 6, 16),
    ] {
        for code in Code::ALL {
            let trellis = Trellis::new(code, l, k, t).unwrap();
            let x = gaussian(5 * t, u64::from(l * 100 + k));
            for passes in [2, 4] {
                let mut states = vec![0; x.len()];
                BlockEncoder::new(trellis, passes).unwrap().encode(&x, &mut states).unwrap();
                for (x, states) in x.chunks_exact(t).zip(states.chunks_exact(t)) {
                    assert_walk(&trellis, states);
                    let expected = encode_block_reference(&trellis, x, passes).unwrap();
                    assert_eq!(states, expected, "{trellis:?} passes {passes}");
                }
            }
        }
    }
}

#[test]
fn same_walk_as_the_textbook_encoder_at_16_bits() {
    let trellis = Trellis::new(Code::OneMad, 16, 4, 16).unwrap();
    let x = gaussian(5 * 16, 16);
    let mut states = vec![0; x.len()];
    BlockEncoder::new(trellis, 2).unwrap().encode(&x, &mut states).unwrap();
    for (x, states) in x.chunks_exact(16).zip(states.chunks_exact(16)) {
        assert_eq!(states, encode_block_reference(&trellis, x, 2).unwrap());
    }
}

/// Depth-first search over every walk of the ring that starts from one overlap, cutting branches
/// that cannot beat `best`. Knows nothing of dynamic programming.
struct Exhaustive<'a> {
    trellis: &'a Trellis,
    values: &'a [f32],
    x: &'a [f32],
    /// Least error that steps t.. can still have, whatever the states.
    floor: Vec<f64>,
}

impl<'a> Exhaustive<'a> {
    fn new(trellis: &'a Trellis, values: &'a [f32], x: &'a [f32]) -> Self {
        let nearest = |x: f32| {
            let errors = values.iter().map(|v| (f64::from(x) - f64::from(*v)).powi(2));
            errors.fold(f64::INFINITY, f64::min)
        };
        let mut floor = vec![0.0; x.len() + 1];
        for t in (0..x.len()).rev() {
            floor[t] = floor[t + 1] + nearest(x[t]);
        }
        Self { trellis, values, x, floor }
    }

    /// The least cost of a walk whose first state's top L-K bits and last state's low L-K bits are
    /// `overlap`, when below `best`; else `best`.
    fn search(&self, overlap: u32, best: f64) -> f64 {
        self.descend(overlap, overlap, 0, 0.0, best)
    }

    fn descend(&self, overlap: u32, class: u32, t: usize, cost: f64, mut best: f64) -> f64 {
        if t == self.x.len() {
            return if class == overlap { best.min(cost) } else { best };
        }
        let class_mask = self.trellis.state_mask() >> self.trellis.bits();
        for symbol in 0..1u32 << self.trellis.bits() {
            let state = (class << self.trellis.bits()) | symbol;
            let error = f64::from(self.x[t]) - f64::from(self.values[state as usize]);
            let cost = cost + error * error;
            if cost + self.floor[t + 1] < best {
                best = self.descend(overlap, state & class_mask, t + 1, cost, best);
            }
        }
        best
    }
}

#[test]
fn optimum_over_every_walk_of_a_small_ring() {
    let mut excess = Vec::new();
    for (l, k, t) in [(4, 1, 32), (5, 2, 16), (6, 2, 16), (6, 4, 8), (9, 4, 8)] {
        let trellis = Trellis::new(Code::OneMad, l, k, t).unwrap();
        let values = trellis.values();
        let x = gaussian(5 * t, u64::from(7 * l + k));
        let mut states = vec![0; x.len()];
        BlockEncoder::new(trellis, 2).unwrap().encode(&x, &mut states).unwrap();
        for (x, states) in x.chunks_exact(t).zip(states.chunks_exact(t)) {
            let coded = cost(&values, x, states);
            let search = Exhaustive::new(&trellis, &values, x);
            let seam = u32::from(states[0]) >> k;
            let forced = search.search(seam, coded + 1.0);
            assert!((coded - forced).abs() < 1e-4, "{trellis:?}: {coded} against {forced}");
            let classes = 1u32 << (l - k);
            let best = (0..classes).fold(coded + 1e-9, |best, o| search.search(o, best));
            assert!(coded > best - 1e-9);
            // Shorter rings are all seam.
            if t >= 16 {
                excess.push(coded / best - 1.0);
            }
        }
    }
    // Algorithm 4 picks the overlap by a free pass: not always the best one, but close.
    let mean = excess.iter().sum::<f64>() / excess.len() as f64;
    assert!(excess.iter().all(|e| *e >= -1e-9) && mean < 0.03, "mean excess {mean}");
}

/// Takes the nearest reachable value at each step of the ring, the first L/K symbols again at the
/// end: what an encoder without Viterbi does.
fn greedy_cost(trellis: &Trellis, values: &[f32], x: &[f32]) -> f64 {
    let mut state = 0u32;
    let mut total = 0.0;
    for &x in x {
        let next = (0..1u32 << trellis.bits())
            .map(|b| ((state << trellis.bits()) | b) & trellis.state_mask())
            .min_by(|&a, &b| {
                let error = |s: u32| (x - values[s as usize]).abs();
                error(a).total_cmp(&error(b))
            });
        state = next.expect("a state has successors");
        total += f64::from(x - values[state as usize]).powi(2);
    }
    total
}

#[test]
fn beats_the_best_scalar_quantizer_and_greedy_choice() {
    // Distortion of the Lloyd-Max quantizer of N(0,1) with 2^K levels (Max 1960, table I).
    for (k, lloyd_max) in [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)] {
        let trellis = Trellis::new(Code::OneMad, 12, k, 256).unwrap();
        let x = gaussian(64 * 256, 11);
        let codec = RowCodec::new(trellis, ScaleRule::Tuned, 2).unwrap();
        let coded = codec.encode(&x, x.len(), &|_| {}).unwrap();
        let mse = coded.squared_error[0] / x.len() as f64;
        // The rate-distortion function bounds any code from below (2% for the finite sample).
        assert!(mse < 0.85 * lloyd_max && mse > 0.98 * 4f64.powi(-(k as i32)), "K={k}: {mse}");
        let greedy = greedy_cost(&trellis, &trellis.values(), &x) / x.len() as f64;
        assert!(mse < 0.8 * greedy, "K={k}: {mse} against greedy {greedy}");
    }
}

#[test]
fn more_passes_never_lose() {
    let trellis = Trellis::new(Code::ThreeInst, 10, 2, 32).unwrap();
    let x = gaussian(40 * 32, 5);
    let values = trellis.values();
    let costs: Vec<Vec<f64>> = (2..=5)
        .map(|passes| {
            let mut states = vec![0; x.len()];
            BlockEncoder::new(trellis, passes).unwrap().encode(&x, &mut states).unwrap();
            let blocks = x.chunks_exact(32).zip(states.chunks_exact(32));
            blocks.map(|(x, states)| cost(&values, x, states)).collect()
        })
        .collect();
    for pair in costs.windows(2) {
        assert!(pair[0].iter().zip(&pair[1]).all(|(fewer, more)| more <= &(fewer + 1e-4)));
    }
    let sum = |c: &[f64]| c.iter().sum::<f64>();
    assert!(sum(&costs[1]) < sum(&costs[0]), "a third pass helps some block");
}
