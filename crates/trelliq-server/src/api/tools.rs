//! Tools: their definitions, and whether one must be called.

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

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Tool> {
        ["weather", "add"]
            .map(|name| Tool { name: name.into(), description: None, parameters: json!({}) })
            .into()
    }

    #[test]
    fn forced_calls_have_a_schema() {
        let named = ToolChoice::Named("add".into()).forced(&tools()).unwrap();
        assert_eq!(named["properties"]["name"]["const"], "add");
        let any = ToolChoice::Required.forced(&tools()).unwrap();
        assert_eq!(any["anyOf"].as_array().unwrap().len(), 2);
        assert_eq!(ToolChoice::Auto.forced(&tools()), None);
    }
}
