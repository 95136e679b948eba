//! The gated pair against its formula in f64 and against separate operations.

mod common;

use common::*;
use half::{bf16, f16};
use trelliq_codec::{Code, Trellis};
use trelliq_kernels::{
    Activation, Activations, Axis, Gate, KernelOptions, Scratch, TrellisLinear, gate_up,
};

const INPUTS: usize = 192;
const OUTPUTS: usize = 288;

fn layer(seed: u64, trellis: Trellis, axis: Axis, out_block: Option<usize>) -> TrellisLinear {
    let matrix = random_matrix(seed, trellis, axis, INPUTS, OUTPUTS);
    let rotation = out_block.map(|block| random_rotation(1, (INPUTS, 64), (OUTPUTS, block)));
    let bias = Random::new(seed).vector(OUTPUTS);
    TrellisLinear::new(matrix, rotation, Some(bias)).expect("matching dimensions")
}

fn gated<A: Activation>(
    pair: &[TrellisLinear; 2],
    x: &[f32],
    function: Gate,
    options: &KernelOptions,
) -> Vec<A> {
    let m = x.len() / INPUTS;
    let x: Vec<A> = x.iter().map(|&x| A::from_f32(x)).collect();
    let mut y = vec![A::default(); m * OUTPUTS];
    gate_up(&pair[0], &pair[1], &x, m, &mut y, function, options, &mut Scratch::default())
        .expect("matching lengths");
    y
}

fn unfused<A: Activation>(layer: &TrellisLinear, x: &[f32], options: &KernelOptions) -> Vec<A> {
    let m = x.len() / INPUTS;
    let x: Vec<A> = x.iter().map(|&x| A::from_f32(x)).collect();
    let mut y = vec![A::default(); m * OUTPUTS];
    layer.forward(&x, m, &mut y, options, &mut Scratch::default()).expect("matching lengths");
    y
}

/// Pairs over both axes, with and without output rotation, and one of two geometries.
fn pairs() -> Vec<[TrellisLinear; 2]> {
    let (three, four) = (trellis(Code::OneMad, 12, 3, 96), trellis(Code::OneMad, 12, 4, 96));
    let mut pairs = Vec::new();
    for axis in [Axis::In, Axis::Out] {
        for block in [None, Some(1), Some(32)] {
            pairs.push([layer(1, three, axis, block), layer(2, four, axis, block)]);
        }
    }
    pairs.push([layer(3, three, Axis::In, None), layer(4, three, Axis::Out, None)]);
    pairs.push([layer(3, three, Axis::In, Some(1)), layer(4, three, Axis::In, None)]);
    pairs
}

#[test]
fn equals_separate_operations_in_every_type() {
    fn check<A: Activation + PartialEq>(pair: &[TrellisLinear; 2], x: &[f32]) {
        let options = KernelOptions::default();
        let gates = unfused::<A>(&pair[0], x, &options);
        let ups = unfused::<A>(&pair[1], x, &options);
        let expected: Vec<A> = gates
            .iter()
            .zip(&ups)
            .map(|(gate, up)| {
                let sigmoid = A::from_f32(1.0 / (1.0 + (-gate.to_f32()).exp()));
                let silu = A::from_f32(gate.to_f32() * sigmoid.to_f32());
                A::from_f32(silu.to_f32() * up.to_f32())
            })
            .collect();
        assert_eq!(gated::<A>(pair, x, Gate::Silu, &options), expected);
    }
    for pair in pairs() {
        for m in [1, 2, 33] {
            let x = Random::new(m as u64).vector(m * INPUTS);
            check::<f32>(&pair, &x);
            check::<bf16>(&pair, &x);
            check::<f16>(&pair, &x);
        }
    }
}

#[test]
fn equals_the_formulas_in_f64() {
    let silu = |g: f64| g / (1.0 + (-g).exp());
    let gelu = |g: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g.powi(3));
        0.5 * g * (1.0 + inner.tanh())
    };
    for pair in pairs() {
        let x = Random::new(3).vector(4 * INPUTS);
        let products = pair.each_ref().map(|layer| {
            let what = dense(layer.matrix());
            let weight = layer.rotation().map_or(what.clone(), |r| rotated(&what, r));
            let bias = layer.bias().expect("a bias");
            let sums = product(&weight, &x, INPUTS).into_iter().enumerate();
            sums.map(|(i, y)| y + f64::from(bias[i % OUTPUTS])).collect::<Vec<f64>>()
        });
        let cases: [(Gate, &dyn Fn(f64) -> f64); 2] =
            [(Gate::Silu, &silu), (Gate::GeluTanh, &gelu)];
        for (function, formula) in cases {
            let reference: Vec<f64> =
                products[0].iter().zip(&products[1]).map(|(&g, u)| formula(g) * u).collect();
            for isa in isas() {
                for (activations, bound) in [(Activations::F32, 1e-5), (Activations::Int, 1e-4)] {
                    let options =
                        KernelOptions { activations, isa: Some(isa), ..Default::default() };
                    let y = gated::<f32>(&pair, &x, function, &options);
                    let error = relative_error(&y, &reference);
                    assert!(error < bound, "{function:?} {activations:?} {isa:?}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn does_not_depend_on_the_number_of_threads() {
    for pair in pairs() {
        let x = Random::new(5).vector(2 * INPUTS);
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            let options = KernelOptions::default();
            pool.expect("a pool").install(|| gated::<f32>(&pair, &x, Gate::GeluTanh, &options))
        };
        let one = run(1);
        assert_eq!(one, run(2));
        assert_eq!(one, run(3));
    }
}
