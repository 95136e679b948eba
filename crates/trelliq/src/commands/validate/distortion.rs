//! Mean squared error of coded draws of N(0,1).

use anyhow::Result;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::Serialize;
use std::fmt;
use trelliq_codec::{RowCodec, ScaleRule, Trellis};

/// Blocks of a row, which share one scale: with T = 256 a row of 16384 weights.
const ROW_BLOCKS: usize = 64;

/// Rows that are drawn and coded at a time.
const CHUNK_ROWS: usize = 16;

/// QTIP, Table 2: tail-biting (12, K, 1) trellises with a random Gaussian code, K = 1..=4.
const PAPER: [f64; 4] = [0.2803, 0.0733, 0.0198, 0.0055];
const PAPER_STATE_BITS: u32 = 12;
const PAPER_BLOCK_LEN: usize = 256;

/// What a row of the table measures.
pub struct Setting {
    pub trellis: Trellis,
    pub rule: ScaleRule,
    pub passes: usize,
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub struct Distortion {
    pub code: &'static str,
    pub state_bits: u32,
    pub bits: u32,
    pub block_len: usize,
    pub scale_rule: &'static str,
    /// Mean squared error of a weight of unit variance.
    pub mse: f64,
    /// The paper's figure, where it has one.
    pub paper: Option<f64>,
    /// The rate-distortion limit of a Gaussian source, `2^-2K`.
    pub limit: f64,
    pub ratio: f64,
    pub samples: usize,
}

impl Setting {
    /// Codes at least `samples` draws; equal seeds draw equal weights for every setting of equal T.
    pub fn measure(
        &self,
        samples: usize,
        seed: u64,
        progress: &(dyn Fn(usize) + Sync),
    ) -> Result<Distortion> {
        let codec = RowCodec::new(self.trellis, self.rule, self.passes)?;
        let cols = ROW_BLOCKS * self.trellis.block_len();
        let rows = samples.div_ceil(cols).max(1);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut squared_error = 0.0;
        for first in (0..rows).step_by(CHUNK_ROWS) {
            let len = CHUNK_ROWS.min(rows - first) * cols;
            let draws: Vec<f32> = StandardNormal.sample_iter(&mut rng).take(len).collect();
            let encoded = codec.encode(&draws, cols, progress)?;
            squared_error += encoded.squared_error.iter().sum::<f64>();
        }
        Ok(self.distortion(squared_error, rows * cols))
    }

    fn distortion(&self, squared_error: f64, samples: usize) -> Distortion {
        let trellis = &self.trellis;
        let limit = 0.25f64.powi(trellis.bits() as i32);
        let mse = squared_error / samples as f64;
        Distortion {
            code: trellis.code().name(),
            state_bits: trellis.state_bits(),
            bits: trellis.bits(),
            block_len: trellis.block_len(),
            scale_rule: self.rule.name(),
            mse,
            paper: self.paper(),
            limit,
            ratio: mse / limit,
            samples,
        }
    }

    fn paper(&self) -> Option<f64> {
        let trellis = &self.trellis;
        let same =
            trellis.state_bits() == PAPER_STATE_BITS && trellis.block_len() == PAPER_BLOCK_LEN;
        PAPER.get(trellis.bits() as usize - 1).copied().filter(|_| same)
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code, state_bits) = (self.trellis.code(), self.trellis.state_bits());
        write!(f, "{code} L={state_bits} K={} {}", self.trellis.bits(), self.rule)
    }
}
