//! `/health` and `/metrics`.

use crate::api::App;
use crate::metrics::{encode, resident_bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use std::sync::Arc;

/// 200 while requests are taken, 503 afterwards.
pub async fn health(State(app): State<Arc<App>>) -> Response {
    let accepting = app.engine.accepting();
    let metrics = app.engine.metrics();
    let body = json!({
        "status": if accepting { "ok" } else { "stopping" },
        "model": app.served.name,
        "context": app.engine.options().context,
        "max_batch": app.engine.options().max_batch,
        "running": metrics.running.get(),
        "queued": metrics.queued.get(),
        "memory_bytes": resident_bytes(),
        "kv_bytes": metrics.kv_bytes.get() + metrics.prefix_bytes.get(),
    });
    let status = if accepting { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    app.metrics.resident_bytes.set(resident_bytes() as i64);
    let text = encode(app.engine.metrics(), &app.metrics);
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
