//! Which layers see how far, and with which rotary embedding.

use super::reader::{ConfigError, Reader};
use super::rope::{self, Rope, RopeScaling};
use super::{AttentionConfig, Family};
use serde_json::Value;

/// The attention of every layer.
pub(super) fn read(reader: &Reader, family: Family) -> Result<Vec<AttentionConfig>, ConfigError> {
    let sliding = sliding_layers(reader, family)?;
    let window = if sliding.contains(&true) { Some(window(reader, family)?) } else { None };
    let (global, local) = ropes(reader, family)?;
    Ok(sliding
        .into_iter()
        .map(|sliding| AttentionConfig {
            window: if sliding { window } else { None },
            rope: if sliding { local } else { global },
        })
        .collect())
}

fn sliding_layers(reader: &Reader, family: Family) -> Result<Vec<bool>, ConfigError> {
    let count = reader.count("num_hidden_layers")?;
    if let Some(types) = reader.list("layer_types")? {
        return layer_types(reader, types, count);
    }
    Ok(match family {
        Family::Llama => vec![false; count],
        // Absent means the default of 4096, null means none.
        Family::Mistral => vec![!reader.is_null("sliding_window"); count],
        Family::Qwen2 | Family::Qwen3 => {
            let on =
                reader.flag_or("use_sliding_window", false)? && !reader.is_null("sliding_window");
            let first = reader.size_or("max_window_layers", 28)?;
            (0..count).map(|layer| on && layer >= first).collect()
        }
        Family::Gemma3 => {
            let key = match reader.get("sliding_window_pattern") {
                Some(_) => "sliding_window_pattern",
                None => "_sliding_window_pattern",
            };
            let pattern = reader.count_or(key, Some(6))?;
            (0..count).map(|layer| !(layer + 1).is_multiple_of(pattern)).collect()
        }
    })
}

fn layer_types(reader: &Reader, types: &[Value], count: usize) -> Result<Vec<bool>, ConfigError> {
    if types.len() != count {
        return Err(reader.invalid("layer_types", "one entry a layer"));
    }
    types
        .iter()
        .map(|entry| match entry.as_str() {
            Some("full_attention") => Ok(false),
            Some("sliding_attention") => Ok(true),
            _ => Err(reader.unsupported("layer_types", entry)),
        })
        .collect()
}

fn window(reader: &Reader, family: Family) -> Result<usize, ConfigError> {
    match family {
        Family::Llama => reader.count("sliding_window"),
        _ => reader.count_or("sliding_window", Some(4096)),
    }
}

/// The rotary embeddings of layers that see everything and of those with a window.
fn ropes(reader: &Reader, family: Family) -> Result<(Rope, Rope), ConfigError> {
    let gemma = family == Family::Gemma3;
    let (global_theta, local_theta) = if gemma { (1e6, 1e4) } else { (1e4, 1e4) };
    if let Some(parameters) = reader.object("rope_parameters")? {
        let full = parameters.object("full_attention")?;
        let sliding = parameters.object("sliding_attention")?;
        if full.is_none() && sliding.is_none() {
            let both = rope::parameters(&parameters, reader, global_theta)?;
            return Ok((both, if gemma { Rope::plain(local(reader, local_theta)?) } else { both }));
        }
        let read = |entry: Option<Reader>, theta: f64| match entry {
            Some(entry) => rope::parameters(&entry, reader, theta),
            None => Ok(Rope::plain(theta)),
        };
        return Ok((read(full, global_theta)?, read(sliding, local_theta)?));
    }
    let scaling = match reader.object("rope_scaling")? {
        Some(entry) => rope::scaling(&entry, reader)?,
        None => RopeScaling::None,
    };
    let global = Rope { theta: reader.positive_or("rope_theta", global_theta)?, scaling };
    Ok((global, if gemma { Rope::plain(local(reader, local_theta)?) } else { global }))
}

fn local(reader: &Reader, default: f64) -> Result<f64, ConfigError> {
    reader.positive_or("rope_local_base_freq", default)
}
