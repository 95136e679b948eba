//! What `/metrics` shows, in Prometheus' text format.

use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::time::Instant;

/// How a sequence ended, as a label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndLabels {
    /// `done`, `cancelled` or `failed`.
    pub end: &'static str,
}

/// An answered HTTP request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RequestLabels {
    /// The route, such as `/v1/chat/completions`; `other` where there is none.
    pub route: String,
    pub status: u16,
}

/// Numbers that the engine keeps.
#[derive(Debug)]
pub struct EngineMetrics {
    pub queued: Gauge,
    pub prefilling: Gauge,
    pub running: Gauge,
    pub kv_bytes: Gauge,
    pub prefix_bytes: Gauge,
    pub prompt_tokens: Counter,
    pub cached_tokens: Counter,
    pub generated_tokens: Counter,
    pub rejected: Counter,
    sequences: Family<EndLabels, Counter>,
    batch_size: Histogram,
    step_seconds: Histogram,
    first_token_seconds: Histogram,
    tokens_per_second: Histogram,
}

/// Numbers that the HTTP side keeps.
#[derive(Debug)]
pub struct ServerMetrics {
    pub requests: Family<RequestLabels, Counter>,
    pub request_seconds: Histogram,
    pub stored_responses: Gauge,
    pub stored_bytes: Gauge,
    pub resident_bytes: Gauge,
}

impl Default for EngineMetrics {
    fn default() -> Self {
        Self {
            queued: Gauge::default(),
            prefilling: Gauge::default(),
            running: Gauge::default(),
            kv_bytes: Gauge::default(),
            prefix_bytes: Gauge::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            rejected: Counter::default(),
            sequences: Family::default(),
            batch_size: Histogram::new([
                1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0,
            ]),
            step_seconds: Histogram::new(exponential_buckets(0.0005, 2.0, 14)),
            first_token_seconds: Histogram::new(exponential_buckets(0.005, 2.0, 14)),
            tokens_per_second: Histogram::new(exponential_buckets(0.5, 2.0, 14)),
        }
    }
}

impl Default for ServerMetrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            request_seconds: Histogram::new(exponential_buckets(0.001, 3.0, 13)),
            stored_responses: Gauge::default(),
            stored_bytes: Gauge::default(),
            resident_bytes: Gauge::default(),
        }
    }
}

impl EngineMetrics {
    /// A step of `sequences` that began at `started`.
    pub(crate) fn step(&self, sequences: usize, started: Instant) {
        self.batch_size.observe(sequences as f64);
        self.step_seconds.observe(started.elapsed().as_secs_f64());
    }

    pub(crate) fn first_token(&self, enqueued: Instant) {
        self.first_token_seconds.observe(enqueued.elapsed().as_secs_f64());
    }

    /// A sequence that got its first token at `started` and `tokens` in all.
    pub(crate) fn ended(&self, tokens: usize, started: Instant, end: EndLabels) {
        self.sequences.get_or_create(&end).inc();
        let seconds = started.elapsed().as_secs_f64();
        if tokens > 1 && seconds > 0.0 {
            self.tokens_per_second.observe((tokens - 1) as f64 / seconds);
        }
    }

    fn register(&self, registry: &mut Registry) {
        let gauges = [
            ("queued_requests", "Requests that wait", &self.queued),
            ("prefilling_requests", "Requests whose prompt is being run", &self.prefilling),
            ("running_sequences", "Sequences that are being generated", &self.running),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let bytes = [
            ("kv", "Keys and values of sequences", &self.kv_bytes),
            ("prefix_cache", "Keys and values kept of prompts", &self.prefix_bytes),
        ];
        for (name, help, gauge) in bytes {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        }
        let counters = [
            ("prompt_tokens", "Tokens of prompts that were run", &self.prompt_tokens),
            ("cached_tokens", "Tokens of prompts from the prefix cache", &self.cached_tokens),
            ("generated_tokens", "Tokens that were generated", &self.generated_tokens),
            ("rejected_requests", "Requests past the queue's limit", &self.rejected),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register("sequences", "Sequences that ended", self.sequences.clone());
        registry.register("batch_size", "Sequences of a step", self.batch_size.clone());
        let per_second = "Tokens a second of a sequence after its first";
        registry.register("tokens_per_second", per_second, self.tokens_per_second.clone());
        let seconds = [
            ("step", "Time of a step of all running sequences", &self.step_seconds),
            ("time_to_first_token", "From a request's arrival", &self.first_token_seconds),
        ];
        for (name, help, histogram) in seconds {
            registry.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
    }
}

impl ServerMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("http_requests", "Requests answered", self.requests.clone());
        let help = "Until a request's answer began";
        registry.register_with_unit(
            "http_request",
            help,
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register("stored_responses", "Responses stored", self.stored_responses.clone());
        let bytes = [
            ("stored_responses", "Responses stored", &self.stored_bytes),
            ("resident_memory", "Memory of the process", &self.resident_bytes),
        ];
        for (name, help, gauge) in bytes {
            registry.register_with_unit(name, help, Unit::Bytes, gauge.clone());
        }
    }
}

/// The text of `/metrics`.
pub fn encode(engine: &EngineMetrics, server: &ServerMetrics) -> String {
    let mut registry = Registry::with_prefix("trelliq");
    engine.register(&mut registry);
    server.register(&mut registry);
    let mut out = String::new();
    // Writing to a String does not fail.
    let _ = text::encode(&mut out, &registry);
    out
}

/// Bytes of this process in memory, 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().map_or(0, |kib| kib << 10)
}
