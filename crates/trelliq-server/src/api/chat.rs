//! `/v1/chat/completions`.

use super::answer::{Answer, Usage, data, finish_reason, gather, next_event, stream_response};
use super::error::ApiError;
use super::fields::Fields;
use super::params::{Format, Params, constraint};
use super::parts::{Part, PartReader};
use super::prompt::{chat_prompt, read_messages};
use super::state::{App, unix_time};
use super::tools::{Tool, ToolChoice};
use super::{json_response, logprobs, new_id, off_thread, read_json};
use crate::engine::{Event, Finish, TokenLogprobs};
use async_stream::try_stream;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::mpsc::UnboundedReceiver;

/// Most alternatives of a token that may be asked for.
const MAX_TOP_LOGPROBS: u64 = 20;

/// A chat that the engine works on.
struct Chat {
    app: Arc<App>,
    id: String,
    created: u64,
    params: Params,
    tools: Vec<Tool>,
    /// The prompt ended where thoughts begin.
    thinking: bool,
    logprobs: bool,
    usage: Usage,
    events: UnboundedReceiver<Event>,
}

pub async fn create(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, ApiError> {
    let body = read_json(&app, request).await?;
    let chat = off_thread(move || submit(app, &body)).await?;
    if chat.params.stream { Ok(stream(chat)) } else { answer(chat).await }
}

fn submit(app: Arc<App>, body: &Value) -> Result<Chat, ApiError> {
    let fields = Fields::new(body, "")?;
    app.check_model(&fields)?;
    let list = fields.required("messages")?.as_array();
    let messages =
        read_messages(list.ok_or_else(|| fields.mismatch("messages", "an array"))?, "messages")?;
    let params = Params::read(&fields, &["max_completion_tokens", "max_tokens"])?;
    let mut tools = Tool::read_all(&fields)?;
    let choice = ToolChoice::read(&fields, &tools)?;
    let format = Format::of_chat(&fields)?;
    let constraint = constraint(&app, &format, &choice, &tools)?;
    if choice == ToolChoice::None {
        tools.clear();
    }
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    if top.is_some() && !logprobs {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs`"));
    }
    let prompt = chat_prompt(&app.served, messages, &tools)?;
    let usage = Usage { prompt: prompt.tokens.len(), ..Usage::default() };
    let top = logprobs.then_some(top.unwrap_or(0));
    // A constraint holds for all that is written: there is no room for thoughts.
    let thinking = prompt.thinking && constraint.is_none();
    let mut request = params.request(&app, prompt.tokens, 0, top, constraint)?;
    request.stop.extend(app.served.chat_stop());
    let events = app.engine.submit(request)?;
    let id = new_id("chatcmpl-")?;
    Ok(Chat { app, id, created: unix_time(), params, tools, thinking, logprobs, usage, events })
}

async fn answer(mut chat: Chat) -> Result<Response, ApiError> {
    let answers = gather(chat.events, chat.params.n, &mut chat.usage).await?;
    let mut choices = Vec::with_capacity(answers.len());
    for (index, answer) in answers.into_iter().enumerate() {
        let reader = PartReader::new(chat.app.reasoning, chat.thinking, &chat.tools);
        choices.push(choice_json(&chat.app, reader, chat.logprobs, index, answer)?);
    }
    let body = json!({
        "id": chat.id,
        "object": "chat.completion",
        "created": chat.created,
        "model": chat.app.served.name,
        "choices": choices,
        "usage": chat.usage.to_json(),
    });
    Ok(json_response(StatusCode::OK, &body))
}

fn choice_json(
    app: &App,
    mut reader: PartReader,
    logprobs: bool,
    index: usize,
    answer: Answer,
) -> Result<Value, ApiError> {
    let mut parts = reader.push(&answer.text);
    parts.extend(reader.finish());
    let (mut reasoning, mut text) = (String::new(), String::new());
    let mut calls: Vec<(String, String)> = Vec::new();
    for part in parts {
        match part {
            Part::Reasoning(piece) => reasoning.push_str(&piece),
            Part::Text(piece) => text.push_str(&piece),
            Part::Call(name) => calls.push((name, String::new())),
            Part::Arguments(piece) => {
                if let Some((_, arguments)) = calls.last_mut() {
                    arguments.push_str(&piece);
                }
            }
        }
    }
    let called = !calls.is_empty();
    let silent = (called || !reasoning.is_empty()) && text.trim().is_empty();
    let content = if silent { Value::Null } else { json!(text) };
    let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    if called {
        let calls = calls.iter().map(|(name, arguments)| call_json(name, arguments));
        message["tool_calls"] = Value::Array(calls.collect::<Result<_, _>>()?);
    }
    let finish = answer.finish.unwrap_or(Finish::Stop);
    Ok(json!({
        "index": index,
        "message": message,
        "logprobs": logprobs_json(app, logprobs, &answer.logprobs),
        "finish_reason": reason(finish, called),
    }))
}

fn reason(finish: Finish, called: bool) -> &'static str {
    if called && finish == Finish::Stop { "tool_calls" } else { finish_reason(finish) }
}

fn call_json(name: &str, arguments: &str) -> Result<Value, ApiError> {
    Ok(json!({
        "id": new_id("call_")?,
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    }))
}

fn logprobs_json(app: &App, wanted: bool, tokens: &[TokenLogprobs]) -> Value {
    if wanted {
        json!({ "content": logprobs::chat(app.served.vocabulary(), tokens), "refusal": null })
    } else {
        Value::Null
    }
}

/// The state of one choice in a stream.
struct Streamed {
    index: usize,
    /// `None` once the choice has ended.
    reader: Option<PartReader>,
    calls: usize,
}

impl Streamed {
    /// The delta of a part. A call's first one brings its id and name, later ones pieces of its
    /// arguments.
    fn delta(&mut self, part: Part) -> Result<Value, ApiError> {
        match part {
            Part::Reasoning(text) => Ok(json!({ "reasoning_content": text })),
            Part::Text(text) => Ok(json!({ "content": text })),
            Part::Call(name) => {
                let mut call = call_json(&name, "")?;
                call["index"] = json!(self.calls);
                self.calls += 1;
                Ok(json!({ "tool_calls": [call] }))
            }
            Part::Arguments(piece) => {
                let index = self.calls.saturating_sub(1);
                let call = json!({ "index": index, "function": { "arguments": piece } });
                Ok(json!({ "tool_calls": [call] }))
            }
        }
    }
}

fn stream(mut chat: Chat) -> Response {
    stream_response(try_stream! {
        let mut open = chat.params.n;
        let mut choices: Vec<Streamed> = (0..open)
            .map(|index| {
                let reader = PartReader::new(chat.app.reasoning, chat.thinking, &chat.tools);
                Streamed { index, reader: Some(reader), calls: 0 }
            })
            .collect();
        for index in 0..open {
            let delta = json!({ "role": "assistant", "content": "", "refusal": null });
            yield data(&chat.chunk(index, delta, Value::Null, None));
        }
        while open > 0 {
            let event = next_event(&mut chat.events).await?;
            chat.usage.note(&event);
            match event {
                Event::Text { choice, text, logprobs } => {
                    let reader = choices[choice].reader.as_mut();
                    let parts = reader.map(|reader| reader.push(&text)).unwrap_or_default();
                    let mut logprobs = logprobs_json(&chat.app, chat.logprobs, &logprobs);
                    if parts.is_empty() && chat.logprobs {
                        yield data(&chat.chunk(choice, json!({}), logprobs.take(), None));
                    }
                    for part in parts {
                        let delta = choices[choice].delta(part)?;
                        yield data(&chat.chunk(choice, delta, logprobs.take(), None));
                    }
                }
                Event::Done { choice, finish, .. } => {
                    open -= 1;
                    let streamed = &mut choices[choice];
                    let rest = streamed.reader.take().map(PartReader::finish).unwrap_or_default();
                    for part in rest {
                        let delta = streamed.delta(part)?;
                        yield data(&chat.chunk(streamed.index, delta, Value::Null, None));
                    }
                    let reason = reason(finish, streamed.calls > 0);
                    yield data(&chat.chunk(streamed.index, json!({}), Value::Null, Some(reason)));
                }
                Event::Started { .. } | Event::Failed(_) => {}
            }
        }
        if chat.params.include_usage {
            let mut last = chat.envelope(json!([]));
            last["usage"] = chat.usage.to_json();
            yield data(&last);
        }
        yield axum::response::sse::Event::default().data("[DONE]");
    })
}

impl Chat {
    fn envelope(&self, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": "chat.completion.chunk",
            "created": self.created,
            "model": self.app.served.name,
            "choices": choices,
        })
    }

    fn chunk(&self, index: usize, delta: Value, logprobs: Value, finish: Option<&str>) -> Value {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish,
        });
        let mut chunk = self.envelope(json!([choice]));
        if self.params.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}
