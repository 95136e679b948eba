//! `trelliq_manifest.json`: what made an artifact, and what was lost.

use crate::options::RecordedOptions;
use crate::plan::LayerPlan;
use half::f16;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trelliq_kernels::Axis;

/// File name of the manifest inside of a model directory.
pub const MANIFEST_FILE: &str = "trelliq_manifest.json";

/// Everything that decided an artifact's bytes, and the error of every coded tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the program that coded.
    pub version: String,
    pub options: RecordedOptions,
    pub source: Vec<SourceFile>,
    /// By path of the layer.
    pub layers: BTreeMap<String, LayerReport>,
    pub totals: Totals,
}

/// A file of the source model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// File name, without its directory.
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// One coded tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    pub in_features: usize,
    pub out_features: usize,
    /// 0: coded along the outputs; 1: along the inputs.
    pub axis: u8,
    pub bits: u32,
    pub state_bits: u32,
    pub code: String,
    pub block_len: usize,
    /// Hadamard blocks of the input and output side, when rotated.
    pub rotation: Option<[usize; 2]>,
    /// Bytes of codes, scales and channel factors.
    pub bytes: u64,
    /// Mean squared error a weight.
    pub mse: f64,
    /// Squared error over the sum of squared weights.
    pub relative_error: f64,
    pub scales: ScaleReport,
    /// Rounding with feedback, where the tensor was coded under a Hessian.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub feedback: Option<FeedbackReport>,
}

/// How a tensor's Hessian was factorised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FeedbackReport {
    /// What was added to the diagonal, as a fraction of its mean: more than was asked for where the
    /// Hessian was not positive definite.
    pub damping: f64,
    /// Input channels that no calibration token excited.
    pub dead_channels: usize,
}

/// The stored scales of one tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ScaleReport {
    pub min: f32,
    pub max: f32,
    pub mean: f64,
    /// Rows whose scale is zero: all their weights decode to zero.
    pub zero_rows: usize,
}

/// Sums over the artifact.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    pub coded_weights: u64,
    pub coded_bytes: u64,
    /// Bits a coded weight, scales and channel factors included.
    pub bits_per_weight: f64,
    pub dense_weights: u64,
    pub dense_bytes: u64,
    /// Squared error over the sum of squared weights, over all coded tensors.
    pub relative_error: f64,
}

impl Manifest {
    /// What identifies the run that made the artifact.
    pub(crate) fn identity(&self) -> serde_json::Value {
        crate::parts::identity(&self.version, &self.options, &self.source)
    }
}

impl ScaleReport {
    pub(crate) fn new(scales: &[f16]) -> Self {
        let values = || scales.iter().map(|s| s.to_f32());
        Self {
            min: values().fold(f32::INFINITY, f32::min),
            max: values().fold(f32::NEG_INFINITY, f32::max),
            mean: values().map(f64::from).sum::<f64>() / scales.len().max(1) as f64,
            zero_rows: values().filter(|s| *s == 0.0).count(),
        }
    }
}

impl LayerReport {
    pub(crate) fn new(
        plan: &LayerPlan,
        energy: f64,
        squared_error: f64,
        scales: ScaleReport,
        feedback: Option<FeedbackReport>,
    ) -> Self {
        let (rows, cols) = plan.stored();
        let trellis = plan.quantization.trellis;
        let codes = rows * cols * trellis.bits() as usize / 8;
        let channels =
            plan.quantization.rotation.map_or(0, |_| plan.in_features + plan.out_features);
        Self {
            in_features: plan.in_features,
            out_features: plan.out_features,
            axis: match plan.quantization.axis {
                Axis::Out => 0,
                Axis::In => 1,
            },
            bits: trellis.bits(),
            state_bits: trellis.state_bits(),
            code: trellis.code().name().into(),
            block_len: trellis.block_len(),
            rotation: plan.quantization.rotation.map(|r| [r.input, r.output]),
            bytes: (codes + 2 * rows + 2 * channels) as u64,
            mse: squared_error / plan.weights() as f64,
            relative_error: if energy == 0.0 { 0.0 } else { squared_error / energy },
            scales,
            feedback,
        }
    }

    /// Weights of the tensor.
    pub fn weights(&self) -> u64 {
        (self.in_features * self.out_features) as u64
    }
}

impl Totals {
    pub(crate) fn new(
        layers: &BTreeMap<String, LayerReport>,
        (dense_weights, dense_bytes): (u64, u64),
    ) -> Self {
        let coded_weights: u64 = layers.values().map(LayerReport::weights).sum();
        let coded_bytes: u64 = layers.values().map(|l| l.bytes).sum();
        let squared = |l: &LayerReport| l.mse * l.weights() as f64;
        let error: f64 = layers.values().map(squared).sum();
        let energy: f64 = layers
            .values()
            .filter(|l| l.relative_error > 0.0)
            .map(|l| squared(l) / l.relative_error)
            .sum();
        Self {
            coded_weights,
            coded_bytes,
            bits_per_weight: 8.0 * coded_bytes as f64 / coded_weights.max(1) as f64,
            dense_weights,
            dense_bytes,
            relative_error: if energy == 0.0 { 0.0 } else { error / energy },
        }
    }
}
