use super::*;
use crate::{LoadOptions, Logits};
use std::collections::BTreeMap;
use std::path::Path;
use trelliq_format::ModelSource;

const SEED: u64 = 3;

fn model(name: &str) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/random").join(name);
    Model::load(&ModelSource::open_path(&path).unwrap(), &LoadOptions::default()).unwrap()
}

fn logits(model: &Model, tokens: &[u32]) -> Vec<f32> {
    let mut cache = model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens }];
    model.forward(&mut steps, Logits::All, &RuntimeOptions::default()).unwrap()
}

/// The tokens that a pass draws.
fn drawn(model: &Model, tokens: &[u32]) -> Vec<usize> {
    let mut random = SplitMix64(SEED);
    let draw = |row: &[f32]| {
        let mut row = row.to_vec();
        softmax(&mut row);
        sample(&row, random.uniform())
    };
    logits(model, tokens).chunks_exact(model.vocab()).map(draw).collect()
}

/// Sum of -log p(target) in f64.
fn loss(model: &Model, tokens: &[u32], targets: &[usize]) -> f64 {
    let logits = logits(model, tokens);
    let row = |(row, target): (&[f32], &usize)| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|l| f64::from(l - largest).exp()).sum();
        sum.ln() + f64::from(largest) - f64::from(row[*target])
    };
    logits.chunks_exact(model.vocab()).zip(targets).map(row).sum()
}

fn linear(model: &mut Model, layer: usize, site: LinearSite) -> &mut Linear {
    let layer = &mut model.layers[layer];
    match site {
        LinearSite::Query => &mut layer.attention.q,
        LinearSite::Key => &mut layer.attention.k,
        LinearSite::Value => &mut layer.attention.v,
        LinearSite::AttentionOutput => &mut layer.attention.output,
        LinearSite::Gate => &mut layer.feed_forward.gate,
        LinearSite::Up => &mut layer.feed_forward.up,
        LinearSite::Down => &mut layer.feed_forward.down,
    }
}

/// The loss with `by` added to one output of a layer, at every token.
fn moved(
    model: &mut Model,
    (layer, site): (usize, LinearSite),
    output: usize,
    by: f32,
    eval: impl Fn(&Model) -> f64,
) -> f64 {
    let Linear::Dense { weight, bias } = linear(model, layer, site) else { panic!("not dense") };
    let before = bias.clone();
    bias.get_or_insert_with(|| vec![0.0; weight.rows()])[output] += by;
    let loss = eval(model);
    let Linear::Dense { bias, .. } = linear(model, layer, site) else { unreachable!() };
    *bias = before;
    loss
}

#[test]
fn agree_with_differences_of_the_loss_in_every_family() {
    for name in ["llama3", "qwen2", "qwen3", "gemma3"] {
        let mut model = model(name);
        let tokens: Vec<u32> = (0..40).map(|i| (i * 37 + 5) % model.vocab() as u32).collect();
        let targets = drawn(&model, &tokens);
        // A bias moves an output at all tokens: its gradient is the sum over them.
        let mut sums: BTreeMap<(usize, LinearSite), Vec<f64>> = BTreeMap::new();
        model
            .gradients(&tokens, SEED, &RuntimeOptions::default(), &mut |seen| {
                let width = seen.gradient.len() / tokens.len();
                let mut sum = vec![0.0; width];
                for row in seen.gradient.chunks_exact(width) {
                    sum.iter_mut().zip(row).for_each(|(s, g)| *s += f64::from(*g));
                }
                sums.insert((seen.layer, seen.site), sum);
            })
            .unwrap();
        assert_eq!(sums.len(), 7 * model.layers.len(), "{name}");
        for (place, sum) in sums {
            let largest = sum.iter().fold(0.0f64, |m, s| m.max(s.abs()));
            for output in [0, sum.len() / 2, sum.len() - 1] {
                let mut at = |by: f32| {
                    moved(&mut model, place, output, by, |model| loss(model, &tokens, &targets))
                };
                let difference = (at(5e-3) - at(-5e-3)) / 1e-2;
                let error = (sum[output] - difference).abs();
                assert!(
                    error < 0.02 * largest.max(0.05),
                    "{name} {place:?} {output}: {} against {difference}",
                    sum[output]
                );
            }
        }
    }
}

#[test]
fn inputs_are_those_of_the_forward_pass() {
    let model = model("gemma3");
    let tokens: Vec<u32> = (1..30).collect();
    let mut cache = model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens: &tokens }];
    let mut forward = BTreeMap::new();
    model
        .forward_observed(&mut steps, &RuntimeOptions::default(), &mut |layer, input, x| {
            forward.insert((layer, input), x.to_vec());
        })
        .unwrap();
    model
        .gradients(&tokens, SEED, &RuntimeOptions::default(), &mut |seen| {
            use crate::LayerInput;
            let input = match seen.site {
                LinearSite::Query | LinearSite::Key | LinearSite::Value => LayerInput::Attention,
                LinearSite::AttentionOutput => LayerInput::AttentionOutput,
                LinearSite::Gate | LinearSite::Up => LayerInput::FeedForward,
                LinearSite::Down => LayerInput::FeedForwardOutput,
            };
            for (a, b) in seen.input.iter().zip(&forward[&(seen.layer, input)]) {
                assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "{:?} {a} {b}", seen.site);
            }
        })
        .unwrap();
}

#[test]
fn draws_follow_the_distribution() {
    let p = [0.1, 0.0, 0.6, 0.3];
    assert_eq!([0.0, 0.05, 0.2, 0.69, 0.71, 0.9999].map(|at| sample(&p, at)), [0, 0, 2, 2, 3, 3]);
}
