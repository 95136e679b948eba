//! `/v1/responses` and the configuration that requests keep.

mod common;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::{app, get, ok, options, post, send, stream};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use trelliq_config::Config;
use trelliq_server::runtime::config_builder;
use trelliq_server::store::{ManualClock, MemoryStore, StoreLimits};

const PATH: &str = "/v1/responses";

fn ask(input: Value) -> Value {
    json!({ "input": input, "temperature": 0, "max_output_tokens": 12 })
}

fn after(previous: &Value, input: Value) -> Value {
    let mut body = ask(input);
    body["previous_response_id"] = previous["id"].clone();
    body
}

fn text(response: &Value) -> &str {
    response["output"][0]["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn a_response_continues_the_one_it_names() {
    let app = app(options(), |_| {});
    let mut first = ask(json!("What is a bug?"));
    first["instructions"] = json!("Speak as a glossary.");
    let first = ok(&app, PATH, first).await;
    assert_eq!(first["object"], "response");
    assert_eq!(first["instructions"], "Speak as a glossary.");
    let second = ok(&app, PATH, after(&first, json!("And a hack?"))).await;
    assert_eq!(second["instructions"], "Speak as a glossary.");
    // The same as the whole conversation as a chat.
    let messages = json!([
        { "role": "system", "content": "Speak as a glossary." },
        { "role": "user", "content": "What is a bug?" },
        { "role": "assistant", "content": text(&first) },
        { "role": "user", "content": "And a hack?" },
    ]);
    let chat = json!({ "messages": messages, "temperature": 0, "max_tokens": 12 });
    let chat = ok(&app, "/v1/chat/completions", chat).await;
    assert_eq!(text(&second), chat["choices"][0]["message"]["content"]);
    assert_eq!(second["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
    let usage = &second["usage"];
    let sum = usage["input_tokens"].as_u64().unwrap() + usage["output_tokens"].as_u64().unwrap();
    assert_eq!(usage["total_tokens"], sum);
}

#[tokio::test]
async fn unknown_and_expired_ids_are_named() {
    let clock = Arc::new(ManualClock::default());
    let limits = StoreLimits { ttl: Duration::from_secs(60), ..StoreLimits::default() };
    let store = Arc::new(MemoryStore::new(limits, Arc::clone(&clock)));
    let app = app(options(), |app| app.store = store);
    let first = ok(&app, PATH, ask(json!("Hello."))).await;
    clock.advance(Duration::from_secs(59));
    let path = format!("{PATH}/{}", first["id"].as_str().unwrap());
    assert_eq!(get(&app, &path).await.0, StatusCode::OK);
    clock.advance(Duration::from_secs(1));
    for id in [first["id"].as_str().unwrap(), "resp_none"] {
        let mut body = ask(json!("More."));
        body["previous_response_id"] = json!(id);
        let (status, error) = post(&app, PATH, body).await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        let message = format!("previous_response_id '{id}' not found or expired");
        assert_eq!(error["error"]["message"], message);
        assert_eq!(error["error"]["param"], "previous_response_id");
    }
    assert_eq!(get(&app, &path).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn responses_are_retrieved_deleted_and_not_stored_when_told_so() {
    let app = app(options(), |_| {});
    let mut unstored = ask(json!("Hello."));
    unstored["store"] = json!(false);
    let unstored = ok(&app, PATH, unstored).await;
    let path = |response: &Value| format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(get(&app, &path(&unstored)).await.0, StatusCode::NOT_FOUND);
    let stored = ok(&app, PATH, ask(json!("Hello."))).await;
    let (_, found) = get(&app, &path(&stored)).await;
    assert_eq!(serde_json::from_str::<Value>(&found).unwrap(), stored);
    let (_, metrics) = get(&app, "/metrics").await;
    assert!(metrics.contains("trelliq_stored_responses 1\n"), "{metrics}");
    let delete = || Request::delete(path(&stored)).body(Body::empty()).unwrap();
    let (status, text) = send(&app, delete()).await;
    assert_eq!((status, text.contains("\"deleted\":true")), (StatusCode::OK, true));
    assert_eq!(send(&app, delete()).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_stream_of_events_builds_the_response() {
    let app = app(options(), |_| {});
    let whole = ok(&app, PATH, ask(json!("What is a bug?"))).await;
    let events = stream(&app, PATH, ask(json!("What is a bug?"))).await;
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ];
    assert_eq!(kinds[..4], expected);
    let numbers: Vec<u64> = events.iter().map(|e| e["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    let deltas: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(deltas, text(&whole));
    let last = &events.last().unwrap()["response"];
    assert_eq!(text(last), text(&whole));
    assert_eq!(
        (&last["status"], &last["usage"]["output_tokens"]),
        (&whole["status"], &whole["usage"]["output_tokens"])
    );
    // What is complete can be continued.
    ok(&app, PATH, after(last, json!("Go on."))).await;
}

#[tokio::test]
async fn calls_and_their_results_go_round() {
    let app = app(options(), |_| {});
    let tools = json!([{ "type": "function", "name": "roll", "parameters": { "type": "object",
        "properties": { "sides": { "enum": [6] } }, "required": ["sides"], "additionalProperties": false } }]);
    let mut body = ask(json!("Roll the dice."));
    body["tools"] = tools;
    body["tool_choice"] = json!({ "type": "function", "name": "roll" });
    body["max_output_tokens"] = json!(60);
    let first = ok(&app, PATH, body.clone()).await;
    let call = &first["output"][0];
    assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("roll")));
    assert_eq!(
        serde_json::from_str::<Value>(call["arguments"].as_str().unwrap()).unwrap(),
        json!({ "sides": 6 })
    );
    let events = stream(&app, PATH, body).await;
    let done =
        events.iter().find(|e| e["type"] == "response.function_call_arguments.done").unwrap();
    assert_eq!(done["arguments"], call["arguments"]);
    let result =
        json!([{ "type": "function_call_output", "call_id": call["call_id"], "output": "4" }]);
    let second = ok(&app, PATH, after(&first, result)).await;
    assert_eq!(second["output"][0]["type"], "message");
}

#[tokio::test]
async fn structured_output_is_asked_for_in_text_format() {
    let app = app(options(), |_| {});
    let schema = json!({ "type": "object", "properties": { "ok": { "type": "boolean" } },
        "required": ["ok"], "additionalProperties": false });
    let mut body = ask(json!("Is it?"));
    body["max_output_tokens"] = json!(40);
    body["text"] = json!({ "format": { "type": "json_schema", "name": "x", "schema": schema } });
    let found = ok(&app, PATH, body).await;
    assert_eq!(found["status"], "completed");
    assert!(serde_json::from_str::<Value>(text(&found)).unwrap()["ok"].is_boolean());
}

#[tokio::test]
async fn what_is_wrong_is_named() {
    let app = app(options(), |_| {});
    let cases = [
        (json!({ "input": 3 }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "computer_call" }] }), "input[0].type"),
        (json!({ "input": "x", "previous_response_id": 3 }), "previous_response_id"),
        (json!({ "input": "x", "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "input": "x", "text": { "format": { "type": "xml" } } }), "text.format.type"),
    ];
    for (body, param) in cases {
        let (status, error) = post(&app, PATH, body.clone()).await;
        assert_eq!(
            (status, &error["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(param)),
            "{body} {error}"
        );
    }
}

/// Two settings on one loaded model at the same time: each request keeps its own.
#[tokio::test]
async fn requests_keep_the_snapshot_that_they_started_under() {
    let app = app(options(), |_| {});
    let body = json!({ "prompt": "ROMEO.\n", "temperature": 0, "max_tokens": 200 });
    let expected = ok(&app, "/v1/completions", body.clone()).await;
    let config = |value: &str| config_builder().flag("kernel.prefill_from", value).build();
    app.config.set(config("4"));
    let before = app.engine.metrics().generated_tokens.get();
    let running = {
        let (app, body) = (Arc::clone(&app), body.clone());
        tokio::spawn(async move { ok(&app, "/v1/completions", body).await })
    };
    while app.engine.metrics().generated_tokens.get() == before {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // From now on every request fails; the one that runs does not notice.
    app.config.set(config("none"));
    let (status, error) = post(&app, "/v1/completions", body.clone()).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(
        error["error"]["message"].as_str().unwrap().contains("`kernel.prefill_from`"),
        "{error}"
    );
    assert_eq!(running.await.unwrap()["choices"], expected["choices"]);
    app.config.set(Config::default());
    assert_eq!(ok(&app, "/v1/completions", body).await["choices"], expected["choices"]);
}
