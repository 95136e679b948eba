//! `trelliq run`: one prompt, or a chat in the terminal.

mod chat;
mod session;

use super::{Numeric, settings_help};
use crate::output::print_json;
use crate::source::load;
use anyhow::{Context, Result};
use session::{Prompt, Session, Settings};
use std::io::Read;
use std::ops::ControlFlow;
use trelliq_model::{GenerateOptions, Message, SamplingOptions};

/// Generate text: answer one prompt, or chat
///
/// With PROMPT the answer is printed as it comes. Without one a chat starts that reads its lines
/// from the terminal or a pipe.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// What to answer; - reads it from standard input
    prompt: Option<String>,

    /// A system message before everything else
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,

    /// Continue PROMPT as it is, without the model's chat template
    #[arg(long, requires = "prompt")]
    raw: bool,

    /// The model's template of this name, plain, chatml, gemma, llama3 or a file in Jinja [default:
    /// the model's own, plain text where it has none]
    #[arg(long, value_name = "NAME|FILE", conflicts_with = "raw")]
    chat_template: Option<String>,

    /// 0 always takes the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f32,

    /// Draw from so many of the most probable tokens; 0 for all
    #[arg(long, value_name = "K", default_value_t = 0)]
    top_k: usize,

    /// Draw from the fewest tokens whose probabilities sum to this
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    top_p: f32,

    /// Draw from tokens with at least this share of the largest probability
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    min_p: f32,

    /// Divide the logits of tokens that have occurred; 1 for none
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    repeat_penalty: f32,

    /// Equal seeds draw equal texts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Tokens of an answer at most
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: usize,

    /// End the answer before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    /// Tokens of prompt and answer at most [default: what the model was trained for]
    #[arg(long, value_name = "N")]
    context: Option<usize>,

    #[command(flatten)]
    numeric: Numeric,

    /// Print one JSON object at the end instead of the text as it comes
    #[arg(long, requires = "prompt")]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    settings_help!(),
    "
In a chat, Ctrl-C stops an answer, Ctrl-D ends, /reset forgets what was said. When a chat outgrows
the context its oldest exchanges are forgotten. Statistics go to standard error.

Examples:
  trelliq run packed \"Why is the sky blue?\"
  trelliq run packed --temperature 0.7 --top-p 0.9 --system \"You are a pirate.\"
  trelliq run packed --raw \"Once upon a time\" --max-tokens 100
  trelliq run packed - < question.txt"
);

pub fn run(args: Args) -> Result<()> {
    // Wrong options are told before the model takes its time to load.
    args.sampling().check()?;
    let prompt = args.prompt.as_deref().map(read_prompt).transpose()?;
    let settings = args.settings()?;
    let loaded = load(&args.model, args.numeric.placement())?;
    let mut session = Session::new(&loaded, settings)?;
    let Some(prompt) = prompt else {
        return chat::chat(&mut session, args.system.as_deref());
    };
    let system = args.system.iter().map(|text| Message::new("system", text));
    let messages: Vec<Message> = system.chain([Message::new("user", &prompt)]).collect();
    let prompt = if args.raw { Prompt::Raw(&prompt) } else { Prompt::Chat(&messages) };
    if args.json {
        let answer = session.answer(prompt, &mut |_| ControlFlow::Continue(()))?;
        return print_json(&answer.report());
    }
    let answer = session.answer_to_stdout(prompt, &|| false)?;
    answer.print_statistics();
    Ok(())
}

fn read_prompt(prompt: &str) -> Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("cannot read the prompt")?;
    Ok(text.trim_end_matches('\n').to_owned())
}

impl Args {
    fn sampling(&self) -> SamplingOptions {
        SamplingOptions {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repeat_penalty,
            seed: self.seed,
        }
    }

    fn settings(&self) -> Result<Settings> {
        Ok(Settings {
            generate: GenerateOptions {
                sampling: self.sampling(),
                max_tokens: self.max_tokens,
                stop: self.stop.clone(),
                ..GenerateOptions::default()
            },
            runtime: self.numeric.runtime()?,
            context: self.context,
            raw: self.raw,
            chat_template: self.chat_template.clone(),
        })
    }
}
