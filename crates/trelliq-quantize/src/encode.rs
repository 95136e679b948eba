//! One tensor from weights to codes.

use crate::channels::{add_column_energy, input_scales, output_scales};
use crate::check::CHUNK;
use crate::factor::Factor;
use crate::feedback::{Coded, code_with_feedback};
use crate::hessian::HessianFile;
use crate::manifest::{FeedbackReport, LayerReport, ScaleReport};
use crate::plan::LayerPlan;
use crate::refit::{proxy_loss, refit_scales};
use crate::rotate::{input_group, rotate_hessian, rotate_weight, sharing_input, signs};
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

/// A tensor that is ready to be coded.
pub(crate) struct Prepared {
    /// `[out, in]`, rotated where the plan says so.
    pub weight: Vec<f32>,
    pub rotation: Option<Rotation>,
    /// Of the rotated and scaled input, with its factor: where there is a Hessian and the layer is coded
    /// along its outputs.
    pub hessian: Option<(Vec<f64>, Factor)>,
}

/// Reads one tensor, finds its channel scales and rotates it with its Hessian.
pub(crate) fn prepare(
    source: &ModelSource,
    plan: &LayerPlan,
    options: &QuantizeOptions,
    hessians: Option<&HessianFile>,
) -> Result<Prepared, QuantizeError> {
    let tensor = plan.tensor();
    let mut weight = source.read_f32(&tensor)?;
    source.release(&tensor);
    let hessian = match (hessians, plan.quantization.axis) {
        (Some(file), Axis::Out) => file.hessian(&plan.path, plan.in_features)?,
        _ => None,
    };
    let scaled = options.channel_scales && plan.quantization.rotation.is_some();
    let scales = match (&hessian, hessians) {
        (Some(_), Some(file)) if scaled => Some(channel_scales(source, plan, &weight, file)?),
        _ => None,
    };
    let rotation = rotation(plan, options.seed, scales).map_err(QuantizeError::kernel(&tensor))?;
    if let Some(rotation) = &rotation {
        rotate_weight(&mut weight, rotation);
    }
    let hessian = hessian.map(|mut hessian| {
        if let Some(rotation) = &rotation {
            rotate_hessian(&mut hessian, rotation);
        }
        let factor = Factor::new(&hessian, plan.in_features, options.damping)
            .map_err(|source| QuantizeError::Hessian { tensor: plan.tensor(), source })?;
        Ok::<_, QuantizeError>((hessian, factor))
    });
    Ok(Prepared { weight, rotation, hessian: hessian.transpose()? })
}

/// Reads, rotates and codes one tensor: under its input's Hessian where `hessians` has one and the
/// layer is coded along its outputs, else row by row.
pub(crate) fn encode_layer(
    source: &ModelSource,
    plan: &LayerPlan,
    options: &QuantizeOptions,
    hessians: Option<&HessianFile>,
    progress: Progress,
) -> Result<EncodedLayer, QuantizeError> {
    let Prepared { weight, rotation, hessian } = prepare(source, plan, options, hessians)?;
    let codec = RowCodec::new(plan.quantization.trellis, options.scale_rule, options.passes)
        .map_err(QuantizeError::codec(&plan.tensor()))?;
    let energy: f64 = weight.iter().map(|&w| f64::from(w) * f64::from(w)).sum();
    let coded = match hessian {
        Some((hessian, factor)) => {
            with_feedback(plan, options, weight, &hessian, &factor, &codec, progress)?
        }
        None => row_by_row(plan, &weight, &codec, progress)?,
    };
    let scales = ScaleReport::new(&coded.scales);
    let report = LayerReport::new(plan, energy, coded.squared_error, scales, coded.feedback);
    let narrow = |channels: &[f32]| channels.iter().map(|&s| f16::from_f32(s)).collect();
    let channels = rotation.map(|r| (narrow(r.su()), narrow(r.sv())));
    Ok(EncodedLayer { words: coded.words, scales: coded.scales, channels, report })
}

/// Codes and scales of a whole tensor.
struct CodedTensor {
    words: Vec<u32>,
    scales: Vec<f16>,
    squared_error: f64,
    feedback: Option<FeedbackReport>,
}

fn row_by_row(
    plan: &LayerPlan,
    weight: &[f32],
    codec: &RowCodec,
    progress: Progress,
) -> Result<CodedTensor, QuantizeError> {
    let mut coded =
        CodedTensor { words: Vec::new(), scales: Vec::new(), squared_error: 0.0, feedback: None };
    let (rows, cols) = plan.stored();
    let rows_a_chunk = (CHUNK / cols).max(1);
    for start in (0..rows).step_by(rows_a_chunk) {
        let chunk = start..(start + rows_a_chunk).min(rows);
        let advance = |weights: usize| progress(Event::Advance(weights as u64));
        let encoded: EncodedRows = match plan.quantization.axis {
            Axis::In => codec.encode(&weight[chunk.start * cols..chunk.end * cols], cols, &advance),
            Axis::Out => codec.encode(&columns(weight, plan.in_features, chunk), cols, &advance),
        }
        .map_err(QuantizeError::codec(&plan.tensor()))?;
        coded.words.extend(encoded.words);
        coded.scales.extend(encoded.scales);
        coded.squared_error += encoded.squared_error.iter().sum::<f64>();
    }
    Ok(coded)
}

fn with_feedback(
    plan: &LayerPlan,
    options: &QuantizeOptions,
    weight: Vec<f32>,
    hessian: &[f64],
    factor: &Factor,
    codec: &RowCodec,
    progress: Progress,
) -> Result<CodedTensor, QuantizeError> {
    let mut by_channel = columns(&weight, plan.in_features, 0..plan.in_features);
    drop(weight);
    let advance = |weights: usize| progress(Event::Advance(weights as u64));
    let block = options.feedback_block;
    let coded =
        code_with_feedback(&mut by_channel, plan.out_features, factor, block, codec, &advance)
            .map_err(QuantizeError::codec(&plan.tensor()))?;
    let scales = refitted(&mut by_channel, &coded, hessian, codec);
    let squared_error = by_channel.iter().map(|&e| f64::from(e) * f64::from(e)).sum();
    let feedback = Some(FeedbackReport { damping: factor.damping, dead_channels: factor.dead });
    Ok(CodedTensor { words: coded.words, scales, squared_error, feedback })
}

/// The scales to store for walks coded with feedback, and in `errors` what they leave: the jointly
/// refitted ones where they lose less under the Hessian.
fn refitted(errors: &mut Vec<f32>, coded: &Coded, hessian: &[f64], codec: &RowCodec) -> Vec<f16> {
    let table = codec.block_encoder().values();
    let values: Vec<f32> = coded.states.iter().map(|&s| table[usize::from(s)]).collect();
    let out_features = values.len() / coded.scales.len();
    let apply = |matrix: &mut [f32], scales: &[f16], sign: f32| {
        let rows = matrix.chunks_exact_mut(out_features).zip(values.chunks_exact(out_features));
        for ((row, values), scale) in rows.zip(scales) {
            row.iter_mut().zip(values).for_each(|(m, v)| *m += sign * (v * scale.to_f32()));
        }
    };
    let mut weight = errors.clone();
    apply(&mut weight, &coded.scales, 1.0);
    let Some(scales) = refit_scales(&values, &weight, hessian) else { return coded.scales.clone() };
    apply(&mut weight, &scales, -1.0);
    if proxy_loss(&weight, hessian) >= proxy_loss(errors, hessian) {
        return coded.scales.clone();
    }
    *errors = weight;
    scales
}

/// Scales of inputs and outputs. Layers that share an input share its scales, which are made from the
/// energies and Hessians of all of them.
fn channel_scales(
    source: &ModelSource,
    plan: &LayerPlan,
    weight: &[f32],
    hessians: &HessianFile,
) -> Result<(Vec<f32>, Vec<f32>), QuantizeError> {
    let dim = plan.in_features;
    let (mut energy, mut power) = (vec![0.0; dim], vec![0.0; dim]);
    for path in sharing_input(&plan.path) {
        let tensor = format!("{path}.weight");
        if source.info(&tensor).is_none_or(|info| info.shape.get(1) != Some(&dim)) {
            continue;
        }
        if path == plan.path {
            add_column_energy(weight, &mut energy);
        } else {
            add_column_energy(&source.read_f32(&tensor)?, &mut energy);
            source.release(&tensor);
        }
        if let Some(hessian) = hessians.hessian(&path, dim)? {
            power.iter_mut().zip(hessian.iter().step_by(dim + 1)).for_each(|(p, h)| *p += h);
        }
    }
    let inputs = input_scales(&energy, &power);
    let importance = hessians.outputs(&plan.path, plan.out_features)?;
    let outputs = output_scales(weight, &inputs, importance.as_deref());
    Ok((inputs, outputs))
}

fn rotation(
    plan: &LayerPlan,
    seed: u64,
    scales: Option<(Vec<f32>, Vec<f32>)>,
) -> Result<Option<Rotation>, trelliq_kernels::KernelError> {
    plan.quantization
        .rotation
        .map(|blocks| {
            let mut su = signs(seed, &format!("{}:in", input_group(&plan.path)), plan.in_features);
            let mut sv = match blocks.output {
                1 => vec![1.0; plan.out_features],
                _ => signs(seed, &format!("{}:out", plan.path), plan.out_features),
            };
            if let Some((inputs, outputs)) = scales {
                su.iter_mut().zip(inputs).for_each(|(s, scale)| *s *= scale);
                sv.iter_mut().zip(outputs).for_each(|(s, scale)| *s *= scale);
            }
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
