//! `rope_scaling` from the metadata and from the factors of Llama 3.

use super::metadata::Metadata;
use crate::FormatError;
use serde_json::{Value, json};

pub(crate) const FACTORS: &str = "rope_freqs.weight";
/// What all Llama 3.1 to 3.3 models use and converters fall back on; the file holds none of them.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
const LLAMA3_CONTEXT: f64 = 8192.0;
/// How far a factor of the file may be from the formula's, relative: they are stored as f32.
const TOLERANCE: f64 = 1e-4;

/// `rope_scaling`, or null. `factors` are those of [`FACTORS`], where the file has them.
pub(crate) fn scaling(
    metadata: &Metadata,
    prefix: &str,
    theta: f64,
    factors: Option<&[f32]>,
) -> Result<Value, FormatError> {
    if let Some(factors) = factors.filter(|factors| factors.iter().any(|&f| f != 1.0)) {
        return llama3(metadata, prefix, theta, factors);
    }
    let kind_key = format!("{prefix}.rope.scaling.type");
    let factor_key = format!("{prefix}.rope.scaling.factor");
    let kind = metadata.text(&kind_key)?;
    // Old converters wrote only the factor of linear scaling.
    let old = metadata.float(&format!("{prefix}.rope.scale_linear"))?.filter(|&f| f != 1.0);
    let factor = metadata.float(&factor_key)?.or(old);
    match (kind, factor) {
        (None | Some("none"), None) | (Some("none"), _) => Ok(Value::Null),
        (None | Some("linear"), Some(factor)) => {
            Ok(json!({ "rope_type": "linear", "factor": factor }))
        }
        (Some("linear"), None) => metadata.required(&factor_key, None),
        (Some("yarn"), factor) => {
            let factor = metadata.required(&factor_key, factor)?;
            let key = format!("{prefix}.rope.scaling.original_context_length");
            let context = metadata.required(&key, metadata.size(&key)?)?;
            let original = "original_max_position_embeddings";
            Ok(json!({ "rope_type": "yarn", "factor": factor, original: context }))
        }
        (Some(other), _) => {
            Err(metadata.error(&kind_key, format!("scaling `{other}` is not known")))
        }
    }
}

/// Finds the one parameter that differs between Llama 3 models, and checks that the formula then
/// gives the factors of the file.
fn llama3(
    metadata: &Metadata,
    prefix: &str,
    theta: f64,
    factors: &[f32],
) -> Result<Value, FormatError> {
    let key = format!("{prefix}.rope.scaling.original_context_length");
    let context = metadata.size(&key)?.map_or(LLAMA3_CONTEXT, |context| context as f64);
    // The lowest frequencies are divided by the whole factor.
    let factor = factors.iter().fold(0.0, |max: f64, &f| max.max(f64::from(f)));
    for (index, &found) in factors.iter().enumerate() {
        let dim = 2.0 * factors.len() as f64;
        let frequency = theta.powf(-2.0 * index as f64 / dim);
        let expected = llama3_factor(frequency, factor, context);
        let difference = (f64::from(found) - expected).abs();
        if difference.is_nan() || difference > TOLERANCE * expected {
            let reason = format!("factor {index} is {found}, that of Llama 3 is {expected}");
            return Err(FormatError::tensor(metadata.file, FACTORS, reason));
        }
    }
    Ok(json!({
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW_FREQ_FACTOR,
        "high_freq_factor": HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": context as u64,
    }))
}

/// What a frequency is divided by (`_compute_llama3_parameters` of transformers).
fn llama3_factor(frequency: f64, factor: f64, context: f64) -> f64 {
    let wavelength = std::f64::consts::TAU / frequency;
    if wavelength < context / HIGH_FREQ_FACTOR {
        1.0
    } else if wavelength > context / LOW_FREQ_FACTOR {
        factor
    } else {
        let smooth =
            (context / wavelength - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR);
        1.0 / ((1.0 - smooth) / factor + smooth)
    }
}
