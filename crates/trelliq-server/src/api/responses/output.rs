//! Output items of a response, made from the pieces of an answer as they come.

use crate::api::error::ApiError;
use crate::api::new_id;
use crate::api::parts::Part;
use serde_json::{Value, json};

/// The items so far, and the events that tell of them.
#[derive(Debug, Default)]
pub struct Output {
    /// Finished items.
    pub items: Vec<Value>,
    /// All thoughts.
    pub reasoning: String,
    open: Option<Open>,
}

/// The item that pieces are added to.
#[derive(Debug)]
struct Open {
    id: String,
    kind: Kind,
    /// Thoughts, text or arguments.
    text: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Reasoning,
    Message,
    Call { call_id: String, name: String },
}

impl Output {
    /// Events of a further part.
    pub fn push(&mut self, part: Part) -> Result<Vec<Value>, ApiError> {
        match part {
            Part::Reasoning(text) => {
                self.reasoning.push_str(&text);
                self.add(Some(Kind::Reasoning), &text)
            }
            Part::Text(text) => self.add(Some(Kind::Message), &text),
            Part::Call(name) => {
                let mut events = self.close("completed");
                events.extend(self.begin(Kind::Call { call_id: new_id("call_")?, name })?);
                Ok(events)
            }
            Part::Arguments(text) => self.add(None, &text),
        }
    }

    /// Adds text to the open item, after opening one if that is of another kind than wanted.
    fn add(&mut self, kind: Option<Kind>, text: &str) -> Result<Vec<Value>, ApiError> {
        let mut events = Vec::new();
        if let Some(kind) = kind
            && self.open.as_ref().is_none_or(|open| open.kind != kind)
        {
            events.extend(self.close("completed"));
            events.extend(self.begin(kind)?);
        }
        let index = self.items.len();
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            events.push(open.delta(index, text));
        }
        Ok(events)
    }

    fn begin(&mut self, kind: Kind) -> Result<Vec<Value>, ApiError> {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call { .. } => "fc_",
        };
        let open = Open { id: new_id(prefix)?, kind, text: String::new() };
        let index = self.items.len();
        let mut events = vec![json!({ "type": "response.output_item.added", "output_index": index,
            "item": open.item("in_progress", false) })];
        if let Some(part) = open.part() {
            events.push(json!({ "type": "response.content_part.added", "item_id": open.id,
                "output_index": index, "content_index": 0, "part": part }));
        }
        self.open = Some(open);
        Ok(events)
    }

    /// Ends the item that is open.
    pub fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(open) = self.open.take() else { return Vec::new() };
        let index = self.items.len();
        let mut events = vec![open.done(index)];
        if let Some(part) = open.part() {
            events.push(json!({ "type": "response.content_part.done", "item_id": open.id,
                "output_index": index, "content_index": 0, "part": part }));
        }
        let item = open.item(status, true);
        events.push(json!({ "type": "response.output_item.done", "output_index": index,
            "item": item }));
        self.items.push(item);
        events
    }
}

impl Open {
    /// The item as it is, its content once that is `whole`.
    fn item(&self, status: &str, whole: bool) -> Value {
        let content: Vec<Value> = self.part().into_iter().filter(|_| whole).collect();
        match &self.kind {
            Kind::Reasoning => json!({ "id": self.id, "type": "reasoning", "status": status,
                "summary": [], "content": content }),
            Kind::Message => json!({ "id": self.id, "type": "message", "status": status,
                "role": "assistant", "content": content }),
            Kind::Call { call_id, name } => json!({ "id": self.id, "type": "function_call",
                "status": status, "call_id": call_id, "name": name, "arguments": self.text }),
        }
    }

    /// The part of the content that holds the text; a call has none.
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({ "type": "reasoning_text", "text": self.text })),
            Kind::Message => Some(json!({ "type": "output_text", "text": self.text,
                "annotations": [], "logprobs": [] })),
            Kind::Call { .. } => None,
        }
    }

    fn delta(&self, index: usize, text: &str) -> Value {
        match self.kind {
            Kind::Reasoning => json!({ "type": "response.reasoning_text.delta", "item_id": self.id,
                "output_index": index, "content_index": 0, "delta": text }),
            Kind::Message => json!({ "type": "response.output_text.delta", "item_id": self.id,
                "output_index": index, "content_index": 0, "delta": text, "logprobs": [] }),
            Kind::Call { .. } => json!({ "type": "response.function_call_arguments.delta",
                "item_id": self.id, "output_index": index, "delta": text }),
        }
    }

    fn done(&self, index: usize) -> Value {
        match &self.kind {
            Kind::Reasoning => json!({ "type": "response.reasoning_text.done", "item_id": self.id,
                "output_index": index, "content_index": 0, "text": self.text }),
            Kind::Message => json!({ "type": "response.output_text.done", "item_id": self.id,
                "output_index": index, "content_index": 0, "text": self.text, "logprobs": [] }),
            Kind::Call { name, .. } => json!({ "type": "response.function_call_arguments.done",
                "item_id": self.id, "output_index": index, "name": name, "arguments": self.text }),
        }
    }
}
