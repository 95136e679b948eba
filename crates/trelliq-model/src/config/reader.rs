//! Typed access to the keys of a JSON object, with errors that name the key.

use serde_json::{Map, Value};

/// What can be wrong with a `config.json`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    #[error("config: not a JSON object")]
    NotAnObject,
    #[error("config: `{key}` is missing")]
    Missing { key: String },
    #[error("config: `{key}` is {found}, expected {expected}")]
    Invalid { key: String, found: String, expected: String },
    #[error("config: `{key}` = {found} is not supported")]
    Unsupported { key: String, found: String },
    #[error(
        "config: `model_type` \"{found}\" is not supported (supported: llama, mistral, qwen2, \
         qwen3, gemma3, gemma3_text)"
    )]
    Architecture { found: String },
}

/// An object of a configuration and the path that leads to it. A key whose value is null counts
/// as absent, as it does for transformers.
pub(super) struct Reader<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

/// Larger counts than any model has, small enough that products of two do not overflow.
const MAX_COUNT: u64 = 1 << 31;

impl<'a> Reader<'a> {
    pub fn new(json: &'a Value) -> Result<Self, ConfigError> {
        let map = json.as_object().ok_or(ConfigError::NotAnObject)?;
        Ok(Self { map, path: String::new() })
    }

    pub fn key(&self, key: &str) -> String {
        format!("{}{key}", self.path)
    }

    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Whether the key is there with the value null.
    pub fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    pub fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing { key: self.key(key) }
    }

    pub fn invalid(&self, key: &str, expected: &str) -> ConfigError {
        let found = self.map.get(key).map_or_else(|| "absent".to_owned(), short);
        ConfigError::Invalid { key: self.key(key), found, expected: expected.to_owned() }
    }

    pub fn unsupported(&self, key: &str, found: &Value) -> ConfigError {
        ConfigError::Unsupported { key: self.key(key), found: short(found) }
    }

    pub fn object(&self, key: &str) -> Result<Option<Reader<'a>>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => {
                Ok(Some(Reader { map, path: format!("{}.", self.key(key)) }))
            }
            Some(_) => Err(self.invalid(key, "an object")),
        }
    }

    pub fn optional_text(&self, key: &str) -> Result<Option<&'a str>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.invalid(key, "a string")),
        }
    }

    pub fn text(&self, key: &str) -> Result<&'a str, ConfigError> {
        self.optional_text(key)?.ok_or_else(|| self.missing(key))
    }

    /// A whole number of at least one.
    pub fn optional_count(&self, key: &str) -> Result<Option<usize>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(n @ 1..=MAX_COUNT) => Ok(Some(n as usize)),
                _ => Err(self.invalid(key, "a whole number from 1 to 2^31")),
            },
        }
    }

    pub fn count(&self, key: &str) -> Result<usize, ConfigError> {
        self.optional_count(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn count_or(&self, key: &str, default: Option<usize>) -> Result<usize, ConfigError> {
        match default {
            Some(default) => Ok(self.optional_count(key)?.unwrap_or(default)),
            None => self.count(key),
        }
    }

    /// A whole number, zero included.
    pub fn size_or(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        match self.get(key).map(Value::as_u64) {
            None => Ok(default),
            Some(Some(n @ 0..=MAX_COUNT)) => Ok(n as usize),
            Some(_) => Err(self.invalid(key, "a whole number from 0 to 2^31")),
        }
    }

    /// A finite number above zero.
    pub fn optional_positive(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(x) if x.is_finite() && x > 0.0 => Ok(Some(x)),
                _ => Err(self.invalid(key, "a number above zero")),
            },
        }
    }

    pub fn positive(&self, key: &str) -> Result<f64, ConfigError> {
        self.optional_positive(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn positive_or(&self, key: &str, default: f64) -> Result<f64, ConfigError> {
        Ok(self.optional_positive(key)?.unwrap_or(default))
    }

    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.invalid(key, "true or false")),
        }
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a [Value]>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(_) => Err(self.invalid(key, "a list")),
        }
    }
}

/// A value as an error message shows it.
fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
