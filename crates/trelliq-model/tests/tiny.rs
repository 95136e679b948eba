//! The trained model of the test suite: what transformers computes, encodes and generates from it.

mod common;

use common::{load, models, reference, relative_error};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use trelliq_format::ModelSource;
use trelliq_model::eval::{EvalOptions, Subject, Windows, evaluate};
use trelliq_model::{
    ChatTemplates, FinishReason, GenerateOptions, Logits, Message, Model, RuntimeOptions,
    SamplingOptions, SequenceStep, Tokenizer, generate,
};

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(models().join("tiny/reference.json")).unwrap()).unwrap()
}

fn ids(json: &Value) -> Vec<u32> {
    json.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn files() -> BTreeMap<String, Vec<u8>> {
    let source = ModelSource::open_path(&models().join("tiny")).unwrap();
    source.sidecar_files().clone()
}

fn tokenizer() -> Tokenizer {
    let source = ModelSource::open_path(&models().join("tiny")).unwrap();
    Tokenizer::from_files(source.sidecar_files(), source.config()).unwrap()
}

#[test]
fn logits_of_bfloat16_weights() {
    let (dir, model) = (models().join("tiny"), load(&models().join("tiny")));
    let expected = reference(&dir);
    let mut cache = model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens: &expected.ids[0] }];
    let logits = model.forward(&mut steps, Logits::All, &RuntimeOptions::default()).unwrap();
    let error = relative_error(&logits, &expected.logits[0]);
    assert!(error < 1e-4, "{error}");
}

#[test]
fn tokens_of_texts() {
    let (expected, tokenizer) = (expected(), tokenizer());
    for case in expected["tokenizer"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokens, ids(&case["ids"]), "{text}");
        assert_eq!(tokenizer.decode(&tokens, false).unwrap(), text);
    }
    assert_eq!(tokenizer.eos_tokens().collect::<Vec<_>>(), [0, 2]);
    assert_eq!((tokenizer.bos_token(), tokenizer.vocab_size()), (Some(0), 2048));
}

#[test]
fn a_chat() {
    let expected = &expected()["chat"];
    let messages: Vec<Message> = serde_json::from_value(expected["messages"].clone()).unwrap();
    let template = ChatTemplates::from_files(&files()).unwrap().get(None).unwrap();
    let prompt = template.render(&messages, true).unwrap();
    assert_eq!(prompt, expected["text"].as_str().unwrap());
    assert_eq!(tokenizer().encode(&prompt, false).unwrap(), ids(&expected["ids"]));
}

fn continue_prompt(
    model: &Model,
    options: &GenerateOptions,
    pieces: &mut Vec<String>,
) -> trelliq_model::Generation {
    let prompt = tokenizer().encode(expected()["prompt"].as_str().unwrap(), false).unwrap();
    let mut on_token = |event: trelliq_model::TokenEvent| {
        pieces.push(event.text.to_owned());
        ControlFlow::Continue(())
    };
    let mut cache = model.new_cache();
    let runtime = RuntimeOptions::default();
    generate(model, &tokenizer(), &mut cache, &prompt, options, &runtime, &mut on_token).unwrap()
}

#[test]
fn the_greedy_continuation() {
    let (model, expected) = (load(&models().join("tiny")), expected());
    let greedy = ids(&expected["greedy_ids"]);
    for prefill_chunk in [512, 5] {
        let options =
            GenerateOptions { max_tokens: greedy.len(), prefill_chunk, ..Default::default() };
        let mut pieces = Vec::new();
        let generation = continue_prompt(&model, &options, &mut pieces);
        assert_eq!(generation.tokens, greedy);
        assert_eq!(generation.text, expected["greedy_text"].as_str().unwrap());
        assert_eq!(generation.finish, FinishReason::MaxTokens);
        assert_eq!(pieces.concat(), generation.text);
        let stats = generation.stats;
        assert_eq!((stats.prompt_tokens, stats.generated_tokens), (21, greedy.len()));
        assert_eq!(stats.decode_steps, greedy.len() - 1);
        assert!(stats.prompt_tokens_per_second() > 0.0 && stats.decode_tokens_per_second() > 0.0);
    }
}

#[test]
fn a_stop_string_ends_the_text_before_it() {
    let model = load(&models().join("tiny"));
    let options = GenerateOptions { stop: vec!["badge".into()], ..Default::default() };
    let mut pieces = Vec::new();
    let generation = continue_prompt(&model, &options, &mut pieces);
    assert_eq!(generation.text, "I'll not be bound to be a ");
    assert_eq!(generation.finish, FinishReason::StopString("badge".into()));
    assert_eq!(pieces.concat(), generation.text);
}

#[test]
fn the_caller_can_break_off() {
    let model = load(&models().join("tiny"));
    let tokenizer = tokenizer();
    let mut left = 3;
    let mut on_token = |_: trelliq_model::TokenEvent| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let (options, runtime) = (GenerateOptions::default(), RuntimeOptions::default());
    let prompt = ids(&expected()["input_ids"]);
    let mut cache = model.new_cache();
    let generation =
        generate(&model, &tokenizer, &mut cache, &prompt, &options, &runtime, &mut on_token);
    let generation = generation.unwrap();
    assert_eq!((generation.tokens.len(), generation.finish), (3, FinishReason::Cancelled));
}

/// A second turn with the cache of the first gives what a fresh cache gives, and runs less.
#[test]
fn a_kept_cache_is_used_as_far_as_the_prompt_agrees() {
    let (model, tokenizer) = (load(&models().join("tiny")), tokenizer());
    let options = GenerateOptions { max_tokens: 6, ..Default::default() };
    let mut cache = model.new_cache();
    let run = |cache: &mut _, prompt: &[u32]| {
        let runtime = RuntimeOptions::default();
        let mut ignore = |_: trelliq_model::TokenEvent| ControlFlow::Continue(());
        generate(&model, &tokenizer, cache, prompt, &options, &runtime, &mut ignore).unwrap()
    };
    let first = ids(&expected()["input_ids"]);
    let answer = run(&mut cache, &first);
    let mut second = [first.clone(), answer.tokens.clone()].concat();
    second[24] = 42;
    second.extend([338, 14, 201]);
    let kept = run(&mut cache, &second);
    let fresh = run(&mut model.new_cache(), &second);
    assert_eq!(kept.tokens, fresh.tokens);
    assert_eq!((kept.stats.prompt_tokens, fresh.stats.prompt_tokens), (second.len() - 24, 30));
}

#[test]
fn the_same_seed_draws_the_same_text_and_another_another() {
    let model = load(&models().join("tiny"));
    let run = |seed| {
        let sampling =
            SamplingOptions { temperature: 1.0, top_p: 0.95, seed, ..Default::default() };
        let options = GenerateOptions { sampling, max_tokens: 16, ..Default::default() };
        continue_prompt(&model, &options, &mut Vec::new()).tokens
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn perplexity_of_held_out_text() {
    let (model, tokenizer, expected) = (load(&models().join("tiny")), tokenizer(), expected());
    let text = std::fs::read_to_string(models().join("../data/held-out.txt")).unwrap();
    let tokens = tokenizer.encode(&text, false).unwrap();
    assert_eq!(tokens.len() as u64, expected["held_out"]["tokens"].as_u64().unwrap());
    for case in &expected["held_out"]["windows"].as_array().unwrap()[1..] {
        let number = |key: &str| case[key].as_u64().unwrap() as usize;
        let (window, count) = (number("window"), number("max_windows"));
        let options =
            EvalOptions { window, windows: Windows::Spread { count }, ..Default::default() };
        let runtime = RuntimeOptions::default();
        let subject = Subject { model: &model, options: &runtime };
        // The reference takes consecutive windows from the start: all that this prefix has.
        let report =
            evaluate(subject, None, &tokens[..window * count], &options, &mut |_| {}).unwrap();
        assert_eq!(report.tokens, number("tokens_scored"));
        let ppl = case["ppl"].as_f64().unwrap();
        assert!((report.perplexity / ppl - 1.0).abs() < 1e-4, "{} {ppl}", report.perplexity);
    }
}

/// Bit for bit the same on one thread and on several.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let model = load(&models().join("tiny"));
    let tokens = ids(&expected()["input_ids"]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut cache = model.new_cache();
            let mut logits = Vec::new();
            for tokens in [&tokens[..], &[43], &[567]] {
                let mut steps = [SequenceStep { cache: &mut cache, tokens }];
                let options = RuntimeOptions::default();
                logits.extend(model.forward(&mut steps, Logits::All, &options).unwrap());
            }
            logits.iter().map(|logit| logit.to_bits()).collect::<Vec<_>>()
        })
    };
    let one = run(1);
    assert!(run(2) == one && run(5) == one);
}
