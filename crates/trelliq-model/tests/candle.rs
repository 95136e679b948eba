//! Logits against a second implementation, candle-transformers: the last position of several
//! prefixes of a prompt.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{gemma3, llama, qwen3};
use common::{load, models, reference, relative_error};
use serde_json::Value;
use std::path::Path;
use trelliq_model::{Logits, Model, RuntimeOptions, SequenceStep};

const TOLERANCE: f64 = 1e-4;

fn weights(dir: &Path) -> VarBuilder<'static> {
    let path = dir.join("model.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu).unwrap();
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}

fn config(dir: &Path, file: &str) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join(file)).unwrap()).unwrap()
}

fn last_logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut cache = model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens }];
    model.forward(&mut steps, Logits::Last, &RuntimeOptions::default()).unwrap()
}

fn values(tensor: Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn compare(model: &Model, ids: &[u32], candle: &mut dyn FnMut(&Tensor) -> Tensor) {
    for length in [1, 2, ids.len() / 2, ids.len()] {
        let input = Tensor::new(&ids[..length], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
        let expected = values(candle(&input));
        let error = relative_error(&last_logits(model, &ids[..length]), &expected);
        println!("{length}: {error:.2e}");
        assert!(error < TOLERANCE, "{length} tokens: {error}");
    }
}

fn compare_llama(dir: &Path, config: Value, model: &Model) {
    let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
    let config = config.into_config(false);
    let candle = llama::Llama::load(weights(dir), &config).unwrap();
    compare(model, &reference(dir).ids[0], &mut |input| {
        let mut cache = llama::Cache::new(false, DType::F32, &config, &Device::Cpu).unwrap();
        candle.forward(input, 0, &mut cache).unwrap()
    });
}

#[test]
fn the_trained_model() {
    let dir = models().join("tiny");
    let mut config = config(&dir, "config.json");
    config["rope_theta"] = config["rope_parameters"]["rope_theta"].take();
    compare_llama(&dir, config, &load(&dir));
}

#[test]
fn llama_with_llama_3_scaling() {
    let dir = models().join("random/llama3");
    let config = config(&dir, "config.v4.json");
    compare_llama(&dir, config, &load(&dir));
}

#[test]
fn qwen_3() {
    let dir = models().join("random/qwen3");
    let config: qwen3::Config = serde_json::from_value(config(&dir, "config.v4.json")).unwrap();
    let mut candle = qwen3::ModelForCausalLM::new(&config, weights(&dir)).unwrap();
    compare(&load(&dir), &reference(&dir).ids[0], &mut |input| {
        candle.clear_kv_cache();
        candle.forward(input, 0).unwrap()
    });
}

/// candle's Gemma 3 has no scaled rotary embedding and ignores `query_pre_attn_scalar`, so the model
/// is given neither. It is run a token at a time: a longer step fails in its cache, and its mask
/// has windows that are one wider than those of transformers (its rotating cache has not).
#[test]
fn gemma_3() {
    let dir = models().join("random/gemma3");
    let mut config = config(&dir, "config.v4.json");
    config["rope_scaling"] = Value::Null;
    config["query_pre_attn_scalar"] = config["head_dim"].clone();
    let ours = tempfile::tempdir().unwrap();
    std::fs::copy(dir.join("model.safetensors"), ours.path().join("model.safetensors")).unwrap();
    std::fs::write(ours.path().join("config.json"), config.to_string()).unwrap();
    let config: gemma3::Config = serde_json::from_value(config).unwrap();
    let mut candle = gemma3::Model::new(false, &config, weights(&dir)).unwrap();
    compare(&load(ours.path()), &reference(&dir).ids[0], &mut |input| {
        candle.clear_kv_cache();
        let tokens = 0..input.dim(1).unwrap();
        let step = |i: usize| candle.forward(&input.narrow(1, i, 1).unwrap(), i).unwrap();
        tokens.map(step).last().unwrap()
    });
}
