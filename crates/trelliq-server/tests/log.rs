//! What a request leaves in the log: a span with its number and route, and nothing of what it said.

mod common;

use common::{app, get, ok, options};
use serde_json::json;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).unwrap()
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One thread, so that the subscriber of this thread sees all.
#[tokio::test]
async fn every_request_has_a_span_that_keeps_its_secrets() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::level_filters::LevelFilter::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let app = app(options(), |_| {});
    let prompt = "My password is xyzzy";
    ok(&app, "/v1/completions", json!({ "prompt": prompt, "max_tokens": 4 })).await;
    get(&app, "/private/plugh?key=xyzzy").await;

    let text = log.text();
    let answers: Vec<_> = text.lines().filter(|line| line.contains("answered")).collect();
    assert_eq!(answers.len(), 2, "{text}");
    let ids: Vec<_> = answers.iter().map(|line| field(line, "id=")).collect();
    assert_ne!(ids[0], ids[1], "{text}");
    assert_eq!(field(answers[0], "method="), "POST");
    assert_eq!(field(answers[0], "route="), "/v1/completions");
    assert_eq!(field(answers[0], "status="), "200");
    assert_eq!(field(answers[1], "route="), "other");
    assert_eq!(field(answers[1], "status="), "404");
    assert!(!text.contains("xyzzy") && !text.contains("plugh"), "{text}");
}

/// The value after `name` in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let (_, rest) = line.split_once(name).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.split([' ', '}']).next().unwrap_or_default()
}
