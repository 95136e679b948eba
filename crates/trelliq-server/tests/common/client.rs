//! A small HTTP/1.1 client on a socket: one request a connection, the answer read as it comes.
#![allow(dead_code)]

use serde_json::Value;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
    chunked: bool,
    left: usize,
}

/// Sends JSON and reads the head of the answer.
pub async fn post(server: SocketAddr, path: &str, body: &Value) -> io::Result<Answer> {
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    raw(server, format!("{head}{body}").as_bytes()).await
}

pub async fn get(server: SocketAddr, path: &str) -> io::Result<Answer> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    raw(server, head.as_bytes()).await
}

/// Sends bytes as they are and reads the head of the answer.
pub async fn raw(server: SocketAddr, request: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    stream.write_all(request).await?;
    Answer::read(stream).await
}

impl Answer {
    pub async fn read(stream: TcpStream) -> io::Result<Self> {
        let mut reader = BufReader::new(stream);
        let status = line(&mut reader).await?;
        let status = status.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other("no status"))?;
        let mut headers = Vec::new();
        loop {
            let header = line(&mut reader).await?;
            let Some((name, value)) = header.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let header = |name: &str| headers.iter().find(|(known, _)| known == name);
        let chunked = header("transfer-encoding").is_some();
        let left = header("content-length").and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
        Ok(Self { status, reader, chunked, left, headers })
    }

    /// The next piece of the body as it was sent, `None` at its end.
    pub async fn piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        if self.chunked {
            let size = line(&mut self.reader).await?;
            self.left = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
        }
        if self.left == 0 {
            return Ok(None);
        }
        let mut piece = vec![0; self.left];
        self.reader.read_exact(&mut piece).await?;
        self.left = 0;
        if self.chunked {
            line(&mut self.reader).await?;
        }
        Ok(Some(piece))
    }

    pub async fn text(mut self) -> io::Result<String> {
        let mut all = Vec::new();
        while let Some(piece) = self.piece().await? {
            all.extend(piece);
        }
        String::from_utf8(all).map_err(io::Error::other)
    }
}

/// A line without its end; the end of the stream is an error.
async fn line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

/// The text of a stream of completions, and whether it ended as it should.
pub fn streamed_text(body: &str) -> (String, bool) {
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let mut text = String::new();
    let mut finished = false;
    let mut done = false;
    for data in data {
        if data == "[DONE]" {
            done = true;
            continue;
        }
        let chunk: Value = serde_json::from_str(data).unwrap_or_default();
        let choice = &chunk["choices"][0];
        text.push_str(
            choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or(""),
        );
        finished |= choice["finish_reason"].is_string();
    }
    (text, finished && done)
}
