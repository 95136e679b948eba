//! `trelliq completions`: the completion script of a shell.

use crate::cli::Cli;
use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::Write;

/// Print a shell's completion script
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// The shell to write for
    shell: Shell,
}

const AFTER_HELP: &str = "\
Examples:
  trelliq completions bash > ~/.local/share/bash-completion/completions/trelliq
  trelliq completions zsh > ~/.zfunc/_trelliq
  trelliq completions fish > ~/.config/fish/completions/trelliq.fish";

pub fn run(args: Args) -> Result<()> {
    // Written in one piece: the generator itself panics on a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "trelliq", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(())
}
