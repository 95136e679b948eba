//! From input items to chat messages.

use crate::api::error::ApiError;
use crate::api::fields::Fields;
use serde_json::{Value, json};

/// The messages of a chat that items and instructions stand for.
pub fn to_messages(items: &[Value], instructions: Option<&str>) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = Vec::new();
    if let Some(text) = instructions.filter(|text| !text.is_empty()) {
        messages.push(json!({ "role": "system", "content": text }));
    }
    for (index, item) in items.iter().enumerate() {
        let fields = Fields::new(item, format!("input[{index}]"))?;
        match fields.string("type")? {
            None | Some("message") => messages.push(item.clone()),
            Some("function_call") => add_call(&mut messages, &fields)?,
            Some("function_call_output") => messages.push(json!({
                "role": "tool",
                "tool_call_id": required_string(&fields, "call_id")?,
                "content": output(&fields)?,
            })),
            // What a model thought is not shown to it again.
            Some("reasoning") => {}
            Some(kind) => {
                let message =
                    format!("`{}`: items of type {kind} are not served", fields.path("type"));
                return Err(ApiError::unsupported(fields.path("type"), message));
            }
        }
    }
    Ok(messages)
}

fn required_string<'a>(fields: &Fields<'a>, key: &str) -> Result<&'a str, ApiError> {
    fields.required(key)?.as_str().ok_or_else(|| fields.mismatch(key, "a string"))
}

/// A string, or parts that are read as those of a message.
fn output(fields: &Fields) -> Result<Value, ApiError> {
    match fields.required("output")? {
        output @ (Value::String(_) | Value::Array(_)) => Ok(output.clone()),
        _ => Err(fields.mismatch("output", "a string or an array of parts")),
    }
}

/// Calls one after the other, and the text before them, are one message of the assistant.
fn add_call(messages: &mut Vec<Value>, fields: &Fields) -> Result<(), ApiError> {
    let call = json!({
        "id": required_string(fields, "call_id")?,
        "type": "function",
        "function": {
            "name": required_string(fields, "name")?,
            "arguments": required_string(fields, "arguments")?,
        },
    });
    match messages.last_mut() {
        Some(last) if last["role"] == "assistant" => match last.get_mut("tool_calls") {
            Some(Value::Array(calls)) => calls.push(call),
            _ => last["tool_calls"] = json!([call]),
        },
        _ => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_become_messages() {
        let items = json!([
            { "role": "user", "content": "a" },
            { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "b" }] },
            { "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" },
            { "type": "function_call", "call_id": "2", "name": "g", "arguments": "{}" },
            { "type": "function_call_output", "call_id": "1", "output": "r" },
            { "type": "reasoning", "summary": [] },
        ]);
        let messages = to_messages(items.as_array().unwrap(), Some("i")).unwrap();
        let roles: Vec<_> = messages.iter().map(|m| m["role"].as_str().unwrap()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool"]);
        let calls = messages[2]["tool_calls"].as_array().unwrap();
        assert_eq!(calls.iter().map(|c| &c["function"]["name"]).collect::<Vec<_>>(), ["f", "g"]);
        assert_eq!(messages[3], json!({ "role": "tool", "tool_call_id": "1", "content": "r" }));
    }

    #[test]
    fn unknown_items_are_refused_by_name() {
        let items = [json!({ "type": "item_reference", "id": "x" })];
        let error = to_messages(&items, None).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input[0].type"));
        let items = [json!({ "type": "function_call", "call_id": "1", "name": "f" })];
        assert_eq!(
            to_messages(&items, None).unwrap_err().param.as_deref(),
            Some("input[0].arguments")
        );
    }
}
