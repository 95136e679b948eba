//! `trelliq`: the command line. Every command is a thin shell around the workspace's crates.

mod cli;
mod commands;
mod output;
mod progress;

use clap::Parser;
use cli::{Cli, Command};
use std::io;
use std::process::ExitCode;

/// The work failed. clap itself exits with 2 on a command line that it cannot use.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has enough of it: `trelliq inspect MODEL | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    if let Some(threads) = cli.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global()?;
    }
    match cli.command {
        Command::Validate(args) => commands::validate::run(args),
        Command::Completions(args) => commands::completions::run(args),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
