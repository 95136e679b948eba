//! GGUF tensor names to Hugging Face names (gguf-py's `tensor_mapping.py`, read backwards).

use super::metadata::Architecture;

/// What becomes of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Mapped {
    /// Its name in the model.
    Name(String),
    /// It is not a weight of the model: it states the rotary factors, which go into the config.
    RopeFactors,
    /// No tensor of the architecture has this name.
    Unknown,
}

pub(crate) fn map(architecture: Architecture, name: &str) -> Mapped {
    match name {
        "rope_freqs.weight" => return Mapped::RopeFactors,
        "token_embd.weight" => return Mapped::Name("model.embed_tokens.weight".to_owned()),
        "output_norm.weight" => return Mapped::Name("model.norm.weight".to_owned()),
        "output.weight" => return Mapped::Name("lm_head.weight".to_owned()),
        _ => {}
    }
    let mapped = (|| {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        // A number as it would be written back, so that no two names meet in one.
        let canonical = layer.parse::<u32>().ok()?.to_string();
        let (module, part) = rest.rsplit_once('.')?;
        let legal = canonical == layer && matches!(part, "weight" | "bias");
        let module = legal.then(|| module_name(architecture, module)).flatten()?;
        Some(Mapped::Name(format!("model.layers.{layer}.{module}.{part}")))
    })();
    mapped.unwrap_or(Mapped::Unknown)
}

fn module_name(architecture: Architecture, module: &str) -> Option<&'static str> {
    let gemma = architecture == Architecture::Gemma3;
    let head_norms = gemma || architecture == Architecture::Qwen3;
    Some(match module {
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" if head_norms => "self_attn.q_norm",
        "attn_k_norm" if head_norms => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "attn_norm" => "input_layernorm",
        "ffn_norm" if gemma => "pre_feedforward_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        "post_attention_norm" if gemma => "post_attention_layernorm",
        "post_ffw_norm" if gemma => "post_feedforward_layernorm",
        _ => return None,
    })
}
