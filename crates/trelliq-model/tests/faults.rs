//! Models and steps that must be refused, by name.

mod common;

use common::{family, models};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use trelliq_format::ModelSource;
use trelliq_model::{LoadOptions, Logits, Model, ModelError, RuntimeOptions, SequenceStep};

fn load_with(
    name: &str,
    config: impl Fn(&mut Value),
    tensors: impl Fn(&mut BTreeMap<String, TensorView>),
) -> Result<Model, ModelError> {
    let from = models().join("random").join(name);
    let dir = tempfile::tempdir().unwrap();
    let mut json = read(&from.join("config.json"));
    config(&mut json);
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut map: BTreeMap<String, TensorView> = stored.tensors().into_iter().collect();
    tensors(&mut map);
    let bytes = safetensors::serialize(map, None).unwrap();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    let source = ModelSource::open_path(dir.path()).unwrap();
    Model::load(&source, &LoadOptions::default())
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn message(result: Result<Model, ModelError>) -> String {
    result.expect_err("must be refused").to_string()
}

#[test]
fn missing_tensors() {
    for (model, tensor) in [
        ("qwen2", "model.layers.1.self_attn.q_proj.bias"),
        ("qwen3", "model.layers.0.self_attn.k_norm.weight"),
        ("gemma3", "model.layers.3.pre_feedforward_layernorm.weight"),
        ("llama2", "lm_head.weight"),
        ("llama2", "model.norm.weight"),
        ("mistral", "model.layers.1.mlp.up_proj.weight"),
        ("llama3", "model.embed_tokens.weight"),
    ] {
        let result = load_with(model, |_| {}, |tensors| drop(tensors.remove(tensor)));
        assert_eq!(message(result), format!("tensor `{tensor}` is missing"));
    }
}

#[test]
fn shapes_that_disagree_with_the_config() {
    let found = message(load_with("qwen2", |c| c["intermediate_size"] = json!(100), |_| {}));
    let tensor = "model.layers.0.mlp.gate_proj.weight";
    assert_eq!(
        found,
        format!("tensor `{tensor}` has shape [96, 64], the config makes it [100, 64]")
    );
    let found = message(load_with("qwen2", |c| c["num_key_value_heads"] = json!(4), |_| {}));
    assert!(found.contains("k_proj"), "{found}");
    let found = message(load_with("llama2", |c| c["vocab_size"] = json!(127), |_| {}));
    assert!(found.contains("[128, 64], the config makes it [127, 64]"), "{found}");
}

#[test]
fn odd_steps_are_refused_and_change_nothing() {
    let (_dir, model) = family("llama2", "config.json");
    let (_other_dir, other) = family("gemma3", "config.json");
    let options = RuntimeOptions::default();
    let mut cache = model.new_cache();
    let mut run = |tokens: &[u32]| {
        let mut steps = [SequenceStep { cache: &mut cache, tokens }];
        model.forward(&mut steps, Logits::Last, &options)
    };
    let first = run(&[1, 2, 3]).unwrap();
    assert!(matches!(run(&[4, 128]), Err(ModelError::Token { token: 128, vocab: 128 })));
    assert!(matches!(run(&[]), Err(ModelError::EmptyStep { sequence: 0 })));
    run(&[5]).unwrap();
    assert_eq!(cache.tokens(), [1, 2, 3, 5]);
    cache.truncate(0);
    let mut steps = [SequenceStep { cache: &mut cache, tokens: &[1, 2, 3] }];
    assert_eq!(model.forward(&mut steps, Logits::Last, &options).unwrap(), first);
    let refused = other.forward(&mut steps, Logits::Last, &options);
    assert!(matches!(refused, Err(ModelError::Cache { sequence: 0 })));
    assert!(matches!(model.logits(&[0.0; 65], &options), Err(ModelError::Hidden { .. })));
    assert!(model.forward(&mut [], Logits::All, &options).unwrap().is_empty());
}
