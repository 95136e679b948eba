//! Models of a Hugging Face hub: what belongs to one is downloaded into the hub's cache, as
//! `huggingface_hub` lays it out, and then opened as a directory.

use crate::FormatError;
use crate::directory::{CONFIG, INDEX, SIDECARS, SINGLE, read_index};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Attempts after the first that a download which breaks off is given.
const RETRIES: usize = 3;

/// A step of a download.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HubProgress<'a> {
    /// A file of `bytes` is about to be fetched; may come again where a download is resumed.
    Start { file: &'a str, bytes: u64 },
    /// `bytes` more of the file have arrived.
    Advance { bytes: u64 },
    /// The file is complete.
    Finish,
}

/// Told the steps of a download.
pub type HubReporter = Arc<dyn Fn(HubProgress<'_>) + Send + Sync>;

/// Where a hub is and how to talk to it. Unset fields follow the environment: `HF_ENDPOINT`,
/// `HF_HOME` (the cache is its `hub` folder, or `HF_HUB_CACHE`) and `HF_TOKEN`, else the token file
/// of `HF_HOME`.
#[derive(Clone, Default)]
pub struct HubOptions {
    pub endpoint: Option<String>,
    pub cache_dir: Option<PathBuf>,
    pub token: Option<String>,
    pub progress: Option<HubReporter>,
}

impl fmt::Debug for HubOptions {
    /// Leaves the token out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { endpoint, cache_dir, token, progress } = self;
        f.debug_struct("HubOptions")
            .field("endpoint", endpoint)
            .field("cache_dir", cache_dir)
            .field("token", &token.is_some())
            .field("progress", &progress.is_some())
            .finish()
    }
}

/// `owner/name` and a revision.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RepositoryId {
    name: String,
    revision: String,
}

impl RepositoryId {
    /// Parses `owner/name` or `owner/name@revision`; `None` for anything else, such as a path.
    pub fn parse(id: &str) -> Option<Self> {
        let (name, revision) = id.split_once('@').unwrap_or((id, "main"));
        let legal = |part: &str, extra: &[char]| {
            let part_legal = |c: char| c.is_ascii_alphanumeric() || extra.contains(&c);
            !part.is_empty() && !part.starts_with('.') && part.chars().all(part_legal)
        };
        let (owner, model) = name.split_once('/')?;
        let named = legal(owner, &['-', '_', '.']) && legal(model, &['-', '_', '.']);
        let legal = named && legal(revision, &['-', '_', '.', '/']) && !revision.contains("..");
        legal.then(|| Self { name: name.to_owned(), revision: revision.to_owned() })
    }
}

/// Downloads what belongs to a model and is not yet in the cache; gives its snapshot directory.
///
/// The revision is resolved to a commit first, so that all files are of one commit. Where the hub
/// cannot be reached, the commit that the cache holds for the revision is used.
pub(crate) fn download(id: &str, options: &HubOptions) -> Result<PathBuf, FormatError> {
    let hub = |file: &str, reason: String| FormatError::Hub {
        repository: id.to_owned(),
        file: file.to_owned(),
        reason,
    };
    let Some(RepositoryId { name, revision }) = RepositoryId::parse(id) else {
        return Err(hub(CONFIG, "an id is owner/name or owner/name@revision".to_owned()));
    };
    let cache = cache(options).map_err(|reason| hub(CONFIG, reason))?;
    let api = connect(&cache, options).map_err(|e| hub(CONFIG, e.to_string()))?;
    let repo = Repo::with_revision(name.clone(), RepoType::Model, revision);
    let info = match api.repo(repo.clone()).info() {
        Ok(info) => info,
        Err(error) => {
            let cached = cache.repo(repo).get(CONFIG);
            let cached = cached.as_deref().and_then(Path::parent).map(Path::to_owned);
            let cached = cached.ok_or_else(|| hub("its list of files", error.to_string()))?;
            tracing::warn!("{id}: {error}; the copy in {} is used", cached.display());
            return Ok(cached);
        }
    };
    if info.sha.is_empty() || !info.sha.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(hub("its list of files", format!("`{}` is not a commit", info.sha)));
    }
    let commit = Repo::with_revision(name, RepoType::Model, info.sha.clone());
    let listed: BTreeSet<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
    let get = |file: &str| match listed.contains(file) {
        true => fetch(&cache, &commit, &api, file, options).map_err(|e| hub(file, e.to_string())),
        false => Err(hub(file, format!("commit {} has no such file", info.sha))),
    };
    let config = get(CONFIG)?;
    for file in SIDECARS.into_iter().filter(|file| listed.contains(file)) {
        get(file)?;
    }
    if listed.contains(INDEX) {
        for shard in read_index(&get(INDEX)?)?.into_values().collect::<BTreeSet<_>>() {
            get(&shard)?;
        }
    } else {
        get(SINGLE)?;
    }
    let snapshot = config.parent().map(Path::to_owned);
    snapshot.ok_or_else(|| hub(CONFIG, "the cache has no snapshot directory".to_owned()))
}

/// `HF_HOME`, else `~/.cache/huggingface`.
fn home() -> Option<PathBuf> {
    let configured = std::env::var_os("HF_HOME").filter(|home| !home.is_empty());
    let default = || Some(std::env::home_dir()?.join(".cache").join("huggingface"));
    configured.map(PathBuf::from).or_else(default)
}

/// The cache, by an absolute path: hf-hub links files by paths relative to each other.
fn cache(options: &HubOptions) -> Result<Cache, String> {
    let configured = || std::env::var_os("HF_HUB_CACHE").map(PathBuf::from);
    let folder = options.cache_dir.clone().or_else(configured);
    let folder = folder.or_else(|| Some(home()?.join("hub")));
    let folder = folder.ok_or("there is no home directory for the cache: set HF_HOME")?;
    std::path::absolute(folder).map(Cache::new).map_err(|e| format!("cache folder: {e}"))
}

fn connect(cache: &Cache, options: &HubOptions) -> Result<Api, ApiError> {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let token = options.token.clone().or_else(|| variable("HF_TOKEN"));
    let token = token.or_else(|| Cache::new(home()?.join("hub")).token());
    let mut builder = ApiBuilder::from_cache(cache.clone())
        .with_progress(false)
        .with_retries(RETRIES)
        .with_token(token);
    if let Some(endpoint) = options.endpoint.clone().or_else(|| variable("HF_ENDPOINT")) {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    builder.build()
}

fn fetch(
    cache: &Cache,
    commit: &Repo,
    api: &Api,
    file: &str,
    options: &HubOptions,
) -> Result<PathBuf, ApiError> {
    match cache.repo(commit.clone()).get(file) {
        Some(path) => Ok(path),
        None => {
            let reporter = Reporter(options.progress.clone());
            api.repo(commit.clone()).download_with_progress(file, reporter)
        }
    }
}

struct Reporter(Option<HubReporter>);

impl Reporter {
    fn tell(&self, progress: HubProgress<'_>) {
        if let Some(tell) = &self.0 {
            tell(progress);
        }
    }
}

impl Progress for Reporter {
    fn init(&mut self, size: usize, file: &str) {
        self.tell(HubProgress::Start { file, bytes: size as u64 });
    }

    fn update(&mut self, size: usize) {
        self.tell(HubProgress::Advance { bytes: size as u64 });
    }

    fn finish(&mut self) {
        self.tell(HubProgress::Finish);
    }
}
