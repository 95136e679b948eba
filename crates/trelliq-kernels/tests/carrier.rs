//! The 8-bit fallback against the analytic bound of its rounding.

mod common;

use common::*;
use trelliq_codec::Code;
use trelliq_kernels::{Axis, Carrier, KernelOptions, Numerics, Scratch, TrellisLinear};

/// Bounds `|y - x W^T|` by the sum over groups of half a step times `sum |x|`.
#[test]
fn errors_stay_below_half_a_step_a_weight() {
    for axis in [Axis::In, Axis::Out] {
        for (inputs, outputs, out_block) in [(160, 96, 32), (224, 160, 1), (96, 96, 1)] {
            let matrix = random_matrix(1, trellis(Code::OneMad, 12, 4, 32), axis, inputs, outputs);
            let rotation = random_rotation(2, (inputs, 32), (outputs, out_block));
            let weight = rotated(&dense(&matrix), &rotation);
            let bias = Random::new(3).vector(outputs);
            let layer = TrellisLinear::new(matrix, Some(rotation), Some(bias.clone()))
                .expect("matching dimensions");
            let carrier = Carrier::from_linear(&layer, Numerics::Fast);
            for isa in isas() {
                for m in [1, 3, 30] {
                    let x = Random::new(4).vector(m * inputs);
                    let mut y = vec![0.0; m * outputs];
                    let options = KernelOptions { isa: Some(isa), ..Default::default() };
                    carrier
                        .forward(&x, m, &mut y, &options, &mut Scratch::default())
                        .expect("matching lengths");
                    check(&weight, &bias, &x, &y, inputs);
                }
            }
        }
    }
}

fn check(weight: &[f64], bias: &[f32], x: &[f32], y: &[f32], inputs: usize) {
    let reference = product(weight, x, inputs);
    let mut largest: f64 = 0.0;
    for (i, (&y, reference)) in y.iter().zip(&reference).enumerate() {
        let (row, output) = (i / bias.len(), i % bias.len());
        let weights = &weight[output * inputs..(output + 1) * inputs];
        let x = &x[row * inputs..(row + 1) * inputs];
        let bound: f64 = weights.chunks(64).zip(x.chunks(64)).map(|(w, x)| bound(w, x)).sum();
        let error = (f64::from(y) - f64::from(bias[output]) - reference).abs();
        assert!(error <= bound + 1e-5, "{i}: {error:e} > {bound:e}");
        largest = largest.max(error / bound);
    }
    // Eight bits were really spent: a finer grid would stay far below its bound.
    assert!(largest > 0.02, "{largest}");
}

fn bound(weights: &[f64], x: &[f32]) -> f64 {
    let high = weights.iter().copied().fold(f64::MIN, f64::max);
    let low = weights.iter().copied().fold(f64::MAX, f64::min);
    (high - low) / 510.0 * x.iter().map(|x| f64::from(x.abs())).sum::<f64>()
}

#[test]
fn a_constant_group_is_kept() {
    let trellis = trelliq_codec::Trellis::new(Code::OneMad, 12, 3, 32).expect("legal");
    let words = vec![0; 6].into();
    let matrix = trelliq_kernels::PackedMatrix::new(trellis, Axis::In, 64, 1, words, vec![0.5])
        .expect("valid");
    let weight = dense(&matrix);
    assert!(weight.iter().all(|&w| w == weight[0] && w != 0.0));
    let layer = TrellisLinear::new(matrix, None, None).expect("plain");
    let carrier = Carrier::from_linear(&layer, Numerics::Fast);
    let mut y = [0.0];
    carrier
        .forward(&[1.0; 64], 1, &mut y, &KernelOptions::default(), &mut Scratch::default())
        .expect("matching lengths");
    assert!((f64::from(y[0]) / (64.0 * weight[0]) - 1.0).abs() < 1e-6);
}
