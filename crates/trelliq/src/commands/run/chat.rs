//! A chat in the terminal, or over a pipe: one line a question.

use super::session::{Prompt, Session};
use anyhow::{Context, Result};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use trelliq_model::Message;

const PROMPT: &str = "> ";

pub fn chat(session: &mut Session, system: Option<&str>) -> Result<()> {
    let stop = stop_on_ctrl_c()?;
    let mut editor = DefaultEditor::new().context("cannot read from the terminal")?;
    if io::stdin().is_terminal() {
        eprintln!("Ctrl-C stops an answer, Ctrl-D ends, /reset forgets what was said.");
    }
    let system: Vec<Message> = system.iter().map(|text| Message::new("system", *text)).collect();
    let mut said = system.clone();
    loop {
        let line = match editor.readline(PROMPT) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("cannot read a line"),
        };
        match line.trim() {
            "" => {}
            "/reset" => said.clone_from(&system),
            question => {
                let _ = editor.add_history_entry(question);
                said.push(Message::new("user", question));
                forget_oldest(session, &mut said, system.len())?;
                stop.store(false, Ordering::Relaxed);
                let stopped = || stop.load(Ordering::Relaxed);
                let answer = session.answer_to_stdout(Prompt::Chat(&said), &stopped)?;
                answer.print_statistics();
                said.push(Message::new("assistant", answer.text()));
            }
        }
    }
}

/// Drops the oldest exchanges, a question and its answer each, until the rest fits the context.
fn forget_oldest(session: &Session, said: &mut Vec<Message>, system: usize) -> Result<()> {
    while said.len() >= system + 3 && !session.fits(Prompt::Chat(said))? {
        said.drain(system..system + 2);
        eprintln!("[the oldest exchange no longer fits the context and is forgotten]");
    }
    Ok(())
}

/// Ctrl-C sets the flag instead of ending the process.
fn stop_on_ctrl_c() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed))?;
    Ok(stop)
}
