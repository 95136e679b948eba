//! Running a language model from dense or trellis-coded weights: configuration, decoder,
//! tokenizer, chat templates, sampling and evaluation.

mod chat;
mod config;
mod decoder;
pub mod eval;
mod generate;
pub mod runtime;
mod sampling;
mod stop;
mod tokenizer;

pub use chat::{ChatError, ChatTemplate, ChatTemplates, Message, PLAIN, TurnFormat};
pub use config::{
    Activation, AttentionConfig, ConfigError, Family, ModelConfig, Rope, RopeScaling,
};
pub use decoder::{
    DeviceChoice, GradientObserver, KvCache, LayerInput, LinearGradient, LinearSite, LoadOptions,
    Logits, Model, ModelError, Observer, RuntimeOptions, SequenceStep,
};
pub use generate::{
    FinishReason, GenerateError, GenerateOptions, GenerateStats, Generation, TokenEvent, generate,
};
pub use sampling::{Sampler, SamplingError, SamplingOptions, argmax};
pub use stop::{Released, StopFinder};
pub use tokenizer::{TextStream, Tokenizer, TokenizerError};
