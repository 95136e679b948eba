//! `/v1/completions`: text that is continued as it is.

use super::answer::{Usage, data, finish_reason, gather, stream_response};
use super::error::ApiError;
use super::fields::Fields;
use super::params::{Format, Params, constraint};
use super::state::{App, unix_time};
use super::tools::ToolChoice;
use super::{json_response, logprobs, new_id, off_thread, read_json};
use crate::engine::{Event, Finish, TokenLogprobs};
use async_stream::try_stream;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use futures_util::stream::{SelectAll, StreamExt, unfold};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Prompts of one request at most.
const MAX_PROMPTS: usize = 64;
const MAX_LOGPROBS: u64 = 20;

struct Completion {
    app: Arc<App>,
    id: String,
    created: u64,
    params: Params,
    logprobs: bool,
    /// What comes before the texts, for each prompt.
    echoes: Vec<String>,
    usage: Usage,
    events: Vec<UnboundedReceiver<Event>>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let body = read_json(&app, request).await?;
    let completion = off_thread(move || submit(app, &body)).await?;
    if completion.params.stream { Ok(stream(completion)) } else { answer(completion).await }
}

fn submit(app: Arc<App>, body: &Value) -> Result<Completion, ApiError> {
    let fields = Fields::new(body, "")?;
    app.check_model(&fields)?;
    let prompts = read_prompts(&app, &fields)?;
    let params = Params::read(&fields, &["max_completion_tokens", "max_tokens"])?;
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::unsupported("suffix", "`suffix` is not supported"));
    }
    let top = fields.count("logprobs", 0..=MAX_LOGPROBS)?;
    let constraint = constraint(&app, &Format::of_chat(&fields)?, &ToolChoice::None, &[])?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let mut usage = Usage::default();
    let mut events = Vec::new();
    let mut echoes = Vec::new();
    for (index, prompt) in prompts.into_iter().enumerate() {
        usage.prompt += prompt.len();
        let text =
            if echo { app.served.tokenizer.decode(&prompt, true) } else { Ok(String::new()) };
        echoes.push(text.map_err(|error| ApiError::internal(error.to_string()))?);
        let request = params.request(&app, prompt, index, top, constraint.clone())?;
        events.push(app.engine.submit(request)?);
    }
    let id = new_id("cmpl-")?;
    let logprobs = top.is_some();
    Ok(Completion { app, id, created: unix_time(), params, logprobs, echoes, usage, events })
}

/// A text, tokens, or an array of either.
fn read_prompts(app: &App, fields: &Fields) -> Result<Vec<Vec<u32>>, ApiError> {
    let expected = "a text, an array of token ids, or an array of at most 64 of these";
    let invalid = || fields.mismatch("prompt", expected);
    let one = |value: &Value| match value {
        Value::String(text) => {
            let tokens = app.served.tokenizer.encode(text, true);
            let tokens = tokens.map_err(|error| ApiError::internal(error.to_string()))?;
            // An empty text begins where any text does.
            let start = app.served.tokenizer.bos_token().filter(|_| tokens.is_empty());
            Ok(start.map_or(tokens, |start| vec![start]))
        }
        Value::Array(list) => {
            let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
            list.iter().map(id).collect::<Option<Vec<u32>>>().ok_or_else(invalid)
        }
        _ => Err(invalid()),
    };
    let prompts = match fields.required("prompt")? {
        Value::Array(list) if list.iter().any(|value| !value.is_number()) => {
            list.iter().map(one).collect::<Result<Vec<_>, _>>()?
        }
        value => vec![one(value)?],
    };
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS { Err(invalid()) } else { Ok(prompts) }
}

async fn answer(mut completion: Completion) -> Result<Response, ApiError> {
    let mut choices = Vec::new();
    for (prompt, events) in std::mem::take(&mut completion.events).into_iter().enumerate() {
        let n = completion.params.n;
        let answers = gather(events, n, &mut completion.usage).await?;
        for (choice, answer) in answers.into_iter().enumerate() {
            let echo = &completion.echoes[prompt];
            let offset = echo.chars().count();
            choices.push(completion.choice(
                prompt * n + choice,
                &format!("{echo}{}", answer.text),
                &answer.logprobs,
                offset,
                answer.finish,
            ));
        }
    }
    let mut body = completion.envelope(Value::Array(choices));
    body["usage"] = completion.usage.to_json();
    Ok(json_response(StatusCode::OK, &body))
}

fn stream(mut completion: Completion) -> Response {
    stream_response(try_stream! {
        let n = completion.params.n;
        let mut open = completion.events.len() * n;
        let mut offsets: Vec<usize> = vec![0; open];
        for (index, offset) in offsets.iter_mut().enumerate() {
            let echo = completion.echoes[index / n].clone();
            if !echo.is_empty() {
                *offset = echo.chars().count();
                yield data(&completion.chunk(index, &echo, &[], 0, None));
            }
        }
        let mut events = merged(std::mem::take(&mut completion.events));
        while open > 0 {
            let Some((prompt, event)) = events.next().await else { break };
            let event = event?;
            completion.usage.note(&event);
            match event {
                Event::Text { choice, text, logprobs } => {
                    let index = prompt * n + choice;
                    let chunk = completion.chunk(index, &text, &logprobs, offsets[index], None);
                    offsets[index] += text.chars().count();
                    yield data(&chunk);
                }
                Event::Done { choice, finish, .. } => {
                    open -= 1;
                    yield data(&completion.chunk(prompt * n + choice, "", &[], 0, Some(finish)));
                }
                Event::Started { .. } | Event::Failed(_) => {}
            }
        }
        if completion.params.include_usage {
            let mut last = completion.envelope(json!([]));
            last["usage"] = completion.usage.to_json();
            yield data(&last);
        }
        yield axum::response::sse::Event::default().data("[DONE]");
    })
}

type Tagged = (usize, Result<Event, ApiError>);

/// The events of all prompts, each with the prompt's index, as they come. A prompt's stream ends
/// with its receiver.
fn merged(
    events: Vec<UnboundedReceiver<Event>>,
) -> SelectAll<std::pin::Pin<Box<dyn futures_util::Stream<Item = Tagged> + Send>>> {
    let streams = events.into_iter().enumerate().map(|(prompt, events)| {
        let stream = unfold(events, move |mut events| async move {
            let event = match events.recv().await? {
                Event::Failed(error) => Err(error.into()),
                event => Ok(event),
            };
            Some(((prompt, event), events))
        });
        stream.boxed()
    });
    futures_util::stream::select_all(streams)
}

impl Completion {
    fn envelope(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.app.served.name,
            "choices": choices,
        })
    }

    fn choice(
        &self,
        index: usize,
        text: &str,
        tokens: &[TokenLogprobs],
        offset: usize,
        finish: Option<Finish>,
    ) -> Value {
        let logprobs = if self.logprobs {
            logprobs::completion(self.app.served.vocabulary(), tokens, offset)
        } else {
            Value::Null
        };
        json!({
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish.map(finish_reason),
        })
    }

    fn chunk(
        &self,
        index: usize,
        text: &str,
        tokens: &[TokenLogprobs],
        offset: usize,
        finish: Option<Finish>,
    ) -> Value {
        self.envelope(json!([self.choice(index, text, tokens, offset, finish)]))
    }
}
