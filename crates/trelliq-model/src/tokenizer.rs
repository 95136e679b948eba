//! From text to tokens and back, by the model's `tokenizer.json`.

use crate::chat::TurnFormat;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// What can be wrong with a tokenizer, or with a text or tokens given to it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenizerError {
    #[error("the model has no tokenizer.json")]
    Missing,
    #[error("tokenizer.json cannot be read: {0}")]
    Invalid(String),
    #[error("{file} is not valid JSON: {source}")]
    Json { file: String, source: serde_json::Error },
    #[error("{file}: `{key}` is {found}, expected {expected}")]
    Key { file: String, key: String, found: String, expected: &'static str },
    #[error("cannot encode the text: {0}")]
    Encode(String),
    #[error("cannot decode the tokens: {0}")]
    Decode(String),
}

/// A tokenizer with what the model's configuration says about its special tokens.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    config: Value,
    eos: BTreeSet<u32>,
    bos: Option<u32>,
}

const CONFIG: &str = "tokenizer_config.json";

impl Tokenizer {
    /// From the bytes of a `tokenizer.json` alone.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(bytes)
            .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        // A stored truncation or padding would change the text that a model is given.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        Ok(Self { inner, config: Value::Null, eos: BTreeSet::new(), bos: None })
    }

    /// From a model's small files by name (`tokenizer.json`, `tokenizer_config.json`,
    /// `generation_config.json`) and its parsed `config.json`.
    ///
    /// End tokens are all that `generation_config.json` and `config.json` name, the `eos_token` of
    /// `tokenizer_config.json` and the end of a turn of the vocabulary's [`TurnFormat`], which base
    /// models do not name.
    pub fn from_files(
        files: &BTreeMap<String, Vec<u8>>,
        model_config: &Value,
    ) -> Result<Self, TokenizerError> {
        let bytes = files.get("tokenizer.json").ok_or(TokenizerError::Missing)?;
        let mut this = Self::from_bytes(bytes)?;
        this.config = json(files, CONFIG)?;
        let generation = json(files, "generation_config.json")?;
        let text_config = model_config.get("text_config").unwrap_or(&Value::Null);
        let sources = [
            ("generation_config.json", &generation),
            ("config.json", model_config),
            ("config.json", text_config),
        ];
        for (file, source) in sources {
            this.eos.extend(token_ids(file, "eos_token_id", source)?);
            if this.bos.is_none() {
                this.bos = token_ids(file, "bos_token_id", source)?.first().copied();
            }
        }
        let named = |token: &str| this.special_token(token).and_then(|t| this.token_id(&t));
        let (eos, bos) = (named("eos_token"), named("bos_token"));
        this.eos.extend(eos);
        this.bos = bos.or(this.bos);
        let end_of_turn = TurnFormat::of(&this).and_then(TurnFormat::end);
        let end_of_turn = end_of_turn.and_then(|token| this.token_id(token));
        this.eos.extend(end_of_turn);
        Ok(this)
    }

    /// Tokens of a text; with `special` also those that the model's template puts around one, such
    /// as a start token. Special tokens that are written out in the text are recognised.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, special);
        let encoding = encoding.map_err(|error| TokenizerError::Encode(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of tokens; `skip_special` leaves special tokens out.
    pub fn decode(&self, tokens: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        let text = self.inner.decode(tokens, skip_special);
        text.map_err(|error| TokenizerError::Decode(error.to_string()))
    }

    /// A decoder for tokens that come one at a time, special tokens left out.
    pub fn stream(&self) -> TextStream<'_> {
        TextStream { tokenizer: self, tokens: Vec::new(), start: 0, shown: 0 }
    }

    /// Tokens that end a generation, in rising order.
    pub fn eos_tokens(&self) -> impl Iterator<Item = u32> {
        self.eos.iter().copied()
    }

    pub fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    /// The start token, where the configuration names one.
    pub fn bos_token(&self) -> Option<u32> {
        self.bos
    }

    /// One more than the largest token: how many rows of logits have a meaning.
    pub fn vocab_size(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The library's own tokenizer, for those who need its vocabulary and decoder.
    pub fn hugging_face(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// The parsed `tokenizer_config.json`, null where there is none.
    pub fn config(&self) -> &Value {
        &self.config
    }

    /// The text of a special token such as `bos_token` in `tokenizer_config.json`, given there as
    /// a string or as an object with `content`.
    pub fn special_token(&self, name: &str) -> Option<String> {
        special_token(&self.config, name)
    }
}

/// A special token of a `tokenizer_config.json`: a string or an object with `content`.
pub(crate) fn special_token(config: &Value, name: &str) -> Option<String> {
    let value = config.get(name)?;
    let text = value.as_str().or_else(|| value.get("content")?.as_str())?;
    Some(text.to_owned())
}

/// A file parsed as JSON, null where it is absent.
fn json(files: &BTreeMap<String, Vec<u8>>, file: &str) -> Result<Value, TokenizerError> {
    let Some(bytes) = files.get(file) else { return Ok(Value::Null) };
    serde_json::from_slice(bytes)
        .map_err(|source| TokenizerError::Json { file: file.to_owned(), source })
}

/// A token id, a list of them, or nothing.
fn token_ids(file: &str, key: &str, json: &Value) -> Result<Vec<u32>, TokenizerError> {
    let invalid = |value: &Value| TokenizerError::Key {
        file: file.to_owned(),
        key: key.to_owned(),
        found: value.to_string(),
        expected: "a token id or a list of them",
    };
    let id = |value: &Value| {
        let id = value.as_u64().and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| invalid(value))
    };
    match json.get(key) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().map(id).collect(),
        // Some files write -1 for "none".
        Some(value) if value.as_i64() == Some(-1) => Ok(Vec::new()),
        Some(value) => Ok(vec![id(value)?]),
    }
}

/// Text of tokens as they come. A character whose bytes are spread over several tokens is held
/// back until it is complete.
///
/// How a token reads depends on the one before it (spaces, byte runs), so each step decodes the
/// tokens since the last shown boundary and returns what the new one adds.
#[derive(Debug, Clone)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    /// First token of the context that is decoded again.
    start: usize,
    /// First token that has not been shown.
    shown: usize,
}

impl TextStream<'_> {
    /// Adds a token and returns the text that is now complete, often empty.
    pub fn push(&mut self, token: u32) -> Result<String, TokenizerError> {
        self.tokens.push(token);
        let (before, all) = self.pending()?;
        // An incomplete character decodes as U+FFFD, at the end only.
        if all.len() <= before || all.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        self.start = self.shown;
        self.shown = self.tokens.len();
        Ok(all[before..].to_owned())
    }

    /// The rest, when no token follows: an incomplete character becomes U+FFFD.
    pub fn finish(self) -> Result<String, TokenizerError> {
        let (before, all) = self.pending()?;
        Ok(all[before..].to_owned())
    }

    /// The text of all tokens from `start`, and how many bytes of it have been shown.
    fn pending(&self) -> Result<(usize, String), TokenizerError> {
        let shown = self.tokenizer.decode(&self.tokens[self.start..self.shown], true)?;
        let all = self.tokenizer.decode(&self.tokens[self.start..], true)?;
        // Where a decoder changes what it had shown, the differing part is shown again.
        let same = shown.bytes().zip(all.bytes()).take_while(|(a, b)| a == b).count();
        Ok((all.floor_char_boundary(same), all))
    }
}

#[cfg(test)]
mod tests;
