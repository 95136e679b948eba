//! The engine: one thread owns the model and runs all requests together.
//!
//! Requests wait in a bounded queue, first come, first served. Prompts are run in chunks, and in
//! between every running sequence gets its next token in one shared step, so that packed weights
//! are decoded once for all of them. How a request is computed does not depend on the others: the
//! chunks of a prompt are cut from its beginning, and rows of a step are independent.

mod budget;
mod logprobs;
mod prefix;
mod queue;
mod request;
mod sequence;
mod worker;

pub use budget::{BudgetError, KvBudget, KvPlan, available_memory};
pub use request::{Adjustments, EngineError, Event, Finish, Likely, Request, TokenLogprobs};

use crate::ServedModel;
use crate::metrics::EngineMetrics;
use queue::{Job, Queue};
use sequence::Ended;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use worker::Worker;

/// Sizes of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Tokens of prompt and answer of one sequence at most.
    pub context: usize,
    /// Sequences that run together.
    pub max_batch: usize,
    /// Tokens of prompts that are run between two steps of the running sequences.
    pub prefill_chunk: usize,
    /// Requests that may wait.
    pub queue: usize,
    /// Bytes of keys and values that are kept of prompts, for prompts that begin alike.
    pub prefix_cache_bytes: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            context: 4096,
            max_batch: 8,
            prefill_chunk: 64,
            queue: 64,
            prefix_cache_bytes: 256 << 20,
        }
    }
}

/// A handle of the engine's thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct Engine {
    served: Arc<ServedModel>,
    queue: Arc<Queue>,
    options: EngineOptions,
    metrics: Arc<EngineMetrics>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// Errors when the system gives no thread.
    pub fn start(
        served: Arc<ServedModel>,
        options: EngineOptions,
        metrics: Arc<EngineMetrics>,
    ) -> std::io::Result<Self> {
        let queue = Arc::new(Queue::new(options.queue));
        let owned = (Arc::clone(&served), Arc::clone(&queue), options.clone(), metrics.clone());
        let thread = std::thread::Builder::new().name("engine".into()).spawn(move || {
            let (served, queue, options, metrics) = owned;
            // Whoever waits hears of the end even if it is a panic.
            let _abort = AbortOnDrop(&queue);
            Worker::new(&served.model, &served.tokenizer, &queue, &options, &metrics).run();
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Self { served, queue, options, metrics, thread })
    }

    /// Puts a request into the queue. Its events come from the receiver; dropping that cancels it.
    ///
    /// Errors when the request can never run, when the queue is full or the engine stopping.
    pub fn submit(&self, request: Request) -> Result<UnboundedReceiver<Event>, EngineError> {
        self.check(&request)?;
        let (events, receiver) = unbounded_channel();
        let pushed = self.queue.push(Job { request, events, enqueued: Instant::now() });
        if matches!(pushed, Err(EngineError::QueueFull { .. })) {
            self.metrics.rejected.inc();
        }
        self.metrics.queued.set(self.queue.len() as i64);
        pushed.map(|()| receiver)
    }

    fn check(&self, request: &Request) -> Result<(), EngineError> {
        let (tokens, context) = (request.prompt.len(), self.options.context);
        if tokens == 0 {
            return Err(EngineError::EmptyPrompt);
        }
        if tokens >= context {
            return Err(EngineError::TooLong { tokens, context });
        }
        let (asked, most) = (request.choices.len(), self.options.max_batch);
        if asked > most {
            return Err(EngineError::TooManyChoices { asked, most });
        }
        let vocab = self.served.model.config().vocab_size;
        if let Some(token) = request.prompt.iter().find(|token| **token as usize >= vocab) {
            return Err(EngineError::Token { token: *token, vocab });
        }
        let checked = request.choices.iter().try_for_each(|sampling| sampling.check());
        checked.map_err(|error| EngineError::Sampling(error.to_string()))
    }

    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    pub fn metrics(&self) -> &EngineMetrics {
        &self.metrics
    }

    /// Requests that wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether the engine takes requests.
    pub fn accepting(&self) -> bool {
        self.queue.open()
    }

    /// Takes no more requests; those it has are finished.
    pub fn drain(&self) {
        self.queue.drain();
    }

    /// Ends all requests now, with [`EngineError::Stopping`], and waits for the thread.
    pub fn stop(&self) {
        self.queue.abort();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.stop();
    }
}

struct AbortOnDrop<'a>(&'a Queue);

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl From<Ended> for crate::metrics::EndLabels {
    fn from(ended: Ended) -> Self {
        let end = match ended {
            Ended::Done => "done",
            Ended::Cancelled => "cancelled",
            Ended::Failed => "failed",
        };
        Self { end }
    }
}
