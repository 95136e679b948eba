//! What the endpoints have in common: sampling, lengths, stop strings, output formats.

use super::error::ApiError;
use super::fields::Fields;
use super::state::App;
use super::tools::ToolChoice;
use crate::constrain::Constraint;
use crate::engine::{Adjustments, Request};
use crate::runtime::log_prompts;
use serde_json::{Value, json};
use trelliq_config::Config;
use trelliq_model::SamplingOptions;
use trelliq_model::runtime::runtime_options;

/// Most choices of a request; the engine's batch may allow fewer.
const MAX_CHOICES: u64 = 128;
const MAX_STOPS: usize = 16;

/// How a request wants its tokens chosen.
#[derive(Debug, Clone)]
pub struct Params {
    sampling: SamplingOptions,
    pub n: usize,
    max_tokens: usize,
    stop: Vec<String>,
    adjust: Adjustments,
    pub stream: bool,
    pub include_usage: bool,
}

impl Params {
    /// `max_tokens`: the names of the field that limits the answer, the first one that is given
    /// counts.
    pub fn read(fields: &Fields, max_tokens: &[&str]) -> Result<Self, ApiError> {
        let sampling = SamplingOptions {
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0),
            top_p: top_p(fields)?,
            top_k: fields.count("top_k", 0..=u64::MAX)?.unwrap_or(0),
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0),
            repetition_penalty: fields.number("repetition_penalty", 0.01..=10.0)?.unwrap_or(1.0),
            seed: seed(fields)?,
        };
        let mut most = None;
        for key in max_tokens {
            most = most.or(fields.count(key, 1..=u64::MAX)?);
        }
        let include_usage = match fields.object("stream_options")? {
            Some(options) => options.boolean("include_usage")?.unwrap_or(false),
            None => false,
        };
        Ok(Self {
            sampling,
            n: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
            max_tokens: most.unwrap_or(usize::MAX),
            stop: stop(fields)?,
            adjust: adjustments(fields)?,
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage,
        })
    }

    /// The engine's request under the snapshot that is current; choice i of prompt `index` draws
    /// with the seed plus its place among all.
    pub fn request(
        &self,
        app: &App,
        prompt: Vec<u32>,
        index: usize,
        logprobs: Option<usize>,
        constraint: Option<Constraint>,
    ) -> Result<Request, ApiError> {
        let config = Config::current();
        let runtime = runtime_options(&config, &app.base_runtime)?;
        if log_prompts(&config) {
            tracing::info!(
                prompt = app.served.tokenizer.decode(&prompt, false).unwrap_or_default()
            );
        }
        let choice = |choice: usize| {
            let place = (index * self.n + choice) as u64;
            SamplingOptions {
                seed: self.sampling.seed.wrapping_add(place),
                ..self.sampling.clone()
            }
        };
        Ok(Request {
            prompt,
            choices: (0..self.n).map(choice).collect(),
            max_tokens: self.max_tokens,
            stop: self.stop.clone(),
            adjust: self.adjust.clone(),
            logprobs,
            constraint,
            config,
            runtime,
        })
    }
}

fn top_p(fields: &Fields) -> Result<f32, ApiError> {
    match fields.number("top_p", 0.0..=1.0)? {
        None => Ok(1.0),
        // OpenAI allows 0, which leaves the most probable token.
        Some(top_p) => Ok(top_p.max(f32::MIN_POSITIVE)),
    }
}

fn seed(fields: &Fields) -> Result<u64, ApiError> {
    match fields.get("seed") {
        None => Ok(u64::from_le_bytes(super::random_bytes()?)),
        Some(value) => {
            let seed = value.as_i64().map(|seed| seed as u64).or(value.as_u64());
            seed.ok_or_else(|| fields.mismatch("seed", "a whole number"))
        }
    }
}

fn stop(fields: &Fields) -> Result<Vec<String>, ApiError> {
    let expected = "a string or an array of at most 16 strings";
    let stops = match fields.get("stop") {
        None => Vec::new(),
        Some(Value::String(stop)) => vec![stop.clone()],
        Some(Value::Array(list)) if list.len() <= MAX_STOPS => {
            let stops: Option<Vec<_>> =
                list.iter().map(|s| s.as_str().map(str::to_owned)).collect();
            stops.ok_or_else(|| fields.mismatch("stop", expected))?
        }
        Some(_) => return Err(fields.mismatch("stop", expected)),
    };
    Ok(stops)
}

fn adjustments(fields: &Fields) -> Result<Adjustments, ApiError> {
    let mut bias = Vec::new();
    if let Some(Value::Object(map)) = fields.get("logit_bias") {
        for (token, value) in map {
            let token = token.parse::<u32>().ok();
            let value = value.as_f64().filter(|bias| bias.abs() <= 100.0);
            let both = token.zip(value.map(|value| value as f32));
            let expected = "an object of biases from -100 to 100 by token id";
            bias.push(both.ok_or_else(|| fields.mismatch("logit_bias", expected))?);
        }
    } else if fields.get("logit_bias").is_some() {
        return Err(fields.mismatch("logit_bias", "an object"));
    }
    Ok(Adjustments {
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
        bias,
    })
}

/// What an answer's text must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Format {
    Text,
    JsonObject,
    JsonSchema(Value),
}

impl Format {
    /// Chat's `response_format`: the schema is in an object of its own.
    pub fn of_chat(fields: &Fields) -> Result<Self, ApiError> {
        let Some(format) = fields.object("response_format")? else { return Ok(Self::Text) };
        match format.string("type")? {
            Some("json_schema") => {
                let inner = format.required("json_schema")?;
                Self::schema(&Fields::new(inner, format.path("json_schema"))?)
            }
            _ => Self::plain(&format),
        }
    }

    /// The `text.format` of responses: the schema is beside the type.
    pub fn of_responses(fields: &Fields) -> Result<Self, ApiError> {
        let Some(text) = fields.object("text")? else { return Ok(Self::Text) };
        let Some(format) = text.object("format")? else { return Ok(Self::Text) };
        match format.string("type")? {
            Some("json_schema") => Self::schema(&format),
            _ => Self::plain(&format),
        }
    }

    fn plain(format: &Fields) -> Result<Self, ApiError> {
        match format.string("type")? {
            Some("text") => Ok(Self::Text),
            Some("json_object") => Ok(Self::JsonObject),
            _ => Err(format.mismatch("type", "text, json_object or json_schema")),
        }
    }

    fn schema(fields: &Fields) -> Result<Self, ApiError> {
        let schema = fields.required("schema")?;
        if !schema.is_object() {
            return Err(fields.mismatch("schema", "an object"));
        }
        Ok(Self::JsonSchema(schema.clone()))
    }
}

/// The constraint of a format, or of a tool that must be called; the latter wins.
pub fn constraint(
    app: &App,
    format: &Format,
    choice: &ToolChoice,
    tools: &[super::tools::Tool],
) -> Result<Option<Constraint>, ApiError> {
    let (schema, param) = match (choice.forced(tools), format) {
        (Some(schema), _) => (schema, "tools"),
        (None, Format::Text) => return Ok(None),
        (None, Format::JsonObject) => (json!({ "type": "object" }), "response_format"),
        (None, Format::JsonSchema(schema)) => (schema.clone(), "response_format"),
    };
    let compiled = app.served.constrainer().and_then(|compiler| compiler.json_schema(&schema));
    compiled.map(Some).map_err(|error| ApiError::field(param, error.to_string()))
}
