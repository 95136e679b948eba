//! Logits of every family against those of transformers, in f32.

mod common;

use common::{FAMILIES, Reference, family, models, reference, relative_error};
use trelliq_model::{KvCache, LayerInput, Logits, Model, RuntimeOptions, SequenceStep};

const TOLERANCE: f64 = 1e-4;

fn forward(model: &Model, cache: &mut KvCache, tokens: &[u32]) -> Vec<f32> {
    let mut steps = [SequenceStep { cache, tokens }];
    model.forward(&mut steps, Logits::All, &RuntimeOptions::default()).unwrap()
}

fn for_every_family(test: impl Fn(&Model, &Reference) -> f64) {
    for name in FAMILIES {
        let expected = reference(&models().join("random").join(name));
        for config in ["config.json", "config.v4.json"] {
            let (_dir, model) = family(name, config);
            assert_eq!(model.vocab(), expected.vocab);
            let error = test(&model, &expected);
            println!("{name} {config}: {error:.2e}");
            assert!(error < TOLERANCE, "{name} {config}: {error}");
        }
    }
}

#[test]
fn whole_prompts() {
    for_every_family(|model, expected| {
        let errors = expected.ids.iter().zip(&expected.logits).map(|(ids, logits)| {
            relative_error(&forward(model, &mut model.new_cache(), ids), logits)
        });
        errors.fold(0.0, f64::max)
    });
}

#[test]
fn token_by_token_through_the_cache() {
    for_every_family(|model, expected| {
        let mut cache = model.new_cache();
        let step = |token: &u32| forward(model, &mut cache, &[*token]);
        let logits: Vec<f32> = expected.ids[0].iter().flat_map(step).collect();
        relative_error(&logits, &expected.logits[0])
    });
}

#[test]
fn a_prompt_in_pieces_and_after_going_back() {
    for_every_family(|model, expected| {
        let (ids, mut cache) = (&expected.ids[1], model.new_cache());
        forward(model, &mut cache, &ids[..5]);
        forward(model, &mut cache, &expected.ids[0][..9]);
        cache.truncate(5);
        assert_eq!(cache.tokens(), &ids[..5]);
        let logits = forward(model, &mut cache, &ids[5..]);
        relative_error(&logits, &expected.logits[1][5 * expected.vocab..])
    });
}

/// Two sequences of unequal lengths: prompts together, then a token of each a step, then the rest.
#[test]
fn sequences_of_unequal_lengths_together() {
    for_every_family(|model, expected| {
        let vocab = expected.vocab;
        let mut caches = [model.new_cache(), model.new_cache()];
        let mut found = [Vec::new(), Vec::new()];
        for (first, second) in [(0..3, 0..11), (3..4, 11..12), (4..24, 12..13)] {
            let ranges = [first, second];
            let mut steps: Vec<SequenceStep> = caches
                .iter_mut()
                .zip(&expected.ids)
                .zip(&ranges)
                .map(|((cache, ids), range)| SequenceStep { cache, tokens: &ids[range.clone()] })
                .collect();
            let logits =
                model.forward(&mut steps, Logits::All, &RuntimeOptions::default()).unwrap();
            let (a, b) = logits.split_at(ranges[0].len() * vocab);
            found[0].extend_from_slice(a);
            found[1].extend_from_slice(b);
        }
        let long = relative_error(&found[0], &expected.logits[0]);
        long.max(relative_error(&found[1], &expected.logits[1][..13 * vocab]))
    });
}

#[test]
fn the_last_logits_are_those_of_each_sequence() {
    let (_dir, model) = family("qwen3", "config.json");
    let expected = reference(&models().join("random/qwen3"));
    let mut caches = [model.new_cache(), model.new_cache()];
    let [a, b] = &mut caches;
    let mut steps = [
        SequenceStep { cache: a, tokens: &expected.ids[0][..7] },
        SequenceStep { cache: b, tokens: &expected.ids[1][..12] },
    ];
    let logits = model.forward(&mut steps, Logits::Last, &RuntimeOptions::default()).unwrap();
    let row = |sequence: usize, token: usize| {
        &expected.logits[sequence][token * expected.vocab..(token + 1) * expected.vocab]
    };
    let wanted = [row(0, 6), row(1, 11)].concat();
    assert!(relative_error(&logits, &wanted) < TOLERANCE);
}

/// A sequence put together from a prefix and a slice of another's cache goes on as that one.
#[test]
fn caches_can_be_cut_and_put_together() {
    for_every_family(|model, expected| {
        let ids = &expected.ids[0];
        let mut whole = model.new_cache();
        forward(model, &mut whole, &ids[..15]);
        let mut cache = whole.prefix(6);
        cache.extend(&whole.slice(6..11));
        assert_eq!(cache.tokens(), &ids[..11]);
        let logits = forward(model, &mut cache, &ids[11..]);
        relative_error(&logits, &expected.logits[0][11 * expected.vocab..])
    });
}

#[test]
fn an_observer_sees_every_input_of_a_linear_layer() {
    let (dir, model) = family("qwen3", "config.json");
    let config = model.config().clone();
    let mut seen = Vec::new();
    let mut cache = model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens: &[1, 2, 3] }];
    let mut observer =
        |layer: usize, input: LayerInput, x: &[f32]| seen.push((layer, input, x.to_vec()));
    let options = RuntimeOptions::default();
    let observed = model.forward_observed(&mut steps, &options, &mut observer).unwrap();
    let widths = [
        (LayerInput::Attention, config.hidden_size),
        (LayerInput::AttentionOutput, config.q_width()),
        (LayerInput::FeedForward, config.hidden_size),
        (LayerInput::FeedForwardOutput, config.intermediate_size),
    ];
    let expected: Vec<(usize, LayerInput, usize)> = (0..config.layers.len())
        .flat_map(|layer| widths.map(|(input, width)| (layer, input, 3 * width)))
        .collect();
    let found: Vec<_> = seen.iter().map(|(layer, input, x)| (*layer, *input, x.len())).collect();
    assert_eq!(found, expected);
    // What enters the attention is normed: without its weight each row's mean square is 1.
    let source = trelliq_format::ModelSource::open_path(dir.path()).unwrap();
    let weight = source.read_f32("model.layers.0.input_layernorm.weight").unwrap();
    for row in seen[0].2.chunks(config.hidden_size) {
        let squares = row.iter().zip(&weight).map(|(x, w)| (x / w).powi(2));
        let mean = squares.sum::<f32>() / config.hidden_size as f32;
        assert!((mean - 1.0).abs() < 1e-3, "{mean}");
    }
    cache.truncate(0);
    let mut steps = [SequenceStep { cache: &mut cache, tokens: &[1, 2, 3] }];
    assert_eq!(model.forward_hidden(&mut steps, &options).unwrap(), observed);
}
