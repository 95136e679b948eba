//! From messages to the tokens of a prompt.

use super::error::ApiError;
use super::fields::Fields;
use super::parts::begins_thinking;
use super::tools::Tool;
use crate::ServedModel;
use serde_json::{Map, Value, json};
use trelliq_model::{ChatError, ChatTemplate};

/// Messages in the form that chat templates expect: every content is a string, leading system and
/// developer messages are one system message, arguments of calls are objects.
pub fn read_messages(list: &[Value], path: &str) -> Result<Vec<Value>, ApiError> {
    let mut messages: Vec<Value> = Vec::new();
    for (index, message) in list.iter().enumerate() {
        let fields = Fields::new(message, format!("{path}[{index}]"))?;
        let message = read_message(&fields)?;
        let is_system = |message: &Value| message["role"] == "system";
        match messages.last_mut() {
            Some(last) if is_system(last) && is_system(&message) => {
                last["content"] = json!(format!("{}\n\n{}", text(last), text(&message)));
            }
            _ => messages.push(message),
        }
    }
    if messages.is_empty() {
        return Err(ApiError::field(path, format!("`{path}` is empty")));
    }
    Ok(messages)
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

fn read_message(fields: &Fields) -> Result<Value, ApiError> {
    let role = match fields.required("role")?.as_str() {
        Some("system" | "developer") => "system",
        Some("user") => "user",
        Some("assistant") => "assistant",
        Some("tool" | "function") => "tool",
        _ => return Err(fields.mismatch("role", "system, developer, user, assistant or tool")),
    };
    let mut message = Map::new();
    message.insert("role".into(), json!(role));
    message.insert("content".into(), json!(read_content(fields, role == "assistant")?));
    if role == "assistant" {
        let calls = fields.array("tool_calls")?.map(Vec::as_slice).unwrap_or_default();
        if !calls.is_empty() {
            let calls: Result<Vec<_>, _> =
                calls.iter().map(|call| read_call(fields, call)).collect();
            message.insert("tool_calls".into(), Value::Array(calls?));
        }
    }
    // Templates of models that think decide which thoughts are shown again.
    for key in ["tool_call_id", "name", "reasoning_content"] {
        if let Some(value) = fields.string(key)? {
            message.insert(key.into(), json!(value));
        }
    }
    Ok(Value::Object(message))
}

/// A string, or the texts of parts joined; an assistant's may be missing.
fn read_content(fields: &Fields, optional: bool) -> Result<String, ApiError> {
    match fields.get("content") {
        None if optional => Ok(String::new()),
        None => fields.required("content").map(|_| String::new()),
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let path = fields.path("content");
            let parts = parts.iter().enumerate();
            parts.map(|(i, part)| read_part(&Fields::new(part, format!("{path}[{i}]"))?)).collect()
        }
        Some(_) => Err(fields.mismatch("content", "a string or an array of parts")),
    }
}

fn read_part(part: &Fields) -> Result<String, ApiError> {
    let key = match part.string("type")? {
        Some("text" | "input_text" | "output_text") => "text",
        Some("refusal") => "refusal",
        _ => {
            let message = format!("`{}`: only text is served here", part.path("type"));
            return Err(ApiError::unsupported(part.path("type"), message));
        }
    };
    let text = part.required(key)?.as_str().ok_or_else(|| part.mismatch(key, "a string"))?;
    Ok(text.to_owned())
}

fn read_call(fields: &Fields, call: &Value) -> Result<Value, ApiError> {
    let name = call.pointer("/function/name").and_then(Value::as_str);
    let arguments = call.pointer("/function/arguments").and_then(Value::as_str);
    let Some((name, arguments)) = name.zip(arguments) else {
        return Err(fields.mismatch("tool_calls", "an array of functions with name and arguments"));
    };
    // Templates print arguments as JSON themselves.
    let parsed = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
    let mut out = json!({ "type": "function", "function": { "name": name, "arguments": parsed } });
    if let Some(id) = call.get("id").and_then(Value::as_str) {
        out["id"] = json!(id);
    }
    Ok(out)
}

/// The prompt of a chat.
#[derive(Debug)]
pub struct ChatPrompt {
    pub tokens: Vec<u32>,
    /// It ends with the mark that thoughts begin with.
    pub thinking: bool,
}

/// Writes the prompt of a chat.
///
/// Errors when the model has no template or its template refuses the messages.
pub fn chat_prompt(
    served: &ServedModel,
    messages: Vec<Value>,
    tools: &[Tool],
) -> Result<ChatPrompt, ApiError> {
    let Some(template) = &served.template else {
        let message = "this model has no chat template: use /v1/completions";
        return Err(ApiError::bad_request(message).with_code("unsupported_model"));
    };
    let used = !tools.is_empty()
        || messages.iter().any(|m| m["role"] == "tool" || m.get("tool_calls").is_some());
    let native = used && knows_tools(template);
    let messages = if used && !native { spell_out(messages, tools) } else { messages };
    let tools: Vec<Value> = if native { tools.iter().map(Tool::to_json).collect() } else { vec![] };
    let text = match render(template, &messages, &tools) {
        // Some templates know no system role.
        Err(ChatError::Refused(_)) if messages[0]["role"] == "system" => {
            render(template, &fold_system(&messages), &tools)
        }
        result => result,
    };
    let text = text.map_err(|error| {
        ApiError::field("messages", error.to_string()).with_code("chat_template")
    })?;
    let tokens = served.tokenizer.encode(&text, template.wants_start_token());
    let tokens = tokens.map_err(|error| ApiError::internal(error.to_string()))?;
    Ok(ChatPrompt { tokens, thinking: begins_thinking(&text) })
}

fn render(
    template: &ChatTemplate,
    messages: &[Value],
    tools: &[Value],
) -> Result<String, ChatError> {
    let mut extra = json!({ "add_generation_prompt": true });
    if !tools.is_empty() {
        extra["tools"] = json!(tools);
    }
    template.render_json(&json!(messages), &extra)
}

/// Whether a template prints the tools that it is given.
fn knows_tools(template: &ChatTemplate) -> bool {
    let messages = [json!({ "role": "user", "content": "x" })];
    let probe = "probe_of_tools";
    let tool = Tool { name: probe.into(), description: None, parameters: json!({}) };
    render(template, &messages, &[tool.to_json()]).is_ok_and(|text| text.contains(probe))
}

/// Tools, calls and results as text, in the words of Hermes, for templates that know none.
fn spell_out(messages: Vec<Value>, tools: &[Tool]) -> Vec<Value> {
    let mut out: Vec<Value> = messages.into_iter().map(spell_out_message).collect();
    if tools.is_empty() {
        return out;
    }
    let list: Vec<String> = tools.iter().map(|tool| tool.to_json().to_string()).collect();
    let preamble = format!(
        "You may call functions. Their signatures are within <tools></tools>:\n<tools>\n{}\n</tools>\n\
         To call one, answer with its name and arguments as JSON within tags:\n\
         <tool_call>\n{{\"name\": \"...\", \"arguments\": {{...}}}}\n</tool_call>",
        list.join("\n")
    );
    match out.first_mut() {
        Some(first) if first["role"] == "system" => {
            first["content"] = json!(format!("{}\n\n{preamble}", text(first)));
        }
        _ => out.insert(0, json!({ "role": "system", "content": preamble })),
    }
    out
}

fn spell_out_message(message: Value) -> Value {
    if message["role"] == "tool" {
        let content = format!("<tool_response>\n{}\n</tool_response>", text(&message));
        return json!({ "role": "user", "content": content });
    }
    let Some(calls) = message.get("tool_calls").and_then(Value::as_array) else { return message };
    let mut lines = vec![text(&message).to_owned()];
    lines.retain(|line| !line.is_empty());
    lines.extend(
        calls.iter().map(|call| format!("<tool_call>\n{}\n</tool_call>", call["function"])),
    );
    json!({ "role": "assistant", "content": lines.join("\n") })
}

/// The system message in front of the first message of the user.
fn fold_system(messages: &[Value]) -> Vec<Value> {
    let mut rest = messages[1..].to_vec();
    let system = text(&messages[0]);
    match rest.iter_mut().find(|message| message["role"] == "user") {
        Some(user) => user["content"] = json!(format!("{system}\n\n{}", text(user))),
        None => rest.insert(0, json!({ "role": "user", "content": system })),
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str, messages: Value, tools: &[Tool]) -> String {
        let template = ChatTemplate::new(template, &Value::Null).unwrap();
        let messages = read_messages(messages.as_array().unwrap(), "messages").unwrap();
        let used = !tools.is_empty();
        let messages =
            if used && !knows_tools(&template) { spell_out(messages, tools) } else { messages };
        let tools: Vec<Value> = tools.iter().map(Tool::to_json).collect();
        render(&template, &messages, &tools).unwrap()
    }

    const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
    const TOOLS: &str = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";

    #[test]
    fn contents_become_strings_and_leading_instructions_one_message() {
        let messages = json!([
            { "role": "system", "content": "a" },
            { "role": "developer", "content": [{ "type": "text", "text": "b" }] },
            { "role": "user", "content": [{ "type": "text", "text": "c" }, { "type": "input_text", "text": "d" }] },
            { "role": "assistant", "content": null },
        ]);
        assert_eq!(rendered(PLAIN, messages, &[]), "[system]a\n\nb[user]cd[assistant]");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let error =
            |messages: Value| read_messages(messages.as_array().unwrap(), "messages").unwrap_err();
        let image =
            json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": {} }] }]);
        assert_eq!(error(image).param.as_deref(), Some("messages[0].content[0].type"));
        let cases = [
            (json!([]), "messages"),
            (json!([3]), "messages[0]"),
            (json!([{ "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "wizard", "content": "x" }]), "messages[0].role"),
            (json!([{ "role": "user" }]), "messages[0].content"),
            (json!([{ "role": "user", "content": 3 }]), "messages[0].content"),
            (json!([{ "role": "assistant", "tool_calls": [{}] }]), "messages[0].tool_calls"),
        ];
        for (messages, param) in cases {
            assert_eq!(error(messages.clone()).param.as_deref(), Some(param), "{messages}");
        }
    }

    #[test]
    fn tools_are_given_to_templates_that_know_them_and_spelled_out_for_others() {
        let tool = Tool { name: "add".into(), description: None, parameters: json!({}) };
        let messages = json!([{ "role": "user", "content": "hi" }]);
        let native = rendered(TOOLS, messages.clone(), std::slice::from_ref(&tool));
        assert!(native.starts_with("[{\"type\": \"function\"") && native.ends_with("[user]hi"));
        let spelled = rendered(PLAIN, messages, &[tool]);
        assert!(spelled.starts_with("[system]You may call functions"), "{spelled}");
        assert!(spelled.contains("\"name\":\"add\"") && spelled.ends_with("[user]hi"));
    }

    #[test]
    fn calls_and_results_are_spelled_out() {
        let messages = json!([
            { "role": "assistant", "content": null, "tool_calls": [
                { "id": "1", "type": "function", "function": { "name": "add", "arguments": "{\"a\": 1}" } }] },
            { "role": "tool", "tool_call_id": "1", "content": "2" },
        ]);
        let messages = read_messages(messages.as_array().unwrap(), "m").unwrap();
        let found = spell_out(messages, &[]);
        assert_eq!(
            found[0]["content"],
            "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1}}\n</tool_call>"
        );
        assert_eq!(
            found[1],
            json!({ "role": "user", "content": "<tool_response>\n2\n</tool_response>" })
        );
    }

    #[test]
    fn a_system_message_goes_to_the_user_where_the_template_knows_none() {
        let messages = [
            json!({ "role": "system", "content": "s" }),
            json!({ "role": "user", "content": "u" }),
        ];
        assert_eq!(fold_system(&messages), [json!({ "role": "user", "content": "s\n\nu" })]);
    }
}
