//! GGUF files as Hugging Face models: names, configuration, and what the converter did undone.

mod common;

use common::{F32, Gguf, Random, f32s, tiny, with_embedding};
use serde_json::json;
use trelliq_format::{FormatError, ModelSource};

fn open(gguf: &Gguf) -> Result<ModelSource, FormatError> {
    ModelSource::from_gguf_bytes(&gguf.build())
}

fn base(architecture: &str) -> Gguf {
    with_embedding(tiny(architecture), 5)
}

/// llama.cpp's `permute`: `reshape(heads, 2, rows / heads / 2, cols).swapaxes(1, 2)`.
fn permute(weights: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (cols, half) = (weights.len() / rows, rows / heads / 2);
    let mut out = Vec::new();
    for head in 0..heads {
        for pair in 0..half {
            for side in 0..2 {
                let row = (head * 2 + side) * half + pair;
                out.extend_from_slice(&weights[row * cols..(row + 1) * cols]);
            }
        }
    }
    out
}

#[test]
fn rows_of_q_and_k_come_back_in_their_order() {
    let (q, k) = (Random(5).values(64), Random(6).values(32));
    let bias: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let with = |architecture: &str| {
        base(architecture)
            .tensor("blk.0.attn_q.weight", &[8, 8], F32, f32s(&permute(&q, 2, 8)))
            .tensor("blk.0.attn_k.weight", &[4, 8], F32, f32s(&permute(&k, 1, 4)))
            .tensor("blk.0.attn_v.weight", &[4, 8], F32, f32s(&k))
            .tensor("blk.0.attn_q.bias", &[8], F32, f32s(&permute(&bias, 2, 8)))
    };
    let attention = |name: &str| format!("model.layers.0.self_attn.{name}");
    let llama = open(&with("llama")).unwrap();
    assert_eq!(llama.read_f32(&attention("q_proj.weight")).unwrap(), q);
    assert_eq!(llama.read_f32(&attention("k_proj.weight")).unwrap(), k);
    assert_eq!(llama.read_f32(&attention("v_proj.weight")).unwrap(), k);
    assert_eq!(llama.read_f32(&attention("q_proj.bias")).unwrap(), bias);
    assert_eq!(llama.config()["attention_bias"], true);
    let mut rows = vec![0.0; 24];
    llama.read_rows_f32(&attention("q_proj.weight"), 2..5, &mut rows).unwrap();
    assert_eq!(rows, q[16..40]);
    let (_, bytes) = llama.dense_bytes(&attention("q_proj.weight")).unwrap();
    assert_eq!(bytes, f32s(&q));
    assert!(matches!(llama.raw(&attention("q_proj.weight")), Err(FormatError::Dtype { .. })));
    assert!(llama.raw(&attention("v_proj.weight")).is_ok());
    let qwen = open(&with("qwen2")).unwrap();
    assert_eq!(qwen.read_f32(&attention("q_proj.weight")).unwrap(), permute(&q, 2, 8));
}

#[test]
fn norms_of_gemma_lose_the_one_that_was_added() {
    let values = [-0.5, 0.0, 0.25, 1.0, 2.0, 3.0, -1.0, 10.0];
    let stored: Vec<f32> = values.iter().map(|v| v + 1.0).collect();
    let gguf = base("gemma3")
        .u32("gemma3.attention.sliding_window", 512)
        .tensor("output_norm.weight", &[8], F32, f32s(&stored))
        .tensor("blk.0.attn_q_norm.weight", &[8], F32, f32s(&stored))
        .tensor("blk.0.ffn_norm.weight", &[8], F32, f32s(&stored))
        .tensor("blk.0.post_attention_norm.weight", &[8], F32, f32s(&stored))
        .tensor("blk.0.post_ffw_norm.weight", &[8], F32, f32s(&stored))
        .tensor("blk.0.ffn_up.weight", &[1, 8], F32, f32s(&stored));
    let source = open(&gguf).unwrap();
    for name in [
        "model.norm.weight",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.pre_feedforward_layernorm.weight",
        "model.layers.0.post_attention_layernorm.weight",
        "model.layers.0.post_feedforward_layernorm.weight",
    ] {
        assert_eq!(source.read_f32(name).unwrap(), values, "{name}");
        assert_eq!(source.dense_bytes(name).unwrap().1, f32s(&values));
    }
    assert_eq!(source.read_f32("model.layers.0.mlp.up_proj.weight").unwrap(), stored);
    let llama = base("llama").tensor("output_norm.weight", &[8], F32, f32s(&stored));
    assert_eq!(open(&llama).unwrap().read_f32("model.norm.weight").unwrap(), stored);
}

#[test]
fn names_are_those_of_hugging_face() {
    let names = |architecture: &str, parts: &[&str]| {
        let mut gguf =
            base(architecture).u32(&format!("{architecture}.attention.sliding_window"), 4);
        for part in parts {
            gguf = gguf.tensor(&format!("blk.12.{part}.weight"), &[8], F32, vec![0; 32]);
        }
        let source = open(&gguf).unwrap();
        let name = |name: &str| Some(name.strip_prefix("model.layers.12.")?.to_owned());
        source.tensors().filter_map(|info| name(&info.name)).collect::<Vec<_>>()
    };
    let parts = ["attn_norm", "attn_output", "ffn_gate", "ffn_down", "ffn_norm"];
    let expected = [
        "input_layernorm.weight",
        "self_attn.o_proj.weight",
        "mlp.gate_proj.weight",
        "mlp.down_proj.weight",
        "post_attention_layernorm.weight",
    ];
    assert_eq!(names("llama", &parts), expected);
    assert_eq!(names("qwen2", &parts), expected);
    let norms = ["attn_q_norm", "attn_k_norm"];
    let expected = ["self_attn.q_norm.weight", "self_attn.k_norm.weight"];
    assert_eq!(names("qwen3", &norms), expected);
    assert_eq!(names("gemma3", &norms), expected);
}

#[test]
fn what_has_no_place_in_a_model_is_refused_by_name() {
    let unmapped = |architecture: &str, name: &str| {
        let gguf = base(architecture).tensor(name, &[8], F32, vec![0; 32]);
        let error = open(&gguf).unwrap_err();
        let named = matches!(&error, FormatError::UnmappedTensor { tensor, .. } if tensor == name);
        assert!(named, "{name}: {error}");
    };
    unmapped("llama", "blk.0.attn_q_norm.weight");
    unmapped("llama", "blk.0.ffn_gate_exps.weight");
    unmapped("llama", "blk.0.attn_q.scale");
    unmapped("llama", "blk.x.attn_q.weight");
    unmapped("llama", "blk.00.attn_v.weight");
    unmapped("qwen3", "blk.0.post_ffw_norm.weight");
    unmapped("qwen2", "other.weight");
    let error = open(&base("llama").text("general.architecture", "mamba")).unwrap_err();
    let named =
        matches!(&error, FormatError::Architecture { architecture, .. } if architecture == "mamba");
    assert!(named, "{error}");
    for key in ["general.architecture", "llama.block_count", "llama.attention.head_count"] {
        let mut gguf = base("llama");
        gguf.metadata.retain(|(known, ..)| known != key);
        let error = open(&gguf).unwrap_err();
        assert!(
            matches!(&error, FormatError::MissingMetadata { key: k, .. } if k == key),
            "{error}"
        );
    }
    for (key, value) in [("llama.attention.head_count_kv", 0), ("llama.embedding_length", 0)] {
        let error = open(&base("llama").u32(key, value)).unwrap_err();
        assert!(matches!(&error, FormatError::Metadata { key: k, .. } if k == key), "{error}");
    }
    let error = open(&base("llama").text("llama.block_count", "two")).unwrap_err();
    assert!(matches!(&error, FormatError::Metadata { .. }), "{error}");
    let odd = base("llama").tensor("blk.0.attn_q.weight", &[6, 8], F32, vec![0; 192]);
    assert!(matches!(open(&odd), Err(FormatError::TensorHeader { .. })));
    assert!(matches!(open(&tiny("llama")), Err(FormatError::MissingTensor { .. })));
}

#[test]
fn a_llama_config_says_what_the_metadata_says() {
    let gguf = base("llama")
        .u32("tokenizer.ggml.bos_token_id", 3)
        .u32("llama.vocab_size", 4)
        .u32("llama.attention.sliding_window", 64);
    let config = open(&gguf).unwrap().config().clone();
    let expected = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "rope_scaling": null,
        "max_position_embeddings": 128, "vocab_size": 5, "tie_word_embeddings": true,
        "attention_bias": false, "hidden_act": "silu", "torch_dtype": "float32",
        "bos_token_id": 3, "eos_token_id": null, "pad_token_id": null, "sliding_window": 64,
    });
    assert_eq!(config, expected);
    let untied = base("qwen3").u32("qwen3.attention.key_length", 6).tensor(
        "output.weight",
        &[5, 8],
        F32,
        vec![0; 160],
    );
    let config = open(&untied).unwrap().config().clone();
    assert_eq!((&config["tie_word_embeddings"], &config["head_dim"]), (&json!(false), &json!(6)));
    assert_eq!(config["architectures"], json!(["Qwen3ForCausalLM"]));
}

#[test]
fn a_gemma_config_names_its_layers() {
    let gemma = |layers: u32| {
        let mut gguf = base("gemma3")
            .u32("gemma3.block_count", layers)
            .u32("gemma3.attention.sliding_window", 512);
        for layer in 0..layers {
            let name = format!("blk.{layer}.attn_v.weight");
            gguf = gguf.tensor(&name, &[4, 8], F32, vec![0; 128]);
        }
        gguf
    };
    let types = |gguf: &Gguf| open(gguf).unwrap().config()["layer_types"].clone();
    let (sliding, full) = ("sliding_attention", "full_attention");
    let seven = [sliding, sliding, sliding, sliding, sliding, full, sliding];
    assert_eq!(types(&gemma(7)), json!(seven));
    let period = gemma(4).u32("gemma3.attention.sliding_window_pattern", 2);
    assert_eq!(types(&period), json!([sliding, full, sliding, full]));
    let bools = vec![vec![1], vec![0], vec![0]];
    let listed = gemma(3).array("gemma3.attention.sliding_window_pattern", 7, bools.clone());
    assert_eq!(types(&listed), json!([sliding, full, full]));
    let listed = gemma(4).array("gemma3.attention.sliding_window_pattern", 7, bools);
    assert!(matches!(open(&listed), Err(FormatError::Metadata { .. })));
    let config = open(&gemma(1)).unwrap().config().clone();
    assert_eq!(config["model_type"], "gemma3_text");
    assert_eq!(config["hidden_activation"], "gelu_pytorch_tanh");
    assert_eq!(
        (&config["query_pre_attn_scalar"], &config["sliding_window"]),
        (&json!(4), &json!(512))
    );
    assert_eq!(config["rope_local_base_freq"], 10_000.0);
    // The 27B model scales by hidden / heads, whatever its head size is.
    let largest = gemma(62).u32("gemma3.attention.key_length", 6);
    assert_eq!(open(&largest).unwrap().config()["query_pre_attn_scalar"], 4);
    let lying = gemma(2).u32("gemma3.block_count", u32::MAX);
    assert!(matches!(open(&lying), Err(FormatError::Metadata { .. })));
}

/// The factors that llama.cpp's converter stores for a Llama 3.1 or later (`rope_freqs.weight`).
fn llama3_factors(head_dim: usize, theta: f64, factor: f64) -> Vec<f32> {
    let (low, high, context) = (1.0, 4.0, 8192.0);
    let frequencies =
        (0..head_dim).step_by(2).map(|i| 1.0 / theta.powf(i as f64 / head_dim as f64));
    let scaled = frequencies.map(|frequency| {
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        if wavelength < context / high {
            1.0
        } else if wavelength > context / low {
            factor
        } else {
            let smooth = (context / wavelength - low) / (high - low);
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    });
    scaled.map(|factor| factor as f32).collect()
}

#[test]
fn the_rope_scaling_of_llama_3_is_found_from_its_factors() {
    let with = |factors: &[f32]| {
        let len = factors.len() as u64;
        base("llama").tensor("rope_freqs.weight", &[len], F32, f32s(factors))
    };
    for factor in [8.0, 32.0] {
        let source = open(&with(&llama3_factors(128, 500_000.0, factor))).unwrap();
        let expected = json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        });
        assert_eq!(source.config()["rope_scaling"], expected);
        assert_eq!(source.tensors().len(), 1, "the factors are no weight of the model");
    }
    assert_eq!(open(&with(&[1.0; 64])).unwrap().config()["rope_scaling"], json!(null));
    let mut wrong = llama3_factors(128, 500_000.0, 8.0);
    wrong[0] = 1.5;
    let error = open(&with(&wrong)).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight") && error.contains("factor 0"), "{error}");
    wrong[0] = f32::NAN;
    assert!(open(&with(&wrong)).is_err());
}

#[test]
fn other_rope_scalings_are_taken_over() {
    let scaling = |gguf: &Gguf| open(gguf).map(|source| source.config()["rope_scaling"].clone());
    let linear = base("llama").text("llama.rope.scaling.type", "linear");
    assert!(matches!(scaling(&linear), Err(FormatError::MissingMetadata { .. })));
    let linear = linear.f32("llama.rope.scaling.factor", 2.5);
    assert_eq!(scaling(&linear).unwrap(), json!({ "rope_type": "linear", "factor": 2.5 }));
    let old = base("llama").f32("llama.rope.scale_linear", 4.0);
    assert_eq!(scaling(&old).unwrap(), json!({ "rope_type": "linear", "factor": 4.0 }));
    let none = base("llama").text("llama.rope.scaling.type", "none");
    assert_eq!(scaling(&none).unwrap(), json!(null));
    let yarn = base("qwen2")
        .text("qwen2.rope.scaling.type", "yarn")
        .f32("qwen2.rope.scaling.factor", 4.0)
        .u32("qwen2.rope.scaling.original_context_length", 32);
    let expected =
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32 });
    assert_eq!(scaling(&yarn).unwrap(), expected);
    let other = base("llama").text("llama.rope.scaling.type", "longrope");
    assert!(scaling(&other).unwrap_err().to_string().contains("longrope"));
}
