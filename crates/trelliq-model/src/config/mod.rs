//! What a `config.json` says about a decoder: one description for every supported family.
//!
//! Both layouts are read: the classic one (`rope_theta`, `rope_scaling`, `rope_local_base_freq`,
//! `sliding_window_pattern`) and that of transformers 5 (`rope_parameters`, possibly one entry a
//! layer type, and `layer_types`). Defaults for absent keys are those of the family's
//! configuration class in transformers, since its files leave out what equals the default.

mod layers;
mod reader;
mod rope;

pub use reader::ConfigError;
pub use rope::{Rope, RopeScaling};

use half::{bf16, f16};
use reader::Reader;
use serde_json::Value;

/// A supported architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// Llama 1, 2, 3 and models of their shape, such as SmolLM2.
    Llama,
    Mistral,
    /// Qwen2 and Qwen2.5: biases on q, k and v.
    Qwen2,
    /// Qwen3: norms on the heads of q and k.
    Qwen3,
    /// The text model of Gemma 3.
    Gemma3,
}

impl Family {
    fn from_model_type(model_type: &str) -> Option<Self> {
        Some(match model_type {
            "llama" | "smollm2" => Family::Llama,
            "mistral" => Family::Mistral,
            "qwen2" => Family::Qwen2,
            "qwen3" => Family::Qwen3,
            "gemma3" | "gemma3_text" => Family::Gemma3,
            _ => return None,
        })
    }
}

/// The gate's nonlinearity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// The tanh approximation of GELU.
    GeluTanh,
}

/// The attention of one layer.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// How many positions a query sees, itself included; `None` for all before it.
    pub window: Option<usize>,
    /// Rotary embedding of this layer.
    pub rope: Rope,
}

/// A decoder as `config.json` describes it.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    pub family: Family,
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width between gate/up and down.
    pub intermediate_size: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    /// One entry a layer.
    pub layers: Vec<AttentionConfig>,
    pub rms_norm_eps: f32,
    pub activation: Activation,
    /// Factor of q . k before the softmax.
    pub attention_scale: f32,
    /// Factor of an embedding row: 1, or for Gemma sqrt(hidden_size).
    pub embedding_scale: f32,
    /// Whether the output head is the embedding.
    pub tie_word_embeddings: bool,
    /// Whether q, k and v must have biases.
    pub qkv_bias: bool,
    /// Whether the attention's output projection must have a bias.
    pub output_bias: bool,
    /// Whether gate, up and down must have biases.
    pub mlp_bias: bool,
    /// The length that the model was made for, where the file says so.
    pub max_positions: Option<usize>,
}

impl ModelConfig {
    /// Reads a parsed `config.json`; for a multimodal Gemma 3 its `text_config`.
    ///
    /// Errors name the key that is missing, odd or unsupported.
    pub fn from_json(json: &Value) -> Result<Self, ConfigError> {
        let root = Reader::new(json)?;
        let text = root.object("text_config")?;
        let reader = text.as_ref().unwrap_or(&root);
        let family = family(reader)?;
        refuse_unsupported(reader)?;
        let num_heads = reader.count_or("num_attention_heads", family.default_heads())?;
        let hidden_size = reader.count("hidden_size")?;
        let head_dim = head_dim(reader, family, hidden_size, num_heads)?;
        let num_kv_heads = kv_heads(reader, family, num_heads)?;
        Ok(Self {
            family,
            vocab_size: reader.count_or("vocab_size", family.default_vocab())?,
            hidden_size,
            intermediate_size: reader.count("intermediate_size")?,
            num_heads,
            num_kv_heads,
            head_dim,
            layers: layers::read(reader, family)?,
            rms_norm_eps: reader.positive_or("rms_norm_eps", 1e-6)? as f32,
            activation: activation(reader, family)?,
            attention_scale: attention_scale(reader, family, head_dim)?,
            embedding_scale: embedding_scale(&root, reader, family, hidden_size)?,
            tie_word_embeddings: tied(&root, reader, family)?,
            qkv_bias: family == Family::Qwen2 || reader.flag_or("attention_bias", false)?,
            output_bias: family != Family::Qwen2 && reader.flag_or("attention_bias", false)?,
            mlp_bias: family == Family::Llama && reader.flag_or("mlp_bias", false)?,
            max_positions: reader.optional_count("max_position_embeddings")?,
        })
    }

    /// Width of k and of v for one token.
    pub fn kv_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Width of q for one token.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }
}

impl Family {
    fn default_heads(self) -> Option<usize> {
        (self == Family::Gemma3).then_some(8)
    }

    fn default_vocab(self) -> Option<usize> {
        (self == Family::Gemma3).then_some(262_208)
    }
}

fn family(reader: &Reader) -> Result<Family, ConfigError> {
    let model_type = reader.text("model_type")?;
    Family::from_model_type(model_type)
        .ok_or_else(|| ConfigError::Architecture { found: model_type.to_owned() })
}

/// Keys that change the arithmetic in ways that the decoder does not implement.
fn refuse_unsupported(reader: &Reader) -> Result<(), ConfigError> {
    for key in ["attn_logit_softcapping", "final_logit_softcapping"] {
        if let Some(value) = reader.get(key) {
            return Err(reader.unsupported(key, value));
        }
    }
    if reader.flag_or("use_bidirectional_attention", false)? {
        return Err(reader.unsupported("use_bidirectional_attention", &Value::Bool(true)));
    }
    match reader.get("partial_rotary_factor") {
        Some(value) if value.as_f64() != Some(1.0) => {
            Err(reader.unsupported("partial_rotary_factor", value))
        }
        _ => Ok(()),
    }
}

fn head_dim(
    reader: &Reader,
    family: Family,
    hidden: usize,
    heads: usize,
) -> Result<usize, ConfigError> {
    let default = match family {
        Family::Qwen3 => 128,
        Family::Gemma3 => 256,
        _ if hidden.is_multiple_of(heads) => hidden / heads,
        _ => 0,
    };
    let head_dim = reader.optional_count("head_dim")?.unwrap_or(default);
    if head_dim == 0 {
        let expected = "a divisor of hidden_size when there is no head_dim";
        return Err(reader.invalid("num_attention_heads", expected));
    }
    if head_dim.is_multiple_of(2) {
        Ok(head_dim)
    } else {
        Err(reader.invalid("head_dim", "an even number"))
    }
}

fn kv_heads(reader: &Reader, family: Family, heads: usize) -> Result<usize, ConfigError> {
    let default = match family {
        Family::Llama => heads,
        Family::Mistral => 8,
        Family::Qwen2 | Family::Qwen3 => 32,
        Family::Gemma3 => 4,
    };
    let kv_heads = reader.optional_count("num_key_value_heads")?.unwrap_or(default);
    if heads.is_multiple_of(kv_heads) {
        Ok(kv_heads)
    } else {
        Err(reader.invalid("num_key_value_heads", "a divisor of num_attention_heads"))
    }
}

fn activation(reader: &Reader, family: Family) -> Result<Activation, ConfigError> {
    let (key, default) = match family {
        Family::Gemma3 => ("hidden_activation", Activation::GeluTanh),
        _ => ("hidden_act", Activation::Silu),
    };
    match reader.optional_text(key)? {
        None => Ok(default),
        Some("silu" | "swish") => Ok(Activation::Silu),
        Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
        Some(other) => Err(reader.unsupported(key, &Value::from(other))),
    }
}

fn attention_scale(reader: &Reader, family: Family, head_dim: usize) -> Result<f32, ConfigError> {
    let scalar = match family {
        Family::Gemma3 => reader.positive_or("query_pre_attn_scalar", 256.0)?,
        _ => head_dim as f64,
    };
    Ok(scalar.powf(-0.5) as f32)
}

/// Gemma multiplies embeddings by sqrt(hidden), which transformers rounds to the dtype that the
/// weights are loaded with. That is the config's dtype, and it is taken from there and not from
/// the tensor, so that a coded embedding is scaled as the dense one that it was made from.
fn embedding_scale(
    root: &Reader,
    reader: &Reader,
    family: Family,
    hidden: usize,
) -> Result<f32, ConfigError> {
    if family != Family::Gemma3 {
        return Ok(1.0);
    }
    let scale = (hidden as f64).sqrt() as f32;
    let mut dtype = None;
    for source in [reader, root] {
        for key in ["dtype", "torch_dtype"] {
            dtype = dtype.or(source.optional_text(key)?);
        }
    }
    Ok(match dtype {
        Some("bfloat16") => bf16::from_f32(scale).to_f32(),
        Some("float16") => f16::from_f32(scale).to_f32(),
        _ => scale,
    })
}

fn tied(root: &Reader, reader: &Reader, family: Family) -> Result<bool, ConfigError> {
    let default = family == Family::Gemma3;
    let outer = root.flag_or("tie_word_embeddings", default)?;
    reader.flag_or("tie_word_embeddings", outer)
}

#[cfg(test)]
mod tests;
