//! Signs from a seed, and the rotation of a whole weight:
//! `What = H_out diag(1/sv) W diag(1/su) H_in`, the inverse of `docs/spec/format.md`'s formula.

use rayon::prelude::*;
use sha2::{Digest, Sha256};
use trelliq_kernels::{Rotation, hadamard_in_place};

/// Columns that one job of the output side transforms at a time: a strip of 512 rows stays in L2.
const STRIP: usize = 256;

/// Random signs for `len` channels, from the seed and a name: the bits of splitmix64 started at the
/// first eight bytes of SHA-256("seed:name").
pub(crate) fn signs(seed: u64, name: &str, len: usize) -> Vec<f32> {
    let digest = Sha256::digest(format!("{seed}:{name}"));
    let mut state = u64::from_le_bytes(digest[..8].try_into().expect("eight bytes"));
    let mut next = move || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    let mut signs = Vec::with_capacity(len + 63);
    while signs.len() < len {
        let bits = next();
        signs.extend((0..64).map(|i| if bits >> i & 1 == 0 { 1.0 } else { -1.0 }));
    }
    signs.truncate(len);
    signs
}

/// Layers that read one input, and the name of that input.
const SHARED_INPUTS: [(&str, &[&str]); 2] =
    [("qkv", &["q_proj", "k_proj", "v_proj"]), ("gate_up", &["gate_proj", "up_proj"])];

/// The parent of the layer at `path`, and its shared input or else its own name with itself alone.
fn input_of(path: &str) -> (&str, &str, Vec<&str>) {
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    match SHARED_INPUTS.into_iter().find(|(_, readers)| readers.contains(&name)) {
        Some((input, readers)) => (parent, input, readers.to_vec()),
        None => (parent, name, vec![name]),
    }
}

/// The name that layers with the same input share, so that they share `su` and the input is rotated
/// once: q, k and v of an attention, gate and up of an MLP.
pub(crate) fn input_group(path: &str) -> String {
    let (parent, input, _) = input_of(path);
    format!("{parent}.{input}")
}

/// The layers that read the input of the layer at `path`, itself among them.
pub(crate) fn sharing_input(path: &str) -> Vec<String> {
    let (parent, _, readers) = input_of(path);
    readers.into_iter().map(|name| format!("{parent}.{name}")).collect()
}

/// Turns `weight`, `[out, in]`, into its rotated form in place, in parallel.
pub(crate) fn rotate_weight(weight: &mut [f32], rotation: &Rotation) {
    let in_features = rotation.su().len();
    let inverse: Vec<f32> = rotation.su().iter().map(|s| 1.0 / s).collect();
    weight.par_chunks_exact_mut(in_features).zip(rotation.sv()).for_each(|(row, sv)| {
        for (w, su) in row.iter_mut().zip(&inverse) {
            *w = *w * su / sv;
        }
        hadamard_in_place(row, rotation.in_block());
    });
    let block = rotation.out_block();
    if block > 1 {
        weight
            .par_chunks_exact_mut(block * in_features)
            .for_each(|rows| hadamard_over_rows(rows, block, in_features));
    }
}

/// The Hessian of the rotated input `H_in (su * x)` from that of x, `[dim, dim]`, in place.
pub(crate) fn rotate_hessian(hessian: &mut [f64], rotation: &Rotation) {
    let dim = rotation.su().len();
    for _ in 0..2 {
        hessian.par_chunks_exact_mut(dim).for_each(|row| {
            for (h, su) in row.iter_mut().zip(rotation.su()) {
                *h *= f64::from(*su);
            }
            hadamard_f64(row, rotation.in_block());
        });
        // Symmetric in the end: the second turn works on what were columns.
        transpose_square(hessian, dim);
    }
}

fn transpose_square(matrix: &mut [f64], dim: usize) {
    for i in 0..dim {
        for j in i + 1..dim {
            matrix.swap(i * dim + j, j * dim + i);
        }
    }
}

fn hadamard_f64(row: &mut [f64], block: usize) {
    let norm = 1.0 / (block as f64).sqrt();
    for chunk in row.chunks_exact_mut(block) {
        let mut half = 1;
        while half < block {
            for pair in chunk.chunks_exact_mut(2 * half) {
                let (low, high) = pair.split_at_mut(half);
                for (a, b) in low.iter_mut().zip(high) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            half *= 2;
        }
        chunk.iter_mut().for_each(|h| *h *= norm);
    }
}

/// Multiplies `rows`, `[block, cols]`, from the left by the orthonormal Hadamard matrix.
fn hadamard_over_rows(rows: &mut [f32], block: usize, cols: usize) {
    let norm = 1.0 / (block as f32).sqrt();
    for start in (0..cols).step_by(STRIP) {
        let strip = start..(start + STRIP).min(cols);
        let mut half = 1;
        while half < block {
            for pair in rows.chunks_exact_mut(2 * half * cols) {
                let (low, high) = pair.split_at_mut(half * cols);
                for (low, high) in low.chunks_exact_mut(cols).zip(high.chunks_exact_mut(cols)) {
                    for (a, b) in low[strip.clone()].iter_mut().zip(&mut high[strip.clone()]) {
                        (*a, *b) = (*a + *b, *a - *b);
                    }
                }
            }
            half *= 2;
        }
        for row in rows.chunks_exact_mut(cols) {
            row[strip.clone()].iter_mut().for_each(|w| *w *= norm);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The explicit orthonormal Sylvester matrix, block diagonal.
    fn hadamard(dim: usize, block: usize) -> Vec<Vec<f64>> {
        let entry = |i: usize, j: usize| {
            let sign =
                if ((i % block) & (j % block)).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
            if i / block == j / block { sign / (block as f64).sqrt() } else { 0.0 }
        };
        (0..dim).map(|i| (0..dim).map(|j| entry(i, j)).collect()).collect()
    }

    #[test]
    fn undoes_the_formula_of_the_format() {
        let (out, inp, out_block, in_block) = (24, 320, 8, 64);
        let su: Vec<f32> =
            signs(1, "in", inp).iter().enumerate().map(|(i, s)| s * (1.0 + i as f32)).collect();
        let sv: Vec<f32> = signs(1, "out", out).iter().map(|s| s * 0.5).collect();
        let rotation = Rotation::new(in_block, out_block, su.clone(), sv.clone()).unwrap();
        let weight: Vec<f32> =
            (0..out * inp).map(|i| ((i * 37 % 101) as f32 - 50.0) / 9.0).collect();
        let mut rotated = weight.clone();
        rotate_weight(&mut rotated, &rotation);
        // W = diag(sv) H_out What H_in diag(su), in f64 with explicit matrices.
        let (h_out, h_in) = (hadamard(out, out_block), hadamard(inp, in_block));
        for r in 0..out {
            let left: Vec<f64> = (0..inp)
                .map(|j| (0..out).map(|i| h_out[r][i] * f64::from(rotated[i * inp + j])).sum())
                .collect();
            for c in 0..inp {
                let sum: f64 = (0..inp).map(|j| left[j] * h_in[j][c]).sum();
                let back = f64::from(sv[r]) * sum * f64::from(su[c]);
                let expected = f64::from(weight[r * inp + c]);
                assert!(
                    (back - expected).abs() < 1e-4 * (1.0 + expected.abs()),
                    "{back} {expected}"
                );
            }
        }
    }

    #[test]
    fn hessians_turn_with_the_input() {
        let (dim, block) = (24, 8);
        let su: Vec<f32> = signs(2, "in", dim).iter().map(|s| s * 1.5).collect();
        let rotation = Rotation::new(block, 1, su, vec![1.0]).unwrap();
        // H = sum of x x^T, so the rotated one is the sum over rotated inputs.
        let inputs: Vec<Vec<f32>> = (0..5)
            .map(|t| (0..dim).map(|i| ((t * 53 + i * 29) % 31) as f32 / 15.0 - 1.0).collect())
            .collect();
        let sum = |inputs: &[Vec<f32>]| -> Vec<f64> {
            let element = |x: &Vec<f32>, n: usize| f64::from(x[n / dim]) * f64::from(x[n % dim]);
            (0..dim * dim).map(|n| inputs.iter().map(|x| element(x, n)).sum()).collect()
        };
        let mut found = sum(&inputs);
        rotate_hessian(&mut found, &rotation);
        let mut turned = inputs.clone();
        turned.iter_mut().for_each(|x| rotation.rotate_input(x));
        for (found, expected) in found.iter().zip(sum(&turned)) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
    }

    #[test]
    fn signs_are_fair_and_depend_on_seed_and_name() {
        let a = signs(0, "x", 4096);
        assert!(a.iter().all(|s| s.abs() == 1.0));
        assert!(a.iter().sum::<f32>().abs() < 4.0 * 64.0);
        assert_eq!(a[..100], signs(0, "x", 100));
        assert_ne!(a, signs(1, "x", 4096));
        assert_ne!(a, signs(0, "y", 4096));
    }

    #[test]
    fn layers_with_one_input_share_its_signs() {
        let group = |name: &str| input_group(&format!("model.layers.3.{name}"));
        assert_eq!(group("self_attn.q_proj"), group("self_attn.v_proj"));
        assert_eq!(group("mlp.gate_proj"), group("mlp.up_proj"));
        assert_ne!(group("mlp.gate_proj"), group("mlp.down_proj"));
        assert_ne!(group("self_attn.q_proj"), group("self_attn.o_proj"));
        assert_eq!(input_group("lm_head"), ".lm_head");
        assert_eq!(sharing_input("a.mlp.up_proj"), ["a.mlp.gate_proj", "a.mlp.up_proj"]);
        assert_eq!(sharing_input("a.mlp.down_proj"), ["a.mlp.down_proj"]);
    }
}
