//! Which chat template a model is talked to with.

use crate::source::Loaded;
use anyhow::{Context, Result};
use std::path::Path;
use trelliq_model::{ChatError, ChatTemplate, ChatTemplates, TURN_FORMATS, TurnFormat};

/// The model's template called `name`, else a known turn format of that name, else the file at that path.
/// Without a name the model's own or, with a warning, that of the turns that its vocabulary has
/// tokens for; `None` where there is neither.
pub fn choose(loaded: &Loaded, name: Option<&str>) -> Result<Option<ChatTemplate>> {
    let templates = ChatTemplates::from_files(loaded.source.sidecar_files())?;
    let Some(name) = name else {
        if templates.is_empty()
            && let Some(format) = TurnFormat::of(&loaded.tokenizer)
        {
            eprintln!(
                "warning: the model has no chat template: {} turns are used, by its vocabulary",
                format.name
            );
        }
        return match templates.for_vocabulary(&loaded.tokenizer) {
            Ok(template) => Ok(Some(template)),
            Err(ChatError::NoTemplate) => Ok(None),
            Err(error) => Err(error.into()),
        };
    };
    if templates.names().any(|own| own == name) {
        return Ok(Some(templates.get(Some(name))?));
    }
    if let Some(format) = TurnFormat::named(name) {
        return Ok(Some(templates.parse(format.template)?));
    }
    let known: Vec<&str> = TURN_FORMATS.iter().map(|format| format.name).collect();
    let text = std::fs::read_to_string(Path::new(name)).with_context(|| {
        let own: Vec<&str> = templates.names().chain(known).collect();
        format!("`{name}` is neither a readable file nor one of {}", own.join(", "))
    })?;
    Ok(Some(templates.parse(&text).with_context(|| name.to_owned())?))
}
