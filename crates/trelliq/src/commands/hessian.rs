//! `trelliq hessian`: statistics of a model's layer inputs, for rounding with feedback.

use crate::{progress::Stages, source};
use anyhow::{Context, Result, bail};
use std::fs;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use trelliq_quantize::Hessians;

/// Collect what rounding with feedback needs to know of a model
///
/// Runs MODEL over windows of a text and writes the mean of x x^T of the inputs x of its linear
/// layers to OUT, which `trelliq quantize --hessians` reads, at any number of bits.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// The file to write
    out: PathBuf,

    /// Calibration text
    #[arg(long, value_name = "FILE")]
    calibration: PathBuf,

    /// Tokens of a window
    #[arg(long, value_name = "N", default_value = "512")]
    window: NonZeroUsize,

    /// Windows, spread over the text
    #[arg(long, value_name = "W", default_value = "40")]
    windows: NonZeroUsize,
}

const AFTER_HELP: &str = "\
Calibrate on another text than the one that you evaluate on.

Example:
  trelliq hessian models/smollm2.gguf smollm2.hessians --calibration book.txt
  trelliq quantize models/smollm2.gguf packed --bits 3 --hessians smollm2.hessians";

pub fn run(args: Args) -> Result<()> {
    let text = fs::read_to_string(&args.calibration);
    let text = text.with_context(|| format!("cannot read {}", args.calibration.display()))?;
    let loaded = source::load(&args.model, false)?;
    let tokens = loaded.tokenizer.encode(&text, false)?;
    let (window, count) = (args.window.get(), args.windows.get());
    let full = tokens.len() / window;
    if full < count {
        bail!("the text has {full} windows of {window} tokens, {count} are wanted");
    }
    // The rule of `trelliq eval`, so that a text is sampled alike by both.
    let windows: Vec<&[u32]> =
        (0..count).map(|w| &tokens[w * (full / count) * window..][..window]).collect();
    let stages = Stages::default();
    let hessians = Hessians::collect(&loaded.model, &windows, &|event| stages.on(event));
    stages.finish();
    Ok(hessians?.save(&args.out, &windows.concat())?)
}
