//! What can be wrong with a configuration.

use crate::Origin;

/// A source that cannot be read, or a value that is not what its key holds.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("{file} is not valid TOML: {source}")]
    Toml { file: String, source: Box<toml::de::Error> },
    #[error("{file}: `{key}` is neither a string, a number nor a boolean")]
    Shape { file: String, key: String },
    #[error("`{setting}` is not of the form key=value")]
    Setting { setting: String },
    #[error("`{key}` is `{value}` ({origin}), expected {expected}")]
    Value { key: String, value: String, origin: Origin, expected: String },
}
