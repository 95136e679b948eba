//! Output items of a response, made from the pieces of an answer as they come.

use crate::api::error::ApiError;
use crate::api::new_id;
use crate::api::tools::{Part, ToolCall};
use serde_json::{Value, json};

/// The items so far, and the events that tell of them.
#[derive(Debug, Default)]
pub struct Output {
    /// Finished items.
    pub items: Vec<Value>,
    open: Option<OpenMessage>,
}

#[derive(Debug)]
struct OpenMessage {
    id: String,
    text: String,
}

impl Output {
    /// Events of a further part.
    pub fn push(&mut self, part: Part) -> Result<Vec<Value>, ApiError> {
        match part {
            Part::Text(text) => self.push_text(&text),
            Part::Call(call) => {
                let mut events = self.close("completed");
                events.extend(self.push_call(&call)?);
                Ok(events)
            }
        }
    }

    fn push_text(&mut self, text: &str) -> Result<Vec<Value>, ApiError> {
        let mut events = Vec::new();
        let index = self.items.len();
        if self.open.is_none() {
            let id = new_id("msg_")?;
            let item = json!({ "id": id, "type": "message", "status": "in_progress",
                "role": "assistant", "content": [] });
            events.push(json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            events.push(json!({ "type": "response.content_part.added", "item_id": id,
                "output_index": index, "content_index": 0, "part": text_part("") }));
            self.open = Some(OpenMessage { id, text: String::new() });
        }
        if let Some(open) = &mut self.open {
            open.text.push_str(text);
            events.push(json!({ "type": "response.output_text.delta", "item_id": open.id,
                "output_index": index, "content_index": 0, "delta": text, "logprobs": [] }));
        }
        Ok(events)
    }

    fn push_call(&mut self, call: &ToolCall) -> Result<Vec<Value>, ApiError> {
        let index = self.items.len();
        let (id, call_id) = (new_id("fc_")?, new_id("call_")?);
        let item = |status: &str, arguments: &str| {
            json!({ "id": id, "type": "function_call", "status": status, "call_id": call_id,
                "name": call.name, "arguments": arguments })
        };
        let done = item("completed", &call.arguments);
        let events = vec![
            json!({ "type": "response.output_item.added", "output_index": index,
                "item": item("in_progress", "") }),
            json!({ "type": "response.function_call_arguments.delta", "item_id": id,
                "output_index": index, "delta": call.arguments }),
            json!({ "type": "response.function_call_arguments.done", "item_id": id,
                "output_index": index, "name": call.name, "arguments": call.arguments }),
            json!({ "type": "response.output_item.done", "output_index": index, "item": done }),
        ];
        self.items.push(done);
        Ok(events)
    }

    /// Ends the message that is open.
    pub fn close(&mut self, status: &str) -> Vec<Value> {
        let Some(OpenMessage { id, text }) = self.open.take() else { return Vec::new() };
        let index = self.items.len();
        let part = text_part(&text);
        let item = json!({ "id": id, "type": "message", "status": status, "role": "assistant",
            "content": [part] });
        let events = vec![
            json!({ "type": "response.output_text.done", "item_id": id, "output_index": index,
                "content_index": 0, "text": text, "logprobs": [] }),
            json!({ "type": "response.content_part.done", "item_id": id, "output_index": index,
                "content_index": 0, "part": part }),
            json!({ "type": "response.output_item.done", "output_index": index, "item": item }),
        ];
        self.items.push(item);
        events
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}
