//! `trelliq`: the command line. Every command is a thin shell around the workspace's crates.

mod calibration;
mod chat_template;
mod cli;
mod commands;
mod output;
mod plot;
mod progress;
mod settings;
mod source;

use clap::Parser;
use cli::{Cli, Command};
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;

/// The work failed. clap itself exits with 2 on a command line that it cannot use.
const FAILED: u8 = 1;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has enough of it: `trelliq inspect MODEL | head`.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::from(FAILED)
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    log_to_stderr(cli.verbose);
    if let Some(threads) = cli.threads {
        rayon::ThreadPoolBuilder::new().num_threads(threads.get()).build_global()?;
    }
    match cli.command {
        Command::Quantize(args) => commands::quantize::run(args),
        Command::Hessian(args) => commands::hessian::run(args),
        Command::Inspect(args) => commands::inspect::run(args),
        Command::Run(args) => commands::run::run(args),
        Command::Serve(args) => commands::serve::run(args),
        Command::Eval(args) => commands::eval::run(args),
        Command::Decode(args) => commands::decode::run(args),
        Command::Validate(args) => commands::validate::run(args),
        Command::Bench(args) => commands::bench::run(args),
        Command::Completions(args) => commands::completions::run(args),
    }
}

fn log_to_stderr(verbose: u8) {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .without_time()
        .with_target(verbose > 0)
        .init();
}

/// An error and its causes on one line. Some errors say their cause themselves; it is not repeated.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_its_error_names_is_said_once() {
        let named = anyhow!("no such file").context("cannot read x: no such file");
        assert_eq!(chain(&named.context("loading")), "loading: cannot read x: no such file");
    }
}
