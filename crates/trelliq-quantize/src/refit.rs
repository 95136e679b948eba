//! Scales once more, all together, after every walk is known.
//!
//! With walks fixed, the proxy loss `tr(E H E^T)` is quadratic in the channels' scales: its minimum
//! solves `A s = b` with `A = H o (V V^T)` and `b_k = sum_l H_kl <v_k, w_l>`, where row k of V holds
//! the unscaled values of channel k.

use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use half::f16;

/// Added to the diagonal of A, as a fraction of its mean: A is singular where channels are zero.
const RIDGE: f64 = 1e-6;

/// The scales of least proxy loss for `values`, `[channels, out]`, and `weight`, of equal shape,
/// under `hessian`, `[channels, channels]`; `None` when the system cannot be solved in f16.
pub(crate) fn refit_scales(values: &[f32], weight: &[f32], hessian: &[f64]) -> Option<Vec<f16>> {
    let channels = hessian.len().isqrt();
    let (gram, cross) = (products(values, values, channels), products(values, weight, channels));
    let at = |i: usize, j: usize| i * channels + j;
    let mean = (0..channels).map(|k| hessian[at(k, k)] * f64::from(gram[at(k, k)])).sum::<f64>();
    let ridge = RIDGE * mean / channels as f64;
    let system = Mat::from_fn(channels, channels, |i, j| {
        let element = hessian[at(i, j)] * f64::from(gram[at(i, j)]);
        if i == j { element + ridge } else { element }
    });
    let right = Mat::from_fn(channels, 1, |k, _| {
        (0..channels).map(|l| hessian[at(k, l)] * f64::from(cross[at(k, l)])).sum::<f64>()
    });
    let scales = system.llt(Side::Lower).ok()?.solve(&right);
    let scales: Vec<f16> = (0..channels).map(|k| f16::from_f64(scales[(k, 0)])).collect();
    scales.iter().all(|s| s.is_finite()).then_some(scales)
}

/// `tr(E H E^T)` for `errors`, `[channels, out]`.
pub(crate) fn proxy_loss(errors: &[f32], hessian: &[f64]) -> f64 {
    let channels = hessian.len().isqrt();
    let gram = products(errors, errors, channels);
    gram.iter().zip(hessian).map(|(g, h)| f64::from(*g) * h).sum()
}

/// `a b^T`, `[channels, channels]`, of two `[channels, out]` matrices.
fn products(a: &[f32], b: &[f32], channels: usize) -> Vec<f32> {
    let out = a.len() / channels;
    let mut product = vec![0.0f32; channels * channels];
    // SAFETY: product is [channels, channels], a and b are [channels, out]; b is read transposed.
    unsafe {
        gemm::gemm(
            channels,
            channels,
            out,
            product.as_mut_ptr(),
            1,
            channels as isize,
            false,
            a.as_ptr(),
            1,
            out as isize,
            b.as_ptr(),
            out as isize,
            1,
            0.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factor::tests::hessian;

    fn matrix(channels: usize, out: usize, seed: usize) -> Vec<f32> {
        (0..channels * out).map(|n| ((n * seed % 1013) as f32 / 506.5) - 1.0).collect()
    }

    /// `tr(E H E^T)` element by element, E = W - diag(s) V.
    fn loss(weight: &[f32], values: &[f32], scales: &[f64], h: &[f64]) -> f64 {
        let channels = scales.len();
        let out = weight.len() / channels;
        let error = |k: usize, o: usize| {
            f64::from(weight[k * out + o]) - scales[k] * f64::from(values[k * out + o])
        };
        let pair = |k: usize, l: usize| (0..out).map(|o| error(k, o) * error(l, o)).sum::<f64>();
        (0..channels * channels).map(|n| h[n] * pair(n / channels, n % channels)).sum()
    }

    #[test]
    fn no_other_scales_lose_less() {
        let (channels, out) = (6, 40);
        let (values, weight) = (matrix(channels, out, 7919), matrix(channels, out, 104_729));
        let h = hessian(channels);
        let scales = refit_scales(&values, &weight, &h).unwrap();
        let scales: Vec<f64> = scales.iter().map(|s| s.to_f64()).collect();
        let best = loss(&weight, &values, &scales, &h);
        for channel in 0..channels {
            for step in [-0.02, 0.02] {
                let mut moved = scales.clone();
                moved[channel] += step;
                assert!(loss(&weight, &values, &moved, &h) > best, "channel {channel} {step}");
            }
        }
        let decoded = values
            .chunks(out)
            .zip(&scales)
            .flat_map(|(row, s)| row.iter().map(move |v| v * *s as f32));
        let errors: Vec<f32> = weight.iter().zip(decoded).map(|(w, d)| w - d).collect();
        assert!((proxy_loss(&errors, &h) / best - 1.0).abs() < 1e-4);
    }
}
