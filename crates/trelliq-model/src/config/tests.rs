use super::*;
use serde_json::json;

fn read(json: Value) -> Result<ModelConfig, ConfigError> {
    ModelConfig::from_json(&json)
}

fn llama() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096,
        "intermediate_size": 11008, "num_hidden_layers": 2, "num_attention_heads": 32,
    })
}

fn with(mut json: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        json[key] = value.clone();
    }
    json
}

#[test]
fn absent_keys_have_the_defaults_of_the_family() {
    let config = read(llama()).unwrap();
    assert_eq!((config.num_kv_heads, config.head_dim, config.rms_norm_eps), (32, 128, 1e-6));
    assert_eq!(config.layers[1].rope, Rope { theta: 10000.0, scaling: RopeScaling::None });
    assert_eq!(config.layers[1].window, None);
    assert!(!config.tie_word_embeddings && !config.qkv_bias);
}

/// The `text_config` that google/gemma-3-4b-it publishes, which leaves out what equals a default.
#[test]
fn a_multimodal_gemma_3_is_read_from_its_text_config() {
    let config = read(json!({
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "torch_dtype": "bfloat16", "vision_config": {"hidden_size": 1152},
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
            "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
    }))
    .unwrap();
    assert_eq!((config.num_heads, config.num_kv_heads, config.head_dim), (8, 4, 256));
    assert_eq!((config.vocab_size, config.tie_word_embeddings), (262_208, true));
    assert_eq!(config.attention_scale, 1.0 / 16.0);
    // sqrt(2560) = 50.596, rounded to bfloat16.
    assert_eq!(config.embedding_scale, 50.5);
    let global: Vec<usize> = (0..34).filter(|i| config.layers[*i].window.is_none()).collect();
    assert_eq!(global, [5, 11, 17, 23, 29]);
    assert_eq!(config.layers[0].window, Some(1024));
    assert_eq!(config.layers[0].rope, Rope { theta: 1e4, scaling: RopeScaling::None });
    let scaled = Rope { theta: 1e6, scaling: RopeScaling::Linear { factor: 8.0 } };
    assert_eq!(config.layers[5].rope, scaled);
}

#[test]
fn rope_of_the_fifth_layout_equals_that_of_the_fourth() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    });
    let old = with(llama(), json!({"rope_theta": 5e5, "rope_scaling": scaling}));
    let new = with(llama(), json!({"rope_parameters": with(scaling, json!({"rope_theta": 5e5}))}));
    assert_eq!(read(old).unwrap(), read(new).unwrap());
    let older = json!({"rope_scaling": {"type": "linear", "factor": 2.0}});
    let rope = read(with(llama(), older)).unwrap().layers[0].rope;
    assert_eq!(rope.scaling, RopeScaling::Linear { factor: 2.0 });
}

/// Frequencies of Llama 3.1 (head_dim 128, theta 5e5), which transformers' `_compute_llama3_parameters`
/// gives: the first are kept, the last divided by 8.
#[test]
fn llama_3_frequencies() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_positions: 8192.0,
    };
    let scaled = Rope { theta: 5e5, scaling }.inverse_frequencies(128);
    let plain = Rope::plain(5e5).inverse_frequencies(128);
    assert_eq!(scaled.len(), 64);
    // Wavelengths under 8192 / 4 are kept: 2 pi / f < 2048, f > 0.003068.
    let kept = plain.iter().filter(|f| **f > 0.003_068).count();
    assert!(scaled[..kept].iter().zip(&plain).all(|(a, b)| a == b));
    // Those above 8192 are stretched: f < 0.000767.
    let stretched = plain.iter().filter(|f| **f < 0.000_766_9).count();
    assert!((64 - stretched..64).all(|i| (scaled[i] * 8.0 / plain[i] - 1.0).abs() < 1e-6));
    assert!(kept + stretched < 64, "some are blended");
    let i = kept;
    let wavelength = std::f64::consts::TAU / f64::from(plain[i]);
    let smooth = (8192.0 / wavelength - 1.0) / 3.0;
    let blended = (1.0 - smooth) * f64::from(plain[i]) / 8.0 + smooth * f64::from(plain[i]);
    assert!((f64::from(scaled[i]) / blended - 1.0).abs() < 1e-6);
}

#[test]
fn mistral_and_qwen_windows() {
    let mistral = with(llama(), json!({"model_type": "mistral", "num_key_value_heads": 8}));
    assert_eq!(read(mistral.clone()).unwrap().layers[0].window, Some(4096));
    let null = with(mistral, json!({"sliding_window": null}));
    assert_eq!(read(null).unwrap().layers[0].window, None);
    let qwen = json!({
        "model_type": "qwen2", "num_key_value_heads": 4, "sliding_window": 16,
        "max_window_layers": 1,
    });
    let off = read(with(llama(), qwen.clone())).unwrap();
    assert!(off.qkv_bias && !off.output_bias && off.layers[1].window.is_none());
    let on = read(with(with(llama(), qwen), json!({"use_sliding_window": true}))).unwrap();
    assert_eq!([on.layers[0].window, on.layers[1].window], [None, Some(16)]);
}

#[test]
fn errors_name_the_key() {
    let cases = [
        (json!({"hidden_size": null}), "`hidden_size` is missing"),
        (json!({"hidden_size": -4}), "`hidden_size` is -4"),
        (json!({"num_attention_heads": 0}), "`num_attention_heads` is 0"),
        (json!({"num_attention_heads": 7}), "`num_attention_heads` is 7"),
        (json!({"num_key_value_heads": 5}), "`num_key_value_heads` is 5"),
        (json!({"head_dim": 3}), "`head_dim` is 3"),
        (json!({"rms_norm_eps": "x"}), "`rms_norm_eps` is \"x\""),
        (json!({"hidden_act": "relu"}), "`hidden_act` = \"relu\" is not supported"),
        (json!({"rope_scaling": {"type": "yarn"}}), "`rope_scaling.rope_type` = \"yarn\""),
        (json!({"rope_scaling": {"type": "linear"}}), "`rope_scaling.factor` is missing"),
        (json!({"rope_parameters": {"rope_theta": 0}}), "`rope_parameters.rope_theta` is 0"),
        (json!({"rope_parameters": 3}), "`rope_parameters` is 3"),
        (json!({"layer_types": ["full_attention"]}), "`layer_types`"),
        (json!({"layer_types": ["full_attention", "linear"]}), "`layer_types` = \"linear\""),
        (json!({"partial_rotary_factor": 0.5}), "`partial_rotary_factor` = 0.5"),
        (json!({"final_logit_softcapping": 30.0}), "`final_logit_softcapping` = 30.0"),
        (json!({"model_type": "mamba"}), "\"mamba\" is not supported"),
        (json!({"model_type": null}), "`model_type` is missing"),
    ];
    for (change, expected) in cases {
        let error = read(with(llama(), change)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!(read(json!([1])).unwrap_err(), ConfigError::NotAnObject);
}
