//! Log probabilities of tokens: logits less the logarithm of the sum of their exponentials.

use super::request::{Likely, TokenLogprobs};

/// The logits of a step as log probabilities.
pub(super) struct Ranked {
    logits: Vec<f32>,
    /// ln(sum(exp(logits))).
    total: f64,
    top: Vec<u32>,
}

/// Takes the `top` most probable tokens, the smaller token first among equals.
pub(super) fn ranked(logits: &[f32], top: usize) -> Ranked {
    let largest = logits.iter().copied().filter(|x| !x.is_nan()).fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - largest).exp()).sum();
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let rank =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(order.len());
    if top > 0 && top < order.len() {
        order.select_nth_unstable_by(top - 1, rank);
    }
    order.truncate(top);
    order.sort_unstable_by(rank);
    Ranked { logits: logits.to_vec(), total: f64::from(largest) + sum.ln(), top: order }
}

impl Ranked {
    fn likely(&self, token: u32) -> Likely {
        let logit = self.logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
        Likely { token, logprob: (f64::from(logit) - self.total) as f32 }
    }

    pub fn of(&self, chosen: u32) -> TokenLogprobs {
        let top = self.top.iter().map(|token| self.likely(*token)).collect();
        TokenLogprobs { chosen: self.likely(chosen), top }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_probabilities_of_a_small_distribution() {
        // exp: 1, 2, 4, 1 of 8.
        let logits = [0.0, 2f32.ln(), 4f32.ln(), 0.0].map(|x| x + 300.0);
        let found = ranked(&logits, 3).of(3);
        let expected = [(2, 0.5f32), (1, 0.25), (0, 0.125)];
        for (found, (token, probability)) in found.top.iter().zip(expected) {
            assert_eq!(found.token, token);
            assert!((found.logprob - probability.ln()).abs() < 1e-4, "{found:?}");
        }
        assert_eq!(found.top.len(), 3);
        assert!((found.chosen.logprob - 0.125f32.ln()).abs() < 1e-4);
        assert!(ranked(&logits, 0).of(1).top.is_empty());
        assert_eq!(ranked(&logits, 9).of(1).top.len(), 4);
    }
}
