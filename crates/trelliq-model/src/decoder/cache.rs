//! Keys and values of the tokens that a sequence has seen.

use crate::ModelConfig;

/// The state of one sequence: keys and values of every layer, f32, growing as needed.
///
/// Layers with a sliding window keep all positions and mask those outside the window.
#[derive(Debug, Clone)]
pub struct KvCache {
    layers: Vec<LayerCache>,
    width: usize,
    tokens: Vec<u32>,
}

/// Keys (after the rotary embedding) and values of one layer, each `[positions, kv_width]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

impl KvCache {
    /// An empty sequence for a model of this configuration.
    pub fn new(config: &ModelConfig) -> Self {
        let layers = vec![LayerCache::default(); config.layers.len()];
        Self { layers, width: config.kv_width(), tokens: Vec::new() }
    }

    /// Tokens seen.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens seen.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Forgets every token from position `len` on; does nothing where there are fewer.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        let kept = self.tokens.len() * self.width;
        for layer in &mut self.layers {
            layer.keys.truncate(kept);
            layer.values.truncate(kept);
        }
    }

    /// Bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|l| 4 * (l.keys.capacity() + l.values.capacity())).sum()
    }

    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        self.layers.len() == config.layers.len() && self.width == config.kv_width()
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerCache {
        &self.layers[layer]
    }

    /// Adds rows of `[tokens, kv_width]` to a layer; they count once [`commit`](Self::commit) is
    /// called, and an unfinished step is dropped by the next [`truncate`](Self::truncate).
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) {
        self.layers[layer].keys.extend_from_slice(keys);
        self.layers[layer].values.extend_from_slice(values);
    }

    pub(crate) fn commit(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}
