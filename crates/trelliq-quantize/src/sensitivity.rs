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
