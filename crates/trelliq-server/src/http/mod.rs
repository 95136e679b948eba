//! The server around the API: who may ask, what is logged, connections and the shutdown.

mod guard;
mod page;
mod serve;
mod status;
mod trace;
mod write_timeout;

pub use serve::{Bound, serve};

use crate::api::{self, ApiError, App};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use std::sync::Arc;

/// All routes of a server.
pub fn router(app: Arc<App>) -> Router {
    let guarded = api::routes()
        .route("/metrics", get(status::metrics))
        .route_layer(from_fn_with_state(Arc::clone(&app), guard::api_key));
    page::routes()
        .route("/health", get(status::health))
        .merge(guarded)
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), guard::host_name))
        .layer(from_fn_with_state(Arc::clone(&app), under_snapshot))
        .layer(from_fn_with_state(Arc::clone(&app), trace::trace))
        .with_state(app)
}

/// Everything about a request runs under the configuration that was the latest when it came.
async fn under_snapshot(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    app.config.get().scope(next.run(request)).await
}

async fn unknown(uri: Uri) -> ApiError {
    let message = format!("there is nothing at {}", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, message).with_code("unknown_url")
}

async fn wrong_method() -> ApiError {
    let message = "this method is not allowed here";
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message).with_code("method_not_allowed")
}
