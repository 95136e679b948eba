//! Models that were made by transformers, and what it computes for them.

#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod coded;

use safetensors::SafeTensors;
use std::path::{Path, PathBuf};
use trelliq_format::ModelSource;
use trelliq_model::{LoadOptions, Model};

pub const FAMILIES: [&str; 6] = ["llama2", "llama3", "mistral", "qwen2", "qwen3", "gemma3"];

pub fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models")
}

/// A model of a family with `config` (`config.json` or `config.v4.json`) as its config.
pub fn family(name: &str, config: &str) -> (tempfile::TempDir, Model) {
    let from = models().join("random").join(name);
    let dir = tempfile::tempdir().unwrap();
    std::fs::copy(from.join(config), dir.path().join("config.json")).unwrap();
    std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let model = load(dir.path());
    (dir, model)
}

pub fn load(path: &Path) -> Model {
    let source = ModelSource::open_path(path).unwrap();
    Model::load(&source, &LoadOptions::default()).unwrap()
}

/// Inputs and logits: `ids[sequence]`, `logits[sequence][token * vocab + i]`.
pub struct Reference {
    pub ids: Vec<Vec<u32>>,
    pub logits: Vec<Vec<f32>>,
    pub vocab: usize,
}

pub fn reference(path: &Path) -> Reference {
    let bytes = std::fs::read(path.join("reference.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let (ids, logits) = (tensors.tensor("input_ids").unwrap(), tensors.tensor("logits").unwrap());
    let &[rows, length, vocab] = logits.shape() else { panic!("{:?}", logits.shape()) };
    assert_eq!(ids.shape(), [rows, length]);
    let ids: Vec<u32> = ids
        .data()
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32)
        .collect();
    let values: Vec<f32> =
        logits.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Reference {
        ids: ids.chunks(length).map(<[u32]>::to_vec).collect(),
        logits: values.chunks(length * vocab).map(<[f32]>::to_vec).collect(),
        vocab,
    }
}

/// `||a - b|| / ||b||`, in f64.
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    difference / norm(&mut b.iter().map(|b| f64::from(*b)))
}
