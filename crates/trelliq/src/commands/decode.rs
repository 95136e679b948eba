//! `trelliq decode`: a packed model back to a dense directory.

use super::quantize::{SIZE_HELP, byte_size};
use crate::{progress::Stages, source};
use anyhow::Result;
use std::path::PathBuf;
use trelliq_format::WriterOptions;

/// Turn a packed model back into dense bf16 weights
///
/// Writes a directory of safetensors that transformers and other engines load: coded layers as
/// dense bf16 weights, everything else as it is in the packed model.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The packed model
    model: String,

    /// The directory to write
    out: PathBuf,

    /// Replace OUT where it exists
    #[arg(long)]
    overwrite: bool,

    #[arg(long, value_name = "SIZE", default_value = "5GB", value_parser = byte_size, help = SIZE_HELP)]
    max_shard_size: u64,
}

const AFTER_HELP: &str = "\
A layer that is not rotated decodes to bf16(value * scale), the `exact` numerics of the format, bit
for bit. A rotated layer is turned back in f32 and rounded to bf16 once.

Example:
  trelliq decode packed dense
  python3 -c 'import transformers as t; t.AutoModelForCausalLM.from_pretrained(\"dense\")'";

pub fn run(args: Args) -> Result<()> {
    let source = source::open(&args.model)?;
    let writer = WriterOptions { max_shard_bytes: args.max_shard_size, overwrite: args.overwrite };
    let stages = Stages::default();
    let result = trelliq_quantize::decode(&source, &args.out, writer, &|event| stages.on(event));
    stages.finish();
    Ok(result?)
}
