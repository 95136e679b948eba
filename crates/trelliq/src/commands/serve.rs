//! `trelliq serve`: an OpenAI-compatible server and a page to talk on.

use super::{Numeric, settings_help};
use crate::chat_template::choose;
use crate::settings::Settings;
use crate::source::load;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use trelliq_config::{Config, ConfigCell};
use trelliq_model::runtime::runtime_options;
use trelliq_server::ServedModel;
use trelliq_server::api::{App, Limits, ReasoningFormat, unix_time};
use trelliq_server::engine::{Engine, EngineOptions, KvBudget, KvPlan, available_memory};
use trelliq_server::http::{Bound, serve};
use trelliq_server::metrics::{EngineMetrics, ServerMetrics};
use trelliq_server::runtime::config_builder;
use trelliq_server::store::{DurableStore, MemoryStore, ResponseStore, StoreLimits, SystemClock};

/// Serve a model to OpenAI clients, and a page to talk on
///
/// Requests that run at the same time share every step, so that packed weights are decoded once
/// for all of them.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// A directory of safetensors, a .gguf file or a repository id
    model: String,

    /// Address to listen on; only this machine can connect unless told otherwise
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,

    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,

    /// What clients call the model [default: the name of its directory]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// The model's template of this name, plain, chatml, gemma, llama3 or a file in Jinja [default:
    /// the model's own, plain text where it has none]
    #[arg(long, value_name = "NAME|FILE")]
    chat_template: Option<String>,

    /// Where a model's thoughts before its answer go: deepseek gives them to clients as
    /// `reasoning_content`, none leaves them in the text
    #[arg(long, value_name = "FORMAT", default_value = "deepseek")]
    reasoning_format: Reasoning,

    /// Clients must send this as a bearer token
    #[arg(long, value_name = "KEY", env = "TRELLIQ_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Another name that clients may call this machine by, such as a proxy's; may be repeated
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,

    /// Tokens of prompt and answer of one sequence [default: what fits, at most 4096]
    #[arg(long, value_name = "N")]
    context: Option<usize>,

    /// Sequences that run together [default: what fits, at most 8]
    #[arg(long, value_name = "N")]
    max_batch: Option<usize>,

    /// Memory for keys and values in MiB [default: half of what is available]
    #[arg(long, value_name = "MIB")]
    kv_memory: Option<u64>,

    /// Part of it that keeps prompts for others that begin alike, in MiB; 0 keeps none
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    prefix_cache: u64,

    /// Tokens of prompts that are run between two steps of running answers
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    prefill_chunk: u32,

    /// Requests that may wait; more are told to come back later (HTTP 429)
    #[arg(long, value_name = "N", default_value_t = 64)]
    queue: usize,

    /// Keep responses in this file, through restarts, rather than in memory
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,

    /// How long a response can be continued, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 86_400)]
    store_ttl: u64,

    /// MiB of responses that are kept; the least recently used leave first
    #[arg(long, value_name = "MIB", default_value_t = 32)]
    store_cap: u64,

    /// KiB of a request's body
    #[arg(long, value_name = "KIB", default_value_t = 4096)]
    max_body: usize,

    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_connections: usize,

    /// Seconds that running answers get to finish when the server is told to end
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    grace: u64,

    #[command(flatten)]
    numeric: Numeric,
}

/// The formats of llama.cpp's option of this name that are known here.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Reasoning {
    Deepseek,
    None,
}

const AFTER_HELP: &str = concat!(
    settings_help!(),
    "\
  log.prompts            1 writes prompts to the log, which -v shows

Examples:
  trelliq serve packed
  trelliq serve packed --port 9000 --store responses.redb --api-key secret
  curl localhost:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'

The page is at http://127.0.0.1:8080/ and numbers for Prometheus at /metrics. Ctrl-C lets running
answers finish; a second one ends at once."
);

pub fn run(args: Args) -> Result<()> {
    let config = args.configuration()?;
    let addresses = (args.host.as_str(), args.port).to_socket_addrs();
    let address = addresses.ok().and_then(|mut all| all.next());
    let address =
        address.with_context(|| format!("`{}` is no address of this machine", args.host))?;
    if !address.ip().is_loopback() && args.api_key.is_none() {
        eprintln!(
            "warning: whoever reaches {} can use this server: there is no --api-key",
            address.ip()
        );
    }
    let app = args.app(config, address)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .enable_all()
        .build()
        .context("cannot start the network threads")?;
    runtime.block_on(listen(&args, Arc::new(app), address))
}

async fn listen(args: &Args, app: Arc<App>, address: SocketAddr) -> Result<()> {
    let bound = Bound::new(address).await;
    let bound = bound.with_context(|| format!("cannot listen on {address}"))?;
    let ending = asked_to_end()?;
    // The first line of standard output, for programs that start this one on port 0.
    println!("listening on http://{}", bound.address);
    let reloading = Arc::clone(&app);
    let again = args.numeric.settings.clone();
    tokio::spawn(async move { reload_on_hangup(&reloading, &again).await });
    serve(bound, app, ending, Duration::from_secs(args.grace)).await;
    Ok(())
}

/// Ctrl-C or SIGTERM; another Ctrl-C ends the process at once. Signals are caught from the call on,
/// not only once the future is awaited.
fn asked_to_end() -> Result<impl Future<Output = ()>> {
    let mut signals = Signals::new().context("cannot listen for signals")?;
    Ok(async move {
        signals.next().await;
        eprintln!("ending: running answers may finish");
        tokio::spawn(async move {
            signals.next().await;
            std::process::exit(130);
        });
    })
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(unix)]
async fn reload_on_hangup(app: &App, settings: &Settings) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(mut hangup) = signal(SignalKind::hangup()) else { return };
    while hangup.recv().await.is_some() {
        let read = settings.read(config_builder());
        let checked = read.and_then(|config| {
            runtime_options(&config, &app.base_runtime)?;
            Ok(config)
        });
        match checked {
            Ok(config) => {
                app.config.set(config);
                eprintln!("settings are read again");
            }
            Err(error) => eprintln!("warning: settings stay as they were: {error}"),
        }
    }
}

#[cfg(not(unix))]
async fn reload_on_hangup(_app: &App, _settings: &Settings) {}

impl Args {
    /// Settings that cannot be used are told before the model takes its time to load.
    fn configuration(&self) -> Result<Config> {
        let config = self.numeric.settings.read(config_builder())?;
        runtime_options(&config, &self.numeric.switches())?;
        Ok(config)
    }

    fn app(&self, config: Config, address: SocketAddr) -> Result<App> {
        let loaded = load(&self.model, self.numeric.placement())?;
        let plan = self.plan(&loaded.model)?;
        print_plan(&plan);
        let name = self.name.clone().unwrap_or_else(|| model_name(&self.model));
        let template = Some(choose(&loaded, self.chat_template.as_deref())?);
        let mut served = ServedModel::new(name, &loaded.source, loaded.model, loaded.tokenizer)?;
        served.template = template;
        let served = Arc::new(served);
        let options = EngineOptions {
            context: plan.context,
            max_batch: plan.max_batch,
            prefill_chunk: self.prefill_chunk as usize,
            queue: self.queue,
            prefix_cache_bytes: usize::try_from(plan.prefix_bytes).unwrap_or(usize::MAX),
        };
        let metrics = Arc::new(EngineMetrics::default());
        let engine = Engine::start(Arc::clone(&served), options, metrics);
        Ok(App {
            served,
            engine: engine.context("cannot start the engine")?,
            store: self.store()?,
            config: ConfigCell::new(config),
            base_runtime: self.numeric.switches(),
            metrics: ServerMetrics::default(),
            limits: Limits {
                body: self.max_body << 10,
                connections: self.max_connections,
                ..Limits::default()
            },
            api_key: self.api_key.clone(),
            host_names: self.host_names(address.ip()),
            reasoning: match self.reasoning_format {
                Reasoning::Deepseek => ReasoningFormat::DeepSeek,
                Reasoning::None => ReasoningFormat::None,
            },
            created: unix_time(),
        })
    }

    fn plan(&self, model: &trelliq_model::Model) -> Result<KvPlan> {
        let memory = match self.kv_memory {
            Some(mebibytes) => Some(mebibytes << 20),
            None => {
                let on_gpu = model.gpu_free_bytes().map(|bytes| bytes as u64);
                on_gpu.or_else(available_memory).map(|bytes| bytes / 2)
            }
        };
        let budget = KvBudget {
            context: self.context,
            max_batch: self.max_batch,
            memory,
            prefix_cache: self.prefix_cache << 20,
        };
        budget.plan(model.config()).context("the model's keys and values do not fit")
    }

    fn store(&self) -> Result<Arc<dyn ResponseStore>> {
        let limits =
            StoreLimits { ttl: Duration::from_secs(self.store_ttl), cap: self.store_cap << 20 };
        let Some(file) = &self.store else {
            return Ok(Arc::new(MemoryStore::new(limits, SystemClock)));
        };
        let store = DurableStore::open(file, limits, SystemClock);
        Ok(Arc::new(store.with_context(|| format!("cannot open {}", file.display()))?))
    }

    /// A server for this machine alone answers to its own names alone.
    fn host_names(&self, ip: IpAddr) -> Vec<String> {
        if !ip.is_loopback() {
            return Vec::new();
        }
        let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let names: BTreeSet<String> =
            own.into_iter().chain([ip.to_string()]).chain(self.allow_host.clone()).collect();
        names.into_iter().collect()
    }
}

fn print_plan(plan: &KvPlan) {
    let mebibytes = |bytes: u64| bytes.div_ceil(1 << 20);
    eprintln!(
        "{} sequences of {} tokens take up to {} MiB of keys and values, kept prompts {} MiB",
        plan.max_batch,
        plan.context,
        mebibytes(plan.sequence_bytes),
        mebibytes(plan.prefix_bytes),
    );
}

/// The last part of a path or repository id, without `.gguf`.
fn model_name(spec: &str) -> String {
    let canonical = Path::new(spec).canonicalize().ok();
    let path = canonical.as_deref().unwrap_or(Path::new(spec));
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_else(|| spec.to_owned());
    name.strip_suffix(".gguf").map(str::to_owned).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::model_name;

    #[test]
    fn a_model_is_called_by_the_end_of_its_path() {
        assert_eq!(model_name("/nowhere/models/smol.gguf"), "smol");
        assert_eq!(model_name("owner/name"), "name");
        assert_eq!(model_name("packed/"), "packed");
    }
}
