//! Where a model's chat templates are, and tags that only transformers knows.

use super::{ChatError, ChatTemplate, PLAIN, TurnFormat};
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

const CONFIG: &str = "tokenizer_config.json";
const JINJA: &str = "chat_template.jinja";
const DEFAULT: &str = "default";

/// The chat templates of a model by name; a single one is named `default`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChatTemplates {
    templates: BTreeMap<String, String>,
    config: Value,
}

impl ChatTemplates {
    /// From a model's small files: `chat_template.jinja` (and `additional_chat_templates/`), or the
    /// `chat_template` of `tokenizer_config.json`, a string or a list of named ones. The separate
    /// files win, as they do for transformers.
    pub fn from_files(files: &BTreeMap<String, Vec<u8>>) -> Result<Self, ChatError> {
        let config = match files.get(CONFIG) {
            None => Value::Null,
            Some(bytes) => serde_json::from_slice(bytes)
                .map_err(|source| ChatError::Json { file: CONFIG.to_owned(), source })?,
        };
        let mut templates = from_config(&config)?;
        for (file, bytes) in files {
            let named = file
                .strip_prefix("additional_chat_templates/")
                .and_then(|name| name.strip_suffix(".jinja"));
            let Some(name) = named.or((file == JINJA).then_some(DEFAULT)) else { continue };
            let text = std::str::from_utf8(bytes)
                .map_err(|_| ChatError::NotUtf8 { file: file.clone() })?;
            templates.insert(name.to_owned(), text.to_owned());
        }
        Ok(Self { templates, config })
    }

    /// Names of the templates.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.templates.keys().map(String::as_str)
    }

    /// Whether the model brings none.
    pub fn is_empty(&self) -> bool {
        self.templates.is_empty()
    }

    /// The model's default template, or [`PLAIN`] text where it brings none.
    pub fn or_plain(&self) -> Result<ChatTemplate, ChatError> {
        if self.is_empty() { self.turns(&PLAIN) } else { self.get(None) }
    }

    /// The template of a turn format, with this model's special tokens.
    pub fn turns(&self, format: &TurnFormat) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::turns(format, &self.config)
    }

    /// Parses a template that did not come with the model, with this model's special tokens.
    pub fn parse(&self, template: &str) -> Result<ChatTemplate, ChatError> {
        ChatTemplate::new(template, &self.config)
    }

    /// Parses one template, `default` without a name.
    ///
    /// Errors when the model has none (of that name) or it is not a template.
    pub fn get(&self, name: Option<&str>) -> Result<ChatTemplate, ChatError> {
        if self.templates.is_empty() {
            return Err(ChatError::NoTemplate);
        }
        let name = name.unwrap_or(DEFAULT);
        let template = self.templates.get(name).ok_or_else(|| ChatError::NoSuchTemplate {
            name: name.to_owned(),
            found: self.names().collect::<Vec<_>>().join(", "),
        })?;
        self.parse(template)
    }
}

fn from_config(config: &Value) -> Result<BTreeMap<String, String>, ChatError> {
    match config.get("chat_template") {
        None | Some(Value::Null) => Ok(BTreeMap::new()),
        Some(Value::String(text)) => Ok([(DEFAULT.to_owned(), text.clone())].into()),
        Some(Value::Array(list)) => list.iter().map(named).collect(),
        Some(_) => Err(ChatError::BadTemplate),
    }
}

fn named(entry: &Value) -> Result<(String, String), ChatError> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    text("name").zip(text("template")).ok_or(ChatError::BadTemplate)
}

/// `{% generation %}` and `{% endgeneration %}` mark the assistant's tokens for training. They are
/// replaced by blocks that print the same: `{% if true %}` and `{% endif %}`.
pub(super) fn without_generation_tags(template: &str) -> Cow<'_, str> {
    if !template.contains("generation") {
        return Cow::Borrowed(template);
    }
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|end| start + end) else { break };
        let tag = &rest[start + 2..end];
        let word = tag.trim_matches(|c: char| c.is_whitespace() || matches!(c, '-' | '+'));
        let replacement = match word {
            "generation" => Some("if true"),
            "endgeneration" => Some("endif"),
            _ => None,
        };
        out.push_str(&rest[..start + 2]);
        match replacement {
            Some(replacement) => out.push_str(&tag.replace(word, replacement)),
            None => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    Cow::Owned(out)
}
