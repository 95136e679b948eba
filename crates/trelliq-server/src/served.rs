//! The model that is served, with all that turns requests into tokens.

use crate::constrain::{Constrainer, ConstraintError};
use crate::vocabulary::Vocabulary;
use std::sync::OnceLock;
use trelliq_format::ModelSource;
use trelliq_model::{ChatError, ChatTemplate, ChatTemplates, Model, Tokenizer};

/// A loaded model under the name that clients call it by.
#[derive(Debug)]
pub struct ServedModel {
    pub name: String,
    pub model: Model,
    pub tokenizer: Tokenizer,
    /// `None` for a model that has none: it is not for chats.
    pub template: Option<ChatTemplate>,
    vocabulary: OnceLock<Vocabulary>,
    constrainer: OnceLock<Result<Constrainer, ConstraintError>>,
}

impl ServedModel {
    /// Errors when the source's chat template cannot be used; a source without one is fine.
    pub fn new(
        name: impl Into<String>,
        source: &ModelSource,
        model: Model,
        tokenizer: Tokenizer,
    ) -> Result<Self, ChatError> {
        let template = match ChatTemplates::from_files(source.sidecar_files())?.get(None) {
            Ok(template) => Some(template),
            Err(ChatError::NoTemplate) => None,
            Err(error) => return Err(error),
        };
        Ok(Self {
            name: name.into(),
            model,
            tokenizer,
            template,
            vocabulary: OnceLock::new(),
            constrainer: OnceLock::new(),
        })
    }

    /// Text that the template ends an answer with, where no token does.
    pub fn chat_stop(&self) -> Option<String> {
        self.template.as_ref().and_then(ChatTemplate::stop).map(str::to_owned)
    }

    /// Tokens as bytes, worked out when first asked for.
    pub fn vocabulary(&self) -> &Vocabulary {
        self.vocabulary.get_or_init(|| Vocabulary::new(&self.tokenizer))
    }

    /// The compiler of constraints, made when first asked for.
    pub fn constrainer(&self) -> Result<&Constrainer, ConstraintError> {
        let make = || Constrainer::new(self.vocabulary(), self.tokenizer.eos_tokens().collect());
        self.constrainer.get_or_init(make).as_ref().map_err(Clone::clone)
    }
}
