//! What all handlers share.

use super::error::ApiError;
use super::parts::ReasoningFormat;
use crate::ServedModel;
use crate::engine::Engine;
use crate::metrics::ServerMetrics;
use crate::store::{Entry, ResponseStore, StoreError};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use trelliq_config::ConfigCell;
use trelliq_model::RuntimeOptions;

/// Bounds on what a client may send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body: usize,
    /// Until a body has arrived.
    pub body_time: Duration,
    /// Until the headers of a request have arrived.
    pub header_time: Duration,
    /// How long a client may take nothing of an answer that is ready for it.
    pub write_time: Duration,
    /// Headers of a request, and bytes of them.
    pub headers: usize,
    pub header_bytes: usize,
    /// Connections at a time.
    pub connections: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: 4 << 20,
            body_time: Duration::from_secs(30),
            header_time: Duration::from_secs(10),
            write_time: Duration::from_secs(30),
            headers: 64,
            header_bytes: 32 << 10,
            connections: 512,
        }
    }
}

/// The state of a server.
#[derive(Debug)]
pub struct App {
    pub served: Arc<ServedModel>,
    pub engine: Engine,
    pub store: Arc<dyn ResponseStore>,
    /// What new requests start under.
    pub config: ConfigCell,
    /// What kernels do where no configuration says otherwise.
    pub base_runtime: RuntimeOptions,
    pub metrics: ServerMetrics,
    pub limits: Limits,
    /// Demanded from clients of `/v1`, where there is one.
    pub api_key: Option<String>,
    /// Names that clients may call the server by; empty for any. Guards a server on the loopback
    /// address against pages of other sites whose name resolves to it.
    pub host_names: Vec<String>,
    /// Where thoughts go that come before an answer.
    pub reasoning: ReasoningFormat,
    /// Seconds since the Unix epoch at which the model was loaded.
    pub created: u64,
}

/// Seconds since the Unix epoch.
pub fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl App {
    /// Errors when a request names another model than the one that is served.
    pub fn check_model(&self, fields: &super::fields::Fields) -> Result<(), ApiError> {
        match fields.string("model")? {
            Some(name) if name != self.served.name => {
                let message = format!(
                    "the model `{name}` does not exist here; this server serves `{}`",
                    self.served.name
                );
                let status = axum::http::StatusCode::NOT_FOUND;
                let error = ApiError::new(status, message).with_param("model");
                Err(error.with_code("model_not_found"))
            }
            _ => Ok(()),
        }
    }

    /// Runs a call of the store where it may wait for a disk.
    async fn with_store<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl FnOnce(&dyn ResponseStore) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let store = Arc::clone(&self.store);
        let done = tokio::task::spawn_blocking(move || call(&*store)).await;
        let result = done.map_err(|_| ApiError::internal("the store of responses failed"))?;
        let result = result.map_err(|error| ApiError::internal(error.to_string()));
        self.metrics.stored_responses.set(self.store.len() as i64);
        self.metrics.stored_bytes.set(self.store.total_bytes() as i64);
        result
    }

    pub async fn load_response(self: &Arc<Self>, id: &str) -> Result<Option<Entry>, ApiError> {
        let id = id.to_owned();
        self.with_store(move |store| store.get(&id)).await
    }

    pub async fn store_response(
        self: &Arc<Self>,
        id: &str,
        entry: Entry,
    ) -> Result<bool, ApiError> {
        let id = id.to_owned();
        self.with_store(move |store| store.put(&id, &entry)).await
    }

    pub async fn remove_response(self: &Arc<Self>, id: &str) -> Result<bool, ApiError> {
        let id = id.to_owned();
        self.with_store(move |store| store.remove(&id)).await
    }
}
