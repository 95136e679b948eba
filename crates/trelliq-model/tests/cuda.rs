//! The decoder on an NVIDIA GPU against transformers and the CPU's decoder.
//! Every test prints that it is skipped on a machine without a GPU.
#![cfg(feature = "cuda")]

mod common;

use common::coded::{layers, write_packed};
use common::{FAMILIES, models, reference, relative_error};
use trelliq_format::ModelSource;
use trelliq_kernels::cuda::device_count;
use trelliq_kernels::{Activations, Axis, KernelOptions, Numerics};
use trelliq_model::{
    DeviceChoice, KvCache, LoadOptions, Logits, Model, ModelError, RuntimeOptions, SequenceStep,
    Tokenizer,
};

/// Keys and values are f16, whose relative step is 2^-11.
const TOLERANCE: f64 = 1e-3;

fn on_gpu(path: &std::path::Path) -> Option<Model> {
    if device_count() == 0 {
        println!("skipped: no NVIDIA GPU");
        return None;
    }
    let source = ModelSource::open_path(path).unwrap();
    let options = LoadOptions { device: DeviceChoice::Cuda(0), ..LoadOptions::default() };
    Some(Model::load(&source, &options).unwrap())
}

fn options() -> RuntimeOptions {
    let kernel = KernelOptions { activations: Activations::F32, ..KernelOptions::default() };
    RuntimeOptions { kernel }
}

fn forward(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<f32> {
    forward_under(&options(), model, cache, tokens)
}

fn forward_under(
    options: &RuntimeOptions,
    model: &Model,
    cache: &mut KvCache,
    tokens: &[u32],
) -> Vec<f32> {
    model.forward(&mut [SequenceStep { cache, tokens }], Logits::All, options).unwrap()
}

/// The tokens that follow `prompt` where the most probable one is always taken, and all their logits.
fn greedy(model: &Model, prompt: &[u32], count: usize) -> (Vec<u32>, Vec<f32>) {
    let mut cache = model.new_cache();
    let (mut found, mut all) = (Vec::new(), Vec::new());
    let mut next = prompt.to_vec();
    while found.len() < count {
        let logits = forward(model, &mut cache, &next);
        let last = &logits[logits.len() - model.vocab()..];
        let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
        all.extend_from_slice(last);
        found.push(best as u32);
        next = vec![best as u32];
    }
    (found, all)
}

#[test]
fn every_family_by_prompt_and_by_token() {
    for name in FAMILIES {
        let path = models().join("random").join(name);
        let Some(model) = on_gpu(&path) else { return };
        let expected = reference(&path);
        let (ids, wanted) = (&expected.ids[0], &expected.logits[0]);
        let whole = forward(&model, &mut model.new_cache(), ids);
        let mut cache = model.new_cache();
        let steps = ids.iter().flat_map(|token| forward(&model, &mut cache, &[*token]));
        let steps: Vec<f32> = steps.collect();
        let errors = [relative_error(&whole, wanted), relative_error(&steps, wanted)];
        println!("{name}: {:.1e} {:.1e}", errors[0], errors[1]);
        assert!(errors.iter().all(|error| *error < TOLERANCE), "{name}: {errors:?}");
    }
}

#[test]
fn sequences_of_unequal_lengths_and_caches_put_together() {
    for name in FAMILIES {
        let path = models().join("random").join(name);
        let Some(model) = on_gpu(&path) else { return };
        let expected = reference(&path);
        let (ids, vocab) = (&expected.ids, expected.vocab);
        let mut caches = [model.new_cache(), model.new_cache()];
        let mut found = [Vec::new(), Vec::new()];
        for (first, second) in [(0..3, 0..11), (3..4, 11..12), (4..5, 12..13), (5..20, 13..14)] {
            let [a, b] = &mut caches;
            let mut steps = [
                SequenceStep { cache: a, tokens: &ids[0][first.clone()] },
                SequenceStep { cache: b, tokens: &ids[1][second] },
            ];
            let logits = model.forward(&mut steps, Logits::All, &options()).unwrap();
            let (a, b) = logits.split_at(first.len() * vocab);
            found[0].extend_from_slice(a);
            found[1].extend_from_slice(b);
        }
        for (found, wanted) in found.iter().zip(&expected.logits) {
            let error = relative_error(found, &wanted[..found.len()]);
            assert!(error < TOLERANCE, "{name}: {error}");
        }
        let mut cache = caches[0].prefix(6);
        cache.extend(&caches[0].slice(6..11));
        let logits = forward(&model, &mut cache, &ids[0][11..]);
        let error = relative_error(&logits, &expected.logits[0][11 * vocab..]);
        assert!(error < TOLERANCE, "{name}: {error}");
    }
}

#[test]
fn long_contexts_agree_with_the_cpu_and_do_not_depend_on_the_run() {
    let path = models().join("tiny");
    let Some(model) = on_gpu(&path) else { return };
    let cpu = common::load(&path);
    let vocab = cpu.vocab();
    let tokens: Vec<u32> = (0..300u32).map(|i| (i * 7919 + 13) % vocab as u32).collect();
    let wanted = forward(&cpu, &mut cpu.new_cache(), &tokens);
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut cache = model.new_cache();
        let mut logits = forward(&model, &mut cache, &tokens[..250]);
        for token in &tokens[250..] {
            logits.extend(forward(&model, &mut cache, &[*token]));
        }
        runs.push(logits);
    }
    let error = relative_error(&runs[0], &wanted);
    println!("tiny: {error:.1e}");
    assert!(error < TOLERANCE, "{error}");
    assert!(runs[0] == runs[1], "two runs differ");
}

#[test]
fn coded_layers_of_every_family_agree_with_the_cpu() {
    for name in FAMILIES {
        let from = models().join("random").join(name);
        let source = ModelSource::open_path(&from).unwrap();
        let ids = &reference(&from).ids[0];
        let embedding = ("model.embed_tokens", "model.embed_tokens.weight");
        // A coded tied embedding is looked up on the CPU and multiplied by on the GPU.
        let more = if name == "qwen3" { vec![embedding] } else { Vec::new() };
        for (axis, rotated) in [(Axis::Out, true), (Axis::In, true), (Axis::Out, false)] {
            let dir = tempfile::tempdir().unwrap();
            write_packed(&source, &layers(&source, &more), axis, rotated, dir.path());
            let Some(gpu) = on_gpu(dir.path()) else { return };
            let cpu = common::load(dir.path());
            let kernel = |activations, numerics| {
                let kernel = KernelOptions { activations, numerics, ..KernelOptions::default() };
                RuntimeOptions { kernel }
            };
            for (activations, numerics, bound) in [
                (Activations::F32, Numerics::Fast, TOLERANCE),
                (Activations::F32, Numerics::Exact, TOLERANCE),
                // 8-bit pairs are off by up to 1e-4 in every layer, TF32 products of prompts by 3e-4.
                (Activations::Auto, Numerics::Fast, 3.0 * TOLERANCE),
            ] {
                let options = kernel(Activations::F32, numerics);
                let wanted = forward_under(&options, &cpu, &mut cpu.new_cache(), ids);
                let options = kernel(activations, numerics);
                // Parts that take the kernels for many rows, for some, and (recorded) for one.
                let (mut cache, mut found) = (gpu.new_cache(), Vec::new());
                for part in [&ids[..18], &ids[18..21]].into_iter().chain(ids[21..].chunks(1)) {
                    found.extend(forward_under(&options, &gpu, &mut cache, part));
                }
                let error = relative_error(&found, &wanted);
                let what =
                    format!("{name} {axis:?} {rotated} {activations:?} {numerics:?}: {error:.1e}");
                println!("{what}");
                assert!(error < bound, "{what}");
            }
        }
    }
}

#[test]
fn the_most_probable_tokens_are_those_of_the_cpu() {
    let path = models().join("tiny");
    let Some(gpu) = on_gpu(&path) else { return };
    let source = ModelSource::open_path(&path).unwrap();
    let tokenizer = Tokenizer::from_files(source.sidecar_files(), source.config()).unwrap();
    let cpu = common::load(&path);
    for prompt in ["Once upon a time", "The king is dead, and"] {
        let prompt = tokenizer.encode(prompt, false).unwrap();
        let (wanted, logits) = greedy(&cpu, &prompt, 40);
        let (found, on_gpu) = greedy(&gpu, &prompt, 40);
        assert_eq!(found, wanted);
        let error = relative_error(&on_gpu, &logits);
        assert!(error < TOLERANCE, "{error}");
    }
}

#[test]
fn what_a_gpu_cannot_do_is_refused() {
    let path = models().join("random/llama2");
    let source = ModelSource::open_path(&path).unwrap();
    let load = |device, carrier| {
        Model::load(&source, &LoadOptions { device, carrier, ..LoadOptions::default() })
    };
    let missing = load(DeviceChoice::Cuda(1000), false).unwrap_err();
    assert!(matches!(missing, ModelError::Cuda(_)) && missing.is_no_gpu(), "{missing}");
    let carrier = load(DeviceChoice::Cuda(0), true).unwrap_err();
    assert!(matches!(carrier, ModelError::CarrierOnGpu), "{carrier}");
    let auto = load(DeviceChoice::Auto, true).unwrap();
    assert!(auto.gpu_name().is_none());
    assert!(matches!(auto.gpu_refusal(), Some(ModelError::CarrierOnGpu)));

    let auto = load(DeviceChoice::Auto, false).unwrap();
    assert_eq!(auto.gpu_name().is_some(), auto.gpu_refusal().is_none());
    let Some(gpu) = on_gpu(&path) else { return };
    let cpu = common::load(&path);
    let step = |model: &Model, cache: &mut KvCache| {
        let steps = &mut [SequenceStep { cache, tokens: &[1, 2] }];
        model.forward(steps, Logits::Last, &options()).map(drop)
    };
    for (model, mut cache) in [(&gpu, cpu.new_cache()), (&cpu, gpu.new_cache())] {
        let other = step(model, &mut cache).unwrap_err();
        assert!(matches!(other, ModelError::Cache { sequence: 0 }), "{other}");
    }
    let gradients = gpu.gradients(&[1, 2], 0, &options(), &mut |_| {});
    assert!(matches!(gradients, Err(ModelError::ObservedOnGpu)));
}
