//! Reading the fields of a request, with errors that name them.

use super::error::ApiError;
use serde_json::{Map, Value};
use std::ops::RangeInclusive;

/// An object of a request and where in it the object is.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// Errors when the value is not an object; `path` is empty for the request itself.
    pub fn new(value: &'a Value, path: impl Into<String>) -> Result<Self, ApiError> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other if path.is_empty() => {
                let found = describe(other);
                Err(ApiError::bad_request(format!("the request is {found}, expected an object")))
            }
            other => Err(mismatch(&path, other, "an object")),
        }
    }

    /// The path of a field, as errors name it.
    pub fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// A field that is there and not null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    pub fn required(&self, key: &str) -> Result<&'a Value, ApiError> {
        self.get(key).ok_or_else(|| {
            let path = self.path(key);
            let error = ApiError::bad_request(format!("`{path}` is missing"));
            error.with_param(path).with_code("missing_required_parameter")
        })
    }

    /// The error of a field that is something else than expected.
    pub fn mismatch(&self, key: &str, expected: &str) -> ApiError {
        mismatch(&self.path(key), self.map.get(key).unwrap_or(&Value::Null), expected)
    }

    pub fn string(&self, key: &str) -> Result<Option<&'a str>, ApiError> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn boolean(&self, key: &str) -> Result<Option<bool>, ApiError> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn array(&self, key: &str) -> Result<Option<&'a Vec<Value>>, ApiError> {
        self.typed(key, "an array", Value::as_array)
    }

    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>, ApiError> {
        self.get(key).map(|value| Fields::new(value, self.path(key))).transpose()
    }

    pub fn number(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        let inside = |value: &Value| value.as_f64().filter(|x| range.contains(x));
        Ok(self.typed(key, &expected, inside)?.map(|x| x as f32))
    }

    pub fn count(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<usize>, ApiError> {
        let expected = match *range.end() {
            u64::MAX => format!("a whole number from {}", range.start()),
            end => format!("a whole number from {} to {end}", range.start()),
        };
        let inside = |value: &Value| value.as_u64().filter(|x| range.contains(x));
        Ok(self.typed(key, &expected, inside)?.map(|x| usize::try_from(x).unwrap_or(usize::MAX)))
    }

    fn typed<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| mismatch(&self.path(key), value, expected))
    }
}

fn mismatch(path: &str, found: &Value, expected: &str) -> ApiError {
    ApiError::field(path, format!("`{path}` is {}, expected {expected}", describe(found)))
}

/// A value in few words: what a client sent is not repeated at length.
fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if text.len() <= 40 => format!("{text:?}"),
        Value::String(_) => "a long string".to_owned(),
        Value::Array(list) => format!("an array of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
    }
}
