//! From a model's files to its layers.

use super::dense::{DenseWeight, Dtype};
use super::linear::Linear;
use super::{Attention, FeedForward, Layer, LoadOptions, ModelError};
use crate::config::{Family, ModelConfig};
use trelliq_format::{ModelSource, TensorType};
use trelliq_kernels::{Carrier, Numerics, TrellisLinear};

/// Where the decoder's tensors are: models wrapped in another one have a longer prefix.
const PREFIXES: [&str; 4] =
    ["model.", "language_model.model.", "model.language_model.", "language_model."];

/// Every part of a decoder.
pub(super) struct Parts {
    pub embedding: Linear,
    pub layers: Vec<Layer>,
    pub final_norm: Vec<f32>,
    /// `None` when the head is the embedding.
    pub head: Option<Linear>,
}

pub(super) fn load(
    source: &ModelSource,
    config: &ModelConfig,
    options: &LoadOptions,
) -> Result<Parts, ModelError> {
    let loader = Loader { source, config, options, prefix: prefix(source)? };
    let layers = (0..config.layers.len()).map(|i| loader.layer(i)).collect::<Result<_, _>>()?;
    Ok(Parts {
        embedding: loader.embedding()?,
        layers,
        final_norm: loader.norm(&loader.path("norm"), config.hidden_size)?,
        head: loader.head()?,
    })
}

fn prefix(source: &ModelSource) -> Result<&'static str, ModelError> {
    let name = |prefix: &str| format!("{prefix}embed_tokens.weight");
    let found = PREFIXES.into_iter().find(|prefix| source.info(&name(prefix)).is_some());
    found.ok_or_else(|| ModelError::MissingTensor { tensor: name(PREFIXES[0]) })
}

struct Loader<'a> {
    source: &'a ModelSource,
    config: &'a ModelConfig,
    options: &'a LoadOptions,
    prefix: &'static str,
}

impl Loader<'_> {
    fn path(&self, rest: &str) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn layer(&self, index: usize) -> Result<Layer, ModelError> {
        let config = self.config;
        let hidden = config.hidden_size;
        let path = |rest: &str| self.path(&format!("layers.{index}.{rest}"));
        let norm = |rest: &str| self.norm(&path(rest), hidden);
        let gemma = config.family == Family::Gemma3;
        let after_attention = norm("post_attention_layernorm")?;
        let (post_attention_norm, feed_forward_norm) = if gemma {
            (Some(after_attention), norm("pre_feedforward_layernorm")?)
        } else {
            (None, after_attention)
        };
        let post_feed_forward_norm =
            if gemma { Some(norm("post_feedforward_layernorm")?) } else { None };
        Ok(Layer {
            attention_norm: norm("input_layernorm")?,
            attention: self.attention(&path("self_attn"))?,
            post_attention_norm,
            feed_forward_norm,
            feed_forward: self.feed_forward(&path("mlp"))?,
            post_feed_forward_norm,
        })
    }

    fn attention(&self, path: &str) -> Result<Attention, ModelError> {
        let config = self.config;
        let (hidden, q, kv) = (config.hidden_size, config.q_width(), config.kv_width());
        let linear = |name: &str, out, inputs, bias| {
            self.linear(&format!("{path}.{name}"), out, inputs, bias)
        };
        let head_norm = |name: &str| match config.family {
            Family::Qwen3 | Family::Gemma3 => {
                self.norm(&format!("{path}.{name}"), config.head_dim).map(Some)
            }
            _ => Ok(None),
        };
        Ok(Attention {
            q: linear("q_proj", q, hidden, config.qkv_bias)?,
            k: linear("k_proj", kv, hidden, config.qkv_bias)?,
            v: linear("v_proj", kv, hidden, config.qkv_bias)?,
            output: linear("o_proj", hidden, q, config.output_bias)?,
            q_norm: head_norm("q_norm")?,
            k_norm: head_norm("k_norm")?,
        })
    }

    fn feed_forward(&self, path: &str) -> Result<FeedForward, ModelError> {
        let (hidden, inner) = (self.config.hidden_size, self.config.intermediate_size);
        let bias = self.config.mlp_bias;
        let linear =
            |name: &str, out, inputs| self.linear(&format!("{path}.{name}"), out, inputs, bias);
        Ok(FeedForward {
            gate: linear("gate_proj", inner, hidden)?,
            up: linear("up_proj", inner, hidden)?,
            down: linear("down_proj", hidden, inner)?,
        })
    }

    /// The embedding. It stays packed with the `carrier` option, since rows are looked up in it.
    fn embedding(&self) -> Result<Linear, ModelError> {
        let (vocab, hidden) = (self.config.vocab_size, self.config.hidden_size);
        let path = self.path("embed_tokens");
        if !self.is_coded(&path) {
            return self.dense(&path, vocab, hidden, false);
        }
        let embedding = self.packed(&path, vocab, hidden)?;
        let mut row = vec![0.0; hidden];
        embedding
            .row(0, Numerics::Fast, &mut row)
            .map_err(|source| ModelError::Layer { layer: path.clone(), source })?;
        // As a head it is multiplied by; else rows of it are looked up, from the words as they are.
        let is_head = self.config.tie_word_embeddings && !self.is_coded("lm_head");
        Ok(if is_head { self.repacked(&path, embedding) } else { embedding })
    }

    /// A coded head wins over a tied one: a model whose embedding stays dense may have its head
    /// coded. Otherwise the config decides.
    fn head(&self) -> Result<Option<Linear>, ModelError> {
        let coded = self.is_coded("lm_head");
        if self.config.tie_word_embeddings && !coded {
            return Ok(None);
        }
        let outer = self.prefix.strip_suffix("model.").unwrap_or(self.prefix);
        let nested = format!("{outer}lm_head");
        let path = if !coded && self.source.info(&format!("{nested}.weight")).is_some() {
            nested
        } else {
            "lm_head".to_owned()
        };
        self.linear(&path, self.config.vocab_size, self.config.hidden_size, false).map(Some)
    }

    fn is_coded(&self, path: &str) -> bool {
        self.source.quantization().is_some_and(|quantization| quantization.layer(path).is_some())
    }

    fn linear(
        &self,
        path: &str,
        out: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Linear, ModelError> {
        if !self.is_coded(path) {
            return self.dense(path, out, inputs, bias);
        }
        if bias {
            self.require(&format!("{path}.bias"))?;
        }
        match self.packed(path, out, inputs)? {
            Linear::Packed(layer) if self.options.carrier => {
                Ok(Linear::Carrier(Carrier::from_linear(&layer, Numerics::Fast)))
            }
            packed => Ok(self.repacked(path, packed)),
        }
    }

    /// Repacked where that is asked for; the pages that were read for it may leave memory again.
    fn repacked(&self, path: &str, mut linear: Linear) -> Linear {
        if let Linear::Packed(layer) = &mut linear
            && self.options.repack
        {
            layer.repack();
            self.source.tensors_under(path).for_each(|info| self.source.release(&info.name));
        }
        linear
    }

    fn packed(&self, path: &str, out: usize, inputs: usize) -> Result<Linear, ModelError> {
        let layer = trelliq_format::load_packed(self.source, path, Some((inputs, out)))?;
        TrellisLinear::new(layer.matrix, layer.rotation, layer.bias)
            .map(Linear::Packed)
            .map_err(|source| ModelError::Layer { layer: path.to_owned(), source })
    }

    fn dense(
        &self,
        path: &str,
        out: usize,
        inputs: usize,
        bias: bool,
    ) -> Result<Linear, ModelError> {
        let weight = self.dense_weight(&format!("{path}.weight"), out, inputs)?;
        let name = format!("{path}.bias");
        let bias = match self.source.info(&name) {
            Some(_) => Some(self.vector(&name, out)?),
            None if bias => return Err(ModelError::MissingTensor { tensor: name }),
            None => None,
        };
        Ok(Linear::Dense { weight, bias })
    }

    fn dense_weight(
        &self,
        tensor: &str,
        rows: usize,
        cols: usize,
    ) -> Result<DenseWeight, ModelError> {
        self.check_shape(tensor, &[rows, cols])?;
        let info = self.require(tensor)?;
        let dtype = match info.dtype {
            TensorType::Plain(dtype) => plain(dtype),
            TensorType::Block(_) => None,
        };
        if let (Some(dtype), Ok(raw)) = (dtype, self.source.raw(tensor)) {
            let bytes = raw.offset..raw.offset + raw.len;
            if let Some(weight) = DenseWeight::mapped(&raw.map, bytes, dtype, rows, cols) {
                return Ok(weight);
            }
        }
        Ok(DenseWeight::from_f32(self.source.read_f32(tensor)?, rows, cols))
    }

    /// A norm's weight; Gemma stores what is added to 1.
    fn norm(&self, path: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let mut weight = self.vector(&format!("{path}.weight"), len)?;
        if self.config.family == Family::Gemma3 {
            weight.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(weight)
    }

    fn vector(&self, tensor: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        self.check_shape(tensor, &[len])?;
        Ok(self.source.read_f32(tensor)?)
    }

    fn check_shape(&self, tensor: &str, expected: &[usize]) -> Result<(), ModelError> {
        let found = &self.require(tensor)?.shape;
        if found == expected {
            return Ok(());
        }
        let (tensor, found) = (tensor.to_owned(), found.clone());
        Err(ModelError::Shape { tensor, found, expected: expected.to_vec() })
    }

    fn require(&self, tensor: &str) -> Result<&trelliq_format::TensorInfo, ModelError> {
        let missing = || ModelError::MissingTensor { tensor: tensor.to_owned() };
        self.source.info(tensor).ok_or_else(missing)
    }
}

fn plain(dtype: trelliq_format::Dtype) -> Option<Dtype> {
    match dtype {
        trelliq_format::Dtype::F32 => Some(Dtype::F32),
        trelliq_format::Dtype::F16 => Some(Dtype::F16),
        trelliq_format::Dtype::BF16 => Some(Dtype::Bf16),
        _ => None,
    }
}
