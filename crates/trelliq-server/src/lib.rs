//! Serving a packed model: an engine that runs many requests together, an OpenAI-compatible HTTP
//! API over it (`docs/spec/serving.md`), a store of conversations, and a page to talk on.

pub mod api;
pub mod constrain;
pub mod engine;
pub mod http;
pub mod metrics;
pub mod runtime;
mod served;
pub mod store;
pub mod vocabulary;

pub use served::ServedModel;
