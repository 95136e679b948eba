//! Generating text token by token.

use crate::sampling::{Sampler, SamplingError, SamplingOptions};
use crate::stop::StopFinder;
use crate::{
    KvCache, Logits, Model, ModelError, RuntimeOptions, SequenceStep, Tokenizer, TokenizerError,
};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// What can stop a generation besides its own end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GenerateError {
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// How a text is generated.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateOptions {
    pub sampling: SamplingOptions,
    /// Tokens at most.
    pub max_tokens: usize,
    /// Text that ends the generation; it is not part of the result.
    pub stop: Vec<String>,
    /// Whether tokens that end a text for the model are ignored.
    pub ignore_eos: bool,
    /// Tokens of the prompt that are run at a time, which bounds memory.
    pub prefill_chunk: usize,
}

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            sampling: SamplingOptions::default(),
            max_tokens: 256,
            stop: Vec::new(),
            ignore_eos: false,
            prefill_chunk: 512,
        }
    }
}

/// One generated token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEvent<'a> {
    pub token: u32,
    /// Text that became certain with this token, often empty, never part of a stop string.
    pub text: &'a str,
}

/// Why a generation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// The model produced this end token.
    EndToken(u32),
    /// This stop string came.
    StopString(String),
    MaxTokens,
    /// The caller's function broke off.
    Cancelled,
}

/// Tokens and times.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GenerateStats {
    /// Tokens of the prompt that were run: all but those that the cache held.
    pub prompt_tokens: usize,
    pub prompt_time: Duration,
    /// Tokens generated, an end token included.
    pub generated_tokens: usize,
    /// Time of all steps after the prompt, each of one token.
    pub decode_time: Duration,
    /// Steps after the prompt: one less than the tokens generated.
    pub decode_steps: usize,
}

impl GenerateStats {
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_time)
    }

    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_steps, self.decode_time)
    }
}

fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

/// A finished text.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    pub text: String,
    /// All tokens generated, an end token included.
    pub tokens: Vec<u32>,
    pub finish: FinishReason,
    pub stats: GenerateStats,
}

/// Continues `prompt` until an end token, a stop string, the limit, or until `on_token` breaks
/// off. `prompt` is the whole sequence: the beginning that it shares with what `cache` has seen is
/// not run again, so that a chat passes the same cache with a grown prompt. A held-back end of
/// text comes with a last call of `on_token`.
pub fn generate(
    model: &Model,
    tokenizer: &Tokenizer,
    cache: &mut KvCache,
    prompt: &[u32],
    options: &GenerateOptions,
    runtime: &RuntimeOptions,
    on_token: &mut dyn FnMut(TokenEvent) -> ControlFlow<()>,
) -> Result<Generation, GenerateError> {
    let mut sampler = Sampler::new(options.sampling.clone())?;
    let mut stats = GenerateStats::default();
    let started = Instant::now();
    let mut logits = prefill(model, cache, prompt, options, runtime, &mut stats)?;
    stats.prompt_time = started.elapsed();
    let mut text = Text::new(tokenizer, &options.stop, on_token);
    let mut tokens = Vec::new();
    let mut seen = prompt.to_vec();
    let started = Instant::now();
    let finish = loop {
        if tokens.len() == options.max_tokens {
            break FinishReason::MaxTokens;
        }
        let token = sampler.sample(&logits, &seen)?;
        tokens.push(token);
        seen.push(token);
        if !options.ignore_eos && tokenizer.is_eos(token) {
            break FinishReason::EndToken(token);
        }
        if let Some(finish) = text.push(token)? {
            break finish;
        }
        if tokens.len() < options.max_tokens {
            let step = SequenceStep { cache, tokens: &[token] };
            logits = model.forward(&mut [step], Logits::Last, runtime)?;
            stats.decode_steps += 1;
        }
    };
    stats.decode_time = started.elapsed();
    stats.generated_tokens = tokens.len();
    let text = text.finish(&finish, tokens.last().copied())?;
    Ok(Generation { text, tokens, finish, stats })
}

/// Runs what the cache does not hold of the prompt, at least its last token, for that one's logits.
fn prefill(
    model: &Model,
    cache: &mut KvCache,
    prompt: &[u32],
    options: &GenerateOptions,
    runtime: &RuntimeOptions,
    stats: &mut GenerateStats,
) -> Result<Vec<f32>, GenerateError> {
    let (_, before) = prompt.split_last().ok_or(GenerateError::EmptyPrompt)?;
    let shared = before.iter().zip(cache.tokens()).take_while(|(a, b)| a == b).count();
    cache.truncate(shared);
    let new = &prompt[cache.len()..];
    stats.prompt_tokens = new.len();
    let mut hidden = Vec::new();
    for tokens in new.chunks(options.prefill_chunk.max(1)) {
        let step = SequenceStep { cache, tokens };
        hidden = model.forward_hidden(&mut [step], runtime)?;
    }
    let last = hidden.len() - model.config().hidden_size;
    Ok(model.logits(&hidden[last..], runtime)?)
}

/// The text of a generation, shown piece by piece.
struct Text<'a> {
    stream: crate::TextStream<'a>,
    stops: StopFinder,
    on_token: &'a mut dyn FnMut(TokenEvent) -> ControlFlow<()>,
    text: String,
}

impl<'a> Text<'a> {
    fn new(
        tokenizer: &'a Tokenizer,
        stops: &[String],
        on_token: &'a mut dyn FnMut(TokenEvent) -> ControlFlow<()>,
    ) -> Self {
        let stops = StopFinder::new(stops);
        Self { stream: tokenizer.stream(), stops, on_token, text: String::new() }
    }

    fn push(&mut self, token: u32) -> Result<Option<FinishReason>, TokenizerError> {
        let piece = self.stream.push(token)?;
        let released = self.stops.push(&piece);
        let flow = self.show(token, &released.text);
        Ok(match (released.stop, flow) {
            (Some(stop), _) => Some(FinishReason::StopString(stop)),
            (None, ControlFlow::Break(())) => Some(FinishReason::Cancelled),
            (None, ControlFlow::Continue(())) => None,
        })
    }

    fn show(&mut self, token: u32, text: &str) -> ControlFlow<()> {
        self.text.push_str(text);
        (self.on_token)(TokenEvent { token, text })
    }

    /// Shows what was held back, unless a stop string or the caller ended the text.
    fn finish(
        mut self,
        finish: &FinishReason,
        last: Option<u32>,
    ) -> Result<String, TokenizerError> {
        let ended = matches!(finish, FinishReason::StopString(_) | FinishReason::Cancelled);
        if let (false, Some(token)) = (ended, last) {
            let mut stops = std::mem::replace(&mut self.stops, StopFinder::new(&[]));
            let released = stops.push(&self.stream.clone().finish()?);
            let rest = if released.stop.is_some() { String::new() } else { stops.finish() };
            let text = released.text + &rest;
            if !text.is_empty() {
                let _ = self.show(token, &text);
            }
        }
        Ok(self.text)
    }
}
