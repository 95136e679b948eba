//! The command line as a whole; what belongs to one command stands in its own file.

use crate::commands::{
    bench, completions, decode, eval, hessian, inspect, quantize, run, serve, validate,
};
use clap::{ArgAction, Parser, Subcommand};
use std::num::NonZeroUsize;

/// Store the weights of language models as trellis codes of 1 to 8 bits, and run the models from
/// the codes.
#[derive(Debug, Parser)]
#[command(name = "trelliq", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    /// Threads to compute on [default: one a core]
    #[arg(long, global = true, value_name = "N", env = "TRELLIQ_THREADS")]
    pub threads: Option<NonZeroUsize>,

    /// Say more on standard error; twice for still more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Quantize(quantize::Args),
    Hessian(hessian::Args),
    Inspect(inspect::Args),
    Run(run::Args),
    Serve(serve::Args),
    Eval(eval::Args),
    Decode(decode::Args),
    Validate(validate::Args),
    Bench(bench::Args),
    Completions(completions::Args),
}

const AFTER_HELP: &str = "\
MODEL is a directory of safetensors, a .gguf file or a repository id of a hub such as
owner/name or owner/name@revision (HF_ENDPOINT, HF_HOME and HF_TOKEN are honoured).

A first session:
  trelliq quantize MODEL packed --bits 4
  trelliq inspect packed
  trelliq eval packed --reference MODEL --text book.txt
  trelliq run packed \"Why is the sky blue?\"

Results go to standard output, progress and statistics to standard error.
Exit status: 0 done; 1 the work failed, and one line on standard error says why; 2 wrong usage.";
