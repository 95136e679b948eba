//! Keys and values of the tokens that a sequence has seen.

use crate::ModelConfig;
use std::ops::Range;
#[cfg(feature = "cuda")]
use trelliq_kernels::cuda::{CudaCache, CudaError};

/// The state of one sequence: keys and values of every layer, growing as needed; f32 on a CPU, f16 on a
/// GPU. [`Model::new_cache`](crate::Model::new_cache) makes one where the model is.
///
/// Layers with a sliding window keep all positions and mask those outside the window.
#[derive(Debug)]
pub struct KvCache {
    storage: Storage,
    layers: usize,
    width: usize,
    tokens: Vec<u32>,
}

#[derive(Debug)]
enum Storage {
    Cpu(Vec<LayerCache>),
    #[cfg(feature = "cuda")]
    Cuda(CudaCache),
}

/// Keys (after the rotary embedding) and values of one layer, each `[positions, kv_width]`.
#[derive(Debug, Clone, Default)]
pub(crate) struct LayerCache {
    pub keys: Vec<f32>,
    pub values: Vec<f32>,
}

impl KvCache {
    /// An empty sequence for a model of this configuration on the CPU.
    pub fn new(config: &ModelConfig) -> Self {
        let layers = vec![LayerCache::default(); config.layers.len()];
        Self {
            layers: layers.len(),
            storage: Storage::Cpu(layers),
            width: config.kv_width(),
            tokens: Vec::new(),
        }
    }

    #[cfg(feature = "cuda")]
    pub(super) fn on_gpu(config: &ModelConfig, cache: CudaCache) -> Self {
        let (layers, width) = (config.layers.len(), config.kv_width());
        Self { storage: Storage::Cuda(cache), layers, width, tokens: Vec::new() }
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
        match &mut self.storage {
            Storage::Cpu(layers) => {
                for layer in layers {
                    layer.keys.truncate(kept);
                    layer.values.truncate(kept);
                }
            }
            // What lies behind the last token is never read.
            #[cfg(feature = "cuda")]
            Storage::Cuda(_) => {}
        }
    }

    /// A copy of the first `len` positions, or of all where there are fewer.
    ///
    /// Panics as [`slice`](Self::slice) does.
    pub fn prefix(&self, len: usize) -> Self {
        self.slice(0..len.min(self.len()))
    }

    /// A copy of the given positions, to be put behind those before them with
    /// [`extend`](Self::extend); on its own it is of use only where they start at 0.
    ///
    /// Panics when the range reaches past the end, or when a GPU has no memory for it.
    pub fn slice(&self, positions: Range<usize>) -> Self {
        let values = positions.start * self.width..positions.end * self.width;
        let copy = |layer: &LayerCache| LayerCache {
            keys: layer.keys[values.clone()].to_vec(),
            values: layer.values[values.clone()].to_vec(),
        };
        let tokens = self.tokens[positions.clone()].to_vec();
        let storage = match &self.storage {
            Storage::Cpu(layers) => Storage::Cpu(layers.iter().map(copy).collect()),
            #[cfg(feature = "cuda")]
            Storage::Cuda(cache) => {
                Storage::Cuda(cache.copy(positions).unwrap_or_else(|error| no_memory(&error)))
            }
        };
        Self { storage, layers: self.layers, width: self.width, tokens }
    }

    /// Adds the positions of a [`slice`](Self::slice) that was cut from a sequence with the same
    /// tokens before it.
    ///
    /// Panics when the two were made for different models or devices, or when a GPU has no memory for
    /// it.
    pub fn extend(&mut self, slice: &Self) {
        assert_eq!((self.layers, self.width), (slice.layers, slice.width));
        self.truncate(self.len());
        match (&mut self.storage, &slice.storage) {
            (Storage::Cpu(layers), Storage::Cpu(others)) => {
                for (layer, other) in layers.iter_mut().zip(others) {
                    layer.keys.extend_from_slice(&other.keys);
                    layer.values.extend_from_slice(&other.values);
                }
            }
            #[cfg(feature = "cuda")]
            (Storage::Cuda(cache), Storage::Cuda(other)) => {
                let put = cache.put(self.tokens.len(), other, slice.tokens.len());
                put.unwrap_or_else(|error| no_memory(&error));
            }
            #[cfg(feature = "cuda")]
            _ => panic!("the two caches are on different devices"),
        }
        self.tokens.extend_from_slice(&slice.tokens);
    }

    /// Bytes that keys and values take.
    pub fn bytes(&self) -> usize {
        match &self.storage {
            Storage::Cpu(layers) => {
                layers.iter().map(|l| 4 * (l.keys.capacity() + l.values.capacity())).sum()
            }
            #[cfg(feature = "cuda")]
            Storage::Cuda(cache) => cache.bytes(),
        }
    }

    pub(crate) fn fits(&self, config: &ModelConfig) -> bool {
        self.layers == config.layers.len() && self.width == config.kv_width()
    }

    pub(crate) fn is_on_cpu(&self) -> bool {
        matches!(self.storage, Storage::Cpu(_))
    }

    /// The GPU's part, of a cache that is on one.
    #[cfg(feature = "cuda")]
    pub(super) fn cuda(&self) -> Option<&CudaCache> {
        match &self.storage {
            Storage::Cuda(cache) => Some(cache),
            Storage::Cpu(_) => None,
        }
    }

    /// Room for `more` tokens on a GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn reserve(&mut self, more: usize) -> Result<(), CudaError> {
        let len = self.tokens.len();
        match &mut self.storage {
            Storage::Cuda(cache) => cache.reserve(len + more, len),
            Storage::Cpu(_) => Ok(()),
        }
    }

    fn cpu_layers(&mut self) -> &mut [LayerCache] {
        match &mut self.storage {
            Storage::Cpu(layers) => layers,
            #[cfg(feature = "cuda")]
            Storage::Cuda(_) => unreachable!("a step on the CPU refuses such a cache"),
        }
    }

    pub(crate) fn layer(&self, layer: usize) -> &LayerCache {
        match &self.storage {
            Storage::Cpu(layers) => &layers[layer],
            #[cfg(feature = "cuda")]
            Storage::Cuda(_) => unreachable!("a step on the CPU refuses such a cache"),
        }
    }

    /// Drops what a step that failed has left in some of the layers.
    pub(crate) fn forget_unfinished(&mut self) {
        self.truncate(self.len());
    }

    /// Adds rows of `[tokens, kv_width]` to a layer; they count once [`commit`](Self::commit) is
    /// called.
    pub(crate) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) {
        let layer = &mut self.cpu_layers()[layer];
        layer.keys.extend_from_slice(keys);
        layer.values.extend_from_slice(values);
    }

    pub(crate) fn commit(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }
}

impl Clone for KvCache {
    /// Panics as [`slice`](Self::slice) does.
    fn clone(&self) -> Self {
        self.slice(0..self.len())
    }
}

/// A copy of a cache fails as any allocation does.
#[cfg(feature = "cuda")]
fn no_memory(error: &CudaError) -> ! {
    panic!("the GPU has no memory for a copy of keys and values: {error}")
}
