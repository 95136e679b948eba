//! What a user chooses.

use crate::hessian::CalibrationId;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use trelliq_codec::{Code, ScaleRule};
use trelliq_kernels::Axis;

/// Which dimension of each weight is coded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AxisChoice {
    /// Along the outputs (axis 0), which rounding with feedback wants. Embeddings are always
    /// coded along the inputs, so that a row lookup decodes one row; a head whose vocabulary has
    /// no legal block length is too.
    #[default]
    Auto,
    Fixed(Axis),
}

/// How much the codes of the linear layers may take together, when widths differ by layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// Mean bits of a code (scales and rotations come on top, as with a uniform width).
    AverageBits(f64),
    /// Bytes of all tensors of the result together: codes, scales, rotations and what stays dense.
    TotalBytes(u64),
}

/// Where Hessians come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HessianSource {
    /// A file that [`crate::Hessians::save`] wrote.
    File(PathBuf),
    /// The source model, run over these windows of calibration tokens with
    /// [`crate::Hessians::collect_weighted`] before anything is coded.
    Collect {
        windows: Vec<Vec<u32>>,
        /// How many tokens the tokenizer knows, where the model's vocabulary is padded: predictions are
        /// drawn from these alone.
        vocab_limit: Option<usize>,
    },
}

/// Options of [`crate::quantize`]. All but `resume` and `overwrite` are part of the result.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizeOptions {
    /// K: stored bits a weight of the linear layers.
    pub bits: u32,
    /// Gives each linear layer the width that loses least, instead of `bits`; needs weighted Hessians.
    pub budget: Option<Budget>,
    /// L: bits of a trellis state.
    pub state_bits: u32,
    pub code: Code,
    pub axis: AxisChoice,
    /// Whether weights are coded rotated (format 2).
    pub rotate: bool,
    /// T: weights a block; by default the legal length nearest to 256 for each width.
    pub block_len: Option<usize>,
    pub scale_rule: ScaleRule,
    /// Viterbi passes a block, at least 2.
    pub passes: usize,
    /// Globs over paths such as `model.layers.0.mlp.up_proj`; empty for all linear layers.
    pub include: Vec<String>,
    /// Globs over paths that stay dense, stronger than `include`.
    pub exclude: Vec<String>,
    /// K of the output head; it stays as in the source by default.
    pub head_bits: Option<u32>,
    /// K of the token embedding; it stays as in the source by default.
    pub embed_bits: Option<u32>,
    /// Hessians of the layers' inputs, for rounding with feedback; without them weights are coded
    /// row by row.
    pub hessians: Option<HessianSource>,
    /// What is added to a Hessian's diagonal, as a fraction of its mean.
    pub damping: f64,
    /// Input channels that are coded before their errors are fed on: 1 is best, more is faster.
    pub feedback_block: usize,
    /// Whether rotated channels are scaled before they are rotated, where there is a Hessian.
    pub channel_scales: bool,
    /// Seed of the rotations' signs.
    pub seed: u64,
    /// Bytes of tensors past which the output is sharded.
    pub max_shard_bytes: u64,
    /// Continue a run that was interrupted; else its parts are discarded.
    pub resume: bool,
    /// Replace an existing output directory.
    pub overwrite: bool,
}

impl Default for QuantizeOptions {
    fn default() -> Self {
        Self {
            bits: 4,
            budget: None,
            state_bits: 12,
            code: Code::OneMad,
            axis: AxisChoice::Auto,
            rotate: true,
            block_len: None,
            scale_rule: ScaleRule::Tuned,
            passes: 2,
            include: Vec::new(),
            exclude: Vec::new(),
            head_bits: None,
            embed_bits: None,
            hessians: None,
            damping: 0.05,
            feedback_block: 1,
            channel_scales: true,
            seed: 0,
            max_shard_bytes: 5_000_000_000,
            resume: true,
            overwrite: false,
        }
    }
}

/// The options that decide the result, as the manifest records them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecordedOptions {
    pub bits: u32,
    #[serde(default)]
    pub budget: Option<Budget>,
    pub state_bits: u32,
    pub code: String,
    pub axis: String,
    pub rotate: bool,
    pub block_len: Option<usize>,
    pub scale_rule: String,
    pub passes: usize,
    pub include: Vec<String>,
    pub exclude: Vec<String>,
    pub head_bits: Option<u32>,
    pub embed_bits: Option<u32>,
    /// Of the calibration tokens behind the Hessians, when there were any.
    pub calibration_sha256: Option<String>,
    /// Whether those Hessians weight tokens and outputs by how much predictions depend on them.
    #[serde(default)]
    pub weighted_hessians: bool,
    pub damping: f64,
    pub feedback_block: usize,
    #[serde(default)]
    pub channel_scales: bool,
    pub seed: u64,
    pub max_shard_bytes: u64,
}

impl RecordedOptions {
    pub(crate) fn new(options: &QuantizeOptions, calibration: Option<&CalibrationId>) -> Self {
        let axis = match options.axis {
            AxisChoice::Auto => "auto",
            AxisChoice::Fixed(Axis::Out) => "0",
            AxisChoice::Fixed(Axis::In) => "1",
        };
        Self {
            bits: options.bits,
            budget: options.budget,
            state_bits: options.state_bits,
            code: options.code.name().into(),
            axis: axis.into(),
            rotate: options.rotate,
            block_len: options.block_len,
            scale_rule: options.scale_rule.name().into(),
            passes: options.passes,
            include: options.include.clone(),
            exclude: options.exclude.clone(),
            head_bits: options.head_bits,
            embed_bits: options.embed_bits,
            calibration_sha256: calibration.map(|id| id.tokens_sha256.clone()),
            weighted_hessians: calibration.is_some_and(|id| id.weighted),
            damping: options.damping,
            feedback_block: options.feedback_block,
            channel_scales: options.channel_scales,
            seed: options.seed,
            max_shard_bytes: options.max_shard_bytes,
        }
    }
}
