//! A snapshot and its three readers.

use crate::{ConfigBuilder, ConfigError};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A key that some part of the program reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Dotted, in lower case: `kernel.prefill_from`.
    pub name: &'static str,
    pub help: &'static str,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This environment variable.
    Environment(String),
    /// This file.
    File(String),
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Origin::Environment(variable) => write!(f, "from {variable} in the environment"),
            Origin::File(file) => write!(f, "from {file}"),
            Origin::Flag => f.write_str("from a flag"),
        }
    }
}

/// A key that nothing reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    pub key: String,
    pub origin: Origin,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "unknown key `{}` {}", self.key, self.origin)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub value: String,
    pub origin: Origin,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub entries: BTreeMap<String, Entry>,
    pub unknown: Vec<Unknown>,
}

/// An immutable snapshot; clones share it. The default holds nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config(pub(crate) Arc<Values>);

impl Config {
    /// Starts a snapshot in which `keys` are known.
    pub fn builder(keys: &[Key]) -> ConfigBuilder {
        ConfigBuilder::new(keys)
    }

    /// The text of a key, `None` where nothing sets it.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.0.entries.get(key).map(|entry| entry.value.as_str())
    }

    /// An explicit `1` or `0` wins over the default; anything else leaves it.
    pub fn flag(&self, key: &str, default: bool) -> bool {
        match self.value(key).map(str::trim) {
            Some("1") => true,
            Some("0") => false,
            _ => default,
        }
    }

    /// A number, or the default where nothing sets the key.
    ///
    /// Errors name the key when its text is not a number of this type.
    pub fn number<T: FromStr>(&self, key: &str, default: T) -> Result<T, ConfigError> {
        let Some(text) = self.value(key) else { return Ok(default) };
        text.trim().parse().map_err(|_| {
            let expected = format!("a number ({})", std::any::type_name::<T>());
            self.invalid(key, expected)
        })
    }

    /// The error of a key whose text is not `expected`, for readers of further types.
    pub fn invalid(&self, key: &str, expected: impl Into<String>) -> ConfigError {
        let entry = self.0.entries.get(key);
        ConfigError::Value {
            key: key.to_owned(),
            value: entry.map(|entry| entry.value.clone()).unwrap_or_default(),
            origin: entry.map_or(Origin::Flag, |entry| entry.origin.clone()),
            expected: expected.into(),
        }
    }

    /// Keys that were set and that nothing reads, for the host to report.
    pub fn unknown(&self) -> &[Unknown] {
        &self.0.unknown
    }
}
