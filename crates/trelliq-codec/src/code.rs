//! Functions from trellis state to weight value.

use crate::CodecError;
use half::f16;
use std::fmt;
use std::str::FromStr;

/// Divisor that turns the centred byte sum of [`Code::OneMad`] into a value of unit variance.
/// It has 16 fractional bits, so it is exact in f32.
pub const ONE_MAD_DIVISOR: f32 = 147.800_54;

/// A function from an L-bit state to the value of a weight (before its row's scale).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// `1mad` of QTIP: one multiply-add, then the sum of the four bytes of the hash word.
    OneMad,
    /// `3inst` of QTIP: one multiply-add, then the sum of two masked half floats.
    ThreeInst,
    /// A seeded table of Gaussian draws; for validation only.
    Rand,
}

impl Code {
    pub const ALL: [Code; 3] = [Code::OneMad, Code::ThreeInst, Code::Rand];

    /// The name that files and the command line use.
    pub fn name(self) -> &'static str {
        match self {
            Code::OneMad => "1mad",
            Code::ThreeInst => "3inst",
            Code::Rand => "rand",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Code {
    type Err = CodecError;

    fn from_str(name: &str) -> Result<Self, CodecError> {
        Code::ALL
            .into_iter()
            .find(|code| code.name() == name)
            .ok_or_else(|| CodecError::UnknownCode(name.to_owned()))
    }
}

/// The exact integer behind a `1mad` value, in -510..=510: `value = y / ONE_MAD_DIVISOR`.
#[inline(always)]
pub fn one_mad_integer(state: u32) -> i32 {
    let hash = state.wrapping_mul(34_038_481).wrapping_add(76_625_530);
    let bytes = hash.to_le_bytes();
    bytes.iter().map(|&b| i32::from(b)).sum::<i32>() - 510
}

fn three_inst_value(state: u32) -> f32 {
    let hash = state.wrapping_mul(89_226_354).wrapping_add(64_248_484);
    let halves = (hash & 0x8FFF_8FFF) ^ 0x3B60_3B60;
    f16::from_bits((halves >> 16) as u16).to_f32() + f16::from_bits(halves as u16).to_f32()
}

/// Box-Muller over a splitmix32-like generator, as docs/spec/codec.md defines it.
fn rand_values(len: usize) -> Vec<f32> {
    let mut seed = 0x00C0_FFEE_u32;
    let mut uniform = || {
        seed = seed.wrapping_add(0x9E37_79B9);
        let mut z = seed;
        z = (z ^ (z >> 16)).wrapping_mul(0x21F0_AAAD);
        z = (z ^ (z >> 15)).wrapping_mul(0x735A_2D97);
        f64::from(z ^ (z >> 15)) / 2f64.powi(32) + 2f64.powi(-33)
    };
    let mut values = Vec::with_capacity(len);
    while values.len() < len {
        let radius = (-2.0 * uniform().ln()).sqrt();
        let angle = std::f64::consts::TAU * uniform();
        values.push((radius * angle.cos()) as f32);
        values.push((radius * angle.sin()) as f32);
    }
    values
}

/// All `2^state_bits` values of a code, indexed by state.
pub fn code_values(code: Code, state_bits: u32) -> Vec<f32> {
    let states = 1u32 << state_bits;
    match code {
        Code::OneMad => (0..states).map(|s| one_mad_integer(s) as f32 / ONE_MAD_DIVISOR).collect(),
        Code::ThreeInst => (0..states).map(three_inst_value).collect(),
        Code::Rand => rand_values(states as usize),
    }
}

/// Root mean square of a code's values (`lut_rms` of the specification).
pub fn code_rms(values: &[f32]) -> f64 {
    let sum: f64 = values.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    (sum / values.len() as f64).sqrt()
}
