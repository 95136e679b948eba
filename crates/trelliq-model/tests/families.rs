//! Logits of every family against those of transformers, in f32.

mod common;

use common::{FAMILIES, Reference, family, models, reference, relative_error};
use trelliq_model::{KvCache, Logits, Model, RuntimeOptions, SequenceStep};

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
