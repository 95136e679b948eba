//! Rotations against explicit orthogonal matrices, biases, row access and shared inputs.

mod common;

use common::*;
use trelliq_codec::Code;
use trelliq_kernels::{
    Axis, KernelError, KernelOptions, Numerics, PackedMatrix, Rotation, Scratch, TrellisLinear,
    choose_rotation_block, forward_shared, hadamard_in_place,
};

fn matrix(axis: Axis, inputs: usize, outputs: usize) -> PackedMatrix {
    random_matrix(1, trellis(Code::OneMad, 12, 3, 32), axis, inputs, outputs)
}

fn forward(layer: &TrellisLinear, x: &[f32]) -> Vec<f32> {
    let m = x.len() / layer.in_features();
    let mut y = vec![0.0; m * layer.out_features()];
    layer
        .forward(x, m, &mut y, &KernelOptions::default(), &mut Scratch::default())
        .expect("matching lengths");
    y
}

#[test]
fn hadamard_equals_the_matrix_of_its_definition() {
    for block in [1, 2, 4, 8, 16, 32, 128, 512] {
        let x = Random::new(block as u64).vector(2 * block);
        let mut y = x.clone();
        hadamard_in_place(&mut y, block);
        let reference: Vec<f64> = (0..x.len())
            .map(|i| (0..x.len()).map(|j| hadamard(i, j, block) * f64::from(x[j])).sum())
            .collect();
        let error = relative_error(&y, &reference);
        assert!(error < 1e-6, "block {block}: {error:e}");
    }
}

#[test]
fn default_blocks_are_the_largest_powers_of_two_up_to_512() {
    let expected = [(576, 64), (1536, 512), (960, 64), (4096, 512), (640, 128), (7, 1)];
    for (dim, block) in expected {
        assert_eq!(choose_rotation_block(dim), block, "{dim}");
    }
}

#[test]
fn a_rotated_layer_multiplies_by_the_rotated_weight() {
    for axis in [Axis::In, Axis::Out] {
        for (in_block, out_block) in [(64, 32), (1, 32), (32, 1), (1, 1), (192, 96), (8, 4)] {
            let (inputs, outputs) = (192, 96);
            let blocks = (choose(inputs, in_block), choose(outputs, out_block));
            let rotation = random_rotation(2, (inputs, blocks.0), (outputs, blocks.1));
            let matrix = matrix(axis, inputs, outputs);
            let weight = rotated(&dense(&matrix), &rotation);
            let bias = Random::new(7).vector(outputs);
            let layer = TrellisLinear::new(matrix, Some(rotation), Some(bias.clone()))
                .expect("matching dimensions");
            for m in [1, 3, 40] {
                let x = Random::new(m as u64).vector(m * inputs);
                let mut reference = product(&weight, &x, inputs);
                for (i, r) in reference.iter_mut().enumerate() {
                    *r += f64::from(bias[i % outputs]);
                }
                let error = relative_error(&forward(&layer, &x), &reference);
                assert!(error < 1e-5, "{axis:?} {blocks:?} M={m}: {error:e}");
            }
            let mut expanded = vec![0.0; inputs * outputs];
            layer.expand_weight(Numerics::Fast, &mut expanded).expect("matching length");
            let error = relative_error(&expanded, &weight);
            assert!(error < 1e-6, "{axis:?} {blocks:?}: {error:e}");
        }
    }
}

/// The largest power of two up to `block` that divides `dim`.
fn choose(dim: usize, block: usize) -> usize {
    choose_rotation_block(dim).min(1 << block.ilog2())
}

#[test]
fn a_row_is_a_row_of_the_weight() {
    let (inputs, outputs) = (192, 50);
    let rotation = random_rotation(3, (inputs, 64), (outputs, 1));
    for rotation in [None, Some(rotation)] {
        let matrix = matrix(Axis::In, inputs, outputs);
        let plain = dense(&matrix);
        let weight = rotation.as_ref().map_or(plain.clone(), |r| rotated(&plain, r));
        let layer = TrellisLinear::new(matrix, rotation, None).expect("matching dimensions");
        let mut row = vec![0.0; inputs];
        for index in [0, 17, 49] {
            layer.row(index, Numerics::Fast, &mut row).expect("a row of its own");
            let error = relative_error(&row, &weight[index * inputs..(index + 1) * inputs]);
            assert!(error < 1e-6, "{index}: {error:e}");
        }
        let missing = layer.row(50, Numerics::Fast, &mut row);
        assert_eq!(missing, Err(KernelError::Row { index: 50, rows: 50 }));
    }
}

#[test]
fn a_row_that_mixes_stored_rows_is_refused() {
    let mut row = vec![0.0; 64];
    let along_outputs = TrellisLinear::new(matrix(Axis::Out, 64, 64), None, None).expect("plain");
    assert_eq!(along_outputs.row(0, Numerics::Fast, &mut row), Err(KernelError::RowAccess));
    let rotation = random_rotation(4, (64, 64), (64, 2));
    let mixed =
        TrellisLinear::new(matrix(Axis::In, 64, 64), Some(rotation), None).expect("rotated");
    assert_eq!(mixed.row(0, Numerics::Fast, &mut row), Err(KernelError::RowAccess));
}

#[test]
fn layers_that_share_an_input_give_what_they_give_alone() {
    let inputs = 192;
    let shared = random_rotation(5, (inputs, 64), (96, 32));
    let narrow = Rotation::new(64, 1, shared.su().to_vec(), vec![1.0; 32]).expect("valid");
    let other = random_rotation(6, (inputs, 32), (64, 64));
    let layers: Vec<TrellisLinear> =
        [(96, Some(shared)), (32, Some(narrow)), (64, Some(other)), (32, None)]
            .into_iter()
            .map(|(outputs, rotation)| {
                let matrix = matrix(Axis::Out, inputs, outputs);
                TrellisLinear::new(matrix, rotation, None).expect("matching dimensions")
            })
            .collect();
    let x = Random::new(9).vector(2 * inputs);
    let mut ys: Vec<Vec<f32>> = layers.iter().map(|l| vec![0.0; 2 * l.out_features()]).collect();
    let mut outputs: Vec<&mut [f32]> = ys.iter_mut().map(Vec::as_mut_slice).collect();
    let references: Vec<&TrellisLinear> = layers.iter().collect();
    let options = KernelOptions::default();
    forward_shared(&references, &x, 2, &mut outputs, &options, &mut Scratch::default())
        .expect("matching lengths");
    for (layer, y) in layers.iter().zip(&ys) {
        assert_eq!(*y, forward(layer, &x));
    }
}
