//! A span and a line in the log for every request; nothing of what is asked or answered.

use crate::api::App;
use crate::metrics::RequestLabels;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tracing::Instrument;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static COUNT: AtomicU64 = AtomicU64::new(1);

pub async fn trace(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = COUNT.fetch_add(1, Ordering::Relaxed);
    let matched = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = matched.unwrap_or_else(|| "other".to_owned());
    let method = request.method().clone();
    let span = tracing::info_span!("request", id, %method, %route);
    let mut response = next.run(request).instrument(span.clone()).await;
    let (status, time) = (response.status().as_u16(), started.elapsed());
    tracing::info!(parent: &span, status, ms = time.as_millis() as u64, "answered");
    app.metrics.requests.get_or_create(&RequestLabels { route, status }).inc();
    app.metrics.request_seconds.observe(time.as_secs_f64());
    if let Ok(value) = HeaderValue::from_str(&format!("req_{id}")) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}
