//! Who may ask.

use crate::api::{ApiError, App};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// Lets requests with the bearer key pass, or all where there is no key.
pub async fn api_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Some(key) = &app.api_key else { return next.run(request).await };
    let given = bearer(request.headers()).unwrap_or_default();
    if equal(given.as_bytes(), key.as_bytes()) {
        return next.run(request).await;
    }
    let message = "the API key is missing or wrong: send it as `Authorization: Bearer KEY`";
    let error = ApiError::new(StatusCode::UNAUTHORIZED, message).with_code("invalid_api_key");
    let mut response = error.into_response();
    let scheme = header::HeaderValue::from_static("Bearer");
    response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
    response
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Compares in a time that does not depend on where the two differ.
fn equal(a: &[u8], b: &[u8]) -> bool {
    let different = a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b));
    std::hint::black_box(different) == 0 && a.len() == b.len()
}

/// Refuses requests that call the server by a name that is not its own.
pub async fn host_name(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.host_names.is_empty() || named(&app.host_names, request.headers()) {
        return next.run(request).await;
    }
    let message = "the server does not go by the name in the `Host` header";
    ApiError::new(StatusCode::FORBIDDEN, message).with_code("unknown_host").into_response()
}

fn named(names: &[String], headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    // HTTP/1.0 clients may send none; a browser always does.
    let Some(host) = host else { return true };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    names.iter().any(|known| known.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(host: &str) -> bool {
        let names = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        named(&names, &headers)
    }

    #[test]
    fn only_own_names_pass() {
        for own in ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]", "[::1]:80"] {
            assert!(host(own), "{own}");
        }
        for other in ["evil.example", "localhost.evil.example:8080", "127.0.0.1.evil", "[::2]:80"] {
            assert!(!host(other), "{other}");
        }
    }

    #[test]
    fn keys_are_compared_whole() {
        assert!(equal(b"secret", b"secret"));
        for other in ["", "secre", "secrets", "Secret"] {
            assert!(!equal(other.as_bytes(), b"secret"), "{other}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, "bearer  x ".parse().unwrap());
        assert_eq!(bearer(&headers), Some("x"));
        headers.insert(header::AUTHORIZATION, "Basic x".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
