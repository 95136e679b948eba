//! Events of the engine, gathered or as a stream.

use super::error::ApiError;
use crate::engine::{EngineError, Event, Finish, TokenLogprobs};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::Stream;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;

/// One finished choice.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    pub text: String,
    pub logprobs: Vec<TokenLogprobs>,
    pub finish: Option<Finish>,
}

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    pub prompt: usize,
    pub cached: usize,
    pub completion: usize,
}

impl Usage {
    /// Counts what an event says.
    pub fn note(&mut self, event: &Event) {
        match event {
            Event::Started { cached_tokens } => self.cached += cached_tokens,
            Event::Done { tokens, .. } => self.completion += tokens,
            Event::Text { .. } | Event::Failed(_) => {}
        }
    }

    /// As chat and completions say it.
    pub fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

pub fn finish_reason(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "stop",
        Finish::Length => "length",
    }
}

/// The next event; an engine that ended without a word is an error.
pub async fn next_event(events: &mut UnboundedReceiver<Event>) -> Result<Event, ApiError> {
    match events.recv().await {
        Some(Event::Failed(error)) => Err(error.into()),
        Some(event) => Ok(event),
        None => Err(EngineError::Model("the engine ended".to_owned()).into()),
    }
}

/// All choices of a request, when they are done.
pub async fn gather(
    mut events: UnboundedReceiver<Event>,
    choices: usize,
    usage: &mut Usage,
) -> Result<Vec<Answer>, ApiError> {
    let mut answers = vec![Answer::default(); choices];
    let mut open = choices;
    while open > 0 {
        let event = next_event(&mut events).await?;
        usage.note(&event);
        match event {
            Event::Text { choice, text, logprobs } => {
                answers[choice].text.push_str(&text);
                answers[choice].logprobs.extend(logprobs);
            }
            Event::Done { choice, finish, .. } => {
                answers[choice].finish = Some(finish);
                open -= 1;
            }
            Event::Started { .. } | Event::Failed(_) => {}
        }
    }
    Ok(answers)
}

/// A server-sent event of JSON.
pub fn data(value: &Value) -> sse::Event {
    sse::Event::default().data(value.to_string())
}

/// Server-sent events, with comments while nothing happens so that a lost client is noticed. An
/// error becomes an event and ends the stream.
pub fn stream_response(
    stream: impl Stream<Item = Result<sse::Event, ApiError>> + Send + 'static,
) -> Response {
    let stream = async_stream::stream! {
        futures_util::pin_mut!(stream);
        while let Some(item) = futures_util::StreamExt::next(&mut stream).await {
            match item {
                Ok(event) => yield Ok::<_, Infallible>(event),
                Err(error) => {
                    yield Ok(data(&error.to_json()));
                    return;
                }
            }
        }
    };
    let keep_alive = KeepAlive::new().interval(Duration::from_secs(10));
    Sse::new(stream).keep_alive(keep_alive).into_response()
}
