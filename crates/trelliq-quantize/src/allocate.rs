//! How many bits each tensor gets under a budget.
//!
//! The divergence that coding causes is close to a sum over tensors of a sensitivity times the code's
//! relative error (the linearity theorem of HIGGS, arXiv:2411.17525), so the best widths solve a
//! knapsack problem, which is small enough to be solved exactly.

use trelliq_codec::BITS;

/// Mean squared error on N(0,1) of `1mad` at L = 12 with tuned scales, by K - 1: what
/// `trelliq validate --bits 1-8 --code 1mad` measures. Other codes and L keep its ratios.
const DISTORTION: [f64; 8] =
    [0.2799, 0.0747, 0.01930, 0.00502, 0.001343, 0.000394, 0.000113, 0.0000329];

/// Units of the budget that are told apart at most; past it, sizes are rounded up.
const UNITS: u64 = 1 << 17;

/// A tensor to which bits are given.
#[derive(Debug, Clone)]
pub(crate) struct Item {
    /// Loss at a relative error of 1.
    pub sensitivity: f64,
    /// Bytes of its codes at one bit a weight.
    pub bytes_a_bit: u64,
    /// Which of 1..=8 bits the tensor can be coded at.
    pub legal: [bool; 8],
}

impl Item {
    /// Bytes of its codes at the smallest legal width; 0 where none is legal.
    pub fn least_bytes(&self) -> u64 {
        self.legal
            .iter()
            .position(|legal| *legal)
            .map_or(0, |at| self.bytes_a_bit * (at as u64 + 1))
    }

    fn loss(&self, bits: usize) -> f64 {
        if self.legal[bits - 1] { self.sensitivity * DISTORTION[bits - 1] } else { f64::INFINITY }
    }
}

/// Bits for each item, of the least total loss whose codes take no more than `budget` bytes; `None`
/// where even the smallest legal widths take more.
pub(crate) fn allocate(items: &[Item], budget: u64) -> Option<Vec<u32>> {
    let common = items.iter().fold(0, |unit, item| gcd(unit, item.bytes_a_bit)).max(1);
    let unit = common.max(budget.div_ceil(UNITS));
    let capacity = (budget / unit) as usize;
    let size = |item: &Item, bits: usize| (item.bytes_a_bit * bits as u64).div_ceil(unit) as usize;
    // least[c]: the least loss of the items so far within c units; chosen[i][c]: item i's width there.
    let mut least = vec![0.0f64; capacity + 1];
    let mut chosen = Vec::with_capacity(items.len());
    for item in items {
        let mut next = vec![f64::INFINITY; capacity + 1];
        let mut widths = vec![0u8; capacity + 1];
        for bits in BITS.map(|bits| bits as usize) {
            let (size, loss) = (size(item, bits), item.loss(bits));
            if loss.is_infinite() {
                continue;
            }
            for at in size..=capacity {
                let total = least[at - size] + loss;
                if total < next[at] {
                    (next[at], widths[at]) = (total, bits as u8);
                }
            }
        }
        least = next;
        chosen.push(widths);
    }
    if least[capacity].is_infinite() {
        return None;
    }
    let mut at = capacity;
    let mut bits = vec![0u32; items.len()];
    for ((item, widths), bits) in items.iter().zip(&chosen).zip(&mut bits).rev() {
        *bits = u32::from(widths[at]);
        at -= size(item, *bits as usize);
    }
    Some(bits)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(sensitivity: f64, bytes_a_bit: u64) -> Item {
        Item { sensitivity, bytes_a_bit, legal: [true; 8] }
    }

    fn total(items: &[Item], bits: &[u32]) -> (f64, u64) {
        let pairs = || items.iter().zip(bits);
        let loss = pairs().map(|(item, bits)| item.loss(*bits as usize)).sum();
        (loss, pairs().map(|(item, bits)| item.bytes_a_bit * u64::from(*bits)).sum())
    }

    /// The least loss over all widths, tried one after another.
    fn exhaustive(items: &[Item], budget: u64) -> Option<f64> {
        let mut best: Option<f64> = None;
        for n in 0..8u32.pow(items.len() as u32) {
            let bits: Vec<u32> = (0..items.len()).map(|i| n / 8u32.pow(i as u32) % 8 + 1).collect();
            let (loss, bytes) = total(items, &bits);
            if bytes <= budget && loss.is_finite() && best.is_none_or(|b| loss < b) {
                best = Some(loss);
            }
        }
        best
    }

    #[test]
    fn finds_what_exhaustive_search_finds() {
        let mut odd = item(0.3, 7);
        odd.legal = [false, true, false, true, false, true, false, false];
        let items = [item(1.0, 12), item(20.0, 6), item(0.05, 30), odd];
        for budget in [30, 62, 63, 100, 131, 180, 250, 439, 440, 1000] {
            let expected = exhaustive(&items, budget);
            let found = allocate(&items, budget);
            assert_eq!(found.is_some(), expected.is_some(), "{budget}");
            if let (Some(bits), Some(expected)) = (found, expected) {
                let (loss, bytes) = total(&items, &bits);
                assert!(bytes <= budget && (loss - expected).abs() < 1e-12, "{budget} {bits:?}");
            }
        }
    }

    #[test]
    fn large_budgets_are_kept_although_sizes_are_rounded() {
        let items: Vec<Item> = (1..40).map(|i| item(f64::from(i), 1_000_003 * i as u64)).collect();
        let budget = 3_000_000_000;
        let bits = allocate(&items, budget).unwrap();
        let (_, bytes) = total(&items, &bits);
        assert!(bytes <= budget && bytes > budget * 99 / 100, "{bytes}");
    }

    #[test]
    fn distortion_falls_and_flattens_with_every_bit() {
        assert!(DISTORTION.windows(2).all(|d| d[1] < d[0]));
        assert!(DISTORTION.windows(3).all(|d| d[1] - d[2] < d[0] - d[1]));
    }
}
