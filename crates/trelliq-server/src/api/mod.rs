//! The endpoints of OpenAI's API.

mod answer;
mod chat;
mod completions;
mod error;
mod fields;
mod logprobs;
mod params;
mod parts;
mod prompt;
mod responses;
mod state;
mod tools;

pub use error::ApiError;
pub use parts::ReasoningFormat;
pub use responses::{ResolveError, Resolved, resolve};
pub use state::{App, Limits, unix_time};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderValue, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::sync::Arc;
use trelliq_config::Config;

/// The routes under `/v1`.
pub fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*model}", get(model))
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::retrieve).delete(responses::delete))
}

async fn models(State(app): State<Arc<App>>) -> Response {
    let list = json!({ "object": "list", "data": [model_json(&app)] });
    json_response(StatusCode::OK, &list)
}

async fn model(
    State(app): State<Arc<App>>,
    Path(name): Path<String>,
) -> Result<Response, ApiError> {
    let request = json!({ "model": name });
    app.check_model(&fields::Fields::new(&request, "")?)?;
    Ok(json_response(StatusCode::OK, &model_json(&app)))
}

fn model_json(app: &App) -> Value {
    json!({
        "id": app.served.name,
        "object": "model",
        "created": app.created,
        "owned_by": "trelliq",
        "context_length": app.engine.options().context,
    })
}

/// The body of a request as JSON, within the limits of size and time.
pub(crate) async fn read_json(app: &App, request: Request<Body>) -> Result<Value, ApiError> {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    // A page of another site can send any other type without asking first.
    if !kind.eq_ignore_ascii_case("application/json") {
        let message = "the content type is not application/json";
        return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let too_large = || {
        let message = format!("the body is larger than {} bytes", app.limits.body);
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message).with_code("request_too_large")
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > app.limits.body as u64) {
        return Err(too_large());
    }
    let body = to_bytes(request.into_body(), app.limits.body);
    let body = tokio::time::timeout(app.limits.body_time, body).await.map_err(|_| {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")
    })?;
    let bytes = body.map_err(|_| too_large())?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::bad_request(format!("the body is not valid JSON: {error}"))
            .with_code("invalid_json")
    })
}

/// Runs what may take long (tokenizing a large prompt, compiling a schema) off the threads that serve
/// connections, under the same snapshot and span.
pub(crate) async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let span = tracing::Span::current();
    let work = Config::carry(move || span.in_scope(work));
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| ApiError::internal("the request could not be prepared"))?
}

pub(crate) fn json_response(status: StatusCode, value: &Value) -> Response {
    let mut response = (status, value.to_string()).into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

/// Bytes that nobody can guess.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], ApiError> {
    let mut bytes = [0; N];
    let filled = getrandom::fill(&mut bytes);
    filled.map(|()| bytes).map_err(|_| ApiError::internal("the system gives no random numbers"))
}

/// An id such as `resp_…`, with 96 random bits: who does not know it cannot ask for it.
pub(crate) fn new_id(prefix: &str) -> Result<String, ApiError> {
    let bytes: [u8; 12] = random_bytes()?;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{prefix}{hex}"))
}
