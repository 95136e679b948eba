//! `trelliq hessian`: statistics of a model's layer inputs, for rounding with feedback.

use crate::calibration::{BUNDLED, WindowArgs};
use crate::commands::Placement;
use crate::{progress::Stages, source};
use anyhow::Result;
use clap::ValueEnum;
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

    /// Calibration text, or .jsonl with a `text` a line; `default` for the bundled one
    #[arg(long, value_name = "FILE", default_value = BUNDLED)]
    calibration: String,

    #[command(flatten)]
    windows: WindowArgs,

    /// What tokens weigh
    #[arg(long, value_enum, default_value_t = Weights::Fisher)]
    weights: Weights,

    /// Seed of the predictions that are drawn for `--weights fisher`
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Weights {
    /// As much as the model's predictions depend on a layer's outputs at them: the model runs back as well as forward
    Fisher,
    /// All the same
    Equal,
}

const AFTER_HELP: &str = "\
Calibrate on another text than the one that you evaluate on.

Example:
  trelliq hessian models/smollm2.gguf smollm2.hessians --calibration book.txt
  trelliq quantize models/smollm2.gguf packed --bits 3 --hessians smollm2.hessians";

pub fn run(args: Args) -> Result<()> {
    let loaded = source::load(&args.model, Placement::IN_PLACE)?;
    let windows = args.windows.read(&args.calibration, &loaded.tokenizer)?;
    let views: Vec<&[u32]> = windows.iter().map(Vec::as_slice).collect();
    let stages = Stages::default();
    let progress = |event: trelliq_quantize::Event| stages.on(event);
    let hessians = match args.weights {
        Weights::Fisher => Hessians::collect_weighted(&loaded.model, &views, args.seed, &progress),
        Weights::Equal => Hessians::collect(&loaded.model, &views, &progress),
    };
    stages.finish();
    Ok(hessians?.save(&args.out, &windows.concat())?)
}
