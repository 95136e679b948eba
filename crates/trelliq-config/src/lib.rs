//! Runtime configuration: immutable snapshots that work in flight keeps.
//!
//! A [`Config`] is built once from the environment (`TRELLIQ_*`), a TOML file and flags, in rising
//! precedence, and never changes. A request enters the scope of the snapshot that it started under,
//! on a thread ([`Config::enter`]) or over the awaits of a future ([`Config::scope`]); code below
//! reads [`Config::current`]. What the host makes current for later work ([`ConfigCell`]) does not
//! reach work that has started.

mod builder;
mod cell;
mod error;
mod scope;
mod snapshot;

pub use builder::ConfigBuilder;
pub use cell::ConfigCell;
pub use error::ConfigError;
pub use scope::{Scope, Scoped};
pub use snapshot::{Config, Key, Origin, Unknown};
