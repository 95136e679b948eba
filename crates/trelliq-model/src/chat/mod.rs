//! Chat templates: Jinja templates of `tokenizer_config.json`, rendered as transformers does.

mod json;
mod source;
mod turns;

pub use source::ChatTemplates;
pub use turns::{PLAIN, TurnFormat};

use crate::tokenizer::special_token;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// What can go wrong between messages and a prompt.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    #[error("the model has no chat template")]
    NoTemplate,
    #[error("the model has no chat template named `{name}`: it has {found}")]
    NoSuchTemplate { name: String, found: String },
    #[error("tokenizer_config.json: `chat_template` is neither a string nor a list of named ones")]
    BadTemplate,
    #[error("{file} is not UTF-8")]
    NotUtf8 { file: String },
    #[error("{file} is not valid JSON: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("the chat template cannot be parsed: {0}")]
    Parse(#[source] Error),
    /// The template itself refused the messages, by `raise_exception`.
    #[error("the chat template refuses the messages: {0}")]
    Refused(String),
    #[error("the chat template failed: {0}")]
    Render(#[source] Error),
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant` or what else the template knows.
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A parsed template and the special tokens that it may print.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    special: Map<String, Value>,
    stop: Option<&'static str>,
}

const NAME: &str = "chat";
/// The special tokens that transformers hands to a template.
const SPECIAL: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

impl ChatTemplate {
    /// `config` is the `tokenizer_config.json`, for its special tokens.
    pub fn new(template: &str, config: &Value) -> Result<Self, ChatError> {
        let mut environment = environment().map_err(ChatError::Parse)?;
        let template = source::without_generation_tags(template).into_owned();
        environment.add_template_owned(NAME, template).map_err(ChatError::Parse)?;
        let token = |name: &str| Some((name.to_owned(), special_token(config, name)?.into()));
        Ok(Self {
            environment,
            special: SPECIAL.into_iter().filter_map(token).collect(),
            stop: None,
        })
    }

    /// The template of a turn format; `config` as in [`new`](Self::new).
    pub fn turns(format: &TurnFormat, config: &Value) -> Result<Self, ChatError> {
        Ok(Self { stop: format.stop, ..Self::new(format.template, config)? })
    }

    /// Text that shows that an answer is over, where no token does.
    pub fn stop(&self) -> Option<&'static str> {
        self.stop
    }

    /// Whether the tokenizer shall put its start token before the prompt: plain text has none of the
    /// special tokens that other templates print themselves.
    pub fn wants_start_token(&self) -> bool {
        self.stop.is_some()
    }

    /// The prompt for messages; with `add_generation_prompt` it ends where the answer starts.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        let extra = json!({ "add_generation_prompt": add_generation_prompt });
        self.render_json(&json!(messages), &extra)
    }

    /// As [`render`](Self::render), for messages of any shape (content in parts, tool calls) and
    /// further variables such as `tools`; `extra` is an object, and wins over what is set here.
    pub fn render_json(&self, messages: &Value, extra: &Value) -> Result<String, ChatError> {
        let mut context = self.special.clone();
        context.insert("messages".into(), messages.clone());
        // transformers passes both always, as None when not given: `is defined` holds.
        context.insert("tools".into(), Value::Null);
        context.insert("documents".into(), Value::Null);
        context.insert("add_generation_prompt".into(), Value::Bool(false));
        context
            .extend(extra.as_object().into_iter().flatten().map(|(k, v)| (k.clone(), v.clone())));
        let template = self.environment.get_template(NAME).map_err(ChatError::Render)?;
        template.render(minijinja::Value::from(Serde(context))).map_err(render_error)
    }
}

/// The detail of errors that `raise_exception` makes, to tell them from the engine's own.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn render_error(error: Error) -> ChatError {
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return ChatError::Refused(message.clone());
        }
        source = inner.source();
    }
    ChatError::Render(error)
}

/// Jinja as transformers sets it up: blocks trimmed, Python's methods on values, loop controls.
fn environment() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
    environment.set_syntax(syntax);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.set_formatter(format);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", to_json);
    Ok(environment)
}

fn raise_exception(message: String) -> Result<(), Error> {
    let error = Error::new(ErrorKind::InvalidOperation, "raise_exception");
    Err(error.with_source(Raised(message)))
}

/// The local time in a format of strftime.
fn strftime_now(format: &str) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// transformers' own filter: keys keep their order, nothing is escaped for HTML or ASCII.
fn to_json(
    value: &minijinja::Value,
    indent: Option<minijinja::Value>,
    options: Kwargs,
) -> Result<minijinja::Value, Error> {
    let indent = match indent {
        Some(indent) => indent,
        None => options.get::<Option<minijinja::Value>>("indent")?.unwrap_or_default(),
    };
    // Accepted because transformers' filter has it; its default is the only useful value.
    let _: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let indent =
        if indent.is_none() || indent.is_undefined() { None } else { Some(indent.try_into()?) };
    json::to_string(value, indent).map(minijinja::Value::from_safe_string).map_err(|error| {
        Error::new(ErrorKind::InvalidOperation, "cannot write as JSON").with_source(error)
    })
}

/// Booleans and none print as in Python.
fn format(out: &mut Output, state: &mut State, value: &minijinja::Value) -> Result<(), Error> {
    let text = match value.kind() {
        minijinja::value::ValueKind::Bool if value.is_true() => "True",
        minijinja::value::ValueKind::Bool => "False",
        minijinja::value::ValueKind::None => "None",
        _ => return minijinja::escape_formatter(out, state, value),
    };
    out.write_str(text).map_err(Error::from)
}

#[cfg(test)]
mod tests;
