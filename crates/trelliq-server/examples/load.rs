//! Many streams against a running server for a while: nothing may be lost, every answer must be the
//! one that a request alone gets, and the server's memory must stay where it is once all streams run.
//!
//! ```text
//! cargo run --release -p trelliq-server --example load -- 127.0.0.1:8080 --streams 64 --seconds 120
//! ```

#[path = "../tests/common/client.rs"]
mod client;

use client::{get, post, streamed_text};
use serde_json::{Value, json};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PROMPTS: [&str; 6] = [
    "Write a line about the sea.",
    "What is a compiler?",
    "Tell me of a king who lost his crown, and of the winter that came after it.",
    "Name three colours.",
    "é ü 漢字: what are these?",
    "To be, or not to be, that is the question. What is the answer, and who asks?",
];

#[derive(Default)]
struct Counts {
    answers: AtomicU64,
    tokens: AtomicU64,
    retries: AtomicU64,
    wrong: AtomicU64,
}

fn body(prompt: usize, tokens: u64, stream: bool) -> Value {
    json!({ "messages": [{ "role": "user", "content": PROMPTS[prompt] }], "temperature": 0,
        "max_tokens": tokens, "stream": stream })
}

/// Bytes by which the second half of a run may pass the first.
const GROWTH: u64 = 8 << 20;

const PATH: &str = "/v1/chat/completions";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let server: SocketAddr =
        arguments.next().ok_or("which server? such as 127.0.0.1:8080")?.parse()?;
    if !server.ip().is_loopback() {
        return Err("only a server on this machine is loaded".into());
    }
    let (mut streams, mut seconds, mut tokens) = (64, 120, 32);
    while let Some(name) = arguments.next() {
        let value: u64 = arguments.next().ok_or("a number is missing")?.parse()?;
        match name.as_str() {
            "--streams" => streams = value,
            "--seconds" => seconds = value.min(600),
            "--tokens" => tokens = value,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let mut expected = Vec::new();
    let mut lengths = Vec::new();
    for prompt in 0..PROMPTS.len() {
        let text = post(server, PATH, &body(prompt, tokens, false)).await?.text().await?;
        let answer: Value = serde_json::from_str(&text)?;
        let content = answer["choices"][0]["message"]["content"].as_str().ok_or(text.clone())?;
        expected.push(content.to_owned());
        lengths.push(answer["usage"]["completion_tokens"].as_u64().unwrap_or(0));
    }
    let (expected, lengths) = (Arc::new(expected), Arc::new(lengths));
    let before = memory(server).await?;
    let counts = Arc::new(Counts::default());
    let started = Instant::now();
    let until = started + Duration::from_secs(seconds);
    let clients: Vec<_> = (0..streams as usize)
        .map(|client| {
            let (expected, lengths, counts) = (expected.clone(), lengths.clone(), counts.clone());
            tokio::spawn(async move {
                let mut prompt = client;
                while Instant::now() < until {
                    prompt = (prompt + 1) % PROMPTS.len();
                    one(server, prompt, tokens, &expected[prompt], lengths[prompt], &counts).await;
                }
            })
        })
        .collect();
    // The first half fills caches and pools; what the second half adds to them is a leak.
    let mut most = [before; 2];
    while Instant::now() < until {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let half = usize::from(started.elapsed().as_secs() * 2 >= seconds);
        most[half] = most[half].max(memory(server).await?);
    }
    for client in clients {
        client.await?;
    }
    let taken = started.elapsed().as_secs_f64();
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let wrong = count(&counts.wrong);
    let report = json!({
        "streams": streams, "seconds": taken, "answers": count(&counts.answers),
        "tokens_per_second": count(&counts.tokens) as f64 / taken,
        "retries_after_429": count(&counts.retries), "wrong_or_lost": wrong,
        "memory_before_mib": before >> 20, "memory_most_mib": most.map(|bytes| bytes >> 20),
        "memory_after_mib": memory(server).await? >> 20,
    });
    println!("{report}");
    if wrong > 0 {
        return Err("answers were wrong or lost".into());
    }
    if most[1] > most[0] + GROWTH {
        return Err("the server's memory grows".into());
    }
    Ok(())
}

async fn memory(server: SocketAddr) -> Result<u64, Box<dyn Error>> {
    let health: Value = serde_json::from_str(&get(server, "/health").await?.text().await?)?;
    health["memory_bytes"].as_u64().ok_or_else(|| "no memory in /health".into())
}

/// One stream; a full queue is tried again after a while.
async fn one(
    server: SocketAddr,
    prompt: usize,
    tokens: u64,
    expected: &str,
    length: u64,
    counts: &Counts,
) {
    let add = |counter: &AtomicU64, n: u64| counter.fetch_add(n, Ordering::Relaxed);
    let Ok(answer) = post(server, PATH, &body(prompt, tokens, true)).await else {
        add(&counts.wrong, 1);
        return;
    };
    if answer.status == 429 {
        add(&counts.retries, 1);
        tokio::time::sleep(Duration::from_millis(200)).await;
        return;
    }
    let text = answer.text().await.unwrap_or_default();
    if streamed_text(&text) == (expected.to_owned(), true) {
        add(&counts.answers, 1);
        add(&counts.tokens, length);
    } else {
        eprintln!("prompt {prompt} got {:?} in place of {expected:?}", streamed_text(&text));
        add(&counts.wrong, 1);
    }
}
