//! NVIDIA kernels against the CPU's decode, which golden vectors hold in place, and sums in f64.
//! Every test prints that it is skipped on a machine without a GPU.
#![cfg(feature = "cuda")]

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::{Arc, OnceLock};
use trelliq_codec::{BlockEncoder, Code, Trellis};
use trelliq_kernels::cuda::{
    CudaActivation, CudaEncoder, CudaLinear, CudaMatrix, CudaOptions, CudaReader, CudaScratch,
    Device, Terms, device_count,
};
use trelliq_kernels::{
    Axis, KernelOptions, Numerics, PackedMatrix, Rotation, Scratch, TrellisLinear,
};

fn gpu() -> Option<Arc<Device>> {
    static DEVICE: OnceLock<Option<Arc<Device>>> = OnceLock::new();
    let device = DEVICE.get_or_init(|| (device_count() > 0).then(|| Device::open(0).unwrap()));
    if device.is_none() {
        println!("skipped: no NVIDIA GPU");
    }
    device.clone()
}

fn random(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

/// Any words are a walk, so random words are random codes.
fn matrix(trellis: Trellis, axis: Axis, inputs: usize, outputs: usize) -> PackedMatrix {
    let (rows, cols) = if axis == Axis::Out { (inputs, outputs) } else { (outputs, inputs) };
    let mut rng = random(inputs as u64 * 7 + outputs as u64 + u64::from(trellis.bits()));
    let words: Vec<u32> =
        (0..rows * trellis.words_per_row(cols).unwrap()).map(|_| rng.random()).collect();
    let scales = (0..rows).map(|_| f16::from_f32(rng.random_range(0.01..0.05)).to_f32()).collect();
    PackedMatrix::new(trellis, axis, inputs, outputs, words.into(), scales).unwrap()
}

fn activations<A: CudaActivation>(len: usize, seed: u64) -> Vec<A> {
    let mut rng = random(seed);
    let mut gaussian = || (0..6).map(|_| rng.random_range(-1.0f32..1.0)).sum::<f32>();
    (0..len).map(|_| A::from_f32(gaussian())).collect()
}

/// `[m, out]` sums in f64 over the CPU's decoded weights.
fn reference<A: CudaActivation>(
    matrix: &PackedMatrix,
    numerics: Numerics,
    x: &[A],
    m: usize,
) -> Vec<f64> {
    let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
    let layer = TrellisLinear::new(matrix.clone(), None, None).unwrap();
    let mut dense = vec![0.0f32; inputs * outputs];
    layer.expand(numerics, &mut dense).unwrap();
    let mut y = Vec::with_capacity(m * outputs);
    for x in x.chunks_exact(inputs) {
        y.extend(dense.chunks_exact(inputs).map(|row| {
            row.iter().zip(x).map(|(&w, x)| f64::from(w) * f64::from(x.to_f32())).sum::<f64>()
        }));
    }
    y
}

fn error<A: CudaActivation>(found: &[A], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let (mut difference, mut size) = (0.0, 0.0);
    for (found, expected) in found.iter().zip(expected) {
        difference += (f64::from(found.to_f32()) - expected).powi(2);
        size += expected.powi(2);
    }
    (difference / size).sqrt()
}

/// The GPU's product, into memory that held NaN.
fn product<A: CudaActivation>(
    device: &Arc<Device>,
    matrix: &CudaMatrix,
    x: &[A],
    m: usize,
    options: &CudaOptions,
) -> Vec<A> {
    let x = device.upload(x).unwrap();
    let poison = vec![A::from_f32(f32::NAN); m * matrix.out_features()];
    let mut y = device.upload(&poison).unwrap();
    matrix.multiply(&x, m, &mut y, options).unwrap();
    device.download(&y).unwrap()
}

fn tolerance<A: CudaActivation>(terms: Terms) -> f64 {
    let sums: f64 = if terms == Terms::Two { 1e-4 } else { 2e-6 };
    sums + match A::TAG {
        0 => 0.0,
        1 => 4e-4,
        _ => 3e-3,
    }
}

/// Inputs and outputs whose coded side is two or more blocks, the other side odd.
fn shape(axis: Axis, block_len: usize) -> (usize, usize) {
    let coded = block_len * (600 / block_len).max(2);
    if axis == Axis::Out { (203, coded) } else { (coded, 77) }
}

fn check_product<A: CudaActivation>(
    device: &Arc<Device>,
    matrix: &PackedMatrix,
    m: usize,
    options: &CudaOptions,
    tolerance: f64,
) {
    let packed = CudaMatrix::upload(device, matrix).unwrap();
    let x = activations::<A>(m * matrix.in_features(), m as u64);
    let found = product(device, &packed, &x, m, options);
    let found = error(&found, &reference(matrix, options.numerics, &x, m));
    let trellis = matrix.trellis();
    assert!(found < tolerance, "{trellis:?} {:?} m={m} {options:?}: {found:e}", matrix.axis());
    let again = product(device, &packed, &x, m, options);
    let bits = |y: &[A]| y.iter().map(|y| y.to_f32().to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&again), bits(&product(device, &packed, &x, m, options)));
}

const AXES: [Axis; 2] = [Axis::Out, Axis::In];

fn check_expand<A: CudaActivation>(device: &Arc<Device>, matrix: &PackedMatrix) {
    let packed = CudaMatrix::upload(device, matrix).unwrap();
    let layer = TrellisLinear::new(matrix.clone(), None, None).unwrap();
    let len = matrix.in_features() * matrix.out_features();
    for numerics in [Numerics::Fast, Numerics::Exact] {
        let mut expected = vec![A::default(); len];
        layer.expand(numerics, &mut expected).unwrap();
        let mut found = device.upload(&vec![A::from_f32(f32::NAN); len]).unwrap();
        packed.expand(numerics, &mut found).unwrap();
        let found = device.download(&found).unwrap();
        let wrong = found
            .iter()
            .zip(&expected)
            .position(|(a, b)| a.to_f32().to_bits() != b.to_f32().to_bits());
        assert_eq!(wrong, None, "{:?} {:?} {numerics:?}", matrix.trellis(), matrix.axis());
    }
}

#[test]
fn expand_is_the_cpus_bit_for_bit() {
    let Some(device) = gpu() else { return };
    for axis in AXES {
        for bits in 1..=8 {
            for block_len in [32, 64, 96, 192, 256, 288] {
                let state_bits = [16, 12, 9][block_len / 32 % 3];
                let trellis = Trellis::new(Code::OneMad, state_bits, bits, block_len).unwrap();
                let (inputs, outputs) = shape(axis, block_len);
                let matrix = matrix(trellis, axis, inputs, outputs);
                check_expand::<bf16>(&device, &matrix);
                if block_len == 256 {
                    check_expand::<f32>(&device, &matrix);
                }
            }
        }
        for (code, state_bits, bits, block_len) in [
            (Code::ThreeInst, 16, 3, 256),
            (Code::ThreeInst, 12, 4, 96),
            (Code::Rand, 10, 2, 64),
            (Code::OneMad, 4, 3, 64),
            (Code::OneMad, 12, 4, 40),
            (Code::ThreeInst, 12, 8, 36),
        ] {
            let trellis = Trellis::new(code, state_bits, bits, block_len).unwrap();
            let (inputs, outputs) = shape(axis, block_len);
            check_expand::<f16>(&device, &matrix(trellis, axis, inputs, outputs));
            check_expand::<bf16>(&device, &matrix(trellis, axis, inputs + 8 * block_len, outputs));
        }
    }
}

#[test]
fn integer_products_of_every_k_and_block_length() {
    let Some(device) = gpu() else { return };
    let options = CudaOptions::default();
    for axis in AXES {
        for bits in 1..=8 {
            for (index, block_len) in [32, 64, 96, 192, 256, 288].into_iter().enumerate() {
                let state_bits = if index % 2 == 0 { 16 } else { 12 };
                let trellis = Trellis::new(Code::OneMad, state_bits, bits, block_len).unwrap();
                let (inputs, outputs) = shape(axis, block_len);
                let matrix = matrix(trellis, axis, inputs, outputs);
                let m = 1 + (index + bits as usize) % 8;
                check_product::<f32>(&device, &matrix, m, &options, 1e-4);
            }
        }
    }
}

#[test]
fn integer_products_of_every_m_type_and_number_of_terms() {
    let Some(device) = gpu() else { return };
    for axis in AXES {
        let trellis = Trellis::new(Code::OneMad, 16, 3, 256).unwrap();
        let (inputs, outputs) = if axis == Axis::Out { (1003, 1024) } else { (1024, 1003) };
        let matrix = matrix(trellis, axis, inputs, outputs);
        for terms in [Terms::Two, Terms::Three] {
            let options = CudaOptions { terms, expand_from: usize::MAX, ..Default::default() };
            for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33] {
                check_product::<f32>(&device, &matrix, m, &options, tolerance::<f32>(terms));
            }
            for m in [1, 8] {
                check_product::<f16>(&device, &matrix, m, &options, tolerance::<f16>(terms));
                check_product::<bf16>(&device, &matrix, m, &options, tolerance::<bf16>(terms));
            }
        }
    }
}

#[test]
fn integer_products_of_every_number_of_state_bits() {
    let Some(device) = gpu() else { return };
    for axis in AXES {
        for state_bits in 4..=16 {
            let trellis = Trellis::new(Code::OneMad, state_bits, 3, 64).unwrap();
            let (inputs, outputs) = shape(axis, 64);
            let matrix = matrix(trellis, axis, inputs, outputs);
            check_product::<f32>(&device, &matrix, 2, &CudaOptions::default(), 1e-4);
        }
    }
}

/// Shapes at which work is dealt differently: one unit, fewer units than processors, many groups a
/// block, several blocks a group, inputs in several parts.
#[test]
fn integer_products_of_shapes_large_and_small() {
    let Some(device) = gpu() else { return };
    let trellis = Trellis::new(Code::OneMad, 12, 2, 256).unwrap();
    for (axis, inputs, outputs, m) in [
        (Axis::Out, 1, 256, 1),
        (Axis::Out, 8, 16384, 2),
        (Axis::Out, 64, 131072, 1),
        (Axis::Out, 4096, 512, 8),
        (Axis::Out, 40000, 256, 1),
        (Axis::In, 256, 1, 1),
        (Axis::In, 256, 131072, 1),
        (Axis::In, 16384, 64, 4),
        (Axis::In, 14336, 700, 8),
        (Axis::In, 40960, 33, 1),
    ] {
        let matrix = matrix(trellis, axis, inputs, outputs);
        check_product::<f32>(&device, &matrix, m, &CudaOptions::default(), 1e-4);
    }
}

/// Of one row and coded alike they are one launch; of others, launches one by one.
#[test]
fn joined_products_of_one_input() {
    let Some(device) = gpu() else { return };
    let trellis = |bits| Trellis::new(Code::OneMad, 16, bits, 256).unwrap();
    for (inputs, outputs, bits) in [
        (512, [1024, 256, 512].as_slice(), [3, 3, 3]),
        (4096, &[4096, 1024, 1024], [3, 3, 3]),
        (4096, &[14336, 14336], [3, 3, 3]),
        (203, &[256, 768], [2, 2, 2]),
        (512, &[512, 512], [3, 4, 3]),
        (64, &[256], [3, 3, 3]),
    ] {
        let matrices: Vec<PackedMatrix> = outputs
            .iter()
            .zip(bits)
            .map(|(&outputs, bits)| matrix(trellis(bits), Axis::Out, inputs, outputs))
            .collect();
        let layers: Vec<CudaLinear> = matrices
            .iter()
            .map(|matrix| TrellisLinear::new(matrix.clone(), None, None).unwrap())
            .map(|layer| CudaLinear::upload(&device, &layer).unwrap())
            .collect();
        for (m, terms) in [(1, Terms::Two), (1, Terms::Three), (3, Terms::Two)] {
            let options = CudaOptions { terms, ..CudaOptions::default() };
            let values = activations::<f32>(m * inputs, 5);
            let x = device.upload(&values).unwrap();
            let ys = outputs.iter().map(|&n| device.upload(&vec![f32::NAN; m * n]).unwrap());
            let mut ys: Vec<_> = ys.collect();
            let layers: Vec<&CudaLinear> = layers.iter().collect();
            let mut run = || {
                let mut into: Vec<_> = ys.iter_mut().collect();
                CudaLinear::joined_sums(&layers, &x, m, &mut into, &options).unwrap();
                ys.iter().map(|y| device.download(y).unwrap()).collect::<Vec<_>>()
            };
            let found = run();
            for (y, matrix) in found.iter().zip(&matrices) {
                let wrong = error(y, &reference(matrix, Numerics::Fast, &values, m));
                assert!(wrong < tolerance::<f32>(terms), "{inputs} {outputs:?} {m}: {wrong:e}");
            }
            assert!(found == run(), "two runs differ");
        }
    }
}

#[test]
fn slower_products_of_every_code() {
    let Some(device) = gpu() else { return };
    for axis in AXES {
        for (code, state_bits, bits, block_len, numerics) in [
            (Code::ThreeInst, 16, 3, 256, Numerics::Fast),
            (Code::ThreeInst, 12, 4, 96, Numerics::Exact),
            (Code::Rand, 10, 2, 64, Numerics::Fast),
            (Code::OneMad, 12, 4, 40, Numerics::Fast),
            (Code::OneMad, 12, 8, 36, Numerics::Exact),
            (Code::OneMad, 16, 3, 256, Numerics::Exact),
            (Code::OneMad, 16, 5, 96, Numerics::Exact),
        ] {
            let trellis = Trellis::new(code, state_bits, bits, block_len).unwrap();
            let (inputs, outputs) = shape(axis, block_len);
            let matrix = matrix(trellis, axis, inputs, outputs);
            let options = CudaOptions { numerics, ..Default::default() };
            for m in [1, 3, 9] {
                check_product::<f32>(&device, &matrix, m, &options, 1e-5);
            }
            check_product::<bf16>(&device, &matrix, 2, &options, 4e-3);
        }
    }
}

#[test]
fn many_rows_through_cublas() {
    let Some(device) = gpu() else { return };
    let options = CudaOptions { expand_from: 16, ..Default::default() };
    for axis in AXES {
        let trellis = Trellis::new(Code::OneMad, 16, 3, 256).unwrap();
        let matrix = matrix(trellis, axis, 768, 512);
        check_product::<f32>(&device, &matrix, 33, &options, 1e-5);
        check_product::<bf16>(&device, &matrix, 64, &options, 5e-3);
    }
}

#[test]
fn an_outlier_costs_little_and_not_finite_numbers_show() {
    let Some(device) = gpu() else { return };
    let options = CudaOptions::default();
    for axis in AXES {
        let trellis = Trellis::new(Code::OneMad, 16, 3, 256).unwrap();
        let matrix = matrix(trellis, axis, 1024, 512);
        let packed = CudaMatrix::upload(&device, &matrix).unwrap();
        let mut x = activations::<f32>(1024, 5);
        x[700] = 200.0;
        let expected = reference(&matrix, Numerics::Fast, &x, 1);
        assert!(error(&product(&device, &packed, &x, 1, &options), &expected) < 5e-4);
        x[700] = f32::INFINITY;
        let y = product(&device, &packed, &x, 1, &options);
        assert!(y.iter().all(|y| !y.is_finite()));
        let zero = product(&device, &packed, &vec![0.0f32; 1024], 1, &options);
        assert!(zero.iter().all(|&y| y == 0.0));
    }
}

#[test]
fn layers_with_rotations_agree_with_the_cpu() {
    let Some(device) = gpu() else { return };
    let mut rng = random(3);
    let mut signs = |len: usize| -> Vec<f32> {
        (0..len).map(|_| if rng.random() { 1.0 } else { -0.75 }).collect()
    };
    for axis in AXES {
        let trellis = Trellis::new(Code::OneMad, 16, 4, 64).unwrap();
        let matrix = matrix(trellis, axis, 1536, 320);
        let rotation = Rotation::new(512, 64, signs(1536), signs(320)).unwrap();
        let bias = activations::<f32>(320, 9);
        for layer in [
            TrellisLinear::new(matrix.clone(), Some(rotation), Some(bias.clone())).unwrap(),
            TrellisLinear::new(matrix.clone(), None, Some(bias)).unwrap(),
        ] {
            let x = activations::<f16>(3 * 1536, 1);
            let mut expected = vec![f16::ZERO; 3 * 320];
            layer
                .forward(&x, 3, &mut expected, &KernelOptions::default(), &mut Scratch::default())
                .unwrap();
            let expected: Vec<f64> = expected.iter().map(|y| y.to_f64()).collect();
            let packed = CudaLinear::upload(&device, &layer).unwrap();
            let x = device.upload(&x).unwrap();
            let mut y = device.upload(&vec![f16::NAN; 3 * 320]).unwrap();
            let mut scratch = CudaScratch::default();
            packed.forward(&x, 3, &mut y, &CudaOptions::default(), &mut scratch).unwrap();
            assert!(error(&device.download(&y).unwrap(), &expected) < 1e-3);
        }
    }
}

#[test]
fn results_are_read_whole_after_longer_and_shorter_ones() {
    let Some(device) = gpu() else { return };
    let mut reader = CudaReader::default();
    for len in [1000, 3, (2 << 20) + 1, 1000, 4000, 1] {
        let values = gaussian(len, len as u64);
        let uploaded = device.upload(&values).unwrap();
        assert!(reader.read(&device, &uploaded, len).unwrap() == values, "{len}");
        assert!(reader.read(&device, &uploaded, len + 1).is_err());
    }
}

#[test]
fn short_buffers_and_absent_gpus_are_errors() {
    let count = device_count();
    assert!(Device::open(count).is_err());
    let Some(device) = gpu() else { return };
    let trellis = Trellis::new(Code::OneMad, 12, 2, 32).unwrap();
    let packed = CudaMatrix::upload(&device, &matrix(trellis, Axis::Out, 8, 64)).unwrap();
    let (x, mut y) = (device.zeros::<f32>(15).unwrap(), device.zeros::<f32>(128).unwrap());
    assert!(packed.multiply(&x, 2, &mut y, &CudaOptions::default()).is_err());
    assert!(packed.expand(Numerics::Fast, &mut y).is_err());
}

fn gaussian(len: usize, seed: u64) -> Vec<f32> {
    let mut rng = random(seed);
    let mut uniform = || rng.random_range(f64::MIN_POSITIVE..1.0);
    (0..len)
        .map(|_| {
            let (a, b) = (uniform(), uniform());
            ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32
        })
        .collect()
}

/// Mean squared error of a walk, after a check that it is one: every state follows the one before,
/// around the block.
fn distortion(trellis: &Trellis, x: &[f32], states: &[u16]) -> f64 {
    let values = trellis.values();
    let t = trellis.block_len();
    for block in states.chunks_exact(t) {
        for (i, &state) in block.iter().enumerate() {
            let before = u32::from(block[(i + t - 1) % t]) << trellis.bits();
            let seam = u32::from(state) ^ (before & trellis.state_mask());
            assert_eq!(seam >> trellis.bits(), 0, "{trellis:?}: not a walk at {i}");
        }
    }
    let square = |(x, &s): (&f32, &u16)| f64::from(x - values[usize::from(s)]).powi(2);
    x.iter().zip(states).map(square).sum::<f64>() / x.len() as f64
}

#[test]
fn the_encoder_finds_walks_as_good_as_the_cpus() {
    let Some(device) = gpu() else { return };
    for (code, state_bits, bits, block_len, blocks) in [
        (Code::OneMad, 12, 1, 256, 9),
        (Code::OneMad, 12, 2, 256, 150),
        (Code::OneMad, 12, 3, 256, 150),
        (Code::OneMad, 12, 4, 192, 150),
        (Code::OneMad, 12, 6, 96, 9),
        (Code::ThreeInst, 13, 3, 64, 9),
        (Code::Rand, 11, 5, 32, 9),
        (Code::OneMad, 15, 2, 256, 3),
        (Code::OneMad, 16, 1, 64, 3),
        (Code::OneMad, 16, 3, 256, 5),
        (Code::OneMad, 16, 6, 48, 2),
        (Code::ThreeInst, 16, 4, 256, 5),
    ] {
        let trellis = Trellis::new(code, state_bits, bits, block_len).unwrap();
        for passes in [2, 3] {
            let x = gaussian(blocks * trellis.block_len(), u64::from(bits));
            let mut expected = vec![0; x.len()];
            BlockEncoder::new(trellis, passes).unwrap().encode(&x, &mut expected).unwrap();
            let mut found = vec![u16::MAX; x.len()];
            let mut done = 0;
            CudaEncoder::new(&device, trellis, passes)
                .unwrap()
                .encode(&x, &mut found, &mut |n| done += n)
                .unwrap();
            assert_eq!(done, x.len());
            let expected = distortion(&trellis, &x, &expected);
            let found = distortion(&trellis, &x, &found);
            let ratio = found / expected;
            assert!((0.999..1.001).contains(&ratio), "{trellis:?} {passes}: {ratio}");
        }
    }
}

#[test]
fn the_encoder_refuses_what_it_cannot_code() {
    let Some(device) = gpu() else { return };
    let trellis = |state_bits, bits| Trellis::new(Code::OneMad, state_bits, bits, 64).unwrap();
    assert!(CudaEncoder::new(&device, trellis(10, 2), 2).is_err());
    assert!(CudaEncoder::new(&device, trellis(12, 7), 2).is_err());
    assert!(CudaEncoder::new(&device, trellis(12, 2), 1).is_err());
    let mut encoder = CudaEncoder::new(&device, trellis(12, 2), 2).unwrap();
    assert!(encoder.encode(&[0.0; 63], &mut [0; 63], &mut |_| ()).is_err());
    assert!(encoder.encode(&[0.0; 64], &mut [0; 63], &mut |_| ()).is_err());
}
