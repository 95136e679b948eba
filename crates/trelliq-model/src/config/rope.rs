//! Settings of the rotary position embedding.

use super::reader::{ConfigError, Reader};
use serde_json::Value;

/// How the frequencies of a rotary embedding are stretched for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    None,
    /// Every frequency is divided by `factor` (<https://arxiv.org/abs/2306.15595>).
    Linear {
        factor: f64,
    },
    /// Llama 3.1: wavelengths above `original_positions / low_freq_factor` are stretched by
    /// `factor`, those below `original_positions / high_freq_factor` are kept, and the rest are
    /// blended.
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_positions: f64,
    },
}

/// A rotary embedding: frequency i of a head is `theta^(-2i / head_dim)`, then scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
}

impl Rope {
    pub(super) fn plain(theta: f64) -> Self {
        Self { theta, scaling: RopeScaling::None }
    }

    /// Radians a position for each of the `head_dim / 2` pairs, in f32 as transformers keeps them.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / head_dim as f32;
                let frequency = 1.0 / (self.theta as f32).powf(exponent);
                self.scaling.apply(frequency)
            })
            .collect()
    }
}

impl RopeScaling {
    fn apply(self, frequency: f32) -> f32 {
        match self {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor as f32,
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_positions,
            } => {
                let rotations = original_positions * f64::from(frequency) / std::f64::consts::TAU;
                let smooth = (rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
                let smooth = smooth.clamp(0.0, 1.0);
                let frequency = f64::from(frequency);
                ((1.0 - smooth) * frequency / factor + smooth * frequency) as f32
            }
        }
    }
}

/// The scaling that an object of `rope_scaling` or `rope_parameters` names.
pub(super) fn scaling(reader: &Reader, outer: &Reader) -> Result<RopeScaling, ConfigError> {
    let kind = match reader.optional_text("rope_type")? {
        Some(kind) => Some(kind),
        None => reader.optional_text("type")?,
    };
    match kind.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: reader.positive("factor")? }),
        "llama3" => llama3(reader, outer),
        other => Err(reader.unsupported("rope_type", &Value::from(other))),
    }
}

fn llama3(reader: &Reader, outer: &Reader) -> Result<RopeScaling, ConfigError> {
    let low_freq_factor = reader.positive("low_freq_factor")?;
    let high_freq_factor = reader.positive("high_freq_factor")?;
    if high_freq_factor <= low_freq_factor {
        return Err(reader.invalid("high_freq_factor", "more than low_freq_factor"));
    }
    let original_positions = match reader.optional_positive("original_max_position_embeddings")? {
        Some(positions) => positions,
        None => outer.positive("max_position_embeddings")?,
    };
    let factor = reader.positive("factor")?;
    Ok(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_positions })
}

/// An object of `rope_parameters`: scaling and base together.
pub(super) fn parameters(
    reader: &Reader,
    outer: &Reader,
    default_theta: f64,
) -> Result<Rope, ConfigError> {
    if let Some(value) = reader.get("partial_rotary_factor")
        && value.as_f64() != Some(1.0)
    {
        return Err(reader.unsupported("partial_rotary_factor", value));
    }
    let outer_theta = outer.positive_or("rope_theta", default_theta)?;
    Ok(Rope {
        theta: reader.positive_or("rope_theta", outer_theta)?,
        scaling: scaling(reader, outer)?,
    })
}
