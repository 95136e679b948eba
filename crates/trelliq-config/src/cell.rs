//! The snapshot that new work starts under.

use crate::Config;
use std::sync::{PoisonError, RwLock};

/// Holds the host's latest snapshot. Changing it leaves work in flight alone: that has taken its
/// own with [`get`](Self::get).
#[derive(Debug, Default)]
pub struct ConfigCell(RwLock<Config>);

impl ConfigCell {
    pub fn new(config: Config) -> Self {
        Self(RwLock::new(config))
    }

    pub fn get(&self) -> Config {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, config: Config) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}
