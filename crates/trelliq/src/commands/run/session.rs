//! A loaded model that answers prompts one after the other, keeping its cache between them.

use crate::chat_template::choose;
use crate::source::Loaded;
use anyhow::{Result, bail};
use serde::Serialize;
use std::io::{self, Write};
use std::ops::ControlFlow;
use trelliq_model::{
    ChatTemplate, FinishReason, GenerateOptions, Generation, KvCache, Message, RuntimeOptions,
    TokenEvent, generate,
};

pub struct Settings {
    pub generate: GenerateOptions,
    pub runtime: RuntimeOptions,
    /// Tokens of prompt and answer; `None` for what the model was trained for.
    pub context: Option<usize>,
    /// Whether the model's chat template is left aside.
    pub raw: bool,
    /// Which template to use; see [`choose`].
    pub chat_template: Option<String>,
}

/// What is asked.
#[derive(Clone, Copy)]
pub enum Prompt<'a> {
    /// Text to continue.
    Raw(&'a str),
    Chat(&'a [Message]),
}

pub struct Session<'a> {
    loaded: &'a Loaded,
    template: Option<ChatTemplate>,
    cache: KvCache,
    settings: Settings,
    context: usize,
}

/// An answer and what it took.
pub struct Answer {
    generation: Generation,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    text: &'a str,
    /// `end_token`, `stop_string`, `max_tokens` or `cancelled`.
    finish: &'static str,
    prompt_tokens: usize,
    generated_tokens: usize,
    prompt_tokens_per_second: f64,
    decode_tokens_per_second: f64,
}

impl<'a> Session<'a> {
    pub fn new(loaded: &'a Loaded, settings: Settings) -> Result<Self> {
        let template = if settings.raw {
            None
        } else {
            Some(choose(loaded, settings.chat_template.as_deref())?)
        };
        let trained = loaded.model.config().max_positions.unwrap_or(usize::MAX);
        let context = settings.context.map_or(trained, |context| context.min(trained));
        Ok(Self { loaded, template, cache: loaded.model.new_cache(), settings, context })
    }

    /// Whether a prompt leaves room for at least one token of an answer.
    pub fn fits(&self, prompt: Prompt) -> Result<bool> {
        Ok(self.tokens(prompt)?.len() < self.context)
    }

    /// Answers; `on_text` gets the text piece by piece and may break off.
    pub fn answer(
        &mut self,
        prompt: Prompt,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer> {
        let tokens = self.tokens(prompt)?;
        let room = self.context.saturating_sub(tokens.len());
        if room == 0 {
            bail!("the prompt has {} tokens, the context holds {}", tokens.len(), self.context);
        }
        let mut options = self.settings.generate.clone();
        options.stop.extend(self.stop(prompt));
        options.max_tokens = options.max_tokens.min(room);
        let generation = generate(
            &self.loaded.model,
            &self.loaded.tokenizer,
            &mut self.cache,
            &tokens,
            &options,
            &self.settings.runtime,
            &mut |event: TokenEvent| on_text(event.text),
        )?;
        Ok(Answer { generation })
    }

    /// Answers on standard output, piece by piece, until `stopped`.
    pub fn answer_to_stdout(
        &mut self,
        prompt: Prompt,
        stopped: &dyn Fn() -> bool,
    ) -> Result<Answer> {
        let mut out = io::stdout();
        let mut written = Ok(());
        let answer = self.answer(prompt, &mut |text| {
            written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            let go_on = written.is_ok() && !stopped();
            if go_on { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        written.and_then(|()| writeln!(out))?;
        Ok(answer)
    }

    /// Text that the template ends an answer with.
    fn stop(&self, prompt: Prompt) -> Option<String> {
        let template = self.template.as_ref().filter(|_| matches!(prompt, Prompt::Chat(_)));
        template.and_then(ChatTemplate::stop).map(str::to_owned)
    }

    fn tokens(&self, prompt: Prompt) -> Result<Vec<u32>> {
        let tokenizer = &self.loaded.tokenizer;
        let tokens = match (prompt, &self.template) {
            (Prompt::Raw(text), _) => tokenizer.encode(text, true)?,
            (Prompt::Chat(messages), Some(template)) => {
                let text = template.render(messages, true)?;
                tokenizer.encode(&text, template.wants_start_token())?
            }
            (Prompt::Chat(_), None) => bail!("a chat needs the model's template"),
        };
        Ok(tokens)
    }
}

impl Answer {
    pub fn text(&self) -> &str {
        &self.generation.text
    }

    pub fn report(&self) -> Report<'_> {
        let stats = &self.generation.stats;
        Report {
            text: &self.generation.text,
            finish: match self.generation.finish {
                FinishReason::EndToken(_) => "end_token",
                FinishReason::StopString(_) => "stop_string",
                FinishReason::MaxTokens => "max_tokens",
                FinishReason::Cancelled => "cancelled",
            },
            prompt_tokens: stats.prompt_tokens,
            generated_tokens: stats.generated_tokens,
            prompt_tokens_per_second: stats.prompt_tokens_per_second(),
            decode_tokens_per_second: stats.decode_tokens_per_second(),
        }
    }

    pub fn print_statistics(&self) {
        let Report { finish, prompt_tokens, generated_tokens, .. } = self.report();
        let stats = &self.generation.stats;
        eprintln!(
            "[prompt {prompt_tokens} tokens at {:.1}/s, answer {generated_tokens} tokens at {:.1}/s, ended by {}]",
            stats.prompt_tokens_per_second(),
            stats.decode_tokens_per_second(),
            finish.replace('_', " "),
        );
    }
}
