//! Repositories of a hub, against a server in the same process.
#![cfg(feature = "hub")]

mod common;

use common::{Tensor, f32s, safetensors};
use safetensors::Dtype;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use trelliq_format::{FormatError, HubOptions, HubProgress, ModelSource};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the files of one repository as the hub does: large ones through a redirect.
struct Hub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Hub {
    fn new(files: BTreeMap<&'static str, Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (log, base) = (requests.clone(), endpoint.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client may close a connection that it did not need.
                let _ = serve(stream.unwrap(), &files, &base, &log);
            }
        });
        Self { endpoint, requests }
    }

    fn options(&self, cache: &TempDir) -> HubOptions {
        HubOptions {
            endpoint: Some(self.endpoint.clone()),
            cache_dir: Some(cache.path().join("hub")),
            token: Some("secret".to_owned()),
            progress: None,
        }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn serve(
    stream: TcpStream,
    files: &BTreeMap<&str, Vec<u8>>,
    base: &str,
    log: &Mutex<Vec<String>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut head = Vec::new();
    for line in reader.by_ref().lines() {
        match line? {
            line if line.is_empty() => break,
            line => head.push(line),
        }
    }
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or("/").to_owned();
    let header = |name: &str| {
        let found = head.iter().filter_map(|line| line.split_once(": "));
        found.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    };
    let range = header("range").and_then(|range| range.strip_prefix("bytes=")).map(str::to_owned);
    let token = header("authorization").unwrap_or("none").to_owned();
    log.lock().unwrap().push(format!("{path} {token}"));
    let mut stream = stream;
    let mut answer = |status: &str, headers: &str, body: &[u8]| {
        let len = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n{headers}\r\n"
        )?;
        stream.write_all(body)
    };
    if path == "/api/models/owner/name/revision/main"
        || path == "/api/models/owner/name/revision/v1"
    {
        let list: Vec<_> =
            files.keys().map(|name| serde_json::json!({ "rfilename": name })).collect();
        let info = serde_json::json!({ "sha": COMMIT, "siblings": list }).to_string();
        return answer("200 OK", "Content-Type: application/json\r\n", info.as_bytes());
    }
    let resolve = format!("/owner/name/resolve/{COMMIT}/");
    let (name, redirected) = match path.strip_prefix("/store/") {
        Some(name) => (name, true),
        None => (path.strip_prefix(&resolve).unwrap_or(""), false),
    };
    let Some(content) = files.get(name) else { return answer("404 Not Found", "", b"") };
    let identity = format!("X-Repo-Commit: {COMMIT}\r\nETag: \"{name}-etag\"\r\n");
    if name.ends_with(".safetensors") && !redirected {
        let headers = format!(
            "{identity}X-Linked-Etag: \"{name}-linked\"\r\nLocation: {base}/store/{name}\r\n"
        );
        return answer("302 Found", &headers, b"");
    }
    let range = range.unwrap_or("0-".to_owned());
    let (start, end) = range.split_once('-').unwrap();
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(content.len(), |end: usize| (end + 1).min(content.len()));
    let headers =
        format!("{identity}Content-Range: bytes {start}-{}/{}\r\n", end.max(1) - 1, content.len());
    answer("206 Partial Content", &headers, &content[start..end])
}

fn weights(value: f32) -> Vec<u8> {
    let tensors: [Tensor; 1] = [("w", Dtype::F32, &[2], f32s(&[value, 2.0]))];
    safetensors(&tensors)
}

fn single() -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        ("config.json", br#"{"model_type":"llama"}"#.to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", weights(1.0)),
        ("pytorch_model.bin", b"never fetched".to_vec()),
    ])
}

#[test]
fn a_repository_is_downloaded_once_and_opened() {
    let (hub, cache) = (Hub::new(single()), tempfile::tempdir().unwrap());
    let steps = Arc::new(Mutex::new((Vec::new(), 0)));
    let told = steps.clone();
    let mut options = hub.options(&cache);
    options.progress = Some(Arc::new(move |step| {
        let mut steps = told.lock().unwrap();
        match step {
            HubProgress::Start { file, bytes } => steps.0.push((file.to_owned(), bytes)),
            HubProgress::Advance { bytes } => steps.1 += bytes,
            HubProgress::Finish => {}
        }
    }));
    let source = ModelSource::open_hub("owner/name", &options).unwrap();
    assert_eq!(source.read_f32("w").unwrap(), [1.0, 2.0]);
    assert_eq!(source.config()["model_type"], "llama");
    assert_eq!(source.sidecar_files()["tokenizer.json"], b"{}");
    let snapshot = cache.path().join("hub/models--owner--name/snapshots").join(COMMIT);
    assert_eq!(source.root(), snapshot);
    let requests = hub.requests();
    assert!(!requests.iter().any(|request| request.contains("pytorch_model")), "{requests:?}");
    assert!(requests.iter().all(|request| request.ends_with("Bearer secret")), "{requests:?}");
    let (files, advanced) = steps.lock().unwrap().clone();
    assert!(files.contains(&("model.safetensors".to_owned(), weights(1.0).len() as u64)));
    let total: usize = ["config.json", "tokenizer.json", "model.safetensors"]
        .iter()
        .map(|name| single()[name].len())
        .sum();
    assert_eq!(advanced, total as u64);
    // What is there needs only the question which commit is meant.
    ModelSource::open_hub("owner/name", &options).unwrap();
    assert_eq!(hub.requests(), ["/api/models/owner/name/revision/main Bearer secret"]);
}

#[test]
fn shards_and_revisions_are_followed() {
    let mut files = single();
    files.remove("model.safetensors");
    let index = br#"{"weight_map":{"w":"x-00001.safetensors"}}"#.to_vec();
    files.insert("model.safetensors.index.json", index);
    files.insert("x-00001.safetensors", weights(3.0));
    let (hub, cache) = (Hub::new(files), tempfile::tempdir().unwrap());
    let source = ModelSource::open_hub("owner/name@v1", &hub.options(&cache)).unwrap();
    assert_eq!(source.read_f32("w").unwrap(), [3.0, 2.0]);
    assert!(hub.requests()[0].starts_with("/api/models/owner/name/revision/v1"));
}

#[test]
fn the_cache_stands_in_for_a_hub_that_cannot_be_reached() {
    let (hub, cache) = (Hub::new(single()), tempfile::tempdir().unwrap());
    ModelSource::open_hub(&format!("owner/name@{COMMIT}"), &hub.options(&cache)).unwrap_err();
    ModelSource::open_hub("owner/name", &hub.options(&cache)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut options = hub.options(&cache);
    options.endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
    drop(listener);
    let source = ModelSource::open_hub(&format!("owner/name@{COMMIT}"), &options).unwrap();
    assert_eq!(source.read_f32("w").unwrap(), [1.0, 2.0]);
    let error = ModelSource::open_hub("owner/other", &options).unwrap_err();
    assert!(matches!(error, FormatError::Hub { .. }), "{error}");
}

#[test]
fn what_a_repository_lacks_is_named() {
    let mut files = single();
    files.remove("model.safetensors");
    let (hub, cache) = (Hub::new(files), tempfile::tempdir().unwrap());
    let error = ModelSource::open_hub("owner/name", &hub.options(&cache)).unwrap_err();
    let FormatError::Hub { repository, file, .. } = &error else { panic!("{error}") };
    assert_eq!((repository.as_str(), file.as_str()), ("owner/name", "model.safetensors"));
    for id in
        ["owner", "owner/", "/name", "a/b/c", "owner/name@", "../x", "o/n@../x", "o/.n", "o n/x"]
    {
        let error = ModelSource::open_hub(id, &hub.options(&cache)).unwrap_err();
        assert!(error.to_string().contains("owner/name@revision"), "{id}: {error}");
    }
}
