//! Tools: their definitions, whether one must be called, and calls in what a model writes.
//!
//! Models write calls in a few ways, and all are understood whatever the model: `<tool_call>` around
//! JSON (Hermes, Qwen), or bare JSON as the whole answer (Llama 3 with `parameters`, Mistral as an
//! array, others with `arguments`). JSON that names no tool of the request is ordinary text.

use super::error::ApiError;
use super::fields::Fields;
use serde_json::{Value, json};

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// JSON schema of the arguments.
    pub parameters: Value,
}

/// Whether tools may or must be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    None,
    Auto,
    Required,
    Named(String),
}

/// A call that the model made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

impl Tool {
    /// Definitions in the form of chat (`{"type": "function", "function": {…}}`) or of responses
    /// (the function's fields beside the type).
    pub fn read_all(fields: &Fields) -> Result<Vec<Self>, ApiError> {
        let list = fields.array("tools")?.map(Vec::as_slice).unwrap_or_default();
        let paths = (0..list.len()).map(|i| fields.path(&format!("tools[{i}]")));
        list.iter().zip(paths).map(|(tool, path)| Self::read(&Fields::new(tool, path)?)).collect()
    }

    fn read(tool: &Fields) -> Result<Self, ApiError> {
        match tool.string("type")? {
            Some("function") | None => {}
            Some(_) => return Err(tool.mismatch("type", "function, the only kind served here")),
        }
        let inner = tool.object("function")?;
        let function = inner.as_ref().unwrap_or(tool);
        let name = function.required("name")?.as_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| function.mismatch("name", "a name"))?;
        let parameters = match function.object("parameters")? {
            Some(_) => function.required("parameters")?.clone(),
            None => json!({ "type": "object", "properties": {} }),
        };
        let description = function.string("description")?.map(str::to_owned);
        Ok(Self { name: name.to_owned(), description, parameters })
    }

    /// The form that chat templates expect.
    pub fn to_json(&self) -> Value {
        let mut function = json!({ "name": self.name });
        if let Some(description) = &self.description {
            function["description"] = json!(description);
        }
        function["parameters"] = self.parameters.clone();
        json!({ "type": "function", "function": function })
    }
}

impl ToolChoice {
    /// A word, or an object that names a function.
    pub fn read(fields: &Fields, tools: &[Tool]) -> Result<Self, ApiError> {
        let expected = "none, auto, required or a function of `tools`";
        let choice = match fields.get("tool_choice") {
            None if tools.is_empty() => Self::None,
            None => Self::Auto,
            Some(Value::String(word)) => match word.as_str() {
                "none" => Self::None,
                "auto" => Self::Auto,
                "required" => Self::Required,
                _ => return Err(fields.mismatch("tool_choice", expected)),
            },
            Some(object) => {
                let name = object.pointer("/function/name").or(object.get("name"));
                let name = name.and_then(Value::as_str);
                let known = name.filter(|name| tools.iter().any(|tool| tool.name == *name));
                let name = known.ok_or_else(|| fields.mismatch("tool_choice", expected))?;
                Self::Named(name.to_owned())
            }
        };
        if choice == Self::Required && tools.is_empty() {
            return Err(ApiError::field("tool_choice", "`tool_choice` needs `tools`"));
        }
        Ok(choice)
    }

    /// The schema of a call that must be made, if one must.
    pub fn forced(&self, tools: &[Tool]) -> Option<Value> {
        let allowed: Vec<Value> = match self {
            Self::None | Self::Auto => return None,
            Self::Required => tools.iter().map(call_schema).collect(),
            Self::Named(name) => {
                tools.iter().filter(|tool| tool.name == *name).map(call_schema).collect()
            }
        };
        Some(if allowed.len() == 1 { allowed[0].clone() } else { json!({ "anyOf": allowed }) })
    }
}

fn call_schema(tool: &Tool) -> Value {
    json!({
        "type": "object",
        "properties": { "name": { "const": tool.name }, "arguments": tool.parameters },
        "required": ["name", "arguments"],
        "additionalProperties": false,
    })
}

/// What a piece of an answer turned out to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    Text(String),
    Call(ToolCall),
}

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Only blanks so far.
    Start,
    /// The answer began with a bracket: all of it may be calls.
    Json,
    Text,
    /// Behind [`OPEN`].
    Call,
    /// Behind [`CLOSE`]: blanks are left out.
    Between,
}

/// Finds calls in an answer that comes in pieces. What may be a call is held back.
#[derive(Debug)]
pub struct CallFinder {
    names: Vec<String>,
    mode: Mode,
    held: String,
}

impl CallFinder {
    /// Without tools everything is text.
    pub fn new(tools: &[Tool]) -> Self {
        let mode = if tools.is_empty() { Mode::Text } else { Mode::Start };
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        Self { names, mode, held: String::new() }
    }

    pub fn push(&mut self, piece: &str) -> Vec<Part> {
        if self.names.is_empty() {
            return text(piece.to_owned()).into_iter().collect();
        }
        self.held.push_str(piece);
        let mut parts = Vec::new();
        while self.advance(&mut parts) {}
        parts
    }

    /// What was held back, when nothing follows.
    pub fn finish(mut self) -> Vec<Part> {
        let held = std::mem::take(&mut self.held);
        let (inner, marked) = match self.mode {
            Mode::Call => (held.as_str(), true),
            Mode::Json => (held.as_str(), false),
            Mode::Between if held.trim().is_empty() => return Vec::new(),
            Mode::Start | Mode::Text | Mode::Between => return text(held).into_iter().collect(),
        };
        match self.calls(inner) {
            Some(calls) => calls.into_iter().map(Part::Call).collect(),
            None if marked => text(format!("{OPEN}{held}")).into_iter().collect(),
            None => text(held).into_iter().collect(),
        }
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.mode {
            Mode::Start | Mode::Between => self.begin(),
            Mode::Json => false,
            Mode::Text => self.scan_text(parts),
            Mode::Call => self.scan_call(parts),
        }
    }

    fn begin(&mut self) -> bool {
        let rest = self.held.trim_start();
        if self.mode == Mode::Start {
            if let Some(behind) = rest.strip_prefix(PYTHON_TAG) {
                self.held = behind.to_owned();
                return true;
            }
            if rest.starts_with(['{', '[']) {
                self.mode = Mode::Json;
                return false;
            }
            if !rest.is_empty() && PYTHON_TAG.starts_with(rest) {
                return false;
            }
        }
        if rest.is_empty() || (OPEN.starts_with(rest) && rest.len() < OPEN.len()) {
            return false;
        }
        if rest.starts_with(OPEN) {
            self.held = rest.to_owned();
        }
        self.mode = Mode::Text;
        true
    }

    fn scan_text(&mut self, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let behind = self.held.split_off(at + OPEN.len());
            self.held.truncate(at);
            parts.extend(text(std::mem::replace(&mut self.held, behind)));
            self.mode = Mode::Call;
            return true;
        }
        let starts = (1..OPEN.len()).rev().find(|&len| self.held.ends_with(&OPEN[..len]));
        let rest = self.held.split_off(self.held.len() - starts.unwrap_or(0));
        parts.extend(text(std::mem::replace(&mut self.held, rest)));
        false
    }

    fn scan_call(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(at) = self.held.find(CLOSE) else { return false };
        let behind = self.held.split_off(at + CLOSE.len());
        let inner = std::mem::replace(&mut self.held, behind);
        match self.calls(&inner[..at]) {
            Some(calls) => parts.extend(calls.into_iter().map(Part::Call)),
            None => parts.extend(text(format!("{OPEN}{inner}"))),
        }
        self.mode = Mode::Between;
        true
    }

    /// The calls that a text consists of, `None` when it is anything else.
    fn calls(&self, json: &str) -> Option<Vec<ToolCall>> {
        let mut calls = Vec::new();
        let mut rest = json.trim();
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = values.next()?.ok()?;
            rest = rest[values.byte_offset()..].trim_start_matches([' ', '\n', '\r', '\t', ';']);
            match value {
                Value::Array(list) => {
                    for value in &list {
                        calls.push(self.call(value)?);
                    }
                }
                value => calls.push(self.call(&value)?),
            }
        }
        (!calls.is_empty()).then_some(calls)
    }

    fn call(&self, value: &Value) -> Option<ToolCall> {
        let function = value.get("function").filter(|inner| inner.is_object()).unwrap_or(value);
        let name = function.get("name")?.as_str()?;
        if !self.names.iter().any(|known| known == name) {
            return None;
        }
        let arguments = function.get("arguments").or(function.get("parameters"));
        let arguments = match arguments {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => "{}".to_owned(),
        };
        Some(ToolCall { name: name.to_owned(), arguments })
    }
}

fn text(text: String) -> Option<Part> {
    (!text.is_empty()).then_some(Part::Text(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tools() -> Vec<Tool> {
        ["weather", "add"]
            .map(|name| Tool { name: name.into(), description: None, parameters: json!({}) })
            .into()
    }

    fn call(name: &str, arguments: &str) -> Part {
        Part::Call(ToolCall { name: name.into(), arguments: arguments.into() })
    }

    /// Parts of an answer whose pieces end at the given places, texts joined.
    fn parts(answer: &str, cuts: &[usize]) -> Vec<Part> {
        let mut finder = CallFinder::new(&tools());
        let mut found = Vec::new();
        let mut start = 0;
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (answer.len() + 1)).collect();
        cuts.sort_unstable();
        for cut in cuts.into_iter().chain([answer.len()]) {
            let cut = (0..=cut).rev().find(|cut| answer.is_char_boundary(*cut)).unwrap_or(0);
            if cut > start {
                found.extend(finder.push(&answer[start..cut]));
                start = cut;
            }
        }
        found.extend(finder.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in found {
            match (joined.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    /// What each model family writes, and what it means.
    fn examples() -> Vec<(&'static str, Vec<Part>)> {
        let text = |text: &str| Part::Text(text.to_owned());
        vec![
            ("plain { text } [1]", vec![text("plain { text } [1]")]),
            (
                "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                vec![call("add", r#"{"a":1}"#)],
            ),
            (
                "Let me see.\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n\
                 <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}</tool_call>\n",
                vec![
                    text("Let me see.\n"),
                    call("add", "{}"),
                    call("weather", r#"{"city":"Zürich"}"#),
                ],
            ),
            (
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}",
                vec![call("weather", r#"{"city":"Bern"}"#)],
            ),
            (
                "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\"}",
                vec![call("add", "{}"), call("add", "{}")],
            ),
            (
                " [{\"name\": \"add\", \"arguments\": \"{\\\"a\\\":2}\"}]",
                vec![call("add", r#"{"a":2}"#)],
            ),
            (
                "{\"name\": \"unknown\", \"arguments\": {}}",
                vec![text("{\"name\": \"unknown\", \"arguments\": {}}")],
            ),
            ("{\"name\": \"add\", \"argu", vec![text("{\"name\": \"add\", \"argu")]),
            ("<tool_call>nonsense</tool_call>", vec![text("<tool_call>nonsense</tool_call>")]),
            ("<tool_call>{\"name\": \"add\"}", vec![call("add", "{}")]),
            ("a <tool_cal", vec![text("a <tool_cal")]),
        ]
    }

    #[test]
    fn calls_of_every_family_are_found_and_text_is_left_alone() {
        for (answer, expected) in examples() {
            assert_eq!(parts(answer, &[]), expected, "{answer}");
        }
    }

    #[test]
    fn text_is_not_held_back_longer_than_it_may_be_a_call() {
        let mut finder = CallFinder::new(&tools());
        assert_eq!(finder.push("Hello <b"), [Part::Text("Hello <b".into())]);
        assert_eq!(finder.push(" and <tool"), [Part::Text(" and ".into())]);
        assert_eq!(finder.push("box>"), [Part::Text("<toolbox>".into())]);
    }

    #[test]
    fn without_tools_nothing_is_a_call() {
        let mut finder = CallFinder::new(&[]);
        let text = "<tool_call>{\"name\": \"add\"}</tool_call>";
        assert_eq!(finder.push(text), [Part::Text(text.into())]);
        assert_eq!(finder.finish(), []);
    }

    #[test]
    fn forced_calls_have_a_schema() {
        let named = ToolChoice::Named("add".into()).forced(&tools()).unwrap();
        assert_eq!(named["properties"]["name"]["const"], "add");
        let any = ToolChoice::Required.forced(&tools()).unwrap();
        assert_eq!(any["anyOf"].as_array().unwrap().len(), 2);
        assert_eq!(ToolChoice::Auto.forced(&tools()), None);
    }

    proptest! {
        /// How an answer is cut into pieces changes nothing.
        #[test]
        fn pieces(index in 0usize..11, cuts in prop::collection::vec(0usize..200, 0..12)) {
            let (answer, expected) = examples().swap_remove(index);
            prop_assert_eq!(parts(answer, &cuts), expected);
        }
    }
}
