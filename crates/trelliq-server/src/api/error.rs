//! Errors in OpenAI's shape.

use crate::engine::EngineError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use trelliq_config::ConfigError;

/// What a client is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    pub status: StatusCode,
    pub message: String,
    /// The field of the request that is wrong.
    pub param: Option<String>,
    pub code: Option<&'static str>,
    /// Seconds after which another try may succeed.
    pub retry_after: Option<u64>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field that is not what it should be.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param).with_code("invalid_value")
    }

    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param).with_code("unsupported_value")
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub fn with_param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// `{"error": {…}}`.
    pub fn to_json(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = super::json_response(self.status, &self.to_json());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::EmptyPrompt | EngineError::Token { .. } => Self::field("prompt", message),
            EngineError::TooLong { .. } => {
                Self::bad_request(message).with_code("context_length_exceeded")
            }
            EngineError::TooManyChoices { .. } => Self::field("n", message),
            EngineError::Sampling(_) => Self::bad_request(message).with_code("invalid_value"),
            EngineError::QueueFull { retry_after, .. } => Self {
                retry_after: Some(retry_after.as_secs().max(1)),
                ..Self::new(StatusCode::TOO_MANY_REQUESTS, message).with_code("queue_full")
            },
            EngineError::Stopping => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).with_code("shutting_down")
            }
            EngineError::Model(_) => Self::internal(message),
        }
    }
}

impl From<ConfigError> for ApiError {
    fn from(error: ConfigError) -> Self {
        Self::internal(format!("the server's configuration is wrong: {error}"))
    }
}
