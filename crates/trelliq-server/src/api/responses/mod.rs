//! `/v1/responses`: chats whose history the server keeps.

mod output;
mod resolve;
mod translate;

pub use resolve::{ResolveError, Resolved, resolve};

use super::answer::{Usage, next_event, stream_response};
use super::error::ApiError;
use super::fields::Fields;
use super::params::{Format, Params, constraint};
use super::parts::{Part, PartReader};
use super::prompt::{chat_prompt, read_messages};
use super::state::{App, unix_time};
use super::tools::{Tool, ToolChoice};
use super::{json_response, new_id, off_thread, read_json};
use crate::engine::{Event, Finish};
use crate::store::Entry;
use async_stream::try_stream;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::response::Response;
use axum::response::sse;
use output::Output;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;
use translate::to_messages;

/// A response that the engine works on.
struct Pending {
    app: Arc<App>,
    /// The response as it is before any output.
    response: Value,
    id: String,
    input: Vec<Value>,
    /// `None` once the answer has ended.
    reader: Option<PartReader>,
    store: bool,
    stream: bool,
    usage: Usage,
    events: UnboundedReceiver<Event>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let body = read_json(&app, request).await?;
    let resolved = resolve_request(&app, &Fields::new(&body, "")?).await?;
    let pending = off_thread(move || submit(app, &body, resolved)).await?;
    if pending.stream { Ok(stream(pending)) } else { answer(pending).await }
}

pub async fn retrieve(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    match app.load_response(&id).await? {
        Some(entry) => Ok(json_response(StatusCode::OK, &entry.response)),
        None => Err(not_found(&id)),
    }
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    if !app.remove_response(&id).await? {
        return Err(not_found(&id));
    }
    let body = json!({ "id": id, "object": "response", "deleted": true });
    Ok(json_response(StatusCode::OK, &body))
}

fn not_found(id: &str) -> ApiError {
    let error =
        ApiError::new(StatusCode::NOT_FOUND, format!("response '{id}' not found or expired"));
    error.with_param("response_id").with_code("not_found")
}

async fn resolve_request(app: &Arc<App>, fields: &Fields<'_>) -> Result<Resolved, ApiError> {
    let previous = fields.string("previous_response_id")?;
    let prior = match previous {
        Some(id) => app.load_response(id).await?,
        None => None,
    };
    let instructions = fields.string("instructions")?;
    resolve(fields.get("input"), instructions, previous, prior).map_err(|error| match error {
        ResolveError::NotFound { .. } => ApiError::new(StatusCode::NOT_FOUND, error.to_string())
            .with_param("previous_response_id")
            .with_code("previous_response_not_found"),
        ResolveError::Input => fields.mismatch("input", "a string or an array of items"),
    })
}

fn submit(app: Arc<App>, body: &Value, resolved: Resolved) -> Result<Pending, ApiError> {
    let fields = Fields::new(body, "")?;
    app.check_model(&fields)?;
    let messages = to_messages(&resolved.input, resolved.instructions.as_deref())?;
    let messages = read_messages(&messages, "input")?;
    let params = Params::read(&fields, &["max_output_tokens"])?;
    let mut tools = Tool::read_all(&fields)?;
    let choice = ToolChoice::read(&fields, &tools)?;
    let constraint = constraint(&app, &Format::of_responses(&fields)?, &choice, &tools)?;
    if choice == ToolChoice::None {
        tools.clear();
    }
    let prompt = chat_prompt(&app.served, messages, &tools)?;
    let usage = Usage { prompt: prompt.tokens.len(), ..Usage::default() };
    let id = new_id("resp_")?;
    let response = skeleton(&app, &fields, &id, &resolved)?;
    let store = fields.boolean("store")?.unwrap_or(true);
    let stream = params.stream;
    let thinking = prompt.thinking && constraint.is_none();
    let reader = PartReader::new(app.reasoning, thinking, &tools);
    let mut request = params.request(&app, prompt.tokens, 0, None, constraint)?;
    request.stop.extend(app.served.chat_stop());
    request.choices.truncate(1);
    let events = app.engine.submit(request)?;
    let input = resolved.input;
    Ok(Pending { app, response, id, input, reader: Some(reader), store, stream, usage, events })
}

/// The response before any output: what was asked for, said again.
fn skeleton(app: &App, fields: &Fields, id: &str, resolved: &Resolved) -> Result<Value, ApiError> {
    let or = |key: &str, default: Value| fields.get(key).cloned().unwrap_or(default);
    Ok(json!({
        "id": id,
        "object": "response",
        "created_at": unix_time(),
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "instructions": resolved.instructions,
        "max_output_tokens": or("max_output_tokens", Value::Null),
        "metadata": or("metadata", json!({})),
        "model": app.served.name,
        "output": [],
        "parallel_tool_calls": or("parallel_tool_calls", json!(true)),
        "previous_response_id": or("previous_response_id", Value::Null),
        "reasoning": { "effort": null, "summary": null },
        "store": fields.boolean("store")?.unwrap_or(true),
        "temperature": or("temperature", json!(1.0)),
        "text": or("text", json!({ "format": { "type": "text" } })),
        "tool_choice": or("tool_choice", json!("auto")),
        "tools": or("tools", json!([])),
        "top_p": or("top_p", json!(1.0)),
        "truncation": "disabled",
        "usage": null,
        "user": or("user", Value::Null),
    }))
}

fn usage_json(usage: Usage, reasoning: usize) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": { "cached_tokens": usage.cached },
        "output_tokens": usage.completion,
        "output_tokens_details": { "reasoning_tokens": reasoning },
        "total_tokens": usage.prompt + usage.completion,
    })
}

impl Pending {
    fn read(&mut self, text: &str) -> Vec<Part> {
        self.reader.as_mut().map(|reader| reader.push(text)).unwrap_or_default()
    }

    /// What was held back, when nothing follows.
    fn rest(&mut self) -> Vec<Part> {
        self.reader.take().map(PartReader::finish).unwrap_or_default()
    }

    /// Takes the end of the answer into the response, which it then is.
    fn complete(&mut self, finish: Finish, output: Output) {
        let tokenizer = &self.app.served.tokenizer;
        let reasoning = tokenizer.encode(&output.reasoning, false).map_or(0, |t| t.len());
        let response = &mut self.response;
        response["output"] = Value::Array(output.items);
        response["usage"] = usage_json(self.usage, reasoning.min(self.usage.completion));
        response["status"] = json!("completed");
        if finish == Finish::Length {
            response["status"] = json!("incomplete");
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
    }

    /// Keeps the finished response. It is kept before the client hears of its end, so that whoever
    /// knows that it is complete can continue it.
    async fn keep(&mut self) -> Result<(), ApiError> {
        if !self.store {
            return Ok(());
        }
        let entry =
            Entry { input: std::mem::take(&mut self.input), response: self.response.clone() };
        let stored = self.app.store_response(&self.id, entry).await?;
        if !stored {
            tracing::warn!("a response was larger than the store and is not kept");
        }
        Ok(())
    }
}

fn status_of(finish: Finish) -> &'static str {
    match finish {
        Finish::Stop => "completed",
        Finish::Length => "incomplete",
    }
}

async fn answer(mut pending: Pending) -> Result<Response, ApiError> {
    let mut output = Output::default();
    let finish = loop {
        let event = next_event(&mut pending.events).await?;
        pending.usage.note(&event);
        match event {
            Event::Text { text, .. } => {
                for part in pending.read(&text) {
                    output.push(part)?;
                }
            }
            Event::Done { finish, .. } => break finish,
            Event::Started { .. } | Event::Failed(_) => {}
        }
    };
    for part in pending.rest() {
        output.push(part)?;
    }
    output.close(status_of(finish));
    pending.complete(finish, output);
    pending.keep().await?;
    Ok(json_response(StatusCode::OK, &pending.response))
}

/// Numbers events and names them.
#[derive(Default)]
struct Numbered(u64);

impl Numbered {
    fn event(&mut self, mut value: Value) -> sse::Event {
        value["sequence_number"] = json!(self.0);
        self.0 += 1;
        let kind = value["type"].as_str().unwrap_or_default().to_owned();
        sse::Event::default().event(kind).data(value.to_string())
    }

    fn of_response(&mut self, kind: &str, response: &Value) -> sse::Event {
        self.event(json!({ "type": kind, "response": response }))
    }
}

fn stream(mut pending: Pending) -> Response {
    stream_response(try_stream! {
        let mut numbered = Numbered::default();
        let mut output = Output::default();
        yield numbered.of_response("response.created", &pending.response);
        yield numbered.of_response("response.in_progress", &pending.response);
        let finish = loop {
            let event = match next_event(&mut pending.events).await {
                Ok(event) => event,
                Err(error) => {
                    yield numbered.of_response("response.failed", &failed(&pending.response, &error));
                    return;
                }
            };
            pending.usage.note(&event);
            match event {
                Event::Text { text, .. } => {
                    for part in pending.read(&text) {
                        for event in output.push(part)? {
                            yield numbered.event(event);
                        }
                    }
                }
                Event::Done { finish, .. } => break finish,
                Event::Started { .. } | Event::Failed(_) => {}
            }
        };
        for part in pending.rest() {
            for event in output.push(part)? {
                yield numbered.event(event);
            }
        }
        for event in output.close(status_of(finish)) {
            yield numbered.event(event);
        }
        pending.complete(finish, output);
        pending.keep().await?;
        let kind = format!("response.{}", status_of(finish));
        yield numbered.of_response(&kind, &pending.response);
    })
}

fn failed(response: &Value, error: &ApiError) -> Value {
    let mut response = response.clone();
    response["status"] = json!("failed");
    response["error"] = json!({ "code": "server_error", "message": error.message });
    response
}
