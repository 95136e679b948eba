//! The server on a socket: clients that are slow, many, gone or up to no good, and the shutdown.

#[path = "common/client.rs"]
mod client;
mod common;

use client::{Answer, get, post, raw, streamed_text};
use common::{app, metrics_with, ok, options};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trelliq_server::api::App;
use trelliq_server::engine::EngineOptions;
use trelliq_server::http::{Bound, serve};

const TEXT: &str = "/v1/completions";

struct Server {
    address: SocketAddr,
    end: oneshot::Sender<()>,
    ended: JoinHandle<()>,
}

async fn start(app: &Arc<App>, grace: Duration) -> Server {
    let bound = Bound::new(([127, 0, 0, 1], 0).into()).await.unwrap();
    let address = bound.address;
    let (end, told) = oneshot::channel::<()>();
    let app = Arc::clone(app);
    let ended = tokio::spawn(async move {
        let told = async {
            let _ = told.await;
        };
        serve(bound, app, told, grace).await;
    });
    Server { address, end, ended }
}

fn body(prompt: &str, max_tokens: usize) -> Value {
    json!({ "prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "stream": true })
}

/// 64 streams over 4 rounds on 8 places: nothing is lost, and every answer is that of a request
/// alone. The long version is `examples/load.rs`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_at_once_each_get_what_they_would_get_alone() {
    let app = app(EngineOptions { queue: 64, ..options() }, |_| {});
    let prompts =
        ["ROMEO.\n", "To be, or not to be, that is the question:\n", "hacker: /n./ ", "é 漢 "];
    let mut expected = Vec::new();
    for prompt in prompts {
        let mut body = body(prompt, 16);
        body["stream"] = json!(false);
        expected
            .push(ok(&app, TEXT, body).await["choices"][0]["text"].as_str().unwrap().to_owned());
    }
    let server = start(&app, Duration::from_secs(5)).await;
    let clients = (0..64).map(|i| {
        let address = server.address;
        tokio::spawn(async move {
            let answer = post(address, TEXT, &body(prompts[i % 4], 16)).await.unwrap();
            assert_eq!(answer.status, 200);
            streamed_text(&answer.text().await.unwrap())
        })
    });
    let clients: Vec<_> = clients.collect();
    for (i, client) in clients.into_iter().enumerate() {
        assert_eq!(client.await.unwrap(), (expected[i % 4].clone(), true), "stream {i}");
    }
    metrics_with(&app, "trelliq_sequences_total{end=\"done\"} 68").await;
}

/// Every piece of a stream is UTF-8 of its own, whatever the tokens are.
#[tokio::test]
async fn pieces_on_the_wire_are_whole_characters() {
    let app = app(options(), |_| {});
    let server = start(&app, Duration::from_secs(5)).await;
    let text = "☃ 漢字 🙂";
    let mut body = body("x", 60);
    body["response_format"] =
        json!({ "type": "json_schema", "json_schema": { "schema": { "const": text } } });
    let mut answer = post(server.address, TEXT, &body).await.unwrap();
    let mut all = String::new();
    let mut pieces = 0;
    while let Some(piece) = answer.piece().await.unwrap() {
        all.push_str(std::str::from_utf8(&piece).expect("a piece of whole characters"));
        pieces += 1;
    }
    assert!(pieces > 3, "{pieces}");
    assert_eq!(streamed_text(&all), (json!(text).to_string(), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_ends_its_request() {
    let app = app(EngineOptions { max_batch: 1, ..options() }, |_| {});
    let server = start(&app, Duration::from_secs(5)).await;
    for stream in [true, false] {
        let before = app.engine.metrics().generated_tokens.get();
        let mut long = body("ROMEO.\n", 500);
        long["stream"] = json!(stream);
        let long = long.to_string();
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{long}",
            long.len()
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        while app.engine.metrics().generated_tokens.get() < before + 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(connection);
        // Its only place is free again long before 500 tokens.
        let next = post(server.address, TEXT, &body("hacker: ", 2)).await.unwrap();
        assert!(streamed_text(&next.text().await.unwrap()).1);
        let generated = app.engine.metrics().generated_tokens.get() - before;
        assert!(generated < 450, "{generated} tokens, stream: {stream}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_holds_up_nobody() {
    let app = app(options(), |_| {});
    let server = start(&app, Duration::from_secs(5)).await;
    let slow = post(server.address, TEXT, &body("ROMEO.\n", 200)).await.unwrap();
    let fast = post(server.address, TEXT, &body("hacker: ", 20)).await.unwrap();
    assert!(streamed_text(&fast.text().await.unwrap()).1);
    assert!(streamed_text(&slow.text().await.unwrap()).1, "and it gets all of it in the end");
}

/// The client takes no byte: its connection is ended, and its request with it, long before the
/// answer is whole. What the server holds for it meanwhile is bounded by the context.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_never_reads_is_given_up() {
    let app = app(EngineOptions { max_batch: 8, context: 2048, ..options() }, |app| {
        app.limits.write_time = Duration::from_millis(100);
    });
    let server = start(&app, Duration::from_secs(5)).await;
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stuck = socket.connect(server.address).await.unwrap();
    // 8 answers with 20 alternatives a token: several hundred bytes a token and answer.
    let mut long = body("ROMEO.\n", 2000);
    long["n"] = json!(8);
    long["logprobs"] = json!(20);
    long["logit_bias"] = json!({ "0": -100, "1": -100, "2": -100 });
    let long = long.to_string();
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{long}",
        long.len()
    );
    stuck.write_all(head.as_bytes()).await.unwrap();
    metrics_with(&app, "trelliq_sequences_total{end=\"cancelled\"} 8").await;
    let generated = app.engine.metrics().generated_tokens.get();
    assert!(generated < 8 * 2000, "{generated} tokens for nobody");
    // Others are served, and a page or an answer of the usual size never waits for so long.
    let next = post(server.address, TEXT, &body("hacker: ", 4)).await.unwrap();
    assert!(streamed_text(&next.text().await.unwrap()).1);
    drop(stuck);
}

#[tokio::test]
async fn heads_are_limited_in_time_and_size() {
    let app = app(options(), |app| {
        app.limits.header_time = Duration::from_millis(100);
        app.limits.headers = 8;
        app.limits.header_bytes = 8192;
    });
    let server = start(&app, Duration::from_secs(5)).await;
    let mut idle = TcpStream::connect(server.address).await.unwrap();
    idle.write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n").await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(5), Answer::read(idle)).await.unwrap();
    assert!(ended.is_err() || ended.is_ok_and(|answer| answer.status == 408));
    let many: String = (0..20).map(|i| format!("X-{i}: y\r\n")).collect();
    let many = format!("GET /health HTTP/1.1\r\nHost: x\r\n{many}\r\n");
    assert_eq!(raw(server.address, many.as_bytes()).await.unwrap().status, 431);
    let long = format!("GET /health HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "y".repeat(20_000));
    let answer = raw(server.address, long.as_bytes()).await;
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 431));
    assert!(
        raw(server.address, b"\x00\xff\r\n\r\n").await.is_ok_and(|answer| answer.status == 400)
    );
    assert_eq!(get(server.address, "/health").await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_shutdown_lets_streams_finish() {
    let app = app(options(), |_| {});
    let server = start(&app, Duration::from_secs(30)).await;
    let mut running = post(server.address, TEXT, &body("ROMEO.\n", 60)).await.unwrap();
    let mut text = String::from_utf8(running.piece().await.unwrap().unwrap()).unwrap();
    server.end.send(()).unwrap();
    while app.engine.accepting() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(TcpStream::connect(server.address).await.is_err(), "no new connections");
    text.push_str(&running.text().await.unwrap());
    assert!(streamed_text(&text).1, "{text}");
    server.ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_outlast_the_grace_are_told() {
    let app = app(options(), |_| {});
    let server = start(&app, Duration::from_millis(1)).await;
    let mut running = post(server.address, TEXT, &body("ROMEO.\n", 490)).await.unwrap();
    running.piece().await.unwrap().unwrap();
    server.end.send(()).unwrap();
    let text = running.text().await.unwrap();
    let last = text.lines().rfind(|line| line.starts_with("data: ")).unwrap();
    let error: Value = serde_json::from_str(&last["data: ".len()..]).unwrap();
    assert_eq!(error["error"]["code"], "shutting_down", "{text}");
    server.ended.await.unwrap();
}
