//! Bad operands give typed errors.

mod common;

use common::*;
use trelliq_codec::{Code, CodecError};
use trelliq_kernels::{
    Axis, Carrier, Gate, KernelError, KernelOptions, Numerics, PackedMatrix, Rotation, Scratch,
    TrellisLinear, Words, forward_shared, gate_up,
};

fn length(what: &'static str, found: usize, expected: usize) -> KernelError {
    KernelError::Length { what, found, expected }
}

fn plain(inputs: usize, outputs: usize) -> TrellisLinear {
    let matrix = random_matrix(1, trellis(Code::OneMad, 12, 4, 32), Axis::Out, inputs, outputs);
    TrellisLinear::new(matrix, None, None).expect("plain")
}

#[test]
fn matrices_of_wrong_lengths_or_scales() {
    let t = trellis(Code::OneMad, 12, 4, 32);
    let new = |outputs: usize, words: usize, scales: Vec<f32>| {
        let words = vec![0; words].into();
        PackedMatrix::new(t, Axis::Out, 3, outputs, words, scales).map(|_| ())
    };
    assert_eq!(new(64, 24, vec![1.0; 3]), Ok(()));
    assert_eq!(new(64, 23, vec![1.0; 3]), Err(length("words", 23, 24)));
    assert_eq!(new(64, 24, vec![1.0; 64]), Err(length("scales", 64, 3)));
    let row = CodecError::RowLen { cols: 65, block_len: 32 };
    assert_eq!(new(65, 24, vec![1.0; 3]), Err(KernelError::Codec(row)));
    let infinite = new(64, 24, vec![1.0, f32::INFINITY, 1.0]);
    assert_eq!(infinite, Err(KernelError::NonFiniteScale { row: 1, value: f32::INFINITY }));
}

#[test]
fn rotations_and_biases_that_do_not_fit() {
    let block = Rotation::new(3, 1, vec![1.0; 9], vec![1.0; 4]);
    assert_eq!(block, Err(KernelError::RotationBlock { block: 3, dim: 9 }));
    let block = Rotation::new(1, 8, vec![1.0; 9], vec![1.0; 4]);
    assert_eq!(block, Err(KernelError::RotationBlock { block: 8, dim: 4 }));
    let matrix = plain(3, 64).matrix().clone();
    let rotation = |inputs: usize, outputs: usize| {
        Some(Rotation::new(1, 1, vec![1.0; inputs], vec![1.0; outputs]).expect("valid"))
    };
    let new = |rotation, bias| TrellisLinear::new(matrix.clone(), rotation, bias).map(|_| ());
    assert_eq!(new(rotation(3, 64), Some(vec![0.0; 64])), Ok(()));
    assert_eq!(new(rotation(4, 64), None), Err(length("su", 4, 3)));
    assert_eq!(new(rotation(3, 63), None), Err(length("sv", 63, 64)));
    assert_eq!(new(None, Some(vec![0.0; 3])), Err(length("bias", 3, 64)));
}

#[test]
fn operands_of_wrong_lengths() {
    let (layer, options) = (plain(3, 64), KernelOptions::default());
    let scratch = &mut Scratch::default();
    let mut y = vec![0.0f32; 128];
    let forward = layer.forward(&[0.0; 5], 2, &mut y, &options, scratch);
    assert_eq!(forward, Err(length("x", 5, 6)));
    let forward = layer.forward(&[0.0; 6], 2, &mut y[..127], &options, scratch);
    assert_eq!(forward, Err(length("y", 127, 128)));
    let shared = forward_shared(&[&layer, &layer], &[0.0; 6], 2, &mut [&mut y], &options, scratch);
    assert_eq!(shared, Err(length("outputs", 1, 2)));
    let carrier = Carrier::from_linear(&layer, Numerics::Fast);
    let forward = carrier.forward(&[0.0; 5], 2, &mut y, &options, scratch);
    assert_eq!(forward, Err(length("x", 5, 6)));
    let expand = layer.expand(Numerics::Fast, &mut vec![0.0f32; 191]);
    assert_eq!(expand, Err(length("out", 191, 192)));
    let expand = layer.expand_weight(Numerics::Fast, &mut vec![0.0; 193]);
    assert_eq!(expand, Err(length("out", 193, 192)));
}

#[test]
fn gated_pairs_of_two_shapes() {
    let (gate, options) = (plain(3, 64), KernelOptions::default());
    let scratch = &mut Scratch::default();
    let mut y = vec![0.0f32; 64];
    let mut call = |up: &TrellisLinear| {
        gate_up(&gate, up, &[0.0; 3], 1, &mut y, Gate::Silu, &options, scratch)
    };
    assert_eq!(call(&plain(3, 64)), Ok(()));
    assert_eq!(call(&plain(5, 64)), Err(length("inputs of up", 5, 3)));
    assert_eq!(call(&plain(3, 32)), Err(length("outputs of up", 32, 64)));
}

#[test]
fn a_row_buffer_of_the_wrong_length() {
    let matrix = random_matrix(1, trellis(Code::OneMad, 12, 4, 32), Axis::In, 64, 5);
    let layer = TrellisLinear::new(matrix, None, None).expect("plain");
    let row = layer.row(0, Numerics::Fast, &mut [0.0; 63]);
    assert_eq!(row, Err(length("out", 63, 64)));
}

#[test]
fn mapped_words_outside_their_file() {
    use std::io::Write;
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(&[1, 0, 0, 0, 2, 0, 0, 0, 3]).expect("written");
    // SAFETY: nobody else has the file.
    let map = std::sync::Arc::new(unsafe { memmap2::Mmap::map(&file) }.expect("mapped"));
    assert_eq!(&*Words::mapped(map.clone(), 4, 1).expect("inside"), &[2]);
    for (offset, len) in [(4, 2), (2, 1), (usize::MAX, 1), (0, usize::MAX)] {
        let words = Words::mapped(map.clone(), offset, len).map(|_| ());
        assert_eq!(words, Err(KernelError::Mapping { offset, len, file: 9 }));
    }
}
