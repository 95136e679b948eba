//! Packed layers against f64 references over random codes.

mod common;

use common::*;
use half::{bf16, f16};
use trelliq_codec::Code;
use trelliq_kernels::{
    Activation, Activations, Axis, Isa, KernelOptions, Numerics, PackedMatrix, Scratch,
    TrellisLinear,
};

const M: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33];

fn forward<A: Activation>(
    layer: &TrellisLinear,
    x: &[f32],
    m: usize,
    options: &KernelOptions,
) -> Vec<f32> {
    let x: Vec<A> = x.iter().map(|&x| A::from_f32(x)).collect();
    let mut y = vec![A::from_f32(f32::NAN); m * layer.out_features()];
    layer.forward(&x, m, &mut y, options, &mut Scratch::default()).expect("matching lengths");
    y.iter().map(|y| y.to_f32()).collect()
}

fn layer(matrix: PackedMatrix) -> TrellisLinear {
    TrellisLinear::new(matrix, None, None).expect("a plain layer")
}

/// A matrix of two blocks a row and an odd number of rows, neither a multiple of sixteen.
fn odd_matrix(code: Code, l: u32, k: u32, t: usize, axis: Axis, rows: usize) -> PackedMatrix {
    let seed = u64::from(k) * 1000 + t as u64 + u64::from(l) * 7;
    let (inputs, outputs) = if axis == Axis::In { (2 * t, rows) } else { (rows, 2 * t) };
    random_matrix(seed, trellis(code, l, k, t), axis, inputs, outputs)
}

/// Every instruction set and M of one matrix, both numerics, decoded at once and (largest M) prefill.
fn check_matrix(matrix: PackedMatrix, ms: &[usize]) {
    let what = format!("{:?} {:?}", matrix.trellis(), matrix.axis());
    let inputs = matrix.in_features();
    let largest = ms.iter().copied().max().unwrap_or(0);
    let x = Random::new(3).vector(largest * inputs);
    let fast = dense(&matrix);
    let exact: Vec<f64> = fast.iter().map(|&w| to_bf16(w)).collect();
    let layer = layer(matrix);
    for (numerics, weight) in [(Numerics::Fast, fast), (Numerics::Exact, exact)] {
        let reference = product(&weight, &x, inputs);
        for isa in isas() {
            let activations = Activations::F32;
            let options =
                KernelOptions { numerics, activations, isa: Some(isa), ..Default::default() };
            for &m in ms {
                let y = forward::<f32>(&layer, &x[..m * inputs], m, &options);
                let error = relative_error(&y, &reference[..y.len()]);
                assert!(error < 1e-5, "{what} {numerics:?} {isa:?} M={m}: {error:e}");
            }
            let options = KernelOptions { prefill_from: Some(1), ..options };
            let y = forward::<f32>(&layer, &x, largest, &options);
            let error = relative_error(&y, &reference);
            assert!(error < 1e-5, "{what} {numerics:?} {isa:?} prefill: {error:e}");
        }
    }
}

/// Integers: every instruction set and M to the bit what the baseline makes of each row alone, and
/// within 1e-4 of the reference.
fn check_integers(matrix: PackedMatrix, ms: &[usize]) {
    let what = format!("{:?} {:?}", matrix.trellis(), matrix.axis());
    let inputs = matrix.in_features();
    let largest = ms.iter().copied().max().unwrap_or(0);
    let x = Random::new(3).vector(largest * inputs);
    let reference = product(&dense(&matrix), &x, inputs);
    let layer = layer(matrix);
    let options = |isa| KernelOptions {
        activations: Activations::Int,
        isa: Some(isa),
        prefill_from: Some(usize::MAX),
        ..Default::default()
    };
    let alone: Vec<f32> = x
        .chunks_exact(inputs)
        .flat_map(|x| forward::<f32>(&layer, x, 1, &options(Isa::Baseline)))
        .collect();
    let error = relative_error(&alone, &reference);
    assert!(error < 1e-4, "{what}: {error:e}");
    for isa in isas().into_iter().filter(|isa| *isa != Isa::Scalar) {
        for &m in ms {
            let y = forward::<f32>(&layer, &x[..m * inputs], m, &options(isa));
            assert_eq!(y, alone[..y.len()], "{what} {isa:?} M={m}");
        }
    }
}

fn check_bits(bits: u32) {
    for t in [32, 64, 96, 192, 256, 288] {
        for axis in [Axis::In, Axis::Out] {
            for l in [4.max(bits + 1), 8.max(bits + 1), 12, 16] {
                check_matrix(odd_matrix(Code::OneMad, l, bits, t, axis, 19), &M);
                check_integers(odd_matrix(Code::OneMad, l, bits, t, axis, 19), &M);
            }
            for code in [Code::ThreeInst, Code::Rand] {
                check_matrix(odd_matrix(code, 12, bits, t, axis, 19), &[1, 5, 33]);
            }
            check_matrix(odd_matrix(Code::ThreeInst, 16, bits, t, axis, 37), &[1, 2]);
        }
    }
}

macro_rules! every_k {
    ($($name:ident: $bits:literal),*) => {$(
        #[test]
        fn $name() {
            check_bits($bits);
        }
    )*};
}

every_k!(k1: 1, k2: 2, k3: 3, k4: 4, k5: 5, k6: 6, k7: 7, k8: 8);

#[test]
fn block_lengths_that_runs_do_not_divide() {
    for (k, t) in [(8, 36), (8, 44), (4, 40), (2, 48), (6, 80), (8, 4)] {
        for axis in [Axis::In, Axis::Out] {
            check_matrix(odd_matrix(Code::OneMad, 12, k, t, axis, 21), &[1, 2, 9, 33]);
            check_matrix(odd_matrix(Code::Rand, 16, k, t, axis, 5), &[1, 33]);
        }
    }
}

#[test]
fn many_rows_and_partial_sums() {
    for axis in [Axis::In, Axis::Out] {
        let matrix = random_matrix(5, trellis(Code::OneMad, 12, 3, 192), axis, 1344, 1152);
        check_matrix(matrix.clone(), &[1, 8, 31]);
        check_integers(matrix, &[1, 3, 8]);
    }
}

#[test]
fn prefill_and_expansion_at_any_m() {
    for axis in [Axis::In, Axis::Out] {
        let matrix = random_matrix(6, trellis(Code::OneMad, 12, 4, 96), axis, 1152, 288);
        let reference = dense(&matrix);
        let x = Random::new(4).vector(5 * 1152);
        let reference = product(&reference, &x, 1152);
        let layer = layer(matrix);
        for (prefill_from, expand_from, memory_ceiling) in
            [(Some(1), usize::MAX, 0), (None, 1, usize::MAX), (None, 1, 1000)]
        {
            let options =
                KernelOptions { prefill_from, expand_from, memory_ceiling, ..Default::default() };
            for m in [1, 5] {
                let y = forward::<f32>(&layer, &x[..m * 1152], m, &options);
                let error = relative_error(&y, &reference[..y.len()]);
                assert!(error < 1e-5, "{axis:?} {options:?} M={m}: {error:e}");
            }
        }
    }
}

/// Only the order of words in memory differs. Rows: less than a set of sixteen, than a group of 128,
/// and groups with a rest.
#[test]
fn repacking_changes_no_bit() {
    for (code, k, t) in [(Code::OneMad, 3, 96), (Code::OneMad, 1, 256), (Code::ThreeInst, 8, 36)] {
        for (axis, rows) in
            [Axis::In, Axis::Out].into_iter().flat_map(|a| [5, 75, 128, 300].map(|r| (a, r)))
        {
            let plain = layer(odd_matrix(code, 12, k, t, axis, rows));
            let mut repacked = plain.clone();
            repacked.repack();
            let x = Random::new(16).vector(40 * plain.in_features());
            for numerics in [Numerics::Fast, Numerics::Exact] {
                for activations in [Activations::Int, Activations::F32] {
                    let options = KernelOptions { numerics, activations, ..Default::default() };
                    for m in [1, 3, 40] {
                        let x = &x[..m * plain.in_features()];
                        let [a, b] = [&plain, &repacked].map(|l| forward::<f32>(l, x, m, &options));
                        assert_eq!(a, b, "{code:?} {axis:?} {rows} rows {options:?} M={m}");
                    }
                }
                let expand = |layer: &TrellisLinear| {
                    let mut out = vec![0f32; plain.in_features() * plain.out_features()];
                    layer.expand(numerics, &mut out).unwrap();
                    out
                };
                assert_eq!(expand(&plain), expand(&repacked));
            }
        }
    }
}

/// Integers where they are faster, f32 where they are not.
#[test]
fn activations_are_chosen_by_the_instruction_set() {
    let layer = layer(odd_matrix(Code::OneMad, 12, 3, 96, Axis::Out, 75));
    let x = Random::new(15).vector(layer.in_features());
    // The scalar oracle knows f32 alone.
    for isa in isas().into_iter().filter(|isa| *isa > Isa::Scalar) {
        let y = |activations| {
            let options = KernelOptions { activations, isa: Some(isa), ..Default::default() };
            forward::<f32>(&layer, &x, 1, &options)
        };
        let integers =
            isa > Isa::Baseline || (isa == Isa::Baseline && cfg!(target_arch = "aarch64"));
        let [same, other] = if integers {
            [Activations::Int, Activations::F32]
        } else {
            [Activations::F32, Activations::Int]
        };
        assert_eq!(y(Activations::Auto), y(same), "{isa:?}");
        assert_ne!(y(Activations::Auto), y(other), "{isa:?}");
    }
}

/// Up to prefill, what a row of x gives does not depend on how many others come with it.
#[test]
fn a_row_among_few_is_to_the_bit_what_it_is_alone() {
    for axis in [Axis::In, Axis::Out] {
        for (t, numerics) in [(96, Numerics::Fast), (96, Numerics::Exact), (36, Numerics::Fast)] {
            let layer = layer(odd_matrix(Code::OneMad, 12, 8, t, axis, 75));
            let inputs = layer.in_features();
            let x = Random::new(14).vector(31 * inputs);
            for isa in isas() {
                for activations in [Activations::Int, Activations::F32] {
                    let isa = Some(isa);
                    let options =
                        KernelOptions { numerics, activations, isa, ..Default::default() };
                    let rows = x.chunks_exact(inputs);
                    let alone: Vec<f32> =
                        rows.flat_map(|x| forward::<f32>(&layer, x, 1, &options)).collect();
                    for m in [2, 3, 7, 31] {
                        let y = forward::<f32>(&layer, &x[..m * inputs], m, &options);
                        assert_eq!(y, alone[..y.len()], "{axis:?} {options:?} M={m}");
                    }
                }
            }
        }
    }
}

#[test]
fn half_activations() {
    for axis in [Axis::In, Axis::Out] {
        let matrix = odd_matrix(Code::OneMad, 12, 3, 256, axis, 77);
        let inputs = matrix.in_features();
        let x = Random::new(8).vector(33 * inputs);
        let reference = product(&dense(&matrix), &x, inputs);
        let layer = layer(matrix);
        for m in [1, 4, 33] {
            let options = KernelOptions::default();
            let (x, reference) = (&x[..m * inputs], &reference[..m * layer.out_features()]);
            let in_bf16 = relative_error(&forward::<bf16>(&layer, x, m, &options), reference);
            let in_f16 = relative_error(&forward::<f16>(&layer, x, m, &options), reference);
            // Not exact either: the half types really are what comes in and goes out.
            assert!(in_bf16 < 2e-2 && in_bf16 > 1e-4, "{axis:?} M={m}: bf16 {in_bf16:e}");
            assert!(in_f16 < 4e-3 && in_f16 > 1e-5, "{axis:?} M={m}: f16 {in_f16:e}");
        }
    }
}

#[test]
fn expanded_weights_equal_their_definition_bit_for_bit() {
    for (code, l, k, t) in [
        (Code::OneMad, 12, 3, 256),
        (Code::OneMad, 16, 4, 96),
        (Code::ThreeInst, 16, 2, 64),
        (Code::Rand, 10, 5, 32),
        (Code::OneMad, 9, 8, 36),
    ] {
        for axis in [Axis::In, Axis::Out] {
            let matrix = odd_matrix(code, l, k, t, axis, 35);
            let reference = dense(&matrix);
            let layer = layer(matrix);
            let mut fast = vec![0f32; reference.len()];
            layer.expand(Numerics::Fast, &mut fast).expect("matching length");
            let mut exact = vec![bf16::ZERO; reference.len()];
            layer.expand(Numerics::Exact, &mut exact).expect("matching length");
            for (i, &w) in reference.iter().enumerate() {
                assert_eq!(fast[i].to_bits(), (w as f32).to_bits(), "{code} {axis:?} {i}");
                assert_eq!(exact[i], bf16::from_f32(w as f32), "{code} {axis:?} {i}");
            }
        }
    }
}

/// Unit vectors read the weights out of the multiplication itself.
#[test]
fn exact_kernels_multiply_by_bf16_weights_bit_for_bit() {
    for code in Code::ALL {
        for axis in [Axis::In, Axis::Out] {
            let matrix = odd_matrix(code, 12, 3, 64, axis, 128);
            let (inputs, outputs) = (matrix.in_features(), matrix.out_features());
            let reference = dense(&matrix);
            let layer = layer(matrix);
            for isa in isas() {
                for prefill_from in [Some(1), Some(usize::MAX)] {
                    let options = KernelOptions {
                        numerics: Numerics::Exact,
                        isa: Some(isa),
                        prefill_from,
                        ..Default::default()
                    };
                    let mut x = vec![0.0; inputs * inputs];
                    (0..inputs).for_each(|i| x[i * inputs + i] = 1.0);
                    let y = forward::<f32>(&layer, &x, inputs, &options);
                    for (n, &y) in y.iter().enumerate() {
                        let (input, output) = (n / outputs, n % outputs);
                        let expected = to_bf16(reference[output * inputs + input]);
                        assert_eq!(f64::from(y), expected, "{code} {axis:?} {isa:?} {n}");
                    }
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for axis in [Axis::In, Axis::Out] {
        let matrix = random_matrix(9, trellis(Code::OneMad, 12, 3, 192), axis, 1152, 960);
        let layer = layer(matrix);
        let x = Random::new(10).vector(33 * 1152);
        for (m, prefill_from) in [(1, None), (3, None), (33, None), (33, Some(1))] {
            let options = KernelOptions { prefill_from, ..Default::default() };
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
                pool.expect("a pool")
                    .install(|| forward::<f32>(&layer, &x[..m * 1152], m, &options))
            };
            let one = run(1);
            assert_eq!(one, run(2), "{axis:?} M={m}");
            assert_eq!(one, run(3), "{axis:?} M={m}");
        }
    }
}

#[test]
fn scratch_of_a_larger_call_does_not_leak_into_a_smaller_one() {
    let mut scratch = Scratch::default();
    for (rows, m) in [(77, 40), (19, 1), (33, 5)] {
        for axis in [Axis::In, Axis::Out] {
            let layer = layer(odd_matrix(Code::OneMad, 12, 2, 64, axis, rows));
            let x = Random::new(12).vector(m * layer.in_features());
            let mut y = vec![0.0; m * layer.out_features()];
            let options = KernelOptions::default();
            layer.forward(&x, m, &mut y, &options, &mut scratch).expect("matching lengths");
            assert_eq!(y, forward::<f32>(&layer, &x, m, &options));
        }
    }
}

/// A vocabulary so large that 70 rows of x go through in two slabs.
#[test]
fn slabs_of_rows_are_put_together() {
    let outputs = (16 << 20) / 64;
    let matrix = random_matrix(11, trellis(Code::OneMad, 12, 2, 32), Axis::In, 32, outputs);
    let layer = layer(matrix);
    let x = Random::new(1).vector(70 * 32);
    let options = KernelOptions::default();
    let whole = forward::<f32>(&layer, &x, 70, &options);
    for row in [0, 63, 64, 69] {
        let alone = forward::<f32>(&layer, &x[row * 32..(row + 1) * 32], 1, &options);
        let alone: Vec<f64> = alone.into_iter().map(f64::from).collect();
        let error = relative_error(&whole[row * outputs..(row + 1) * outputs], &alone);
        assert!(error < 1e-6, "{row}: {error:e}");
    }
}

#[test]
fn no_rows_of_x_give_no_rows_of_y() {
    let layer = layer(odd_matrix(Code::OneMad, 12, 3, 32, Axis::Out, 9));
    assert!(forward::<f32>(&layer, &[], 0, &KernelOptions::default()).is_empty());
}

#[test]
fn the_baseline_and_the_oracle_are_always_there() {
    assert!(Isa::Scalar.available() && Isa::Baseline.available() && Isa::best().available());
}
