//! A generated Qwen3-shaped model through every command: q/k norms, a head dimension that is not
//! hidden / heads, a head of its own.

mod common;

use common::{contents, held_out, json, quantize_args, succeed, tiny};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

const HIDDEN: usize = 128;
const FEED_FORWARD: usize = 192;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const LAYERS: usize = 2;
/// That of the tiny model's tokenizer, which this model borrows.
const VOCAB: usize = 2048;

/// Names and shapes of all tensors.
fn shapes() -> Vec<(String, Vec<usize>)> {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("model.norm.weight".to_owned(), vec![HIDDEN]),
        ("lm_head.weight".to_owned(), vec![VOCAB, HIDDEN]),
    ];
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    for layer in 0..LAYERS {
        for (name, shape) in [
            ("self_attn.q_proj", vec![q, HIDDEN]),
            ("self_attn.k_proj", vec![kv, HIDDEN]),
            ("self_attn.v_proj", vec![kv, HIDDEN]),
            ("self_attn.o_proj", vec![HIDDEN, q]),
            ("self_attn.q_norm", vec![HEAD_DIM]),
            ("self_attn.k_norm", vec![HEAD_DIM]),
            ("mlp.gate_proj", vec![FEED_FORWARD, HIDDEN]),
            ("mlp.up_proj", vec![FEED_FORWARD, HIDDEN]),
            ("mlp.down_proj", vec![HIDDEN, FEED_FORWARD]),
            ("input_layernorm", vec![HIDDEN]),
            ("post_attention_layernorm", vec![HIDDEN]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape));
        }
    }
    shapes
}

/// Uniform noise of unit variance, times `scale`: splitmix64 from `seed`.
fn noise(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let unit = (z ^ (z >> 31)) as f64 / u64::MAX as f64 - 0.5;
            (unit * 12f64.sqrt()) as f32 * scale
        })
        .collect()
}

fn write_model(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    for (name, bytes) in contents(&tiny()) {
        if name.contains("token") || name.contains("generation") {
            fs::write(directory.join(name), bytes).unwrap();
        }
    }
    let config = serde_json::json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu",
        "hidden_size": HIDDEN, "intermediate_size": FEED_FORWARD, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 1024,
        "vocab_size": VOCAB, "tie_word_embeddings": false, "attention_bias": false,
        "use_sliding_window": false, "torch_dtype": "float32",
    });
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes()
        .into_iter()
        .enumerate()
        .map(|(seed, (name, shape))| {
            let fan_in = *shape.last().unwrap() as f32;
            let len = shape.iter().product();
            let values: Vec<f32> = match shape.len() {
                1 => noise(seed as u64, len, 0.2).iter().map(|x| 1.0 + x).collect(),
                _ => noise(seed as u64, len, 1.0 / fan_in.sqrt()),
            };
            (name, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &directory.join("model.safetensors")).unwrap();
}

#[test]
fn a_qwen3_model_is_quantized_evaluated_and_chats() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("qwen3");
    write_model(&model);
    let [source, text] = [&model, &held_out()].map(|path| path.display().to_string());
    let kl = |bits: u32| {
        let out = folder.path().join(format!("packed-{bits}"));
        let options = format!("--bits {bits} --head-bits {bits} --state-bits 8");
        succeed(quantize_args(&model, &out, &options));
        let out = out.display().to_string();
        let report = json([
            "eval",
            &out,
            "--reference",
            &source,
            "--text",
            &text,
            "--windows",
            "2",
            "--window",
            "128",
            "--json",
        ]);
        let answer = succeed(["run", &out, "Who is there?", "--seed", "1", "--max-tokens", "12"]);
        assert!(!answer.trim().is_empty());
        report["kl_mean"].as_f64().unwrap()
    };
    let (two, four, six) = (kl(2), kl(4), kl(6));
    // Each further bit divides the squared error by almost 4, and the divergence goes with it.
    assert!(four < 0.3 * two && six < 0.3 * four, "{two} {four} {six}");
}
