//! `1mad` in 16-bit arithmetic: from packed words to byte sums, two weights a 32-bit lane.
//!
//! The hash of a state s is `s A + B` mod 2^32. With D = B / A mod 2^32 it is `(s + D) A`, so that for
//! `u = s + D mod 2^16`, which does not wrap while states have at most 15 bits, its halves are
//! `low = u A_low` and `high = high(u A_low) + u A_high + (D_high A)`, all mod 2^16: three products of
//! 16 bits, which cost one instruction each and hold twice the weights of a product of 32 bits (two
//! instructions on most CPUs). Wider states add B's low half after the product and carry.
//!
//! Positions come in half-runs of sixteen, which take K 16-bit words and some bits of the next; inside
//! a half-run every shift is a constant.

use super::lanes::Lanes;
use super::simd::Simd;

/// The multiplier and addend of `1mad`.
const A: u32 = 34_038_481;
const B: u32 = 76_625_530;

/// A's inverse mod 2^32, by Newton's iteration, which doubles the right bits (A A = 1 mod 8).
const INVERSE: u32 = {
    let mut inverse = A;
    let mut step = 0;
    while step < 4 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(A.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};
const D: u32 = B.wrapping_mul(INVERSE);
const D_LOW: u16 = D as u16;
const REST: u16 = ((D & 0xFFFF_0000).wrapping_mul(A) >> 16) as u16;

/// A narrow state and `D_LOW` fit 16 bits.
const _: () = assert!((1 << 15) - 1 + D_LOW as u32 <= u16::MAX as u32);

/// What is subtracted from a byte sum.
pub(super) const CENTRE: i32 = 510;

/// The bits of 2^23: with a byte sum in the low half, those of 2^23 + the sum. [`FLOAT_CENTRE`] taken
/// away leaves the sum less [`CENTRE`], with no conversion.
pub(super) const FLOAT_BITS: u32 = 0x4B00_0000;
pub(super) const FLOAT_CENTRE: f32 = 8_388_608.0 + CENTRE as f32;

/// State bits up to which most windows lie in one 16-bit word.
const NARROW: u32 = 12;

/// The sixteen-bit words of a half-run, K and the next one; what lies beyond is not read.
pub(super) type HalfWords<V> = [V; 9];

/// Turns windows into byte sums.
#[derive(Clone, Copy)]
pub(super) struct Hash<S: Simd> {
    simd: S,
    mask: S::V,
    a_low: S::V,
    a_high: S::V,
}

impl<S: Simd> Hash<S> {
    #[inline(always)]
    pub fn new(simd: S, state_mask: u32) -> Self {
        Self {
            simd,
            mask: simd.splat16(state_mask as u16),
            a_low: simd.splat16(A as u16),
            a_high: simd.splat16((A >> 16) as u16),
        }
    }

    /// The states at position `i` of a half-run, and bits above them.
    #[inline(always)]
    fn window<const K: usize, const WIDE: bool>(&self, words: &HalfWords<S::V>, i: usize) -> S::V {
        let offset = (15 - i) * K;
        let (word, shift) = (offset / 16, (offset % 16) as u32);
        if shift == 0 {
            words[word]
        } else if !WIDE && shift + NARROW <= 16 {
            self.simd.shift_right16(words[word], shift)
        } else {
            self.simd.funnel16(words[word], words[word + 1], shift)
        }
    }

    /// The byte sums, 0..=1020, of the hashes at position `i` of a half-run. Not `WIDE`: states of at
    /// most 12 bits.
    #[inline(always)]
    pub fn sums<const K: usize, const WIDE: bool>(
        &self,
        words: &HalfWords<S::V>,
        i: usize,
    ) -> S::V {
        let simd = self.simd;
        let state = simd.and(self.window::<K, WIDE>(words, i), self.mask);
        if WIDE {
            let low = simd.mul_low16(state, self.a_low);
            let high = simd.mul_high16(state, self.a_low);
            let high = simd.add16(high, simd.splat16((B >> 16) as u16));
            let product = simd.mul_low16(state, self.a_high);
            let (high, low) = simd.add_carry16(high, product, low, B as u16);
            simd.byte_sums(low, high)
        } else {
            let u = simd.add16(state, simd.splat16(D_LOW));
            let low = simd.mul_low16(u, self.a_low);
            let product = simd.add16(simd.mul_low16(u, self.a_high), simd.splat16(REST));
            let high = simd.add16(simd.mul_high16(u, self.a_low), product);
            simd.byte_sums(low, high)
        }
    }
}

/// The half-run of positions `16 * HALF..` of two sets of rows: low halves are of `a`, high ones of
/// `b`. Both are the K words of a run, and the next.
#[inline(always)]
pub(super) fn rows_words<S: Simd, const K: usize, const HALF: usize>(
    simd: S,
    a: &[Lanes<u32>],
    b: &[Lanes<u32>],
    part: usize,
) -> HalfWords<S::V> {
    let (a, b) = (&a[..K + 1], &b[..K + 1]);
    let mut words = [simd.splat32(0); 9];
    for (i, out) in words.iter_mut().enumerate().take(K + 1) {
        // Time runs backwards: the later half has the lower words.
        let word = (1 - HALF) * K + i;
        let (a, b) = (simd.load(&a[word / 2], part), simd.load(&b[word / 2], part));
        *out = if word.is_multiple_of(2) { simd.low_low(a, b) } else { simd.high_high(a, b) };
    }
    words
}

/// Both half-runs of one set of rows: low halves are positions 0..16, high ones 16..32.
#[inline(always)]
pub(super) fn positions_words<S: Simd, const K: usize>(
    simd: S,
    words: &[Lanes<u32>],
    part: usize,
) -> HalfWords<S::V> {
    let words = &words[..K + 1];
    let mut out = [simd.splat32(0); 9];
    for (second, out) in out.iter_mut().enumerate().take(K + 1) {
        let first = K + second;
        let (a, b) = (simd.load(&words[first / 2], part), simd.load(&words[second / 2], part));
        *out = match (first % 2, second % 2) {
            (0, 0) => simd.low_low(a, b),
            (0, _) => simd.low_high(a, b),
            (_, 0) => simd.high_low(a, b),
            _ => simd.high_high(a, b),
        };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::simd::Portable;
    use super::*;

    /// Every state, eight at a time, against the formula in 32 bits.
    #[test]
    fn sums_of_all_states_are_the_codes_integers() {
        fn check<const WIDE: bool>(state_bits: u32) {
            let hash = Hash::new(Portable, (1 << state_bits) - 1);
            for first in (0..1u32 << state_bits).step_by(8) {
                let states: [u16; 8] = std::array::from_fn(|i| (first + i as u32) as u16);
                let words = std::array::from_fn(|_| states);
                // Position 15 starts at the first bit of the first word.
                for (i, sum) in hash.sums::<1, WIDE>(&words, 15).into_iter().enumerate() {
                    let hashed = (first + i as u32).wrapping_mul(A).wrapping_add(B);
                    let bytes: u32 = hashed.to_le_bytes().into_iter().map(u32::from).sum();
                    assert_eq!(u32::from(sum), bytes, "{state_bits} {first} {i}");
                }
            }
        }
        (4..=12).for_each(check::<false>);
        (13..=16).for_each(check::<true>);
    }
}
