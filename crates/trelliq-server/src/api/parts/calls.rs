//! Calls of tools in what a model writes.
//!
//! Models write calls in a few ways, and all are understood whatever the model: `<tool_call>` around
//! JSON (Hermes, Qwen), or bare JSON as the whole answer (Llama 3 with `parameters`, Mistral as an
//! array, others with `arguments`). JSON that names no tool of the request is ordinary text.
//!
//! Where the name comes before an object of arguments, as all of these write it, a call begins with
//! its name and its arguments follow as they are written. Other orders, and arguments as a string,
//! are understood once they are whole.

use super::Part;
use super::head::{BETWEEN, Head, ObjectEnd, head};
use crate::api::tools::Tool;
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
const PYTHON_TAG: &str = "<|python_tag|>";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Only blanks so far.
    Start,
    Text,
    /// Behind [`OPEN`] if `marked`; else the answer began with a bracket, and all of it may be calls.
    Json {
        marked: bool,
    },
    /// Behind [`CLOSE`]: blanks are left out.
    Between,
}

/// Where in the JSON of calls the text is.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// Before a call.
    Head,
    Arguments(ObjectEnd),
    /// Behind the arguments, in the call's object.
    Tail(ObjectEnd),
    /// What cannot be understood before it is whole.
    Whole,
}

/// Finds calls in an answer that comes in pieces. What may be a call is held back.
#[derive(Debug)]
pub struct CallFinder {
    names: Vec<String>,
    mode: Mode,
    place: Place,
    /// A call was found since the JSON began.
    called: bool,
    held: String,
}

impl CallFinder {
    /// Without tools everything is text.
    pub fn new(tools: &[Tool]) -> Self {
        let mode = if tools.is_empty() { Mode::Text } else { Mode::Start };
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        Self { names, mode, place: Place::Head, called: false, held: String::new() }
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
        match self.mode {
            Mode::Between if held.trim().is_empty() => Vec::new(),
            Mode::Start | Mode::Text | Mode::Between => text(held).into_iter().collect(),
            Mode::Json { marked } => match self.place {
                Place::Arguments(_) | Place::Tail(_) => Vec::new(),
                Place::Head if self.called && held.trim_matches(BETWEEN).is_empty() => Vec::new(),
                Place::Head | Place::Whole => self.whole(&held, marked),
            },
        }
    }

    /// One step; false when more text is needed.
    fn advance(&mut self, parts: &mut Vec<Part>) -> bool {
        match self.mode {
            Mode::Start | Mode::Between => self.begin(),
            Mode::Text => self.scan_text(parts),
            Mode::Json { marked } => match self.place {
                Place::Head => self.scan_head(marked, parts),
                Place::Arguments(end) => self.scan_arguments(end, parts),
                Place::Tail(end) => self.scan_tail(end),
                Place::Whole => marked && self.scan_whole(parts),
            },
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
                self.open(false);
                return true;
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

    fn open(&mut self, marked: bool) {
        self.mode = Mode::Json { marked };
        self.place = Place::Head;
        self.called = false;
    }

    fn scan_text(&mut self, parts: &mut Vec<Part>) -> bool {
        if let Some(at) = self.held.find(OPEN) {
            let behind = self.held.split_off(at + OPEN.len());
            self.held.truncate(at);
            parts.extend(text(std::mem::replace(&mut self.held, behind)));
            self.open(true);
            return true;
        }
        let starts = (1..OPEN.len()).rev().find(|&len| self.held.ends_with(&OPEN[..len]));
        let rest = self.held.split_off(self.held.len() - starts.unwrap_or(0));
        parts.extend(text(std::mem::replace(&mut self.held, rest)));
        false
    }

    fn scan_head(&mut self, marked: bool, parts: &mut Vec<Part>) -> bool {
        let rest = self.held.trim_start_matches(BETWEEN);
        if marked && self.called {
            if let Some(behind) = rest.strip_prefix(CLOSE) {
                self.held = behind.to_owned();
                self.mode = Mode::Between;
                return true;
            }
            if CLOSE.starts_with(rest) {
                return false;
            }
        }
        match head(&self.held, &self.names) {
            Head::Incomplete => return false,
            Head::Other => self.place = Place::Whole,
            Head::Call { name, len, arguments } => {
                self.held.drain(..len);
                self.called = true;
                parts.push(Part::Call(name));
                if arguments {
                    self.place = Place::Arguments(ObjectEnd::default());
                } else {
                    parts.push(Part::Arguments("{}".to_owned()));
                }
            }
        }
        true
    }

    fn scan_arguments(&mut self, mut end: ObjectEnd, parts: &mut Vec<Part>) -> bool {
        let (len, ended) = end.scan(&self.held);
        let piece: String = self.held.drain(..len).collect();
        if !piece.is_empty() {
            parts.push(Part::Arguments(piece));
        }
        self.place = if ended { Place::Tail(ObjectEnd::within(1)) } else { Place::Arguments(end) };
        ended
    }

    fn scan_tail(&mut self, mut end: ObjectEnd) -> bool {
        let (len, ended) = end.scan(&self.held);
        self.held.drain(..len);
        self.place = if ended { Place::Head } else { Place::Tail(end) };
        ended
    }

    fn scan_whole(&mut self, parts: &mut Vec<Part>) -> bool {
        let Some(at) = self.held.find(CLOSE) else { return false };
        let behind = self.held.split_off(at + CLOSE.len());
        let inner = std::mem::replace(&mut self.held, behind);
        match self.calls(&inner[..at]) {
            Some(calls) => parts.extend(calls),
            None => parts.extend(self.as_text(&inner, true)),
        }
        self.mode = Mode::Between;
        true
    }

    fn whole(&self, held: &str, marked: bool) -> Vec<Part> {
        let calls = self.calls(held);
        calls.unwrap_or_else(|| self.as_text(held, marked).into_iter().collect())
    }

    /// What turned out to be no call, with the mark before it unless that opened another call.
    fn as_text(&self, held: &str, marked: bool) -> Option<Part> {
        let mark = if marked && !self.called { OPEN } else { "" };
        text(format!("{mark}{held}"))
    }

    /// The calls that a text consists of, `None` when it is anything else.
    fn calls(&self, json: &str) -> Option<Vec<Part>> {
        let mut calls = Vec::new();
        let mut rest = json.trim_start_matches(BETWEEN);
        while !rest.is_empty() {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            let value = values.next()?.ok()?;
            rest = rest[values.byte_offset()..].trim_start_matches(BETWEEN);
            match value {
                Value::Array(list) => {
                    for value in &list {
                        calls.extend(self.call(value)?);
                    }
                }
                value => calls.extend(self.call(&value)?),
            }
        }
        (!calls.is_empty()).then_some(calls)
    }

    fn call(&self, value: &Value) -> Option<[Part; 2]> {
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
        Some([Part::Call(name.to_owned()), Part::Arguments(arguments)])
    }
}

fn text(text: String) -> Option<Part> {
    (!text.is_empty()).then_some(Part::Text(text))
}

#[cfg(test)]
mod tests {
    use super::super::testing::cut;
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn tools() -> Vec<Tool> {
        ["weather", "add"]
            .map(|name| Tool { name: name.into(), description: None, parameters: json!({}) })
            .into()
    }

    fn call(name: &str, arguments: &str) -> Vec<Part> {
        vec![Part::Call(name.into()), Part::Arguments(arguments.into())]
    }

    /// Parts of an answer whose pieces end at the given places, neighbours of a kind joined.
    fn parts(answer: &str, cuts: &[usize]) -> Vec<Part> {
        let mut finder = CallFinder::new(&tools());
        let mut found: Vec<Part> =
            cut(answer, cuts).into_iter().flat_map(|piece| finder.push(piece)).collect();
        found.extend(finder.finish());
        let mut joined: Vec<Part> = Vec::new();
        for part in found {
            match (joined.last_mut(), part) {
                (Some(Part::Text(before)), Part::Text(text))
                | (Some(Part::Arguments(before)), Part::Arguments(text)) => before.push_str(&text),
                (_, part) => joined.push(part),
            }
        }
        joined
    }

    /// What each model family writes, and what it means.
    fn examples() -> Vec<(&'static str, Vec<Part>)> {
        let text = |text: &str| vec![Part::Text(text.to_owned())];
        vec![
            ("plain { text } [1]", text("plain { text } [1]")),
            (
                "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>",
                call("add", r#"{"a": 1}"#),
            ),
            (
                "Let me see.\n<tool_call>{\"name\": \"add\", \"arguments\": {}}</tool_call>\n\
                 <tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Zürich\"}}</tool_call>\n",
                [
                    text("Let me see.\n"),
                    call("add", "{}"),
                    call("weather", r#"{"city": "Zürich"}"#),
                ]
                .concat(),
            ),
            (
                "{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\"}}",
                call("weather", r#"{"city": "Bern"}"#),
            ),
            (
                "<|python_tag|>{\"name\": \"add\", \"parameters\": {}}; {\"name\": \"add\"}",
                [call("add", "{}"), call("add", "{}")].concat(),
            ),
            (
                "[{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}}, \
                 {\"name\": \"weather\", \"arguments\": {\"city\": \"a}\\\"]\"}, \"id\": \"x\"}]",
                [call("add", r#"{"a": [1, 2]}"#), call("weather", r#"{"city": "a}\"]"}"#)].concat(),
            ),
            (" [{\"name\": \"add\", \"arguments\": \"{\\\"a\\\":2}\"}]", call("add", r#"{"a":2}"#)),
            (
                "{\"type\": \"function\", \"function\": {\"arguments\": {\"a\":1}, \"name\": \"add\"}}",
                call("add", r#"{"a":1}"#),
            ),
            (
                "{\"name\": \"unknown\", \"arguments\": {}}",
                text("{\"name\": \"unknown\", \"arguments\": {}}"),
            ),
            ("{\"name\": \"add\", \"argu", text("{\"name\": \"add\", \"argu")),
            ("{\"name\": \"add\", \"arguments\": {\"a\": \"cut", call("add", "{\"a\": \"cut")),
            ("<tool_call>nonsense</tool_call>", text("<tool_call>nonsense</tool_call>")),
            ("<tool_call>{\"name\": \"add\"}", call("add", "{}")),
            (
                "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"</tool_call>\"}</tool_call>",
                call("add", "{\"a\": \"</tool_call>\"}"),
            ),
            ("a <tool_cal", text("a <tool_cal")),
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
    fn arguments_come_as_they_are_written() {
        let piece = |text: &str| vec![Part::Arguments(text.to_owned())];
        for start in ["<tool_call>\n", ""] {
            let mut finder = CallFinder::new(&tools());
            assert_eq!(finder.push(start), []);
            assert_eq!(finder.push("{\"name\": \"add\", \"argum"), []);
            let begun = finder.push("ents\": {\"a\"");
            assert_eq!(begun, call("add", "{\"a\""));
            assert_eq!(finder.push(": 1"), piece(": 1"));
            assert_eq!(finder.push("2}"), piece("2}"));
            assert_eq!(finder.push("}"), []);
        }
    }

    #[test]
    fn without_tools_nothing_is_a_call() {
        let mut finder = CallFinder::new(&[]);
        let text = "<tool_call>{\"name\": \"add\"}</tool_call>";
        assert_eq!(finder.push(text), [Part::Text(text.into())]);
        assert_eq!(finder.finish(), []);
    }

    proptest! {
        /// How an answer is cut into pieces changes nothing.
        #[test]
        fn pieces(index in 0usize..15, cuts in prop::collection::vec(0usize..200, 0..12)) {
            let (answer, expected) = examples().swap_remove(index);
            prop_assert_eq!(parts(answer, &cuts), expected);
        }
    }
}
