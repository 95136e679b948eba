//! Models with coded layers against dense models that hold what the codes decode to.
//!
//! Any words are valid codes, since a block is a ring. So the coded layers are random, and the dense
//! twin is made with `TrellisLinear::expand_weight`; the dense decoder has tests of its own.

mod common;

use common::{models, reference, relative_error};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use trelliq_codec::{Code, Trellis};
use trelliq_format::{
    Dtype, LayerQuantization, ModelSource, ModelWriter, QuantizationConfig, RotationBlocks,
    WriterOptions, load_packed,
};
use trelliq_kernels::{Activations, Axis, KernelOptions, Numerics, TrellisLinear};
use trelliq_model::{LoadOptions, Logits, Model, RuntimeOptions, SequenceStep};

/// Path of a coded layer, its outputs and its inputs.
type Coded = (String, [usize; 2]);

struct Words(u64);

impl Words {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 32) as u32
    }

    fn bytes(&mut self, words: usize) -> Vec<u8> {
        (0..words).flat_map(|_| self.next().to_le_bytes()).collect()
    }

    /// f16 values from `low` to `low + width`.
    fn halves(&mut self, count: usize, low: f32, width: f32) -> Vec<u8> {
        let value = |random: u32| low + width * (random as f32 / 4_294_967_296.0);
        (0..count).flat_map(|_| half::f16::from_f32(value(self.next())).to_le_bytes()).collect()
    }
}

/// All linear layers of the decoder layers that blocks of 32 weights divide both ways, and `more`.
fn layers(source: &ModelSource, more: &[(&str, &str)]) -> Vec<Coded> {
    let shape = |tensor: &str| -> [usize; 2] {
        source.require(tensor).unwrap().shape.clone().try_into().unwrap()
    };
    let inner = source.tensors().filter(|info| info.name.ends_with("_proj.weight"));
    let inner = inner.map(|info| info.name.strip_suffix(".weight").unwrap().to_owned());
    let inner = inner.map(|path| (path.clone(), shape(&format!("{path}.weight"))));
    let inner = inner.filter(|(_, shape)| shape.iter().all(|dim| dim % 32 == 0));
    inner.chain(more.iter().map(|(path, like)| ((*path).to_owned(), shape(like)))).collect()
}

fn coding(path: &str, [out, inputs]: [usize; 2], axis: Axis, rotated: bool) -> LayerQuantization {
    // Rows are looked up in an embedding, so each output of it must be a stored row.
    let embedding = path.ends_with("embed_tokens");
    let axis = if embedding { Axis::In } else { axis };
    let cols = if axis == Axis::In { inputs } else { out };
    let block_len = [96, 64, 32].into_iter().find(|len| cols % len == 0).unwrap();
    let output = if embedding { 1 } else { 1 << out.trailing_zeros().min(5) };
    let blocks = RotationBlocks { input: 1 << inputs.trailing_zeros().min(5), output };
    let trellis = Trellis::new(Code::OneMad, 12, 3, block_len).unwrap();
    LayerQuantization { trellis, axis, rotation: rotated.then_some(blocks) }
}

/// Writes `source` with `coded` replaced by random codes.
fn write_packed(source: &ModelSource, coded: &[Coded], axis: Axis, rotated: bool, to: &Path) {
    let mut random = Words(7);
    let mut writer = ModelWriter::<trelliq_format::FormatError>::new(to, options()).unwrap();
    let mut entries = BTreeMap::new();
    for (path, shape) in coded {
        let entry = coding(path, *shape, axis, rotated);
        let [out, inputs] = *shape;
        let (rows, cols) = if entry.axis == Axis::In { (out, inputs) } else { (inputs, out) };
        let words = cols * 3 / 32;
        let mut add = |name: &str, dtype, shape: &[usize], bytes: Vec<u8>| {
            writer.add_bytes(&format!("{path}.{name}"), dtype, shape, bytes).unwrap();
        };
        add("weight", Dtype::U32, &[rows, words], random.bytes(rows * words));
        add("scales", Dtype::F16, &[rows], random.halves(rows, 0.05, 0.1));
        if rotated {
            // Layers that read the same input share their factors of it.
            let mut shared = Words(inputs as u64);
            add("su", Dtype::F16, &[inputs], shared.halves(inputs, 0.5, 1.0));
            add("sv", Dtype::F16, &[out], random.halves(out, -1.5, 1.0));
        }
        entries.insert(path.clone(), entry);
    }
    copy_rest(source, coded, &mut writer);
    let mut config = source.config().clone();
    config["quantization"] = QuantizationConfig::new(entries).to_json();
    writer.add_file("config.json", config.to_string().into_bytes()).unwrap();
    writer.finish(&mut |_| {}).unwrap();
}

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

fn options() -> WriterOptions {
    WriterOptions { overwrite: true, ..Default::default() }
}

/// Copies all tensors but those of coded layers; biases of coded layers stay.
fn copy_rest<'a>(source: &'a ModelSource, coded: &[Coded], writer: &mut ModelWriter<'a>) {
    let parts = ["weight", "scales", "su", "sv"];
    let replaced: BTreeSet<String> =
        coded.iter().flat_map(|(path, _)| parts.map(|part| format!("{path}.{part}"))).collect();
    for info in source.tensors().filter(|info| !replaced.contains(&info.name)) {
        writer.copy_tensor(source, &info.name).unwrap();
    }
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
