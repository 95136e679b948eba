//! Constrained decoding: only tokens that a JSON schema or a grammar allows, by llguidance.

use crate::vocabulary::Vocabulary;
use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher as Inner, ParserFactory};
use serde_json::{Value, json};
use std::fmt;
use std::sync::Arc;

/// Compiles constraints for one vocabulary.
pub struct Constrainer {
    factory: ParserFactory,
    end_tokens: Arc<[u32]>,
}

impl fmt::Debug for Constrainer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Constrainer").finish_non_exhaustive()
    }
}

/// A schema that cannot be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the schema cannot be used: {0}")]
pub struct ConstraintError(String);

/// A compiled constraint, before any token.
#[derive(Clone)]
pub struct Constraint {
    matcher: Inner,
    end_tokens: Arc<[u32]>,
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constrainer {
    /// `end_tokens` end an answer; without one, an answer ends where nothing may follow.
    ///
    /// Errors when the library refuses the vocabulary.
    pub fn new(vocabulary: &Vocabulary, end_tokens: Vec<u32>) -> Result<Self, ConstraintError> {
        let words: Vec<Vec<u8>> = (0..vocabulary.len() as u32)
            .map(|token| match vocabulary.is_special(token) {
                // The library's mark of tokens that are no text.
                true => [&[TokTrie::SPECIAL_TOKEN_MARKER], vocabulary.bytes(token)].concat(),
                false => vocabulary.bytes(token).to_vec(),
            })
            .collect();
        let end = end_tokens.first().copied().unwrap_or(words.len() as u32 - 1);
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment)
            .map_err(|error| ConstraintError(error.to_string()))?;
        factory.quiet();
        Ok(Self { factory, end_tokens: end_tokens.into() })
    }

    /// Text that a JSON schema allows, with at most a space between its parts: a model that is
    /// forced could otherwise go on with blanks for ever.
    pub fn json_schema(&self, schema: &Value) -> Result<Constraint, ConstraintError> {
        let mut schema = schema.clone();
        if let Some(object) = schema.as_object_mut() {
            object.insert("x-guidance".into(), json!({ "whitespace_pattern": " ?" }));
        }
        let parser = self.factory.create_parser(TopLevelGrammar::from_json_schema(schema));
        let parser = parser.map_err(|error| ConstraintError(error.to_string()))?;
        let matcher = Inner::new(Ok(parser));
        match matcher.get_error() {
            Some(error) => Err(ConstraintError(error)),
            None => Ok(Constraint { matcher, end_tokens: Arc::clone(&self.end_tokens) }),
        }
    }

    /// Any JSON object.
    pub fn json_object(&self) -> Result<Constraint, ConstraintError> {
        self.json_schema(&json!({ "type": "object" }))
    }
}

impl Constraint {
    /// Where one answer is in the constraint.
    pub(crate) fn matcher(&self) -> Matcher {
        Matcher { inner: self.matcher.deep_clone(), end_tokens: Arc::clone(&self.end_tokens) }
    }
}

/// The state of one answer.
pub(crate) struct Matcher {
    inner: Inner,
    end_tokens: Arc<[u32]>,
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.debug_struct("Matcher").finish_non_exhaustive()
    }
}

impl Matcher {
    /// Sets the logits of tokens that may not come next to minus infinity.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let mut allowed = self.inner.compute_mask_or_eos().map_err(|error| error.to_string())?;
        // The library knows one end token; where it may come, so may the others.
        let end = self.end_tokens.iter().any(|token| allowed.is_allowed(*token));
        if end {
            self.end_tokens.iter().for_each(|token| allowed.allow_token(*token));
        }
        for (token, logit) in logits.iter_mut().enumerate() {
            if token >= allowed.len() || !allowed.is_allowed(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    /// Takes a token; true when nothing may follow it.
    pub fn consume(&mut self, token: u32) -> Result<bool, String> {
        self.inner.consume_token(token).map_err(|error| error.to_string())?;
        Ok(self.inner.is_stopped())
    }
}
