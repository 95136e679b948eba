//! The page to talk on: files in the binary.

use axum::Router;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// Only files of this server run or are shown, and nothing frames the page: what a model writes
/// can bring in nothing from elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: (&str, &str) = ("text/html; charset=utf-8", include_str!("../page/index.html"));
const STYLE: (&str, &str) = ("text/css; charset=utf-8", include_str!("../page/style.css"));
const SCRIPT: (&str, &str) = ("text/javascript; charset=utf-8", include_str!("../page/app.js"));
const MARKDOWN: (&str, &str) =
    ("text/javascript; charset=utf-8", include_str!("../page/markdown.js"));
const ICON: (&str, &str) = ("image/svg+xml", include_str!("../page/icon.svg"));

/// Routes of the page, which need no key: it holds no secrets and asks the user for one.
pub fn routes() -> Router<Arc<crate::api::App>> {
    Router::new()
        .route("/", get(|| async { file(HTML) }))
        .route("/style.css", get(|| async { file(STYLE) }))
        .route("/app.js", get(|| async { file(SCRIPT) }))
        .route("/markdown.js", get(|| async { file(MARKDOWN) }))
        .route("/icon.svg", get(|| async { file(ICON) }))
}

fn file((kind, text): (&'static str, &'static str)) -> Response {
    let headers: [(HeaderName, HeaderValue); 6] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}
