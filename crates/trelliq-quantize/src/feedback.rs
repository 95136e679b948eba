//! Rounding with feedback (LDLQ of QuIP, arXiv:2307.13304), channel by channel.
//!
//! For `H = U D U^T` the proxy loss `tr(E H E^T)` of errors E = W - What is
//! `sum_k D_k |e_k + sum_{j<k} U_jk e_j|^2`, so channel k is coded from
//! `w_k + sum_{j<k} U_jk e_j`: each code is the nearest one to what its predecessors left.

use crate::factor::Factor;
use half::f16;
use trelliq_codec::{CodecError, RowCodec};

/// Channels whose errors are fed on together; within a panel they are fed on one by one.
const PANEL: usize = 32;

/// Codes of one weight.
#[derive(Debug)]
pub(crate) struct Coded {
    /// `[channels, out * K / 32]`.
    pub words: Vec<u32>,
    /// `[channels]`.
    pub scales: Vec<f16>,
    /// `[channels, out]` states of the walks.
    pub states: Vec<u16>,
}

/// Codes `weight`, `[channels, out]` (one row an input channel), under `factor`; on return `weight`
/// holds the errors. `block` channels are coded before their errors are fed on; 1 is best.
/// `advance` is told of weights as they are coded.
pub(crate) fn code_with_feedback(
    weight: &mut [f32],
    out_features: usize,
    factor: &Factor,
    block: usize,
    codec: &RowCodec,
    advance: &(dyn Fn(usize) + Sync),
) -> Result<Coded, CodecError> {
    let channels = factor.dim();
    let mut carried = vec![0.0f32; weight.len()];
    let mut coded = Coded { words: Vec::new(), scales: Vec::new(), states: Vec::new() };
    let panel_len = PANEL.next_multiple_of(block);
    for panel in (0..channels).step_by(panel_len) {
        let end = (panel + panel_len).min(channels);
        for start in (panel..end).step_by(block) {
            let stop = (start + block).min(end);
            let span = start * out_features..stop * out_features;
            let target: Vec<f32> = weight[span.clone()]
                .iter()
                .zip(&carried[span.clone()])
                .map(|(w, c)| w + c)
                .collect();
            let encoded =
                codec.encode(&target, out_features, advance).map_err(|error| match error {
                    CodecError::ScaleOverflow { row, scale } => {
                        CodecError::ScaleOverflow { row: start + row, scale }
                    }
                    other => other,
                })?;
            for (w, decoded) in weight[span].iter_mut().zip(&encoded.reconstruction) {
                *w -= decoded;
            }
            coded.words.extend(encoded.words);
            coded.scales.extend(encoded.scales);
            coded.states.extend(encoded.states);
            feed(weight, &mut carried, out_features, factor, start..stop, stop..end);
        }
        feed(weight, &mut carried, out_features, factor, panel..end, end..channels);
    }
    Ok(coded)
}

/// `carried[k] += sum over j in from of U_jk errors[j]` for k in `to`.
fn feed(
    errors: &[f32],
    carried: &mut [f32],
    out_features: usize,
    factor: &Factor,
    from: std::ops::Range<usize>,
    to: std::ops::Range<usize>,
) {
    if to.is_empty() {
        return;
    }
    let (m, k) = (to.len(), from.len());
    let errors = &errors[from.start * out_features..from.end * out_features];
    let carried = &mut carried[to.start * out_features..to.end * out_features];
    let upper = factor.panel(from.start, to.start);
    // SAFETY: the three matrices lie inside of their slices: carried is [m, out], errors [k, out],
    // and element (row, column) of the transposed panel is U[from.start + column][to.start + row].
    unsafe {
        gemm::gemm(
            m,
            out_features,
            k,
            carried.as_mut_ptr(),
            1,
            out_features as isize,
            true,
            upper.as_ptr(),
            factor.dim() as isize,
            1,
            errors.as_ptr(),
            1,
            out_features as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factor::tests::hessian;
    use trelliq_codec::{Code, ScaleRule, Trellis};

    fn codec(out: usize) -> RowCodec {
        let trellis = Trellis::new(Code::OneMad, 8, 2, out).unwrap();
        RowCodec::new(trellis, ScaleRule::Tuned, 2).unwrap()
    }

    fn weight(channels: usize, out: usize) -> Vec<f32> {
        (0..channels * out).map(|n| ((n * 7919 % 1009) as f32 / 504.5 - 1.0) * 0.3).collect()
    }

    /// The textbook's loop in f64: each channel from all errors before it, one after another.
    fn textbook(weight: &[f32], channels: usize, out: usize, factor: &Factor) -> Vec<f32> {
        let mut errors = vec![0.0f64; weight.len()];
        for k in 0..channels {
            let target: Vec<f32> = (0..out)
                .map(|o| {
                    let fed: f64 = (0..k)
                        .map(|j| f64::from(factor.panel(j, k)[0]) * errors[j * out + o])
                        .sum();
                    (f64::from(weight[k * out + o]) + fed) as f32
                })
                .collect();
            let coded = codec(out).encode(&target, out, &|_| {}).unwrap();
            for o in 0..out {
                errors[k * out + o] = f64::from(weight[k * out + o] - coded.reconstruction[o]);
            }
        }
        errors.into_iter().map(|e| e as f32).collect()
    }

    #[test]
    fn panels_change_nothing_but_rounding() {
        // More channels than two panels, and not a whole number of them.
        let (channels, out) = (2 * PANEL + 9, 32);
        let factor = Factor::new(&hessian(channels), channels, 0.01).unwrap();
        let mut errors = weight(channels, out);
        code_with_feedback(&mut errors, out, &factor, 1, &codec(out), &|_| {}).unwrap();
        let expected = textbook(&weight(channels, out), channels, out, &factor);
        // A sum in another order can turn a walk that is nearly tied, and all channels after it: the
        // first panels are compared one by one, the whole by its loss.
        for (found, expected) in errors.iter().zip(&expected).take(20 * out) {
            assert!((found - expected).abs() < 1e-4, "{found} {expected}");
        }
        let loss = |e: &[f32]| crate::refit::proxy_loss(e, &hessian(channels));
        assert!((loss(&errors) / loss(&expected) - 1.0).abs() < 0.1);
    }

    #[test]
    fn feedback_lowers_the_proxy_loss_and_single_channels_lower_it_most() {
        let (channels, out) = (64, 64);
        let h = hessian(channels);
        let factor = Factor::new(&h, channels, 0.01).unwrap();
        let loss = |block: usize| {
            let mut errors = weight(channels, out);
            code_with_feedback(&mut errors, out, &factor, block, &codec(out), &|_| {}).unwrap();
            crate::refit::proxy_loss(&errors, &h)
        };
        let (one, sixteen, all) = (loss(1), loss(16), loss(channels));
        assert!(one < sixteen && one < all, "{one} {sixteen} {all}");
        assert!(one < 0.5 * all, "{one} {all}");
    }
}
