//! Models with coded layers against dense models that hold what the codes decode to.
//!
//! The coded layers are random, and the dense twin is made with `TrellisLinear::expand_weight`; the dense decoder has tests of its own.

mod common;

use common::coded::{Coded, copy_rest, layers, options, write_packed};
use common::{models, reference, relative_error};
use serde_json::{Value, json};
use std::path::Path;
use trelliq_format::{Dtype, ModelSource, ModelWriter, load_packed};
use trelliq_kernels::{Activations, Axis, KernelOptions, Numerics, TrellisLinear};
use trelliq_model::{LoadOptions, Logits, Model, RuntimeOptions, SequenceStep};

/// The same model with the decoded weights, dense in f32; `changes` to its config.
fn write_dense(packed: &ModelSource, coded: &[Coded], changes: &Value, to: &Path) {
    let mut writer = ModelWriter::<trelliq_format::FormatError>::new(to, options()).unwrap();
    for (path, shape) in coded {
        let layer = load_packed(packed, path, None).unwrap();
        let layer = TrellisLinear::new(layer.matrix, layer.rotation, None).unwrap();
        let mut weight = vec![0f32; shape[0] * shape[1]];
        layer.expand_weight(Numerics::Fast, &mut weight).unwrap();
        let bytes: Vec<u8> = weight.iter().flat_map(|w| w.to_le_bytes()).collect();
        writer.add_bytes(&format!("{path}.weight"), Dtype::F32, shape, bytes).unwrap();
    }
    copy_rest(packed, coded, &mut writer);
    let mut config = packed.config().clone();
    config["quantization"] = Value::Null;
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    writer.add_file("config.json", config.to_string().into_bytes()).unwrap();
    writer.finish(&mut |_| {}).unwrap();
}

fn logits(model: &Model, ids: &[u32], activations: Activations) -> Vec<f32> {
    let options =
        RuntimeOptions { kernel: KernelOptions { activations, ..KernelOptions::default() } };
    let mut cache = model.new_cache();
    let (prompt, last) = ids.split_at(ids.len() - 1);
    // A step of many tokens, then one of a single token.
    let steps = [prompt, last].map(|tokens| {
        let mut steps = [SequenceStep { cache: &mut cache, tokens }];
        model.forward(&mut steps, Logits::All, &options).unwrap()
    });
    steps.concat()
}

/// The relative errors of the packed model's logits for every axis, rotated and not. `changes` are
/// made to the config of the dense twin.
fn compare(
    family: &str,
    more: &[(&str, &str)],
    changes: &Value,
    load: &LoadOptions,
    activations: Activations,
) -> Vec<f64> {
    let from = models().join("random").join(family);
    let source = ModelSource::open_path(&from).unwrap();
    let coded = layers(&source, more);
    let ids = &reference(&from).ids[0];
    let mut errors = Vec::new();
    for (axis, rotated) in
        [(Axis::In, false), (Axis::Out, false), (Axis::In, true), (Axis::Out, true)]
    {
        let dir = tempfile::tempdir().unwrap();
        let (packed, dense) = (dir.path().join("packed"), dir.path().join("dense"));
        write_packed(&source, &coded, axis, rotated, &packed);
        let packed = ModelSource::open_path(&packed).unwrap();
        write_dense(&packed, &coded, changes, &dense);
        let dense = ModelSource::open_path(&dense).unwrap();
        let dense = Model::load(&dense, &LoadOptions::default()).unwrap();
        let packed = Model::load(&packed, load).unwrap();
        let (packed, dense) = (logits(&packed, ids, activations), logits(&dense, ids, activations));
        errors.push(relative_error(&packed, &dense));
    }
    errors
}

fn assert_equal(family: &str, more: &[(&str, &str)], changes: Value) {
    // Activations of 16 bits are off by up to 1e-4 in every layer, and errors of layers add up.
    for (activations, bound) in [(Activations::F32, 1e-4), (Activations::Int, 5e-4)] {
        let errors = compare(family, more, &changes, &LoadOptions::default(), activations);
        let what = format!("{family} {activations:?}: {errors:?}");
        assert!(errors.iter().all(|error| *error < bound), "{what}");
    }
}

const EMBEDDING: (&str, &str) = ("model.embed_tokens", "model.embed_tokens.weight");

#[test]
fn biases_are_added_to_coded_layers() {
    assert_equal("qwen2", &[], json!({}));
}

#[test]
fn head_norms_and_a_coded_tied_embedding() {
    assert_equal("qwen3", &[EMBEDDING], json!({}));
}

#[test]
fn gelu_and_a_scaled_coded_embedding() {
    assert_equal("gemma3", &[EMBEDDING], json!({}));
}

#[test]
fn a_coded_head_of_its_own() {
    assert_equal("llama2", &[("lm_head", "lm_head.weight")], json!({}));
}

/// The config says tied, the embedding is dense, the head is coded: the coded head is used.
#[test]
fn a_coded_head_wins_over_a_tied_embedding() {
    let untied = json!({ "tie_word_embeddings": false });
    assert_equal("llama3", &[("lm_head", "model.embed_tokens.weight")], untied);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let from = models().join("random/qwen2");
    let source = ModelSource::open_path(&from).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let packed = dir.path().join("packed");
    write_packed(&source, &layers(&source, &[]), Axis::Out, true, &packed);
    let model = common::load(&packed);
    let ids = &reference(&from).ids[0];
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let logits = pool.install(|| logits(&model, ids, Activations::Int));
        logits.into_iter().map(f32::to_bits).collect::<Vec<_>>()
    };
    let one = run(1);
    assert!(run(3) == one && run(4) == one);
}

#[test]
fn the_carrier_is_close() {
    let carrier = LoadOptions { carrier: true, ..Default::default() };
    let errors = compare("llama2", &[], &json!({}), &carrier, Activations::default());
    assert!(errors.iter().all(|error| (1e-4..0.1).contains(error)), "{errors:?}");
}

#[test]
fn logits_of_a_padded_vocabulary_are_left_out() {
    let from = models().join("random/llama2");
    let source = ModelSource::open_path(&from).unwrap();
    let expected = reference(&from);
    let limit = LoadOptions { vocab_limit: Some(100), ..Default::default() };
    let limited = Model::load(&source, &limit).unwrap();
    assert_eq!(limited.vocab(), 100);
    let found = logits(&limited, &expected.ids[0], Activations::default());
    let rows = expected.logits[0].chunks(expected.vocab);
    let wanted: Vec<f32> = rows.flat_map(|row| &row[..100]).copied().collect();
    assert!(relative_error(&found, &wanted) < 1e-4);
    // A limit beyond the model's own vocabulary changes nothing.
    let more = LoadOptions { vocab_limit: Some(1000), ..Default::default() };
    assert_eq!(Model::load(&source, &more).unwrap().vocab(), expected.vocab);
}
