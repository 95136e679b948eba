//! Which chat template a model is talked to with.

use crate::source::Loaded;
use anyhow::{Context, Result};
use std::path::Path;
use trelliq_model::{ChatTemplate, ChatTemplates, TurnFormat};

/// The model's template called `name`, else a known turn format of that name, else the file at that
/// path. Without a name the model's own or, with a warning, plain text.
pub fn choose(loaded: &Loaded, name: Option<&str>) -> Result<ChatTemplate> {
    let templates = ChatTemplates::from_files(loaded.source.sidecar_files())?;
    let Some(name) = name else {
        if templates.is_empty() {
            warn_of_plain_text(loaded);
        }
        return Ok(templates.or_plain()?);
    };
    if templates.names().any(|own| own == name) {
        return Ok(templates.get(Some(name))?);
    }
    if let Some(format) = TurnFormat::named(name) {
        return Ok(templates.turns(format)?);
    }
    let text = std::fs::read_to_string(Path::new(name)).with_context(|| {
        let known = TurnFormat::all().map(|format| format.name);
        let names: Vec<&str> = templates.names().chain(known).collect();
        format!("`{name}` is neither a readable file nor one of {}", names.join(", "))
    })?;
    templates.parse(&text).with_context(|| name.to_owned())
}

fn warn_of_plain_text(loaded: &Loaded) {
    let turns = TurnFormat::of(&loaded.tokenizer).map_or_else(String::new, |format| {
        format!("; if it was trained for chats, --chat-template {} may fit", format.name)
    });
    eprintln!(
        "warning: the model has no chat template: it is given a conversation in plain text{turns}"
    );
}
