//! Derivatives of the decoder's small operations.

use super::super::ops::dot;
use rayon::prelude::*;

/// The gradient at `x` of `rms_norm(x, weight, eps)`, row by row, from that at its result.
pub(crate) fn rms_norm_back(x: &[f32], weight: &[f32], eps: f32, gradient: &[f32]) -> Vec<f32> {
    let width = weight.len();
    let mut back = vec![0.0f32; x.len()];
    let rows = back.par_chunks_exact_mut(width).zip(x.par_chunks_exact(width));
    rows.zip(gradient.par_chunks_exact(width)).for_each(|((back, x), gradient)| {
        let scale = 1.0 / (dot(x, x) / width as f32 + eps).sqrt();
        for ((b, g), w) in back.iter_mut().zip(gradient).zip(weight) {
            *b = g * w;
        }
        let along = dot(back, x) * scale * scale / width as f32;
        for (b, x) in back.iter_mut().zip(x) {
            *b = scale * (*b - along * x);
        }
    });
    back
}

/// Derivative of `x sigmoid(x)`.
pub(crate) fn silu_slope(x: f32) -> f32 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    sigmoid * (1.0 + x * (1.0 - sigmoid))
}

/// Derivative of the tanh approximation of GELU.
pub(crate) fn gelu_tanh_slope(x: f32) -> f32 {
    const SQRT_2_OVER_PI: f32 = 0.797_884_6;
    let tanh = (SQRT_2_OVER_PI * (x + 0.044_715 * x * x * x)).tanh();
    let inner = SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044_715 * x * x);
    0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoder::ops::{gelu_tanh, rms_norm, silu};

    #[test]
    fn slopes_agree_with_differences() {
        for step in -40..40 {
            let x = step as f32 * 0.15;
            let difference = |f: fn(f32) -> f32| (f(x + 1e-2) - f(x - 1e-2)) / 2e-2;
            assert!((silu_slope(x) - difference(silu)).abs() < 1e-4, "{x}");
            assert!((gelu_tanh_slope(x) - difference(gelu_tanh)).abs() < 2e-4, "{x}");
        }
    }

    #[test]
    fn norms_agree_with_differences() {
        let x: Vec<f32> = (0..12).map(|i| (i as f32 * 0.7).sin() + 0.2).collect();
        let weight = [0.5, 1.0, -2.0, 1.5];
        let gradient: Vec<f32> = (0..12).map(|i| (i as f32 * 1.1).cos()).collect();
        let value = |x: &[f32]| -> f64 {
            let mut y = x.to_vec();
            rms_norm(&mut y, &weight, 1e-5);
            y.iter().zip(&gradient).map(|(y, g)| f64::from(*y) * f64::from(*g)).sum()
        };
        let back = rms_norm_back(&x, &weight, 1e-5, &gradient);
        for i in 0..x.len() {
            let moved = |by: f32| {
                let mut x = x.clone();
                x[i] += by;
                value(&x)
            };
            let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!((f64::from(back[i]) - difference).abs() < 1e-3, "{i} {difference}");
        }
    }
}
