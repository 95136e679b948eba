//! Channel scales: what `su` and `sv` hold besides signs.
//!
//! A rotation spreads rounding errors evenly over the channels of its block. With a weight divided by
//! `su` and its input multiplied by it, the error that comes back to channel i is in proportion to
//! `su_i`, and the power that is spread is the sum of `E_i / su_i^2`, where `E_i` is the channel's
//! energy. For uncorrelated inputs of power `h_i` the loss, `sum h_i su_i^2 * sum E_i / su_i^2`, is
//! least at `su_i^4 = E_i / h_i` (Cauchy-Schwarz). Feedback already spends less where h is large, so
//! half of that exponent is better; the same without feedback holds for outputs, whose errors weigh
//! alike or by a given importance, with the whole exponent.

use half::f16;

/// Exponents of energy over power for inputs, and of energy for outputs.
const INPUT_EXPONENT: f64 = 0.125;
const OUTPUT_EXPONENT: f64 = 0.25;

/// Floor of energies and powers, as a fraction of their mean: dead channels get no extreme scale.
const FLOOR: f64 = 0.01;

/// Squared norms of the columns of `weight`, `[out, in_features]`, added to `energy`.
pub(crate) fn add_column_energy(weight: &[f32], energy: &mut [f64]) {
    for row in weight.chunks_exact(energy.len()) {
        for (e, w) in energy.iter_mut().zip(row) {
            *e += f64::from(*w).powi(2);
        }
    }
}

/// Scales of inputs, `[in]`: `energy` over all weights that read them, `power` the Hessian's diagonal.
pub(crate) fn input_scales(energy: &[f64], power: &[f64]) -> Vec<f32> {
    let ratio = floored(energy).zip(floored(power)).map(|(e, h)| e / h);
    normalized(ratio, INPUT_EXPONENT)
}

/// Scales of outputs, `[out]`, from `weight`, `[out, in]`, as its inputs' scales leave it. Outputs on
/// which more depends (`importance`, `[out]`, up to a factor) get smaller errors.
pub(crate) fn output_scales(
    weight: &[f32],
    inputs: &[f32],
    importance: Option<&[f64]>,
) -> Vec<f32> {
    let energy =
        |row: &[f32]| row.iter().zip(inputs).map(|(w, s)| f64::from(w / s).powi(2)).sum::<f64>();
    let energy: Vec<f64> = weight.chunks_exact(inputs.len()).map(energy).collect();
    let importance = importance.map_or_else(|| vec![1.0; energy.len()], <[f64]>::to_vec);
    let ratio = floored(&energy).zip(floored(&importance)).map(|(e, d)| e / d);
    normalized(ratio, OUTPUT_EXPONENT)
}

fn floored(values: &[f64]) -> impl Iterator<Item = f64> {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let floor = if mean > 0.0 { FLOOR * mean } else { 1.0 };
    values.iter().map(move |v| v.max(floor))
}

/// Powers of `ratio` with a geometric mean of 1, as f16 holds them.
fn normalized(ratio: impl Iterator<Item = f64>, exponent: f64) -> Vec<f32> {
    let logs: Vec<f64> = ratio.map(|r| exponent * r.ln()).collect();
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    logs.into_iter().map(|log| f16::from_f64((log - mean).exp()).to_f32()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `sum power_i s_i^2 * sum energy_i / s_i^2`, the loss of uncorrelated channels.
    fn loss(energy: &[f64], power: &[f64], scales: &[f32]) -> f64 {
        let squares = || scales.iter().map(|s| f64::from(*s).powi(2));
        let noise: f64 = power.iter().zip(squares()).map(|(h, s)| h * s).sum();
        noise * energy.iter().zip(squares()).map(|(e, s)| e / s).sum::<f64>()
    }

    #[test]
    fn no_other_output_scales_lose_less() {
        let weight: Vec<f32> = (0..12 * 8).map(|n| (n / 8 + 1) as f32 * (n as f32).cos()).collect();
        let ones = [1.0; 8];
        let scales = output_scales(&weight, &ones, None);
        let energy: Vec<f64> = weight
            .chunks_exact(8)
            .map(|row| row.iter().map(|w| f64::from(*w).powi(2)).sum())
            .collect();
        let best = loss(&energy, &[1.0; 12], &scales);
        // (sum of sqrt(E))^2 is the bound of Cauchy and Schwarz.
        let bound = energy.iter().map(|e| e.sqrt()).sum::<f64>().powi(2);
        assert!((best / bound - 1.0).abs() < 0.01, "{best} {bound}");
        for channel in 0..12 {
            for step in [0.8, 1.25] {
                let mut moved = scales.clone();
                moved[channel] *= step;
                assert!(loss(&energy, &[1.0; 12], &moved) > best);
            }
        }
    }

    #[test]
    fn important_outputs_get_smaller_errors() {
        let weight = [1.0; 6 * 4];
        let importance = [16.0, 1.0, 1.0, 1.0, 1.0, 1.0];
        let scales = output_scales(&weight, &[1.0; 4], Some(&importance));
        // Equal energies: the fourth root of the importance.
        assert!((scales[1] / scales[0] - 2.0).abs() < 1e-2, "{scales:?}");
    }

    #[test]
    fn input_scales_lower_the_loss_and_stay_tame_where_channels_are_dead() {
        let energy = [4.0, 1.0, 9.0, 0.0, 2.0];
        let power = [0.1, 3.0, 0.0, 1.0, 50.0];
        let scales = input_scales(&energy, &power);
        assert!(loss(&energy, &power, &scales) < loss(&energy, &power, &[1.0; 5]));
        let logs: f32 = scales.iter().map(|s| s.ln()).sum();
        assert!(logs.abs() < 1e-2, "{scales:?}");
        assert!(scales.iter().all(|s| (0.1..10.0).contains(s)), "{scales:?}");
        assert_eq!(input_scales(&[0.0; 3], &[0.0; 3]), [1.0; 3]);
    }

    #[test]
    fn column_energy_adds_up_over_weights() {
        let mut energy = vec![1.0, 0.0];
        add_column_energy(&[1.0, 2.0, 3.0, 4.0], &mut energy);
        assert_eq!(energy, [11.0, 20.0]);
    }
}
