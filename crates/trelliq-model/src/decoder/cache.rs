//! Keys and values of the tokens that a sequence has seen.

use crate::ModelConfig;
use std::ops::Range;

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

    /// A copy of the first `len` positions, or of all where there are fewer.
    pub fn prefix(&self, len: usize) -> Self {
        self.slice(0..len.min(self.len()))
    }

    /// A copy of the given positions, to be put behind those before them with
    /// [`extend`](Self::extend); on its own it is of use only where they start at 0.
    ///
    /// Panics when the range reaches past the end.
    pub fn slice(&self, positions: Range<usize>) -> Self {
        let values = positions.start * self.width..positions.end * self.width;
        let copy = |layer: &LayerCache| LayerCache {
            keys: layer.keys[values.clone()].to_vec(),
            values: layer.values[values.clone()].to_vec(),
        };
        Self {
            layers: self.layers.iter().map(copy).collect(),
            width: self.width,
            tokens: self.tokens[positions].to_vec(),
        }
    }

    /// Adds the positions of a [`slice`](Self::slice) that was cut from a sequence with the same
    /// tokens before it.
    ///
    /// Panics when the two were made for different models.
    pub fn extend(&mut self, slice: &Self) {
        assert_eq!((self.layers.len(), self.width), (slice.layers.len(), slice.width));
        self.truncate(self.len());
        for (layer, other) in self.layers.iter_mut().zip(&slice.layers) {
            layer.keys.extend_from_slice(&other.keys);
            layer.values.extend_from_slice(&other.values);
        }
        self.tokens.extend_from_slice(&slice.tokens);
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

    /// Drops what a step that failed has left in some of the layers.
    pub(crate) fn forget_unfinished(&mut self) {
        self.truncate(self.len());
    }

    /// Adds rows of `[tokens, kv_width]` to a layer; they count once [`commit`](Self::commit) is
    /// called.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) {
        self.layers[layer].keys.extend_from_slice(keys);
        self.layers[layer].values.extend_from_slice(values);
    }

    pub(crate) fn commit(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}
