//! One tensor from weights to codes.

use crate::check::CHUNK;
use crate::manifest::{LayerReport, ScaleReport};
use crate::plan::LayerPlan;
use crate::rotate::{input_group, rotate_weight, signs};
use crate::{Event, Progress, QuantizeError, QuantizeOptions};
use half::f16;
use trelliq_codec::{EncodedRows, RowCodec};
use trelliq_format::ModelSource;
use trelliq_kernels::{Axis, Rotation};

/// A coded tensor, as stored.
#[derive(Debug)]
pub(crate) struct EncodedLayer {
    /// `[rows, cols * K / 32]`.
    pub words: Vec<u32>,
    /// `[rows]`.
    pub scales: Vec<f16>,
    /// `[in]` and `[out]`, when rotated.
    pub channels: Option<(Vec<f16>, Vec<f16>)>,
    pub report: LayerReport,
}

/// Reads, rotates and codes one tensor. Holds it in f32 once, and its codes.
pub(crate) fn encode_layer(
    source: &ModelSource,
    plan: &LayerPlan,
    options: &QuantizeOptions,
    progress: Progress,
) -> Result<EncodedLayer, QuantizeError> {
    let tensor = plan.tensor();
    let mut weight = source.read_f32(&tensor)?;
    source.release(&tensor);
    let rotation = rotation(plan, options.seed).map_err(QuantizeError::kernel(&tensor))?;
    if let Some(rotation) = &rotation {
        rotate_weight(&mut weight, rotation);
    }
    let codec = RowCodec::new(plan.quantization.trellis, options.scale_rule, options.passes)
        .map_err(QuantizeError::codec(&tensor))?;
    let mut words = Vec::new();
    let mut scales = Vec::new();
    let mut squared_error = 0.0;
    let (rows, cols) = plan.stored();
    let rows_a_chunk = (CHUNK / cols).max(1);
    for start in (0..rows).step_by(rows_a_chunk) {
        let chunk = start..(start + rows_a_chunk).min(rows);
        let advance = |weights: usize| progress(Event::Advance(weights as u64));
        let encoded: EncodedRows = match plan.quantization.axis {
            Axis::In => codec.encode(&weight[chunk.start * cols..chunk.end * cols], cols, &advance),
            Axis::Out => codec.encode(&columns(&weight, plan.in_features, chunk), cols, &advance),
        }
        .map_err(QuantizeError::codec(&tensor))?;
        words.extend(encoded.words);
        scales.extend(encoded.scales);
        squared_error += encoded.squared_error.iter().sum::<f64>();
    }
    let energy: f64 = weight.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
    let report = LayerReport::new(plan, energy, squared_error, ScaleReport::new(&scales));
    let narrow = |channels: &[f32]| channels.iter().map(|&s| f16::from_f32(s)).collect();
    let channels = rotation.map(|r| (narrow(r.su()), narrow(r.sv())));
    Ok(EncodedLayer { words, scales, channels, report })
}

fn rotation(plan: &LayerPlan, seed: u64) -> Result<Option<Rotation>, trelliq_kernels::KernelError> {
    plan.quantization
        .rotation
        .map(|blocks| {
            let su = signs(seed, &format!("{}:in", input_group(&plan.path)), plan.in_features);
            let sv = match blocks.output {
                1 => vec![1.0; plan.out_features],
                _ => signs(seed, &format!("{}:out", plan.path), plan.out_features),
            };
            Rotation::new(blocks.input, blocks.output, su, sv)
        })
        .transpose()
}

/// Columns `range` of `weight`, `[out, in_features]`, each as a row of the result.
fn columns(weight: &[f32], in_features: usize, range: std::ops::Range<usize>) -> Vec<f32> {
    let out_features = weight.len() / in_features;
    let mut rows = vec![0.0; range.len() * out_features];
    for (output, row) in weight.chunks_exact(in_features).enumerate() {
        for (channel, &w) in row[range.clone()].iter().enumerate() {
            rows[channel * out_features + output] = w;
        }
    }
    rows
}
