//! From a request with `previous_response_id` to the whole conversation.

use crate::store::Entry;
use serde_json::{Value, json};

/// A request's input and instructions with what came before.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// Input items, in order.
    pub input: Vec<Value>,
    /// `None` where neither the request nor the prior response has any: JSON null.
    pub instructions: Option<String>,
}

/// A conversation that cannot be continued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    #[error("previous_response_id '{id}' not found or expired")]
    NotFound { id: String },
    #[error("`input` is neither a string nor an array")]
    Input,
}

/// Resolves a request: the prior input, then the prior output as input, then the request's own.
/// `prior` is what the store has under `previous_response_id`, which is `None` where the request
/// names none.
pub fn resolve(
    input: Option<&Value>,
    instructions: Option<&str>,
    previous_response_id: Option<&str>,
    prior: Option<Entry>,
) -> Result<Resolved, ResolveError> {
    let Some(id) = previous_response_id else {
        let input = own_items(input, true)?;
        return Ok(Resolved { input, instructions: instructions.map(str::to_owned) });
    };
    let prior = prior.ok_or_else(|| ResolveError::NotFound { id: id.to_owned() })?;
    let output = prior.response.get("output").and_then(Value::as_array);
    let mut all = prior.input;
    all.extend(output.into_iter().flatten().filter_map(as_input));
    all.extend(own_items(input, false)?);
    let before = prior.response.get("instructions").and_then(Value::as_str);
    Ok(Resolved { input: all, instructions: instructions.or(before).map(str::to_owned) })
}

/// The request's own input; an empty string is a message only where nothing comes before.
fn own_items(input: Option<&Value>, keep_empty: bool) -> Result<Vec<Value>, ResolveError> {
    match input {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) if text.is_empty() && !keep_empty => Ok(Vec::new()),
        Some(Value::String(text)) => {
            Ok(vec![json!({ "type": "message", "role": "user", "content": text })])
        }
        Some(Value::Array(items)) => Ok(items.clone()),
        Some(_) => Err(ResolveError::Input),
    }
}

/// An output item as an input item, `None` for kinds that say nothing to the model.
fn as_input(item: &Value) -> Option<Value> {
    match item["type"].as_str()? {
        "message" => {
            let parts = item["content"].as_array()?;
            let part = |part: &Value| {
                let text = part.get("text").or(part.get("refusal"))?;
                Some(json!({ "type": "output_text", "text": text }))
            };
            let content: Vec<Value> = parts.iter().filter_map(part).collect();
            Some(json!({ "type": "message", "role": "assistant", "content": content }))
        }
        "function_call" => Some(json!({
            "type": "function_call",
            "call_id": item["call_id"],
            "name": item["name"],
            "arguments": item["arguments"],
        })),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(text: &str) -> Value {
        json!({ "type": "message", "role": "user", "content": text })
    }

    fn prior() -> Entry {
        let output = json!([
            { "type": "reasoning", "id": "r", "summary": [] },
            { "type": "message", "id": "m", "status": "completed", "role": "assistant",
              "content": [{ "type": "output_text", "text": "four", "annotations": [] }] },
            { "type": "function_call", "id": "f", "call_id": "c", "name": "add", "arguments": "{}" },
        ]);
        let response = json!({ "output": output, "instructions": "be brief" });
        Entry { input: vec![user("2+2")], response }
    }

    #[test]
    fn the_prior_input_and_output_come_before_the_own_input() {
        let resolved = resolve(Some(&json!("and 3+3?")), None, Some("x"), Some(prior())).unwrap();
        let answer = json!({ "type": "message", "role": "assistant",
            "content": [{ "type": "output_text", "text": "four" }] });
        let call =
            json!({ "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}" });
        assert_eq!(resolved.input, [user("2+2"), answer, call, user("and 3+3?")]);
        assert_eq!(resolved.instructions.as_deref(), Some("be brief"));
    }

    #[test]
    fn own_instructions_win() {
        let resolved = resolve(None, Some("be long"), Some("x"), Some(prior())).unwrap();
        assert_eq!(resolved.instructions.as_deref(), Some("be long"));
        assert_eq!(resolved.input.len(), 3);
    }

    #[test]
    fn an_empty_string_adds_nothing_to_a_conversation() {
        let resolved = resolve(Some(&json!("")), None, Some("x"), Some(prior())).unwrap();
        assert_eq!(resolved.input.len(), 3);
    }

    #[test]
    fn without_a_previous_id_a_string_is_one_message_and_instructions_may_be_null() {
        for text in ["hello", ""] {
            let resolved = resolve(Some(&json!(text)), None, None, None).unwrap();
            assert_eq!(resolved, Resolved { input: vec![user(text)], instructions: None });
        }
        let items =
            json!([user("a"), { "type": "function_call_output", "call_id": "c", "output": "3" }]);
        let resolved = resolve(Some(&items), Some("i"), None, None).unwrap();
        assert_eq!(json!(resolved.input), items);
        assert_eq!(resolved.instructions.as_deref(), Some("i"));
    }

    #[test]
    fn an_unknown_id_is_named() {
        let error = resolve(Some(&json!("x")), None, Some("resp_9"), None).unwrap_err();
        assert_eq!(error.to_string(), "previous_response_id 'resp_9' not found or expired");
        assert_eq!(resolve(Some(&json!(3)), None, None, None), Err(ResolveError::Input));
    }
}
