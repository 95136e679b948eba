//! Which tensors are coded, and how: decided before any work, from names and shapes alone.

use crate::{AxisChoice, QuantizeError, QuantizeOptions};
use globset::{Glob, GlobSet, GlobSetBuilder};
use std::collections::BTreeMap;
use trelliq_codec::{BlockEncoder, Trellis};
use trelliq_format::{LayerQuantization, ModelSource, RotationBlocks, TensorInfo};
use trelliq_kernels::{Axis, choose_rotation_block};

/// The token embedding's path.
pub(crate) const EMBEDDING: &str = "model.embed_tokens";
/// The output head's path.
pub(crate) const HEAD: &str = "lm_head";

/// One tensor to code.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LayerPlan {
    /// Path of the layer, the tensor's name without `.weight`.
    pub path: String,
    pub in_features: usize,
    pub out_features: usize,
    pub quantization: LayerQuantization,
}

impl LayerPlan {
    pub fn tensor(&self) -> String {
        format!("{}.weight", self.path)
    }

    pub fn weights(&self) -> usize {
        self.in_features * self.out_features
    }

    /// Bytes of scales and channel factors.
    pub fn side_bytes(&self) -> usize {
        let channels = match self.quantization.rotation {
            Some(_) => self.in_features + self.out_features,
            None => 0,
        };
        2 * (self.stored().0 + channels)
    }

    /// (rows, cols) as stored.
    pub fn stored(&self) -> (usize, usize) {
        match self.quantization.axis {
            Axis::Out => (self.in_features, self.out_features),
            Axis::In => (self.out_features, self.in_features),
        }
    }
}

/// Plans every coded tensor of a model, in the source's order. `widths`: bits of linear layers, by path,
/// where they are not those of the options.
pub(crate) fn plan(
    source: &ModelSource,
    options: &QuantizeOptions,
    widths: &BTreeMap<String, u32>,
) -> Result<Vec<LayerPlan>, QuantizeError> {
    if source.quantization().is_some() {
        return Err(QuantizeError::AlreadyQuantized);
    }
    // Parameters are checked on their own first, so that a bad one is not blamed on a tensor.
    let block_len = options.block_len.unwrap_or(256);
    Trellis::new(options.code, options.state_bits, options.bits, block_len)
        .and_then(|trellis| BlockEncoder::new(trellis, options.passes))
        .map_err(QuantizeError::Options)?;
    let include = globs(&options.include)?;
    let exclude = globs(&options.exclude)?;
    let mut plans = Vec::new();
    for info in source.tensors() {
        let Some(path) = info.name.strip_suffix(".weight") else { continue };
        if info.shape.len() != 2 || !info.dtype.is_float() {
            continue;
        }
        let chosen = (include.is_empty() || include.is_match(path)) && !exclude.is_match(path);
        let bits = match path {
            EMBEDDING => options.embed_bits,
            HEAD => options.head_bits,
            _ => (is_linear_layer(path) && chosen)
                .then(|| widths.get(path).copied().unwrap_or(options.bits)),
        };
        if let Some(bits) = bits {
            plans.push(plan_layer(path, info, bits, options)?);
        }
    }
    let has = |path: &str| plans.iter().any(|p: &LayerPlan| p.path == path);
    if options.embed_bits.is_some() && !has(EMBEDDING) {
        return Err(QuantizeError::NoSuchTensor("embedding"));
    }
    if options.head_bits.is_some() && !has(HEAD) {
        return Err(QuantizeError::NoSuchTensor("output head"));
    }
    if plans.is_empty() { Err(QuantizeError::NothingToCode) } else { Ok(plans) }
}

/// Linear layers of a decoder are the two-dimensional `..._proj` weights inside of its layers.
fn is_linear_layer(path: &str) -> bool {
    path.contains(".layers.") && path.ends_with("_proj")
}

fn globs(patterns: &[String]) -> Result<GlobSet, QuantizeError> {
    let error = |pattern: &str, reason: globset::Error| QuantizeError::Glob {
        pattern: pattern.to_owned(),
        reason: reason.to_string(),
    };
    let mut set = GlobSetBuilder::new();
    for pattern in patterns {
        set.add(Glob::new(pattern).map_err(|e| error(pattern, e))?);
    }
    set.build().map_err(|e| error(&patterns.join(", "), e))
}

fn plan_layer(
    path: &str,
    info: &TensorInfo,
    bits: u32,
    options: &QuantizeOptions,
) -> Result<LayerPlan, QuantizeError> {
    let (out_features, in_features) = (info.shape[0], info.shape[1]);
    let axis = match options.axis {
        _ if path == EMBEDDING => Axis::In,
        AxisChoice::Fixed(axis) => axis,
        AxisChoice::Auto
            if path == HEAD && Trellis::choose_block_len(out_features, bits).is_none() =>
        {
            Axis::In
        }
        AxisChoice::Auto => Axis::Out,
    };
    let cols = if axis == Axis::Out { out_features } else { in_features };
    let block_len = match options.block_len {
        Some(block_len) => block_len,
        None => {
            Trellis::choose_block_len(cols, bits).ok_or_else(|| QuantizeError::NoBlockLength {
                tensor: info.name.clone(),
                path: path.to_owned(),
                cols,
                bits,
            })?
        }
    };
    let trellis = Trellis::new(options.code, options.state_bits, bits, block_len)
        .map_err(QuantizeError::codec(&info.name))?;
    trellis.words_per_row(cols).map_err(QuantizeError::codec(&info.name))?;
    let rotation = options.rotate.then(|| RotationBlocks {
        input: choose_rotation_block(in_features),
        // A lookup of one embedding row must not need the other rows.
        output: if path == EMBEDDING { 1 } else { choose_rotation_block(out_features) },
    });
    let quantization = LayerQuantization { trellis, axis, rotation };
    Ok(LayerPlan { path: path.to_owned(), in_features, out_features, quantization })
}
