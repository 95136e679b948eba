//! `trelliq eval`: how well a model predicts a text, and how far it is from another one.

use super::{Numeric, Placement, settings_help};
use crate::output::{TextTable, print_json};
use crate::progress;
use crate::source::load;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;
use trelliq_model::eval::{EvalOptions, EvalReport, Subject, Windows, evaluate};
use trelliq_model::runtime::KEYS;
use trelliq_model::{RuntimeOptions, Tokenizer};

/// Measure perplexity, and the divergence from a reference model
///
/// Runs MODEL over windows of a text and prints its perplexity; with --reference also how its
/// next-token probabilities differ from the reference's at every scored position.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// A text file in UTF-8
    #[arg(long, value_name = "FILE")]
    text: PathBuf,

    /// The model to compare with, most often the source of MODEL
    #[arg(long, value_name = "MODEL")]
    reference: Option<String>,

    /// Compare MODEL with itself under two values of a setting: the divergence of B from A
    #[arg(long = "self", value_name = "KEY=A,B", conflicts_with = "reference")]
    twice: Option<Twice>,

    /// Tokens of a window
    #[arg(long, value_name = "N", default_value_t = 512)]
    window: usize,

    /// Windows, spread over the text
    #[arg(long, value_name = "N", default_value_t = 16)]
    windows: usize,

    /// Cover the whole text instead: a window starts every N tokens and scores those that no
    /// window before it reached
    #[arg(long, value_name = "N", conflicts_with = "windows")]
    stride: Option<usize>,

    /// Put the start token before every window; auto does where the tokenizer would
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    bos: Bos,

    #[command(flatten)]
    numeric: Numeric,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = concat!(
    settings_help!(),
    "
The text is tokenized whole and cut into windows. Within a window the model sees the tokens before
each position; all but the first token are scored. With W windows over a text of F full windows,
window w starts at token w * floor(F / W) * N. With --stride S every window after the first scores
its last S tokens only, so that each has at least N - S tokens of context.

kl is the Kullback-Leibler divergence of MODEL's next-token distribution from the reference's in
nats (mean, median, 99th percentile over positions), top1 the share of positions at which both find
the same token most probable, +- one standard error.

Examples:
  trelliq eval packed --text book.txt --reference models/smollm2.gguf --windows 6
  trelliq eval packed --text book.txt --window 1024 --stride 512 --json
  trelliq eval packed --text book.txt --self kernel.activations=f32,int"
);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Bos {
    Auto,
    On,
    Off,
}

/// What is printed as JSON.
#[derive(Debug, Serialize)]
struct Output<'a> {
    model: &'a str,
    reference: Option<&'a str>,
    /// The setting that two values of were compared, as `KEY=A,B`.
    #[serde(rename = "self")]
    twice: Option<String>,
    text: String,
    #[serde(flatten)]
    report: &'a EvalReport,
    seconds: f64,
}

pub fn run(args: Args) -> Result<()> {
    let text = fs::read_to_string(&args.text);
    let text = text.with_context(|| format!("cannot read {}", args.text.display()))?;
    // Settings that cannot be used are told before the model takes its time to load.
    let (runtime, other) = args.runtimes()?;
    let model = load(&args.model, args.numeric.placement())?;
    let plain = Placement { carrier: false, ..args.numeric.placement() };
    let reference = args.reference.as_deref().map(|spec| load(spec, plain)).transpose()?;
    let tokens = model.tokenizer.encode(&text, false)?;
    if let Some(reference) = &reference
        && reference.tokenizer.encode(&text, false)? != tokens
    {
        bail!("the tokenizers of the two models cut the text into different tokens");
    }
    let options = args.options(&model.tokenizer)?;
    let subject = Subject { model: &model.model, options: &runtime };
    let plain = RuntimeOptions::default();
    let against = match (&reference, &other) {
        (Some(reference), _) => Some(Subject { model: &reference.model, options: &plain }),
        (None, Some(other)) => Some(Subject { model: &model.model, options: other }),
        (None, None) => None,
    };
    let started = Instant::now();
    let report = measure(subject, against, &tokens, &options)?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        print_json(&Output {
            model: &args.model,
            reference: args.reference.as_deref(),
            twice: args.twice.as_ref().map(Twice::to_string),
            text: args.text.display().to_string(),
            report: &report,
            seconds,
        })
    } else {
        print_table(&report, seconds)
    }
}

/// A key of the runtime configuration and two values of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Twice {
    key: String,
    values: [String; 2],
}

impl FromStr for Twice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let malformed = "expected a key and two values, as in kernel.activations=f32,int";
        let (key, values) = text.split_once('=').ok_or(malformed)?;
        let (a, b) = values.split_once(',').ok_or(malformed)?;
        let [key, a, b] = [key, a, b].map(str::trim);
        if key.is_empty() || a.is_empty() || b.is_empty() || b.contains(',') {
            return Err(malformed);
        }
        Ok(Self { key: key.to_owned(), values: [a.to_owned(), b.to_owned()] })
    }
}

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { key, values: [a, b] } = self;
        write!(f, "{key}={a},{b}")
    }
}

impl Args {
    /// What the model runs under, and what it is compared under with `--self`.
    fn runtimes(&self) -> Result<(RuntimeOptions, Option<RuntimeOptions>)> {
        let Some(Twice { key, values: [a, b] }) = &self.twice else {
            return Ok((self.numeric.runtime()?, None));
        };
        if !KEYS.iter().any(|known| known.name == key) {
            let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
            bail!("--self: `{key}` is not a setting; there are {}", known.join(", "));
        }
        let with = |value: &str| {
            let mut numeric = self.numeric.clone();
            numeric.settings.settings.push(format!("{key}={value}"));
            numeric.runtime()
        };
        Ok((with(b)?, Some(with(a)?)))
    }

    fn options(&self, tokenizer: &Tokenizer) -> Result<EvalOptions> {
        let windows = match self.stride {
            Some(stride) => Windows::Strided { stride },
            None => Windows::Spread { count: self.windows },
        };
        let bos = match (self.bos, tokenizer.bos_token()) {
            (Bos::Off, _) => None,
            (Bos::On, None) => bail!("--bos on: the model's tokenizer names no start token"),
            (Bos::On, bos) => bos,
            (Bos::Auto, bos) => {
                let added = tokenizer.encode("", true)?.first().copied();
                bos.filter(|&bos| added == Some(bos))
            }
        };
        Ok(EvalOptions { window: self.window, windows, bos, ..EvalOptions::default() })
    }
}

fn measure(
    subject: Subject,
    reference: Option<Subject>,
    tokens: &[u32],
    options: &EvalOptions,
) -> Result<EvalReport> {
    let bar = progress::bar("eval", 1);
    let mut on_window = |progress: trelliq_model::eval::EvalProgress| {
        bar.set_length(progress.windows as u64);
        bar.set_position(progress.windows_done as u64);
        bar.set_message(format!("{} tokens", progress.tokens_scored));
    };
    let report = evaluate(subject, reference, tokens, options, &mut on_window);
    bar.finish_and_clear();
    Ok(report?)
}

fn print_table(report: &EvalReport, seconds: f64) -> Result<()> {
    let mut table = TextTable::new(&["<", "value", "+-"]);
    let mut row = |name: &str, value: f64, error: Option<f64>| {
        let error = error.map_or_else(String::new, |error| format!("{error:.4}"));
        table.row(vec![name.to_owned(), format!("{value:.4}"), error]);
    };
    row("perplexity", report.perplexity, Some(report.perplexity_stderr));
    if let Some(against) = &report.comparison {
        let stderr = against.reference_perplexity_stderr;
        row("reference perplexity", against.reference_perplexity, Some(stderr));
        row("kl mean", against.kl_mean, Some(against.kl_stderr));
        row("kl median", against.kl_median, None);
        row("kl 99th percentile", against.kl_p99, None);
        row("kl largest", against.kl_max, None);
        row("top1 agreement", against.top1_agreement, Some(against.top1_agreement_stderr));
        row("rms change of p(next)", against.delta_p_rms, None);
    }
    table.print()?;
    let (tokens, windows, window) = (report.tokens, report.windows, report.window);
    let rate = tokens as f64 / seconds;
    eprintln!(
        "{tokens} tokens scored in {windows} windows of {window}, {seconds:.1} s, {rate:.0} tokens/s"
    );
    Ok(())
}
