//! The default store: in memory, gone with the process.

use super::index::Index;
use super::{Clock, Entry, ResponseStore, StoreError, StoreLimits, decode, encode};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
struct State {
    index: Index,
    entries: HashMap<String, Vec<u8>>,
}

/// Keeps entries as JSON, so that what they take is known.
#[derive(Debug)]
pub struct MemoryStore<C> {
    state: Mutex<State>,
    clock: C,
}

impl<C: Clock> MemoryStore<C> {
    pub fn new(limits: StoreLimits, clock: C) -> Self {
        let state = State { index: Index::new(limits), entries: HashMap::new() };
        Self { state: Mutex::new(state), clock }
    }

    /// The state, without what has expired.
    fn fresh(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for id in state.index.expire(self.clock.now()) {
            state.entries.remove(&id);
        }
        state
    }
}

impl<C: Clock> ResponseStore for MemoryStore<C> {
    fn put(&self, id: &str, entry: &Entry) -> Result<bool, StoreError> {
        let json = encode(id, entry)?;
        let mut state = self.fresh();
        let bytes = (id.len() + json.len()) as u64;
        if !state.index.admits(bytes) {
            return Ok(false);
        }
        let expires = self.clock.now() + state.index.limits().ttl;
        for gone in state.index.insert(id, bytes, expires) {
            state.entries.remove(&gone);
        }
        state.entries.insert(id.to_owned(), json);
        Ok(true)
    }

    fn get(&self, id: &str) -> Result<Option<Entry>, StoreError> {
        let mut state = self.fresh();
        if !state.index.touch(id) {
            return Ok(None);
        }
        state.entries.get(id).map(|json| decode(id, json)).transpose()
    }

    fn remove(&self, id: &str) -> Result<bool, StoreError> {
        let mut state = self.fresh();
        state.entries.remove(id);
        Ok(state.index.remove(id))
    }

    fn limits(&self) -> StoreLimits {
        self.fresh().index.limits()
    }

    fn len(&self) -> usize {
        self.fresh().entries.len()
    }

    fn total_bytes(&self) -> u64 {
        let now = self.clock.now();
        self.fresh().index.size(now).1
    }
}
