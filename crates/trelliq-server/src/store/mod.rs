//! Where responses are kept for requests that name them in `previous_response_id`.

mod clock;
mod durable;
mod index;
mod memory;

pub use clock::{Clock, ManualClock, SystemClock};
pub use durable::DurableStore;
pub use memory::MemoryStore;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::time::Duration;

/// A response and the input that it answers, earlier turns included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Input items, in order.
    pub input: Vec<Value>,
    /// The response as it was sent: its `output` continues `input`.
    pub response: Value,
}

/// How long entries live and how much they may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// From the time that an entry was put.
    pub ttl: Duration,
    /// Bytes of all entries: their ids and their JSON.
    pub cap: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self { ttl: Duration::from_secs(24 * 60 * 60), cap: 32 << 20 }
    }
}

/// A durable store that cannot do what is asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("the store of responses failed: {0}")]
    Database(#[source] Box<redb::Error>),
    #[error("the stored response `{id}` cannot be read: {source}")]
    Entry { id: String, source: serde_json::Error },
}

/// A bounded store. Expired entries are never returned; when the cap is passed, the least recently
/// put or got leave first.
pub trait ResponseStore: Send + Sync + std::fmt::Debug {
    /// Stores an entry in place of one with the same id. False when it alone is over the cap: it is
    /// not stored then. A durable store has it on disk when this returns.
    fn put(&self, id: &str, entry: &Entry) -> Result<bool, StoreError>;

    /// The entry, unless it is unknown or expired.
    fn get(&self, id: &str) -> Result<Option<Entry>, StoreError>;

    /// Removes an entry; whether it was there.
    fn remove(&self, id: &str) -> Result<bool, StoreError>;

    fn limits(&self) -> StoreLimits;

    fn ttl(&self) -> Duration {
        self.limits().ttl
    }

    fn cap(&self) -> u64 {
        self.limits().cap
    }

    /// Entries that are not expired.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of the entries that are not expired.
    fn total_bytes(&self) -> u64;
}

fn encode(id: &str, entry: &Entry) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(entry).map_err(|source| StoreError::Entry { id: id.to_owned(), source })
}

fn decode(id: &str, bytes: &[u8]) -> Result<Entry, StoreError> {
    serde_json::from_slice(bytes).map_err(|source| StoreError::Entry { id: id.to_owned(), source })
}
