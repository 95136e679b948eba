//! One choice of a request while it is generated.

use super::logprobs;
use super::queue::Job;
use super::request::{Adjustments, EngineError, Event, Finish, TokenLogprobs};
use crate::constrain::Matcher;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;
use trelliq_config::Config;
use trelliq_model::{
    KvCache, RuntimeOptions, Sampler, StopFinder, TextStream, Tokenizer, TokenizerError,
};

/// What the choices of a request share.
#[derive(Debug)]
pub(super) struct Shared {
    pub adjust: Adjustments,
    pub logprobs: Option<usize>,
    pub max_tokens: usize,
    pub prompt_tokens: usize,
    pub config: Config,
    pub runtime: RuntimeOptions,
    pub events: UnboundedSender<Event>,
    pub enqueued: Instant,
}

#[derive(Debug)]
pub(super) struct Sequence<'a> {
    pub shared: Arc<Shared>,
    pub choice: usize,
    pub cache: KvCache,
    sampler: Sampler,
    matcher: Option<Matcher>,
    tokenizer: &'a Tokenizer,
    stream: TextStream<'a>,
    stops: StopFinder,
    /// The prompt and what was generated.
    seen: Vec<u32>,
    /// Log probabilities of tokens whose text is still held back.
    logprobs: Vec<TokenLogprobs>,
    pub started: Instant,
    pub ended: Option<Ended>,
}

/// How a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    Done,
    Cancelled,
    Failed,
}

/// The choices of a job whose prompt has been run.
pub(super) fn fork<'a>(
    job: Job,
    cache: KvCache,
    max_tokens: usize,
    tokenizer: &'a Tokenizer,
) -> Result<Vec<Sequence<'a>>, EngineError> {
    let request = job.request;
    let shared = Arc::new(Shared {
        adjust: request.adjust,
        logprobs: request.logprobs,
        max_tokens,
        prompt_tokens: request.prompt.len(),
        config: request.config,
        runtime: request.runtime,
        events: job.events,
        enqueued: job.enqueued,
    });
    let mut sequences = Vec::with_capacity(request.choices.len());
    let mut cache = Some(cache);
    let last = request.choices.len().saturating_sub(1);
    for (choice, sampling) in request.choices.into_iter().enumerate() {
        let sampler = Sampler::new(sampling);
        let own = if choice == last { cache.take() } else { cache.clone() };
        let matcher = request.constraint.as_ref().map(|constraint| constraint.matcher());
        sequences.push(Sequence {
            shared: Arc::clone(&shared),
            choice,
            cache: own.expect("taken by the last choice only"),
            sampler: sampler.map_err(|error| EngineError::Sampling(error.to_string()))?,
            matcher,
            tokenizer,
            stream: tokenizer.stream(),
            stops: StopFinder::new(&request.stop),
            seen: request.prompt.clone(),
            logprobs: Vec::new(),
            started: Instant::now(),
            ended: None,
        });
    }
    Ok(sequences)
}

impl Sequence<'_> {
    /// The token that the next step runs.
    pub fn next_token(&self) -> &[u32] {
        &self.seen[self.seen.len() - 1..]
    }

    pub fn generated(&self) -> &[u32] {
        &self.seen[self.shared.prompt_tokens..]
    }

    /// Chooses a token from the logits of the last step, which are changed on the way.
    pub fn advance(&mut self, logits: &mut [f32]) {
        if let Err(error) = self.try_advance(logits) {
            self.fail(error);
        }
    }

    pub fn fail(&mut self, error: EngineError) {
        self.ended = Some(Ended::Failed);
        self.send(Event::Failed(error));
    }

    fn try_advance(&mut self, logits: &mut [f32]) -> Result<(), EngineError> {
        let ranked = self.shared.logprobs.map(|top| logprobs::ranked(logits, top));
        self.shared.adjust.apply(logits, &self.seen[self.shared.prompt_tokens..]);
        if let Some(matcher) = &mut self.matcher {
            matcher.mask(logits).map_err(EngineError::Model)?;
        }
        let token = self.sampler.sample(logits, &self.seen);
        let token = token.map_err(|error| EngineError::Model(error.to_string()))?;
        if let Some(ranked) = ranked {
            self.logprobs.push(ranked.of(token));
        }
        self.seen.push(token);
        if self.tokenizer.is_eos(token) {
            return self.finish(Finish::Stop);
        }
        let mut complete = false;
        if let Some(matcher) = &mut self.matcher {
            complete = matcher.consume(token).map_err(EngineError::Model)?;
        }
        self.show(token)?;
        match self.ended {
            Some(_) => Ok(()),
            None if complete => self.finish(Finish::Stop),
            None if self.generated().len() >= self.shared.max_tokens => self.finish(Finish::Length),
            None => Ok(()),
        }
    }

    fn show(&mut self, token: u32) -> Result<(), EngineError> {
        let piece = self.stream.push(token).map_err(text_error)?;
        let released = self.stops.push(&piece);
        self.send_text(released.text);
        if released.stop.is_some() {
            self.done(Finish::Stop);
        }
        Ok(())
    }

    /// Sends what was held back, then the end.
    fn finish(&mut self, finish: Finish) -> Result<(), EngineError> {
        let rest = self.stream.clone().finish().map_err(text_error)?;
        let mut stops = std::mem::replace(&mut self.stops, StopFinder::new(&[]));
        let released = stops.push(&rest);
        let held = if released.stop.is_some() { String::new() } else { stops.finish() };
        let finish = if released.stop.is_some() { Finish::Stop } else { finish };
        self.send_text(released.text + &held);
        self.done(finish);
        Ok(())
    }

    fn done(&mut self, finish: Finish) {
        let tokens = self.generated().len();
        self.ended = Some(Ended::Done);
        self.send(Event::Done { choice: self.choice, finish, tokens });
    }

    fn send_text(&mut self, text: String) {
        if !text.is_empty() {
            let logprobs = std::mem::take(&mut self.logprobs);
            self.send(Event::Text { choice: self.choice, text, logprobs });
        }
    }

    fn send(&mut self, event: Event) {
        if self.shared.events.send(event).is_err() {
            self.ended = Some(Ended::Cancelled);
        }
    }

    /// Marks the end of a sequence that nobody listens to.
    pub fn check_cancelled(&mut self) {
        if self.ended.is_none() && self.shared.events.is_closed() {
            self.ended = Some(Ended::Cancelled);
        }
    }
}

fn text_error(error: TokenizerError) -> EngineError {
    EngineError::Model(error.to_string())
}
