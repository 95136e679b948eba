//! Typed access to a GGUF file's metadata; errors name the key and the file.

use super::header::{GgufArray, GgufHeader, GgufValue};
use crate::FormatError;
use std::path::Path;

/// The model families whose GGUF files can be opened (`general.architecture`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    Llama,
    Qwen2,
    Qwen3,
    Gemma3,
}

impl Architecture {
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen2 => "qwen2",
            Architecture::Qwen3 => "qwen3",
            Architecture::Gemma3 => "gemma3",
        }
    }
}

/// A header's metadata and the name of its file.
#[derive(Clone, Copy)]
pub(crate) struct Metadata<'a> {
    pub file: &'a Path,
    pub header: &'a GgufHeader<'a>,
}

impl<'a> Metadata<'a> {
    pub fn architecture(&self) -> Result<Architecture, FormatError> {
        use Architecture::{Gemma3, Llama, Qwen2, Qwen3};
        let name = self.required("general.architecture", self.text("general.architecture")?)?;
        let known = [Llama, Qwen2, Qwen3, Gemma3].into_iter().find(|a| a.name() == name);
        known.ok_or_else(|| FormatError::Architecture {
            file: self.file.to_owned(),
            architecture: name.to_owned(),
        })
    }

    pub fn size(&self, key: &str) -> Result<Option<usize>, FormatError> {
        self.get(key, "a whole number", |value| match value {
            GgufValue::Unsigned(n) => usize::try_from(n).ok(),
            GgufValue::Signed(n) => usize::try_from(n).ok(),
            _ => None,
        })
    }

    /// A number as JSON would write it: one that was an f32 gets the shortest decimal of that f32.
    pub fn float(&self, key: &str) -> Result<Option<f64>, FormatError> {
        self.get(key, "a finite number", |value| match value {
            GgufValue::Float(x) if x.is_finite() => Some(shortest(x)),
            GgufValue::Unsigned(n) => Some(n as f64),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, FormatError> {
        self.get(key, "a bool", |value| match value {
            GgufValue::Bool(flag) => Some(flag),
            _ => None,
        })
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, FormatError> {
        self.get(key, "a string", |value| match value {
            GgufValue::Text(text) => Some(text),
            _ => None,
        })
    }

    pub fn array(&self, key: &str) -> Result<Option<GgufArray<'a>>, FormatError> {
        self.get(key, "an array", |value| match value {
            GgufValue::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The items of an array, all of which `read` must accept.
    pub fn items<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, FormatError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let items: Option<Vec<T>> = array.iter().map(read).collect();
        items.map(Some).ok_or_else(|| self.error(key, format!("an item is not {expected}")))
    }

    pub fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, FormatError> {
        value.ok_or_else(|| FormatError::MissingMetadata {
            file: self.file.to_owned(),
            key: key.to_owned(),
        })
    }

    pub fn error(&self, key: &str, reason: impl Into<String>) -> FormatError {
        let (file, key, reason) = (self.file.to_owned(), key.to_owned(), reason.into());
        FormatError::Metadata { file, key, reason }
    }

    fn get<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl Fn(GgufValue<'a>) -> Option<T>,
    ) -> Result<Option<T>, FormatError> {
        match self.header.metadata.get(key) {
            None => Ok(None),
            Some(&value) => read(value)
                .map(Some)
                .ok_or_else(|| self.error(key, format!("it is not {expected}"))),
        }
    }
}

fn shortest(x: f64) -> f64 {
    let single = x as f32;
    let decimal = (f64::from(single) == x).then(|| single.to_string().parse().ok());
    decimal.flatten().unwrap_or(x)
}
