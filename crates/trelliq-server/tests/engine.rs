//! The engine: answers are those of single requests, whatever else is going on.

mod common;

use common::{options, served, tiny_path};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use trelliq_config::Config;
use trelliq_model::{GenerateOptions, KvCache, RuntimeOptions, SamplingOptions, generate};
use trelliq_server::ServedModel;
use trelliq_server::engine::{Engine, EngineError, EngineOptions, Event, Finish, Request};
use trelliq_server::metrics::EngineMetrics;

fn request(served: &ServedModel, prompt: &str, max_tokens: usize) -> Request {
    Request {
        prompt: served.tokenizer.encode(prompt, false).unwrap(),
        choices: vec![SamplingOptions::default()],
        max_tokens,
        stop: Vec::new(),
        adjust: Default::default(),
        logprobs: None,
        constraint: None,
        config: Config::default(),
        runtime: RuntimeOptions::default(),
    }
}

fn engine(served: &Arc<ServedModel>, options: EngineOptions) -> Engine {
    Engine::start(Arc::clone(served), options, Arc::new(EngineMetrics::default())).unwrap()
}

/// Text and end of every choice, and how many tokens came from the prefix cache.
fn gather(
    mut events: UnboundedReceiver<Event>,
    choices: usize,
) -> (Vec<(String, Finish, usize)>, usize) {
    let mut texts = vec![String::new(); choices];
    let mut ends = vec![None; choices];
    let mut cached = 0;
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Started { cached_tokens } => cached = cached_tokens,
            Event::Text { choice, text, .. } => texts[choice].push_str(&text),
            Event::Done { choice, finish, tokens } => ends[choice] = Some((finish, tokens)),
            Event::Failed(error) => panic!("{error}"),
        }
    }
    let ended = texts.into_iter().zip(ends);
    let ended = ended.map(|(text, end)| {
        let (finish, tokens) = end.expect("every choice ends");
        (text, finish, tokens)
    });
    (ended.collect(), cached)
}

const PROMPTS: [&str; 6] = [
    "HAMLET.\nTo be, or not to be, that is the question:\n",
    "ROMEO.\n",
    "Of Man's first disobedience, and the fruit\nOf that forbidden tree whose mortal taste\nBrought death into the World, and all our woe,\nWith loss of Eden, till one greater Man\nRestore us, and regain the blissful seat,\n",
    "hacker: /n./ ",
    "SCENE II. The same. A Room in the Castle.\n\nEnter KING and QUEEN.\n\nKING.\n",
    "é ü 漢字 ",
];

/// What the library generates for one prompt alone.
fn alone(served: &ServedModel, prompt: &str, max_tokens: usize) -> String {
    let mut cache = KvCache::new(served.model.config());
    let tokens = served.tokenizer.encode(prompt, false).unwrap();
    let options = GenerateOptions { max_tokens, prefill_chunk: 16, ..GenerateOptions::default() };
    let (model, tokenizer) = (&served.model, &served.tokenizer);
    let runtime = RuntimeOptions::default();
    let on_token = &mut |_: trelliq_model::TokenEvent| std::ops::ControlFlow::Continue(());
    generate(model, tokenizer, &mut cache, &tokens, &options, &runtime, on_token).unwrap().text
}

#[test]
fn greedy_answers_of_many_together_are_those_of_each_alone() {
    let served = served(&tiny_path());
    let engine = engine(&served, options());
    let expected: Vec<String> = PROMPTS.iter().map(|prompt| alone(&served, prompt, 40)).collect();
    // More than run together, of different lengths, some begun while others run.
    let receivers: Vec<_> = (0..24)
        .map(|i| {
            if i % 5 == 4 {
                std::thread::sleep(Duration::from_millis(7));
            }
            engine.submit(request(&served, PROMPTS[i % 6], 40)).unwrap()
        })
        .collect();
    for (i, events) in receivers.into_iter().enumerate() {
        let (ended, _) = gather(events, 1);
        assert_eq!(ended[0].0, expected[i % 6], "request {i}");
    }
}

#[test]
fn a_shared_beginning_is_not_computed_twice_and_changes_nothing() {
    let served = served(&tiny_path());
    let prompt = PROMPTS[2];
    let tokens = served.tokenizer.encode(prompt, false).unwrap().len();
    let whole_chunks = (tokens - 1) / 16 * 16;
    assert!(whole_chunks >= 32, "{tokens}");
    let engine = engine(&served, options());
    let run = || gather(engine.submit(request(&served, prompt, 24)).unwrap(), 1);
    let (first, cached) = run();
    assert_eq!(cached, 0);
    let (second, cached) = run();
    assert_eq!((second, cached), (first, whole_chunks));
    assert_eq!(engine.metrics().cached_tokens.get(), whole_chunks as u64);
    let without = self::engine(&served, EngineOptions { prefix_cache_bytes: 0, ..options() });
    for _ in 0..2 {
        let (_, cached) = gather(without.submit(request(&served, prompt, 2)).unwrap(), 1);
        assert_eq!(cached, 0);
    }
}

#[test]
fn choices_of_a_request_draw_their_own_tokens_from_one_prompt() {
    let served = served(&tiny_path());
    let engine = engine(&served, options());
    let sampling = |seed| SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::default() };
    let mut many = request(&served, PROMPTS[0], 20);
    many.choices = vec![sampling(1), sampling(2), sampling(1)];
    let (ended, _) = gather(engine.submit(many).unwrap(), 3);
    assert_eq!(ended[0], ended[2], "equal seeds");
    assert_ne!(ended[0], ended[1], "other seeds");
    let mut one = request(&served, PROMPTS[0], 20);
    one.choices = vec![sampling(2)];
    assert_eq!(gather(engine.submit(one).unwrap(), 1).0[0], ended[1]);
}

#[test]
fn stop_strings_and_lengths_end_answers() {
    let served = served(&tiny_path());
    let engine = engine(&served, options());
    let full = alone(&served, PROMPTS[0], 30);
    let (ended, _) = gather(engine.submit(request(&served, PROMPTS[0], 30)).unwrap(), 1);
    assert_eq!(ended[0], (full.clone(), Finish::Length, 30));
    let word = full.split_whitespace().nth(4).unwrap();
    let mut stopped = request(&served, PROMPTS[0], 30);
    stopped.stop = vec![word.to_owned()];
    let (ended, _) = gather(engine.submit(stopped).unwrap(), 1);
    let (text, finish, tokens) = &ended[0];
    assert_eq!((text.as_str(), *finish), (&full[..full.find(word).unwrap()], Finish::Stop));
    assert!(*tokens < 30);
}

#[test]
fn the_context_limits_an_answer() {
    let served = served(&tiny_path());
    let engine = engine(&served, EngineOptions { context: 40, ..options() });
    let prompt = served.tokenizer.encode(PROMPTS[0], false).unwrap().len();
    let (ended, _) = gather(engine.submit(request(&served, PROMPTS[0], 1000)).unwrap(), 1);
    assert_eq!((ended[0].1, ended[0].2), (Finish::Length, 40 - prompt));
    let long = engine.submit(request(&served, PROMPTS[2], 1));
    assert!(matches!(long, Err(EngineError::TooLong { context: 40, .. })), "{long:?}");
}

#[test]
fn a_dropped_receiver_frees_its_place() {
    let served = served(&tiny_path());
    let engine = engine(&served, EngineOptions { max_batch: 1, ..options() });
    let mut endless = engine.submit(request(&served, PROMPTS[1], 450)).unwrap();
    assert!(matches!(endless.blocking_recv(), Some(Event::Started { .. })));
    drop(endless);
    let (ended, _) = gather(engine.submit(request(&served, PROMPTS[0], 3)).unwrap(), 1);
    assert_eq!(ended[0].2, 3);
    let generated = engine.metrics().generated_tokens.get();
    assert!(generated < 450, "{generated} tokens: the first request was not cancelled");
}

#[test]
fn requests_past_the_queue_are_refused_and_bad_ones_named() {
    let served = served(&tiny_path());
    let engine = engine(&served, EngineOptions { max_batch: 1, queue: 2, ..options() });
    let mut held = Vec::new();
    let refused = loop {
        match engine.submit(request(&served, PROMPTS[1], 400)) {
            Ok(events) => held.push(events),
            Err(error) => break error,
        }
        assert!(held.len() < 10, "the queue has no limit");
    };
    assert!(matches!(refused, EngineError::QueueFull { waiting: 2, .. }), "{refused}");
    assert_eq!(engine.metrics().rejected.get(), 1);
    let mut bad = request(&served, PROMPTS[1], 4);
    bad.prompt = vec![];
    assert_eq!(engine.submit(bad.clone()).unwrap_err(), EngineError::EmptyPrompt);
    bad.prompt = vec![2048];
    assert_eq!(
        engine.submit(bad.clone()).unwrap_err(),
        EngineError::Token { token: 2048, vocab: 2048 }
    );
    bad.prompt = vec![1];
    bad.choices = vec![SamplingOptions::default(); 2];
    assert_eq!(engine.submit(bad).unwrap_err(), EngineError::TooManyChoices { asked: 2, most: 1 });
}

#[test]
fn draining_finishes_what_runs_and_stopping_ends_it() {
    let served = served(&tiny_path());
    let engine = engine(&served, options());
    let running = engine.submit(request(&served, PROMPTS[0], 30)).unwrap();
    engine.drain();
    let refused = engine.submit(request(&served, PROMPTS[0], 30)).unwrap_err();
    assert_eq!(refused, EngineError::Stopping);
    assert_eq!(gather(running, 1).0[0].2, 30);

    let engine = self::engine(&served, options());
    let mut running = engine.submit(request(&served, PROMPTS[1], 400)).unwrap();
    running.blocking_recv().unwrap();
    engine.stop();
    let mut last = None;
    while let Some(event) = running.blocking_recv() {
        last = Some(event);
    }
    assert_eq!(last, Some(Event::Failed(EngineError::Stopping)));
}

/// The tokens of a request whose prompt is long come between those of one that runs.
#[test]
fn a_long_prompt_does_not_stall_a_running_answer() {
    let served = served(&tiny_path());
    let engine = engine(&served, EngineOptions { prefix_cache_bytes: 0, ..options() });
    let mut running = engine.submit(request(&served, PROMPTS[1], 300)).unwrap();
    for _ in 0..3 {
        running.blocking_recv().unwrap();
    }
    let long = PROMPTS[2].repeat(6);
    let mut prompt = request(&served, &long, 1);
    prompt.prompt.truncate(480);
    let chunks = prompt.prompt.len() / 16;
    let before = engine.metrics().generated_tokens.get();
    let mut events = engine.submit(prompt).unwrap();
    events.blocking_recv().unwrap();
    let between = engine.metrics().generated_tokens.get() - before;
    assert!(between as usize >= chunks - 3, "{between} tokens in {chunks} chunks");
}
