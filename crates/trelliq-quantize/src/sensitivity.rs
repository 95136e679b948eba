//! What a layer's coding error costs, predicted before it is coded.

use crate::channels::add_column_energy;
use crate::encode::Prepared;

/// The KL divergence in nats a token that a relative error of 1 in a layer's codes causes, to second
/// order: half the Fisher information of the outputs times the error that reaches them.
///
/// Errors left by feedback are white in the rotated and scaled channels, with D of `H = U D U^T` as
/// their power: at a relative error r they add up to `r sum_k D_k |w_k|^2` over the outputs, and each of
/// the `n` outputs gets a share of it that its scale sv weighs. `outputs`: `[n]`, sums of squared
/// gradients over `tokens` tokens.
pub(crate) fn sensitivity(prepared: &Prepared, outputs: &[f64], tokens: u64) -> f64 {
    let Some((_, factor)) = &prepared.hessian else { return 0.0 };
    let mut energy = vec![0.0; factor.dim()];
    add_column_energy(&prepared.weight, &mut energy);
    let power: f64 = energy.iter().zip(&factor.diagonal).map(|(e, d)| e * d).sum();
    let scale = |o: usize| prepared.rotation.as_ref().map_or(1.0, |r| f64::from(r.sv()[o]));
    let information: f64 = outputs.iter().enumerate().map(|(o, g)| g * scale(o).powi(2)).sum();
    0.5 * power * information / (outputs.len() as f64 * tokens.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factor::{Factor, tests::hessian};
    use crate::rotate::signs;

    /// Errors of white rounding under feedback, `e_k = n_k - sum_{j<k} U_jk e_j` with n_k of the energy
    /// r |w_k|^2, and what they cost by the definition, `1/2 sum_o g_o e_o H e_o^T` a token.
    #[test]
    fn is_what_white_errors_under_feedback_cost() {
        let (dim, out, relative, tokens) = (6, 8, 0.04, 10);
        let h = hessian(dim);
        let factor = Factor::new(&h, dim, 0.0).unwrap();
        let weight: Vec<f32> = (0..out * dim).map(|n| (n as f32 * 0.7).sin()).collect();
        let outputs: Vec<f64> = (0..out).map(|o| 1.0 + o as f64).collect();
        let energy = |k: usize| -> f64 {
            (0..out).map(|o| f64::from(weight[o * dim + k]).powi(2)).sum::<f64>() / out as f64
        };
        let draws = 4000;
        let random = signs(1, "errors", draws * out * dim);
        let mut total = 0.0;
        for (row, noise) in random.chunks_exact(dim).enumerate() {
            let mut e = vec![0.0f64; dim];
            for k in 0..dim {
                let fed: f64 = (0..k).map(|j| f64::from(factor.panel(j, k)[0]) * e[j]).sum();
                e[k] = f64::from(noise[k]) * (relative * energy(k)).sqrt() - fed;
            }
            let cost: f64 = (0..dim * dim).map(|n| e[n / dim] * h[n] * e[n % dim]).sum();
            total += 0.5 * outputs[row % out] * cost;
        }
        let measured = total / (draws as f64 * tokens as f64);
        let prepared = Prepared { weight, rotation: None, hessian: Some((h, factor)) };
        let predicted = relative * sensitivity(&prepared, &outputs, tokens);
        assert!((predicted / measured - 1.0).abs() < 0.02, "{predicted} {measured}");
    }
}
