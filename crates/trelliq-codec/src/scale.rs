//! Rules for the one f16 scale of a stored row.

use crate::gains::{GAIN_STATE_BITS, GAINS};
use crate::{Code, CodecError};
use half::f16;
use std::fmt;
use std::str::FromStr;

/// How a row's scale is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ScaleRule {
    /// `rms(row) / code_rms`, for reproduction of published figures.
    Baseline,
    /// The baseline times the best gain on N(0,1), then a least-squares refit after coding.
    #[default]
    Tuned,
    /// The best of several gains around the tuned one for each row, then the refit.
    Grid,
}

/// Gains that [`ScaleRule::Grid`] tries, as factors of the tuned one.
const GRID: [f64; 5] = [0.9, 0.95, 1.0, 1.06, 1.13];

impl ScaleRule {
    pub const ALL: [ScaleRule; 3] = [ScaleRule::Baseline, ScaleRule::Tuned, ScaleRule::Grid];

    /// The name that manifests and the command line use.
    pub fn name(self) -> &'static str {
        match self {
            ScaleRule::Baseline => "baseline",
            ScaleRule::Tuned => "tuned",
            ScaleRule::Grid => "grid",
        }
    }

    /// The factors on the baseline scale that are tried for each row.
    pub(crate) fn gains(self, code: Code, state_bits: u32, bits: u32) -> Vec<f64> {
        let tuned = tuned_gain(code, state_bits, bits);
        match self {
            ScaleRule::Baseline => vec![1.0],
            ScaleRule::Tuned => vec![tuned],
            ScaleRule::Grid => GRID.iter().map(|g| g * tuned).collect(),
        }
    }

    /// Whether the stored scale is refitted to the walk.
    pub(crate) fn refits(self) -> bool {
        self != ScaleRule::Baseline
    }
}

impl fmt::Display for ScaleRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ScaleRule {
    type Err = CodecError;

    fn from_str(name: &str) -> Result<Self, CodecError> {
        ScaleRule::ALL
            .into_iter()
            .find(|rule| rule.name() == name)
            .ok_or_else(|| CodecError::UnknownScaleRule(name.to_owned()))
    }
}

/// The factor on `rms / code_rms` that loses least on N(0,1) with the refit, from the table that
/// `cargo run --release -p trelliq-codec --example gain_table` prints.
pub fn tuned_gain(code: Code, state_bits: u32, bits: u32) -> f64 {
    let table = match code {
        Code::OneMad => 0,
        Code::ThreeInst => 1,
        // The table of draws is Gaussian like 1mad's values.
        Code::Rand => 0,
    };
    f64::from(GAINS[table][(state_bits - GAIN_STATE_BITS) as usize][bits as usize - 1])
}

/// Baseline scale times `gain`, rounded to f16: 1 for an all-zero row, never 0 for another one.
pub(crate) fn row_scale(row: usize, rms: f64, code_rms: f64, gain: f64) -> Result<f16, CodecError> {
    if rms == 0.0 {
        return Ok(f16::ONE);
    }
    checked_f16(row, gain * rms / code_rms).map(|s| s.max(f16::MIN_POSITIVE_SUBNORMAL))
}

pub(crate) fn checked_f16(row: usize, scale: f64) -> Result<f16, CodecError> {
    let rounded = f16::from_f64(scale);
    if rounded.is_finite() { Ok(rounded) } else { Err(CodecError::ScaleOverflow { row, scale }) }
}
