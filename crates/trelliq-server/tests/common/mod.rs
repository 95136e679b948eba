//! A server over the tiny trained model of the repository, in this process.
#![allow(dead_code)]

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, StatusCode};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tower::ServiceExt;
use trelliq_config::ConfigCell;
use trelliq_format::ModelSource;
use trelliq_model::{LoadOptions, Model, RuntimeOptions, Tokenizer};
use trelliq_server::ServedModel;
use trelliq_server::api::{App, Limits, ReasoningFormat};
use trelliq_server::engine::{Engine, EngineOptions};
use trelliq_server::metrics::{EngineMetrics, ServerMetrics};
use trelliq_server::store::{MemoryStore, StoreLimits, SystemClock};

pub fn tiny_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/tiny")
}

pub fn served(path: &Path) -> Arc<ServedModel> {
    let source = ModelSource::open_path(path).unwrap();
    let tokenizer = Tokenizer::from_files(source.sidecar_files(), source.config()).unwrap();
    let options = LoadOptions { vocab_limit: Some(tokenizer.vocab_size()), ..Default::default() };
    let model = Model::load(&source, &options).unwrap();
    Arc::new(ServedModel::new("tiny", &source, model, tokenizer).unwrap())
}

pub fn options() -> EngineOptions {
    EngineOptions {
        context: 512,
        max_batch: 8,
        prefill_chunk: 16,
        queue: 64,
        prefix_cache_bytes: 16 << 20,
    }
}

pub fn app(options: EngineOptions, change: impl FnOnce(&mut App)) -> Arc<App> {
    app_of(served(&tiny_path()), options, change)
}

pub fn app_of(
    served: Arc<ServedModel>,
    options: EngineOptions,
    change: impl FnOnce(&mut App),
) -> Arc<App> {
    let metrics = Arc::new(EngineMetrics::default());
    let mut app = App {
        engine: Engine::start(Arc::clone(&served), options, metrics).unwrap(),
        served,
        store: Arc::new(MemoryStore::new(StoreLimits::default(), SystemClock)),
        config: ConfigCell::default(),
        base_runtime: RuntimeOptions::default(),
        metrics: ServerMetrics::default(),
        limits: Limits::default(),
        api_key: None,
        host_names: Vec::new(),
        reasoning: ReasoningFormat::default(),
        created: 1,
    };
    change(&mut app);
    Arc::new(app)
}

/// One request to the router, without a network.
pub async fn send(app: &Arc<App>, request: Request<Body>) -> (StatusCode, String) {
    let response = trelliq_server::http::router(Arc::clone(app)).oneshot(request).await.unwrap();
    let status = response.status();
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.to_vec()).unwrap())
}

pub async fn get(app: &Arc<App>, path: &str) -> (StatusCode, String) {
    send(app, Request::get(path).body(Body::empty()).unwrap()).await
}

pub fn post_request(path: &str, body: &Value) -> Request<Body> {
    let request = Request::builder().method(Method::POST).uri(path);
    let request = request.header("content-type", "application/json");
    request.body(Body::from(body.to_string())).unwrap()
}

pub async fn post(app: &Arc<App>, path: &str, body: Value) -> (StatusCode, Value) {
    let (status, text) = send(app, post_request(path, &body)).await;
    (status, serde_json::from_str(&text).unwrap_or_else(|_| panic!("{status}: {text}")))
}

/// A request that must succeed.
pub async fn ok(app: &Arc<App>, path: &str, body: Value) -> Value {
    let (status, json) = post(app, path, body).await;
    assert_eq!(status, StatusCode::OK, "{json}");
    json
}

/// The data of a stream of server-sent events that must succeed, `[DONE]` left out.
pub async fn stream(app: &Arc<App>, path: &str, mut body: Value) -> Vec<Value> {
    body["stream"] = json!(true);
    let (status, text) = send(app, post_request(path, &body)).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// The text of `/metrics` once it has this line; the engine counts what ended after it has said so.
pub async fn metrics_with(app: &Arc<App>, line: &str) -> String {
    for _ in 0..500 {
        let (_, text) = get(app, "/metrics").await;
        if text.lines().any(|found| found == line) {
            return text;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("{line} is not in\n{}", get(app, "/metrics").await.1);
}

pub fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}
