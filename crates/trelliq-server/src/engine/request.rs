//! What the engine is asked for and what it answers.

use crate::constrain::Constraint;
use std::time::Duration;
use trelliq_config::Config;
use trelliq_model::{RuntimeOptions, SamplingOptions};

/// A prompt to continue, in one or several ways.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Vec<u32>,
    /// One sampler a choice; the prompt is run once for all of them.
    pub choices: Vec<SamplingOptions>,
    /// Tokens of each choice at most; the context may leave room for fewer.
    pub max_tokens: usize,
    /// Text that ends a choice; it is not part of the result.
    pub stop: Vec<String>,
    /// What is added to logits before anything else.
    pub adjust: Adjustments,
    /// Log probabilities of the chosen token and of so many of the most probable ones.
    pub logprobs: Option<usize>,
    /// What the text must be.
    pub constraint: Option<Constraint>,
    /// The snapshot that the request started under.
    pub config: Config,
    /// What the snapshot says about kernels.
    pub runtime: RuntimeOptions,
}

/// Changes to logits, as OpenAI's API defines them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Adjustments {
    /// Subtracted from the logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Subtracted once for every time that a token was generated.
    pub frequency_penalty: f32,
    pub bias: Vec<(u32, f32)>,
}

impl Adjustments {
    pub(super) fn apply(&self, logits: &mut [f32], generated: &[u32]) {
        for &(token, bias) in &self.bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
        if self.presence_penalty == 0.0 && self.frequency_penalty == 0.0 {
            return;
        }
        let mut sorted = generated.to_vec();
        sorted.sort_unstable();
        for run in sorted.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(run[0] as usize) {
                *logit -= self.presence_penalty + self.frequency_penalty * run.len() as f32;
            }
        }
    }
}

/// A token with its probability, natural logarithm, under the model before temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Likely {
    pub token: u32,
    pub logprob: f32,
}

/// A chosen token and the most probable ones in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    pub chosen: Likely,
    pub top: Vec<Likely>,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// An end token, a stop string or the end of what a constraint allows.
    Stop,
    /// The most tokens that were asked for, or that the context holds.
    Length,
}

/// What happens to a request, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// The prompt has been run; so many of its tokens came from the prefix cache.
    Started { cached_tokens: usize },
    /// Text that became certain.
    Text { choice: usize, text: String, logprobs: Vec<TokenLogprobs> },
    /// The end of a choice; `tokens` were generated, an end token included.
    Done { choice: usize, finish: Finish, tokens: usize },
    /// The end of the request; nothing follows.
    Failed(EngineError),
}

/// Why the engine does not answer, or not to the end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    #[error(
        "the prompt has {tokens} tokens, and the context of {context} leaves no room to answer"
    )]
    TooLong { tokens: usize, context: usize },
    #[error("{asked} choices were asked for, the server runs at most {most} sequences together")]
    TooManyChoices { asked: usize, most: usize },
    #[error("token {token} is outside of the vocabulary of {vocab}")]
    Token { token: u32, vocab: usize },
    #[error("{0}")]
    Sampling(String),
    #[error("{waiting} requests are waiting, which is the limit; try again later")]
    QueueFull { waiting: usize, retry_after: Duration },
    #[error("the server is shutting down")]
    Stopping,
    #[error("the model failed: {0}")]
    Model(String),
}
