//! From packed words to the values of a code, 32 positions of sixteen rows at a time.
//!
//! A run of 32 positions takes K whole words and some bits of the next one. Position `i` starts at
//! bit `(31 - i) K` of the run, since time runs backwards inside a block.

use super::lanes::{LANES, Lanes, RUN, Run};
use trelliq_codec::{Code, ONE_MAD_DIVISOR};

/// What a decoder needs besides the words.
#[derive(Debug, Clone, Copy)]
pub(super) struct States<'a> {
    /// `2^L - 1`.
    pub mask: u32,
    /// The values of all states, for the codes that are not computed.
    pub values: &'a [f32],
}

/// Decodes one run: `words` are its K words and the word that follows in the ring.
pub(super) type DecodeFn = unsafe fn(&[Lanes<u32>], States<'_>, &mut Run);

/// Decodes positions of a block of any length: see [`decode_any`].
pub(super) type DecodeAnyFn = unsafe fn(&[Lanes<u32>], usize, usize, States<'_>, &mut [Lanes<f32>]);

/// How a state becomes a value, and how wide states are at most. `1mad` comes as its integer.
pub(super) trait Decoder {
    /// States have at most this many bits; fewer positions then straddle two words.
    const MAX_STATE_BITS: usize;

    fn value(state: u32, states: States<'_>) -> f32;
}

pub(super) struct OneMad<const MAX_STATE_BITS: usize>;
pub(super) struct ThreeInst;
pub(super) struct Table;

impl<const MAX: usize> Decoder for OneMad<MAX> {
    const MAX_STATE_BITS: usize = MAX;

    #[inline(always)]
    fn value(state: u32, _: States<'_>) -> f32 {
        let hash = state.wrapping_mul(34_038_481).wrapping_add(76_625_530);
        let pairs = (hash & 0x00FF_00FF) + ((hash >> 8) & 0x00FF_00FF);
        let sum = (pairs + (pairs >> 16)) & 0x7FF;
        // 2^23 + sum has sum as its low bits: cheaper than a conversion and a subtraction.
        f32::from_bits(sum | 0x4B00_0000) - (8_388_608.0 + 510.0)
    }
}

/// A half float with sign bit 31 and magnitude bits 30..16 of `bits`, exponent field not 0 or 31.
#[inline(always)]
fn half_at_top(bits: u32) -> f32 {
    f32::from_bits((bits & 0x8000_0000) | (((bits & 0x7FFF_0000) >> 3) + (112 << 23)))
}

impl Decoder for ThreeInst {
    const MAX_STATE_BITS: usize = 16;

    #[inline(always)]
    fn value(state: u32, _: States<'_>) -> f32 {
        let hash = state.wrapping_mul(89_226_354).wrapping_add(64_248_484);
        // The exponent fields are 12..=15: the mask keeps their two low bits.
        let halves = (hash & 0x8FFF_8FFF) ^ 0x3B60_3B60;
        half_at_top(halves) + half_at_top(halves << 16)
    }
}

impl Decoder for Table {
    const MAX_STATE_BITS: usize = 16;

    #[inline(always)]
    fn value(state: u32, states: States<'_>) -> f32 {
        states.values[state as usize]
    }
}

/// The position `I` of a run.
#[inline(always)]
fn position<const K: usize, const I: usize, D: Decoder>(
    words: &[Lanes<u32>],
    states: States<'_>,
    run: &mut Run,
) {
    let offset = (RUN - 1 - I) * K;
    let (word, shift) = (offset / 32, offset % 32);
    let low = &words[word].0;
    let mut out = [0.0; LANES];
    if shift + D::MAX_STATE_BITS <= 32 {
        for lane in 0..LANES {
            out[lane] = D::value((low[lane] >> shift) & states.mask, states);
        }
    } else {
        let high = &words[word + 1].0;
        for lane in 0..LANES {
            let window = (low[lane] >> shift) | (high[lane] << (32 - shift));
            out[lane] = D::value(window & states.mask, states);
        }
    }
    run[I] = Lanes(out);
}

/// The body of a [`DecodeFn`].
#[inline(always)]
pub(super) fn decode<const K: usize, D: Decoder>(
    words: &[Lanes<u32>],
    states: States<'_>,
    run: &mut Run,
) {
    let words = &words[..K + 1];
    macro_rules! positions {
        ($($i:literal)*) => { $( position::<K, $i, D>(words, states, run); )* };
    }
    positions!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
}

/// What the decoded numbers of a code must be divided by to be its values.
pub(super) fn divisor(code: Code) -> f32 {
    if code == Code::OneMad { ONE_MAD_DIVISOR } else { 1.0 }
}

/// Any block length: `words` are a block and its first word again, `first_bit` is where the last
/// position of `run` starts. Numbers as the fast decoders give them.
#[inline(always)]
pub(super) fn decode_any<D: Decoder>(
    words: &[Lanes<u32>],
    first_bit: usize,
    bits: usize,
    states: States<'_>,
    run: &mut [Lanes<f32>],
) {
    for (i, out) in run.iter_mut().rev().enumerate() {
        let offset = first_bit + i * bits;
        let (word, shift) = (offset / 32, (offset % 32) as u32);
        let (low, high) = (&words[word].0, &words[word + 1].0);
        for lane in 0..LANES {
            let window = (low[lane] >> shift) | ((high[lane] << 1) << (31 - shift));
            out.0[lane] = D::value(window & states.mask, states);
        }
    }
}
