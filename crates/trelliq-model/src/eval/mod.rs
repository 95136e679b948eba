//! How well a model predicts a text, alone and against a reference model.
//!
//! The text is tokenized whole, without a start token, and cut into windows. Within a window the
//! logits at position i predict token i + 1, so a window of n tokens scores n - 1 of them (see
//! [`Windows`] for the strided kind, and [`EvalOptions::bos`]). Logits are taken a few positions at
//! a time and reduced in f64; neither model's logits are kept beyond that.

mod stats;
mod windows;

pub use stats::{Statistics, TokenScore, score_token};
pub use windows::{Window, Windows};

use crate::{Model, ModelError, RuntimeOptions, SequenceStep};
use rayon::prelude::*;
use serde::Serialize;

/// What can be wrong with an evaluation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvalError {
    #[error("the text has {tokens} tokens, fewer than one window of {window}")]
    TooShort { tokens: usize, window: usize },
    #[error("a window of {window} tokens with stride {stride} scores nothing")]
    Windows { window: usize, stride: usize },
    #[error("no windows were asked for")]
    NoWindows,
    #[error("logits at position {position} of window {window} are not finite in the {model} model")]
    NotFinite { window: usize, position: usize, model: &'static str },
    #[error("the models have vocabularies of {reference} and {model} tokens")]
    Vocabulary { reference: usize, model: usize },
    #[error("{model} model: {source}")]
    Model { model: &'static str, source: ModelError },
}

/// How a text is evaluated.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalOptions {
    /// Tokens in a window.
    pub window: usize,
    pub windows: Windows,
    /// A start token that goes before every window, as context only: the same tokens are scored
    /// as without. Gemma's models make little sense without one.
    pub bos: Option<u32>,
    /// Positions whose logits are held at a time.
    pub chunk: usize,
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self { window: 512, windows: Windows::Spread { count: 16 }, bos: None, chunk: 64 }
    }
}

/// How far an evaluation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvalProgress {
    pub windows_done: usize,
    pub windows: usize,
    pub tokens_scored: usize,
}

/// A model and how it is run.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    pub model: &'a Model,
    pub options: &'a RuntimeOptions,
}

/// The figures. Divergences and losses are in nats; the optional ones need a reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EvalReport {
    /// exp(mean negative log-likelihood) of the scored tokens.
    pub perplexity: f64,
    /// Standard error of the perplexity: perplexity times that of the mean.
    pub perplexity_stderr: f64,
    /// Mean negative log-likelihood.
    pub nll_mean: f64,
    #[serde(flatten)]
    pub comparison: Option<Comparison>,
    /// Tokens scored.
    pub tokens: usize,
    pub windows: usize,
    pub window: usize,
    pub stride: Option<usize>,
    /// Tokens of the whole text.
    pub text_tokens: usize,
    pub bos: Option<u32>,
}

/// A model against a reference, over the scored tokens.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    pub reference_perplexity: f64,
    pub reference_perplexity_stderr: f64,
    /// Mean of KL(reference || model).
    pub kl_mean: f64,
    pub kl_stderr: f64,
    pub kl_median: f64,
    /// 99th percentile.
    pub kl_p99: f64,
    pub kl_max: f64,
    /// Share of positions at which both models give the largest logit to the same token.
    pub top1_agreement: f64,
    pub top1_agreement_stderr: f64,
    /// Root mean square of the change of the probability of the token that follows.
    pub delta_p_rms: f64,
}

/// Scores `tokens`, the whole text, with `model` and, where given, compares it with `reference`:
/// both run window by window.
pub fn evaluate(
    model: Subject,
    reference: Option<Subject>,
    tokens: &[u32],
    options: &EvalOptions,
    progress: &mut dyn FnMut(EvalProgress),
) -> Result<EvalReport, EvalError> {
    let windows = options.windows.plan(tokens.len(), options.window)?;
    if let Some(reference) = reference
        && reference.model.vocab() != model.model.vocab()
    {
        let (reference, model) = (reference.model.vocab(), model.model.vocab());
        return Err(EvalError::Vocabulary { reference, model });
    }
    let mut statistics = Statistics::default();
    for (index, window) in windows.iter().enumerate() {
        let scores = score_window(model, reference, tokens, window, index, options)?;
        scores.into_iter().for_each(|score| statistics.push(score));
        progress(EvalProgress {
            windows_done: index + 1,
            windows: windows.len(),
            tokens_scored: statistics.tokens(),
        });
    }
    let report = EvalReport {
        perplexity: statistics.perplexity(),
        perplexity_stderr: statistics.perplexity_stderr(),
        nll_mean: statistics.nll_mean(),
        comparison: statistics.comparison(),
        tokens: statistics.tokens(),
        windows: windows.len(),
        window: options.window,
        stride: match options.windows {
            Windows::Strided { stride } => Some(stride),
            Windows::Spread { .. } => None,
        },
        text_tokens: tokens.len(),
        bos: options.bos,
    };
    Ok(report)
}

fn score_window(
    model: Subject,
    reference: Option<Subject>,
    tokens: &[u32],
    window: &Window,
    index: usize,
    options: &EvalOptions,
) -> Result<Vec<TokenScore>, EvalError> {
    let text = &tokens[window.start..window.start + options.window];
    let input: Vec<u32> = options.bos.into_iter().chain(text.iter().copied()).collect();
    let shift = usize::from(options.bos.is_some());
    let hidden = hidden_states("evaluated", model, &input)?;
    let other = reference.map(|r| hidden_states("reference", r, &input)).transpose()?;
    let first = window.first_scored;
    let mut scores = Vec::with_capacity(options.window - first);
    let positions: Vec<usize> = (first - 1..options.window - 1).collect();
    for chunk in positions.chunks(options.chunk.max(1)) {
        let rows = chunk[0] + shift..chunk[0] + shift + chunk.len();
        let targets = &text[chunk[0] + 1..chunk[0] + 1 + chunk.len()];
        let logits = rows_of_logits("evaluated", model, &hidden, rows.clone())?;
        let other = match (reference, &other) {
            (Some(r), Some(hidden)) => Some(rows_of_logits("reference", r, hidden, rows)?),
            _ => None,
        };
        let found = score_rows(&logits, other.as_deref(), targets, model.model.vocab());
        for (position, score) in chunk.iter().zip(found) {
            let (window, position) = (index, *position);
            scores.push(score.map_err(|model| EvalError::NotFinite { window, position, model })?);
        }
    }
    Ok(scores)
}

fn score_rows(
    logits: &[f32],
    reference: Option<&[f32]>,
    targets: &[u32],
    vocab: usize,
) -> Vec<Result<TokenScore, &'static str>> {
    (0..targets.len())
        .into_par_iter()
        .map(|i| {
            let row = i * vocab..(i + 1) * vocab;
            score_token(&logits[row.clone()], reference.map(|r| &r[row]), targets[i])
        })
        .collect()
}

fn hidden_states(
    name: &'static str,
    subject: Subject,
    input: &[u32],
) -> Result<Vec<f32>, EvalError> {
    let mut cache = subject.model.new_cache();
    let mut steps = [SequenceStep { cache: &mut cache, tokens: input }];
    let hidden = subject.model.forward_hidden(&mut steps, subject.options);
    hidden.map_err(|source| EvalError::Model { model: name, source })
}

fn rows_of_logits(
    name: &'static str,
    subject: Subject,
    hidden: &[f32],
    rows: std::ops::Range<usize>,
) -> Result<Vec<f32>, EvalError> {
    let width = subject.model.config().hidden_size;
    let logits =
        subject.model.logits(&hidden[rows.start * width..rows.end * width], subject.options);
    logits.map_err(|source| EvalError::Model { model: name, source })
}

#[cfg(test)]
mod tests;
