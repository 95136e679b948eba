//! A Hugging Face `config.json` from a GGUF file's metadata.

use super::header::GgufValue;
use super::metadata::{Architecture, Metadata};
use super::rope;
use crate::{Dtype, FormatError, TensorType};
use serde_json::{Map, Value, json};

/// Blocks of the largest Gemma 3, the only one whose attention is not scaled by its head size.
const GEMMA3_27B_BLOCKS: usize = 62;
/// Gemma 3 has one global layer in six.
const GEMMA3_PATTERN: usize = 6;
const GEMMA3_LOCAL_THETA: f64 = 10_000.0;
const DEFAULT_THETA: f64 = 10_000.0;

/// Sizes that also decide how tensors are laid out.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Heads {
    pub query: usize,
    pub key_value: usize,
}

pub(crate) fn heads(metadata: &Metadata, prefix: &str) -> Result<Heads, FormatError> {
    let query = required(metadata, &format!("{prefix}.attention.head_count"))?;
    let key = format!("{prefix}.attention.head_count_kv");
    let key_value = metadata.size(&key)?.unwrap_or(query);
    if key_value == 0 || !query.is_multiple_of(key_value) {
        let reason = format!("{key_value} heads do not divide {query} query heads");
        return Err(metadata.error(&key, reason));
    }
    Ok(Heads { query, key_value })
}

/// Builds the configuration. `rope_factors`: values of the tensor of that name, where there is one.
pub(crate) fn synthesise(
    metadata: &Metadata,
    architecture: Architecture,
    rope_factors: Option<&[f32]>,
) -> Result<Value, FormatError> {
    let prefix = architecture.name();
    let key = |name: &str| format!("{prefix}.{name}");
    let Heads { query, key_value } = heads(metadata, prefix)?;
    let hidden = required(metadata, &key("embedding_length"))?;
    let head_dim = metadata.size(&key("attention.key_length"))?.unwrap_or(hidden / query);
    let theta = metadata.float(&key("rope.freq_base"))?.unwrap_or(DEFAULT_THETA);
    let eps_key = key("attention.layer_norm_rms_epsilon");
    let eps = metadata.required(&eps_key, metadata.float(&eps_key)?)?;
    let mut config = Map::new();
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("architectures", json!([class_name(architecture)]));
    set("model_type", model_type(architecture).into());
    set("hidden_size", hidden.into());
    set("intermediate_size", required(metadata, &key("feed_forward_length"))?.into());
    set("num_hidden_layers", required(metadata, &key("block_count"))?.into());
    set("num_attention_heads", query.into());
    set("num_key_value_heads", key_value.into());
    set("head_dim", head_dim.into());
    set("rms_norm_eps", eps.into());
    set("rope_theta", theta.into());
    set("rope_scaling", rope::scaling(metadata, prefix, theta, rope_factors)?);
    set("max_position_embeddings", required(metadata, &key("context_length"))?.into());
    set("vocab_size", vocab_size(metadata)?.into());
    set("tie_word_embeddings", (!has_tensor(metadata, "output.weight")).into());
    set("attention_bias", has_tensor(metadata, "blk.0.attn_q.bias").into());
    set("hidden_act", "silu".into());
    set("torch_dtype", torch_dtype(metadata).into());
    for (name, token) in
        [("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding")]
    {
        let id = metadata.size(&format!("tokenizer.ggml.{token}_token_id"))?;
        set(name, id.map_or(Value::Null, Value::from));
    }
    match architecture {
        Architecture::Gemma3 => gemma3(metadata, &mut config, hidden, query, head_dim)?,
        _ => {
            let window = metadata.size(&key("attention.sliding_window"))?;
            config.insert("sliding_window".to_owned(), window.map_or(Value::Null, Value::from));
        }
    }
    Ok(Value::Object(config))
}

fn gemma3(
    metadata: &Metadata,
    config: &mut Map<String, Value>,
    hidden: usize,
    heads: usize,
    head_dim: usize,
) -> Result<(), FormatError> {
    let layers = required(metadata, "gemma3.block_count")?;
    let window = required(metadata, "gemma3.attention.sliding_window")?;
    let local = metadata.float("gemma3.rope.freq_base_swa")?.unwrap_or(GEMMA3_LOCAL_THETA);
    // llama.cpp tells the 27B model by its number of blocks, for want of a key.
    let scalar = if layers == GEMMA3_27B_BLOCKS { hidden / heads } else { head_dim };
    let types: Vec<&str> = gemma3_sliding(metadata, layers)?
        .into_iter()
        .map(|sliding| if sliding { "sliding_attention" } else { "full_attention" })
        .collect();
    let mut set = |name: &str, value: Value| config.insert(name.to_owned(), value);
    set("hidden_act", "gelu_pytorch_tanh".into());
    set("hidden_activation", "gelu_pytorch_tanh".into());
    set("query_pre_attn_scalar", scalar.into());
    set("rope_local_base_freq", local.into());
    set("sliding_window", window.into());
    set("layer_types", types.into());
    let softcap = metadata.float("gemma3.final_logit_softcapping")?;
    set("final_logit_softcapping", softcap.map_or(Value::Null, Value::from));
    set("attn_logit_softcapping", Value::Null);
    Ok(())
}

/// Which layers see a window only: by newer files' pattern, a period or one bool a layer.
fn gemma3_sliding(metadata: &Metadata, layers: usize) -> Result<Vec<bool>, FormatError> {
    const KEY: &str = "gemma3.attention.sliding_window_pattern";
    // Every layer has tensors, so a larger number is not true, and must not be allocated for.
    if layers > metadata.header.tensors.len() {
        let reason = format!("{layers} blocks in {} tensors", metadata.header.tensors.len());
        return Err(metadata.error("gemma3.block_count", reason));
    }
    if let Some(GgufValue::Array(_)) = metadata.header.metadata.get(KEY) {
        let flag = |value| match value {
            GgufValue::Bool(flag) => Some(flag),
            _ => None,
        };
        let flags = metadata.items(KEY, "a bool", flag)?.unwrap_or_default();
        return match flags.len() == layers {
            true => Ok(flags),
            false => Err(metadata.error(KEY, format!("{} items for {layers} blocks", flags.len()))),
        };
    }
    let period = metadata.size(KEY)?.unwrap_or(GEMMA3_PATTERN);
    match period {
        0 => Err(metadata.error(KEY, "a period of 0")),
        period => Ok((1..=layers).map(|layer| !layer.is_multiple_of(period)).collect()),
    }
}

fn required(metadata: &Metadata, key: &str) -> Result<usize, FormatError> {
    match metadata.required(key, metadata.size(key)?)? {
        0 => Err(metadata.error(key, "it is 0")),
        size => Ok(size),
    }
}

fn has_tensor(metadata: &Metadata, name: &str) -> bool {
    metadata.header.tensors.iter().any(|tensor| tensor.name == name)
}

/// Rows of the embedding: `vocab_size` in the metadata may count the tokens without their padding.
fn vocab_size(metadata: &Metadata) -> Result<usize, FormatError> {
    const NAME: &str = "token_embd.weight";
    let embedding = metadata.header.tensors.iter().find(|tensor| tensor.name == NAME);
    match embedding.map(|tensor| &tensor.shape[..]) {
        Some(&[rows, _]) => Ok(rows),
        Some(shape) => {
            let reason = format!("an embedding has two dimensions, not {shape:?}");
            Err(FormatError::tensor(metadata.file, NAME, reason))
        }
        None => Err(FormatError::MissingTensor {
            tensor: NAME.to_owned(),
            file: metadata.file.to_owned(),
        }),
    }
}

/// The dtype of the matrices; blocks count as what they are dequantized to.
fn torch_dtype(metadata: &Metadata) -> &'static str {
    let matrix = metadata.header.tensors.iter().find(|tensor| tensor.shape.len() == 2);
    match matrix.map(|tensor| tensor.dtype) {
        Some(TensorType::Plain(Dtype::F32)) => "float32",
        Some(TensorType::Plain(Dtype::BF16)) => "bfloat16",
        _ => "float16",
    }
}

fn model_type(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Gemma3 => "gemma3_text",
        other => other.name(),
    }
}

fn class_name(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Llama => "LlamaForCausalLM",
        Architecture::Qwen2 => "Qwen2ForCausalLM",
        Architecture::Qwen3 => "Qwen3ForCausalLM",
        Architecture::Gemma3 => "Gemma3ForCausalLM",
    }
}
