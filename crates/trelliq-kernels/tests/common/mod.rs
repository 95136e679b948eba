//! Random coded layers and their f64 references, which share no code with the kernels: every weight
//! is looked up by its state.

#![allow(dead_code)] // each test file uses its part

use half::bf16;
use trelliq_codec::{Code, Trellis, code_values, state_at};
use trelliq_kernels::{Axis, Isa, PackedMatrix, Rotation};

/// A small deterministic generator (PCG's multiplier, high bits).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(2).wrapping_add(0x9E37_79B9_7F4A_7C15))
    }

    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 32) as u32
    }

    /// Uniform in -1..1.
    pub fn uniform(&mut self) -> f32 {
        self.bits() as i32 as f32 / 2f32.powi(31)
    }

    pub fn vector(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.uniform()).collect()
    }
}

/// Any words are a legal code: random ones, with scales between 0.01 and 0.03.
pub fn random_matrix(
    seed: u64,
    trellis: Trellis,
    axis: Axis,
    inputs: usize,
    outputs: usize,
) -> PackedMatrix {
    let mut random = Random::new(seed);
    let (rows, cols) = if axis == Axis::In { (outputs, inputs) } else { (inputs, outputs) };
    let words = rows * trellis.words_per_row(cols).expect("whole blocks");
    let words: Vec<u32> = (0..words).map(|_| random.bits()).collect();
    let scales = (0..rows).map(|_| 0.02 + 0.01 * random.uniform()).collect();
    PackedMatrix::new(trellis, axis, inputs, outputs, words.into(), scales).expect("a valid matrix")
}

/// What in f64, `[out, in]`: each weight is `f32(value) * f32(scale)`, exact in f64.
pub fn dense(matrix: &PackedMatrix) -> Vec<f64> {
    let trellis = matrix.trellis();
    let values = code_values(trellis.code(), trellis.state_bits());
    let (inputs, t) = (matrix.in_features(), trellis.block_len());
    let mut dense = vec![0.0; inputs * matrix.out_features()];
    for row in 0..matrix.rows() {
        for (block, words) in matrix.row_words(row).chunks(trellis.words_per_block()).enumerate() {
            for position in 0..t {
                let value = values[state_at(trellis, words, position) as usize];
                let column = block * t + position;
                let index = match matrix.axis() {
                    Axis::In => row * inputs + column,
                    Axis::Out => column * inputs + row,
                };
                dense[index] = f64::from(value) * f64::from(matrix.scales()[row]);
            }
        }
    }
    dense
}

/// `bf16(f32(value) * f32(scale))` of an exact product: f64 to f32 rounds it once, as f32 would.
pub fn to_bf16(weight: f64) -> f64 {
    bf16::from_f32(weight as f32).to_f64()
}

/// `x W^T` in f64.
pub fn product(weight: &[f64], x: &[f32], inputs: usize) -> Vec<f64> {
    let rows = x.chunks_exact(inputs).flat_map(|x| {
        weight
            .chunks_exact(inputs)
            .map(move |row| row.iter().zip(x).map(|(w, &x)| w * f64::from(x)).sum::<f64>())
    });
    rows.collect()
}

/// `||y - reference|| / ||reference||`.
pub fn relative_error(y: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(y.len(), reference.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut y.iter().zip(reference).map(|(&y, r)| f64::from(y) - r));
    difference / norm(&mut reference.iter().copied())
}

/// Element (i, j) of the orthonormal block-diagonal Sylvester Hadamard matrix, from its definition
/// `(-1)^popcount(i & j)`.
pub fn hadamard(i: usize, j: usize, block: usize) -> f64 {
    if i / block != j / block {
        return 0.0;
    }
    let sign = if ((i % block) & (j % block)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    sign / (block as f64).sqrt()
}

fn multiply(a: &[f64], b: &[f64], inner: usize) -> Vec<f64> {
    let columns = b.len() / inner;
    let mut out = vec![0.0; a.len() / inner * columns];
    for (a, out) in a.chunks_exact(inner).zip(out.chunks_exact_mut(columns)) {
        for (a, b) in a.iter().zip(b.chunks_exact(columns)) {
            out.iter_mut().zip(b).for_each(|(o, b)| *o += a * b);
        }
    }
    out
}

/// `diag(sv) H_out What H_in diag(su)` by explicit matrix products.
pub fn rotated(what: &[f64], rotation: &Rotation) -> Vec<f64> {
    let (outputs, inputs) = (rotation.sv().len(), rotation.su().len());
    let left: Vec<f64> = (0..outputs * outputs)
        .map(|n| (n / outputs, n % outputs))
        .map(|(i, j)| f64::from(rotation.sv()[i]) * hadamard(i, j, rotation.out_block()))
        .collect();
    let right: Vec<f64> = (0..inputs * inputs)
        .map(|n| (n / inputs, n % inputs))
        .map(|(i, j)| hadamard(i, j, rotation.in_block()) * f64::from(rotation.su()[j]))
        .collect();
    multiply(&multiply(&left, what, outputs), &right, inputs)
}

/// A rotation with random signs times channel scales between 0.5 and 1.5.
pub fn random_rotation(
    seed: u64,
    (inputs, in_block): (usize, usize),
    (outputs, out_block): (usize, usize),
) -> Rotation {
    let mut random = Random::new(seed);
    let mut channels = |len: usize| -> Vec<f32> {
        (0..len).map(|_| (1.0 + 0.5 * random.uniform()) * random.uniform().signum()).collect()
    };
    Rotation::new(in_block, out_block, channels(inputs), channels(outputs)).expect("valid blocks")
}

/// Instruction sets that this machine can run.
pub fn isas() -> Vec<Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available()).collect()
}

pub fn trellis(code: Code, state_bits: u32, bits: u32, block_len: usize) -> Trellis {
    Trellis::new(code, state_bits, bits, block_len).expect("a legal trellis")
}
