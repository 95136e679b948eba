//! From environment, file and flags to a snapshot.

use crate::snapshot::{Entry, Values};
use crate::{Config, ConfigError, Key, Origin, Unknown};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

const PREFIX: &str = "TRELLIQ_";

type Layer = BTreeMap<String, Entry>;

/// Gathers the three sources; in whatever order they are given, flags win over the file and the
/// file over the environment.
#[derive(Debug, Clone, Default)]
pub struct ConfigBuilder {
    known: BTreeSet<String>,
    ignored: BTreeSet<String>,
    environment: Layer,
    file: Layer,
    flags: Layer,
}

impl ConfigBuilder {
    pub(crate) fn new(keys: &[Key]) -> Self {
        Self::default().keys(keys)
    }

    /// Makes further keys known.
    pub fn keys(mut self, keys: &[Key]) -> Self {
        self.known.extend(keys.iter().map(|key| key.name.to_owned()));
        self
    }

    /// Variables that others read (`TRELLIQ_API_KEY`): neither kept nor reported.
    pub fn ignore(mut self, variables: &[&str]) -> Self {
        self.ignored.extend(variables.iter().map(|name| (*name).to_owned()));
        self
    }

    /// Takes `TRELLIQ_*` out of variables such as [`std::env::vars`]. The key `kernel.isa` is
    /// `TRELLIQ_KERNEL_ISA`: dots and underscores are one.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        for (variable, value) in variables {
            let Some(name) = variable.strip_prefix(PREFIX) else { continue };
            if self.ignored.contains(&variable) {
                continue;
            }
            let key = self.key_of_variable(name);
            self.environment.insert(key, Entry { value, origin: Origin::Environment(variable) });
        }
        self
    }

    /// Reads a TOML file.
    pub fn file(self, path: &Path) -> Result<Self, ConfigError> {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => self.toml(&text, &file),
            Err(source) => Err(ConfigError::Read { file, source }),
        }
    }

    /// Takes TOML text; tables nest keys: `[kernel]` with `isa = "avx2"` is `kernel.isa`. A boolean
    /// is `1` or `0`.
    pub fn toml(mut self, text: &str, file: &str) -> Result<Self, ConfigError> {
        let table: toml::Table = toml::from_str(text).map_err(|source| ConfigError::Toml {
            file: file.to_owned(),
            source: Box::new(source),
        })?;
        flatten(&table, "", file, &mut self.file)?;
        Ok(self)
    }

    /// A flag.
    pub fn flag(mut self, key: &str, value: impl Into<String>) -> Self {
        let entry = Entry { value: value.into(), origin: Origin::Flag };
        self.flags.insert(key.to_owned(), entry);
        self
    }

    /// A flag written as `key=value`.
    pub fn setting(self, setting: &str) -> Result<Self, ConfigError> {
        match setting.split_once('=') {
            Some((key, value)) => Ok(self.flag(key.trim(), value.trim())),
            None => Err(ConfigError::Setting { setting: setting.to_owned() }),
        }
    }

    pub fn build(self) -> Config {
        let mut values = Values::default();
        for (key, entry) in self.environment.into_iter().chain(self.file).chain(self.flags) {
            if self.known.contains(&key) {
                values.entries.insert(key, entry);
            } else {
                values.unknown.push(Unknown { key, origin: entry.origin });
            }
        }
        Config(Arc::new(values))
    }

    fn key_of_variable(&self, name: &str) -> String {
        let name = name.to_ascii_lowercase();
        let known = self.known.iter().find(|key| key.replace('.', "_") == name);
        known.cloned().unwrap_or(name)
    }
}

fn flatten(
    table: &toml::Table,
    prefix: &str,
    file: &str,
    layer: &mut Layer,
) -> Result<(), ConfigError> {
    for (name, value) in table {
        let key = format!("{prefix}{name}");
        let value = match value {
            toml::Value::Table(table) => {
                flatten(table, &format!("{key}."), file, layer)?;
                continue;
            }
            toml::Value::String(text) => text.clone(),
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Float(number) => number.to_string(),
            toml::Value::Boolean(flag) => if *flag { "1" } else { "0" }.to_owned(),
            _ => return Err(ConfigError::Shape { file: file.to_owned(), key }),
        };
        layer.insert(key, Entry { value, origin: Origin::File(file.to_owned()) });
    }
    Ok(())
}
