//! The endpoints, in OpenAI's shapes.

mod common;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use common::{app, get, metrics_with, ok, options, post, post_request, send, stream, user};
use serde_json::{Value, json};
use std::time::Duration;
use trelliq_server::engine::EngineOptions;

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

fn greedy(max_tokens: usize) -> Value {
    json!({ "messages": user("What is a hacker?"), "temperature": 0, "max_tokens": max_tokens })
}

fn with(mut body: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

/// Text of one choice of a stream.
fn streamed(chunks: &[Value], index: u64) -> String {
    let choices = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap());
    let own = choices.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice["delta"]["content"].as_str().or(choice["text"].as_str()))
        .collect()
}

#[tokio::test]
async fn models() {
    let app = app(options(), |_| {});
    let (status, list) = get(&app, "/v1/models").await;
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!((status, &list["data"][0]["id"]), (StatusCode::OK, &json!("tiny")));
    assert_eq!(list["data"][0]["object"], "model");
    assert_eq!(get(&app, "/v1/models/tiny").await.0, StatusCode::OK);
    let (status, error) = get(&app, "/v1/models/gpt-4").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let error: Value = serde_json::from_str(&error).unwrap();
    assert_eq!(error["error"]["code"], "model_not_found");
}

#[tokio::test]
async fn a_stream_says_what_a_whole_answer_says() {
    let app = app(options(), |_| {});
    let whole = ok(&app, CHAT, greedy(24)).await;
    let choice = &whole["choices"][0];
    assert_eq!(
        (&whole["object"], &choice["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    let usage = &whole["usage"];
    let (prompt, completion) =
        (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64());
    assert_eq!(usage["total_tokens"].as_u64(), prompt.zip(completion).map(|(a, b)| a + b));
    assert!(prompt > Some(5) && completion > Some(0) && completion <= Some(24));
    let body = with(greedy(24), json!({ "stream_options": { "include_usage": true } }));
    let chunks = stream(&app, CHAT, body).await;
    assert_eq!(streamed(&chunks, 0), choice["message"]["content"].as_str().unwrap());
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let (last, rest) = chunks.split_last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]["completion_tokens"]),
        (&json!([]), &usage["completion_tokens"])
    );
    assert_eq!(rest.last().unwrap()["choices"][0]["finish_reason"], choice["finish_reason"]);
    assert!(rest.iter().all(|chunk| chunk["id"] == chunks[0]["id"] && chunk["usage"].is_null()));
}

#[tokio::test]
async fn lengths_and_both_names_for_them() {
    let app = app(options(), |_| {});
    let body = json!({ "messages": user("Tell me of Hamlet."), "temperature": 0, "ignored": 1 });
    for key in ["max_tokens", "max_completion_tokens"] {
        let found = ok(&app, CHAT, with(body.clone(), json!({ key: 3 }))).await;
        assert_eq!(found["usage"]["completion_tokens"], 3);
        assert_eq!(found["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn seeds_choose_answers_and_choices_differ() {
    let app = app(options(), |_| {});
    let body = json!({ "messages": user("Speak."), "temperature": 1.0, "seed": 7, "n": 3, "max_tokens": 16 });
    let first = ok(&app, CHAT, body.clone()).await;
    let text = |answer: &Value, i: usize| answer["choices"][i]["message"]["content"].clone();
    assert_eq!(first["choices"], ok(&app, CHAT, body.clone()).await["choices"]);
    assert!(text(&first, 0) != text(&first, 1) && text(&first, 1) != text(&first, 2));
    assert_eq!(first["choices"].as_array().unwrap().len(), 3);
    let second = with(body.clone(), json!({ "seed": 8, "n": 1 }));
    assert_eq!(text(&ok(&app, CHAT, second).await, 0), text(&first, 1));
    let chunks = stream(&app, CHAT, body).await;
    for i in 0..3 {
        assert_eq!(json!(streamed(&chunks, i)), text(&first, i as usize));
    }
}

#[tokio::test]
async fn stop_strings_end_answers_before_them() {
    let app = app(options(), |_| {});
    let full =
        ok(&app, TEXT, json!({ "prompt": "ROMEO.\n", "temperature": 0, "max_tokens": 30 })).await;
    let full = full["choices"][0]["text"].as_str().unwrap().to_owned();
    let stop = full.split_whitespace().nth(5).unwrap();
    let body =
        json!({ "prompt": "ROMEO.\n", "temperature": 0, "max_tokens": 30, "stop": [stop, "@@@"] });
    let found = ok(&app, TEXT, body.clone()).await;
    assert_eq!(found["choices"][0]["text"], full[..full.find(stop).unwrap()]);
    assert_eq!(found["choices"][0]["finish_reason"], "stop");
    assert_eq!(streamed(&stream(&app, TEXT, body).await, 0), full[..full.find(stop).unwrap()]);
}

#[tokio::test]
async fn log_probabilities_are_those_of_a_distribution() {
    let app = app(options(), |_| {});
    let body = with(greedy(6), json!({ "logprobs": true, "top_logprobs": 5 }));
    let found = ok(&app, CHAT, body.clone()).await;
    let tokens = found["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let mut bytes = Vec::new();
    for token in tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        let values: Vec<f64> = top.iter().map(|t| t["logprob"].as_f64().unwrap()).collect();
        assert_eq!(values.len(), 5);
        assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
        assert!(values.iter().map(|x| x.exp()).sum::<f64>() <= 1.0 + 1e-5);
        // Greedy takes the most probable.
        assert_eq!((&token["token"], &token["logprob"]), (&top[0]["token"], &top[0]["logprob"]));
        bytes.extend(token["bytes"].as_array().unwrap().iter().map(|b| b.as_u64().unwrap() as u8));
    }
    let text = found["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(String::from_utf8_lossy(&bytes).starts_with(text), "{text:?} {bytes:?}");
    let chunks = stream(&app, CHAT, body).await;
    let choices = chunks.iter().map(|chunk| &chunk["choices"][0]["logprobs"]["content"]);
    let streamed: Vec<Value> = choices.filter_map(Value::as_array).flatten().cloned().collect();
    assert_eq!(&streamed, tokens);
    let legacy = json!({ "prompt": "ROMEO.\n", "logprobs": 2, "temperature": 0, "max_tokens": 4 });
    let found = ok(&app, TEXT, legacy).await;
    let logprobs = &found["choices"][0]["logprobs"];
    assert_eq!(
        logprobs["tokens"].as_array().unwrap().len(),
        logprobs["text_offset"].as_array().unwrap().len()
    );
}

#[tokio::test]
async fn biases_forbid_and_force_tokens() {
    let app = app(options(), |_| {});
    let token = app.served.tokenizer.encode("\n", false).unwrap()[0];
    let body = json!({ "prompt": "ROMEO.\n", "temperature": 0, "max_tokens": 3, "logit_bias": { token.to_string(): 100 } });
    assert_eq!(ok(&app, TEXT, body).await["choices"][0]["text"], "\n\n\n");
}

#[tokio::test]
async fn prompts_of_every_kind() {
    let app = app(options(), |_| {});
    let tokens = app.served.tokenizer.encode("ROMEO.\n", true).unwrap();
    let body = |prompt: Value| json!({ "prompt": prompt, "temperature": 0, "max_tokens": 8 });
    let text = ok(&app, TEXT, body(json!("ROMEO.\n"))).await;
    let ids = ok(&app, TEXT, body(json!(tokens))).await;
    assert_eq!(text["choices"], ids["choices"]);
    let both =
        ok(&app, TEXT, with(body(json!(["ROMEO.\n", "JULIET.\n"])), json!({ "n": 2 }))).await;
    let choices = both["choices"].as_array().unwrap();
    assert_eq!(
        choices.iter().map(|c| c["index"].as_u64().unwrap()).collect::<Vec<_>>(),
        [0, 1, 2, 3]
    );
    assert_eq!(choices[0]["text"], text["choices"][0]["text"]);
    assert_eq!(choices[2]["text"], choices[3]["text"]);
    assert_eq!(both["usage"]["completion_tokens"], 32);
    let echoed = ok(&app, TEXT, with(body(json!("ROMEO.\n")), json!({ "echo": true }))).await;
    let expected = format!("ROMEO.\n{}", text["choices"][0]["text"].as_str().unwrap());
    assert_eq!(echoed["choices"][0]["text"], expected);
    let chunks = stream(&app, TEXT, body(json!(["ROMEO.\n", "JULIET.\n"]))).await;
    assert_eq!(json!(streamed(&chunks, 0)), text["choices"][0]["text"]);
    assert_eq!(json!(streamed(&chunks, 1)), choices[2]["text"]);
    assert_eq!(post(&app, TEXT, body(json!([]))).await.0, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn json_objects_and_schemas_are_kept_to() {
    let app = app(options(), |_| {});
    let object = with(greedy(60), json!({ "response_format": { "type": "json_object" } }));
    let found = ok(&app, CHAT, object).await;
    let text = found["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.trim_start().starts_with('{'), "{text}");
    let schema = json!({
        "type": "object",
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "kind": { "enum": ["hero", "villain"] },
        },
        "required": ["name", "age", "kind"],
        "additionalProperties": false,
    });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } });
    for (temperature, seed) in [(0.0, 0), (1.0, 1), (1.5, 2), (1.5, 3)] {
        let changes =
            json!({ "response_format": format, "temperature": temperature, "seed": seed });
        let found = ok(&app, CHAT, with(greedy(120), changes)).await;
        assert_eq!(found["choices"][0]["finish_reason"], "stop", "{found}");
        let text = found["choices"][0]["message"]["content"].as_str().unwrap();
        let json: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
        assert!(json["name"].as_str().unwrap().chars().count() <= 12, "{json}");
        assert!(json["age"].as_u64().unwrap() <= 150, "{json}");
        assert!(["hero", "villain"].contains(&json["kind"].as_str().unwrap()), "{json}");
        assert_eq!(json.as_object().unwrap().len(), 3);
    }
    let bad = json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "nonsense" } } } });
    let (status, error) = post(&app, CHAT, with(greedy(5), bad)).await;
    assert_eq!(
        (status, &error["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("response_format"))
    );
}

#[tokio::test]
async fn a_tool_that_must_be_called_is_called_with_arguments_of_its_schema() {
    let app = app(options(), |_| {});
    let tools = json!([
        { "type": "function", "function": { "name": "look_up", "description": "Looks a word up",
            "parameters": { "type": "object", "properties": { "word": { "type": "string", "maxLength": 10 } },
                "required": ["word"], "additionalProperties": false } } },
        { "type": "function", "function": { "name": "roll", "parameters": { "type": "object",
            "properties": { "sides": { "enum": [6, 20] } }, "required": ["sides"], "additionalProperties": false } } },
    ]);
    for (choice, names) in [
        (json!({ "type": "function", "function": { "name": "roll" } }), vec!["roll"]),
        (json!("required"), vec!["roll", "look_up"]),
    ] {
        let body = with(greedy(80), json!({ "tools": tools, "tool_choice": choice }));
        let found = ok(&app, CHAT, body.clone()).await;
        assert_eq!(found["choices"][0]["finish_reason"], "tool_calls", "{found}");
        let message = &found["choices"][0]["message"];
        assert!(message["content"].is_null());
        let function = &message["tool_calls"][0]["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()), "{function}");
        let arguments: Value =
            serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(
            arguments["sides"] == 6 || arguments["sides"] == 20 || arguments["word"].is_string()
        );
        let chunks = stream(&app, CHAT, body).await;
        let calls: Vec<&Value> = chunks
            .iter()
            .flat_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        // The name comes first, alone, then the arguments as they are written.
        assert_eq!(calls[0]["function"], json!({ "name": function["name"], "arguments": "" }));
        assert!(calls[0]["id"].as_str().is_some_and(|id| id.starts_with("call_")));
        assert!(calls.len() > 3, "{calls:?}");
        let mut arguments = String::new();
        for call in &calls[1..] {
            assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{call}");
            assert_eq!(call["index"], 0);
            arguments.push_str(call["function"]["arguments"].as_str().unwrap());
        }
        assert_eq!(function["arguments"], arguments);
        assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
    }
    // Nothing is called when nothing may be, and unknown functions are refused.
    let none = with(greedy(8), json!({ "tools": tools, "tool_choice": "none" }));
    assert_eq!(ok(&app, CHAT, none).await["usage"], ok(&app, CHAT, greedy(8)).await["usage"]);
    let unknown = with(
        greedy(8),
        json!({ "tools": tools, "tool_choice": { "type": "function", "function": { "name": "x" } } }),
    );
    assert_eq!(post(&app, CHAT, unknown).await.1["error"]["param"], "tool_choice");
}

/// The prompt opens thoughts that the tiny model never closes: all that it writes is thoughts.
#[tokio::test]
async fn thoughts_are_not_the_answer_unless_told_so() {
    use trelliq_model::ChatTemplate;
    use trelliq_server::api::ReasoningFormat;
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n";
    let app_with = |format| {
        let mut served = std::sync::Arc::into_inner(common::served(&common::tiny_path())).unwrap();
        served.template = Some(ChatTemplate::new(template, &Value::Null).unwrap());
        common::app_of(std::sync::Arc::new(served), options(), |app| app.reasoning = format)
    };
    let apart = app_with(ReasoningFormat::DeepSeek);
    let whole = ok(&apart, CHAT, greedy(16)).await;
    let message = &whole["choices"][0]["message"];
    let thoughts = message["reasoning_content"].as_str().unwrap();
    assert!(message["content"].is_null() && !thoughts.is_empty(), "{message}");
    let chunks = stream(&apart, CHAT, greedy(16)).await;
    let pieces: Vec<&str> = chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"]["reasoning_content"].as_str())
        .collect();
    assert!(pieces.len() > 2);
    assert_eq!(pieces.concat(), thoughts);
    assert_eq!(streamed(&chunks, 0), "");
    let response = ok(
        &apart,
        "/v1/responses",
        json!({ "input": "What is a hacker?", "temperature": 0, "max_output_tokens": 16 }),
    )
    .await;
    assert_eq!(response["output"][0]["type"], "reasoning");
    assert_eq!(response["output"][0]["content"][0]["type"], "reasoning_text");
    let counted = &response["usage"]["output_tokens_details"]["reasoning_tokens"];
    assert!(counted.as_u64().is_some_and(|n| n > 8 && n <= 16), "{response}");
    // A schema leaves no room for thoughts.
    let format = json!({ "type": "json_schema", "json_schema": { "schema": { "const": "yes" } } });
    let forced = ok(&apart, CHAT, with(greedy(16), json!({ "response_format": format }))).await;
    assert_eq!(forced["choices"][0]["message"]["content"], "\"yes\"");
    let together = app_with(ReasoningFormat::None);
    let plain = ok(&together, CHAT, greedy(16)).await;
    let content = plain["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(content.trim(), thoughts);
    assert!(plain["choices"][0]["message"].get("reasoning_content").is_none());
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_named() {
    let app = app(options(), |_| {});
    let cases = [
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_p": -1 }), "top_p"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 99 }), "n"),
        (json!({ "stop": 3 }), "stop"),
        (json!({ "seed": "x" }), "seed"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "messages": "hi" }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": null }), "messages"),
        (json!({ "top_logprobs": 3 }), "top_logprobs"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "tools": [{ "type": "function", "function": {} }] }), "tools[0].function.name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "presence_penalty": 9 }), "presence_penalty"),
    ];
    for (changes, param) in cases {
        let (status, error) = post(&app, CHAT, with(greedy(4), changes.clone())).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{changes} {error}");
        assert_eq!(error["error"]["param"], param, "{changes} {error}");
        assert_eq!(error["error"]["type"], "invalid_request_error");
    }
    let (status, error) = post(&app, CHAT, with(greedy(4), json!({ "model": "gpt-4" }))).await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (StatusCode::NOT_FOUND, &json!("model_not_found"))
    );
    let long = "word ".repeat(600);
    let (status, error) =
        post(&app, CHAT, with(greedy(4), json!({ "messages": user(&long) }))).await;
    assert_eq!(
        (status, &error["error"]["code"]),
        (StatusCode::BAD_REQUEST, &json!("context_length_exceeded"))
    );
}

#[tokio::test]
async fn bodies_that_are_no_requests() {
    let app = app(options(), |app| app.limits.body = 2000);
    let raw = |body: Vec<u8>, kind: &str| {
        Request::post(CHAT).header("content-type", kind).body(Body::from(body)).unwrap()
    };
    let cases = [
        (raw(b"{\"messages\": [".to_vec(), "application/json"), StatusCode::BAD_REQUEST),
        (raw(b"[1, 2]".to_vec(), "application/json"), StatusCode::BAD_REQUEST),
        (raw(b"".to_vec(), "application/json; charset=utf-8"), StatusCode::BAD_REQUEST),
        (raw(b"{\"a\": \"\xff\"}".to_vec(), "application/json"), StatusCode::BAD_REQUEST),
        (raw("[".repeat(1900).into_bytes(), "application/json"), StatusCode::BAD_REQUEST),
        (raw(b"{}".to_vec(), "text/plain"), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (raw(vec![b' '; 2001], "application/json"), StatusCode::PAYLOAD_TOO_LARGE),
    ];
    for (request, expected) in cases {
        let (status, text) = send(&app, request).await;
        assert_eq!(status, expected, "{text}");
        let error: Value = serde_json::from_str(&text).unwrap();
        assert!(error["error"]["message"].is_string() && error["error"]["type"].is_string());
    }
    // Without a length the limit is found on the way.
    let pieces = (0..100).map(|_| Ok::<_, std::io::Error>(vec![b' '; 100]));
    let body = Body::from_stream(futures_util::stream::iter(pieces));
    let request =
        Request::post(CHAT).header("content-type", "application/json").body(body).unwrap();
    assert_eq!(send(&app, request).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let (status, text) = get(&app, "/v1/nothing").await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{text}");
    assert!(text.contains("unknown_url"));
    assert_eq!(get(&app, CHAT).await.0, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn a_body_that_never_comes_is_not_waited_for() {
    let app = app(options(), |app| app.limits.body_time = Duration::from_millis(50));
    let body =
        Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request =
        Request::post(CHAT).header("content-type", "application/json").body(body).unwrap();
    assert_eq!(send(&app, request).await.0, StatusCode::REQUEST_TIMEOUT);
}

#[tokio::test]
async fn the_key_is_demanded_where_there_is_one() {
    let app = app(options(), |app| app.api_key = Some("secret".into()));
    let request = |key: Option<&str>| {
        let mut request = post_request(CHAT, &greedy(1));
        if let Some(key) = key {
            request.headers_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
        }
        request
    };
    for key in [None, Some("wrong"), Some("")] {
        let (status, text) = send(&app, request(key)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED);
        assert!(text.contains("invalid_api_key"));
    }
    assert_eq!(send(&app, request(Some("secret"))).await.0, StatusCode::OK);
    assert_eq!(get(&app, "/v1/models").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(get(&app, "/metrics").await.0, StatusCode::UNAUTHORIZED);
    assert_eq!(get(&app, "/health").await.0, StatusCode::OK);
    assert_eq!(get(&app, "/").await.0, StatusCode::OK);
}

#[tokio::test]
async fn pages_of_other_sites_cannot_ask_by_another_name() {
    let app = app(options(), |app| app.host_names = vec!["localhost".into()]);
    let request =
        |host: &str| Request::get("/v1/models").header("host", host).body(Body::empty()).unwrap();
    assert_eq!(send(&app, request("localhost:8080")).await.0, StatusCode::OK);
    assert_eq!(send(&app, request("rebound.example:8080")).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_full_queue_is_429_in_openais_shape() {
    let app = app(EngineOptions { max_batch: 1, queue: 0, ..options() }, |_| {});
    let response = trelliq_server::http::router(app.clone());
    let response =
        tower::ServiceExt::oneshot(response, post_request(CHAT, &greedy(1))).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "1");
    let (_, error) = post(&app, CHAT, greedy(1)).await;
    assert_eq!(
        (&error["error"]["type"], &error["error"]["code"]),
        (&json!("rate_limit_error"), &json!("queue_full"))
    );
}

#[tokio::test]
async fn the_page_brings_its_policy() {
    let app = app(options(), |_| {});
    for (path, kind) in [
        ("/", "text/html"),
        ("/app.js", "text/javascript"),
        ("/markdown.js", "text/javascript"),
        ("/style.css", "text/css"),
    ] {
        let router = trelliq_server::http::router(app.clone());
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = tower::ServiceExt::oneshot(router, request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        assert!(header("content-type").starts_with(kind));
        let policy = header("content-security-policy");
        assert!(policy.contains("default-src 'none'") && policy.contains("script-src 'self'"));
        assert!(!policy.contains("unsafe"));
    }
}

#[tokio::test]
async fn metrics_and_health_tell_what_was_done() {
    let app = app(options(), |_| {});
    ok(&app, CHAT, greedy(5)).await;
    post(&app, CHAT, json!({})).await;
    let text = metrics_with(&app, "trelliq_sequences_total{end=\"done\"} 1").await;
    for line in [
        "trelliq_generated_tokens_total 5",
        "trelliq_time_to_first_token_seconds_count 1",
        "trelliq_batch_size_count 4",
        "trelliq_queued_requests 0",
        "trelliq_http_requests_total{route=\"/v1/chat/completions\",status=\"200\"} 1",
        "trelliq_http_requests_total{route=\"/v1/chat/completions\",status=\"400\"} 1",
        "trelliq_stored_responses 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
    let (status, health) = get(&app, "/health").await;
    let health: Value = serde_json::from_str(&health).unwrap();
    assert_eq!(
        (status, &health["status"], &health["model"]),
        (StatusCode::OK, &json!("ok"), &json!("tiny"))
    );
    app.engine.drain();
    assert_eq!(get(&app, "/health").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post(&app, CHAT, greedy(1)).await.1["error"]["code"], "shutting_down");
}

/// Tokens of one character spread over events: every event is whole text, and nothing is lost.
#[tokio::test]
async fn characters_are_never_cut() {
    let app = app(options(), |_| {});
    let text = "漢字 é ü ☃ ";
    // Byte tokens of the text, forced one after the other by a schema with one allowed string.
    let schema = json!({ "const": text });
    let body = with(
        greedy(60),
        json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": schema } } }),
    );
    let chunks = stream(&app, CHAT, body).await;
    assert_eq!(streamed(&chunks, 0), json!(text).to_string());
    assert!(chunks.len() > 8, "many events: {}", chunks.len());
    assert!(chunks.iter().all(|chunk| !chunk.to_string().contains('\u{fffd}')));
}
