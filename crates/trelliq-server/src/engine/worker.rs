//! The thread that owns the model: it takes requests from the queue, runs prompts in chunks and one
//! token of every running sequence in between.

use super::EngineOptions;
use super::prefix::{ChunkId, PrefixCache};
use super::queue::{Job, Queue};
use super::request::{EngineError, Event};
use super::sequence::{Ended, Sequence, fork};
use crate::metrics::EngineMetrics;
use rayon::prelude::*;
use std::collections::VecDeque;
use std::time::Instant;
use trelliq_kernels::PREFILL_FROM;
use trelliq_model::{KvCache, Logits, Model, RuntimeOptions, SequenceStep, Tokenizer};

/// A prompt that is being run.
struct Prefill {
    job: Job,
    cache: KvCache,
    /// The chain of chunks so far; `None` once it is no longer kept.
    chain: Option<ChunkId>,
    /// Tokens that were taken from the prefix cache.
    cached: usize,
}

pub(super) struct Worker<'a> {
    model: &'a Model,
    tokenizer: &'a Tokenizer,
    queue: &'a Queue,
    options: &'a EngineOptions,
    metrics: &'a EngineMetrics,
    prefix: PrefixCache,
    prefilling: VecDeque<Prefill>,
    running: Vec<Sequence<'a>>,
}

impl<'a> Worker<'a> {
    pub fn new(
        model: &'a Model,
        tokenizer: &'a Tokenizer,
        queue: &'a Queue,
        options: &'a EngineOptions,
        metrics: &'a EngineMetrics,
    ) -> Self {
        Self {
            model,
            tokenizer,
            queue,
            options,
            metrics,
            prefix: PrefixCache::new(options.prefix_cache_bytes),
            prefilling: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Works until the queue is closed and all is done.
    pub fn run(mut self) {
        while self.busy() || self.queue.wait() {
            // Within the pool the many small parallel loops of a step need no hand-over each.
            rayon::scope(|_| self.step());
            self.report();
        }
    }

    fn busy(&self) -> bool {
        !(self.prefilling.is_empty() && self.running.is_empty())
    }

    /// One chunk of prompts and one token of every running sequence.
    fn step(&mut self) {
        if self.queue.aborting() {
            return self.abort();
        }
        self.drop_cancelled();
        self.admit();
        self.prefill();
        self.decode();
        self.running.retain(|sequence| {
            if let Some(ended) = sequence.ended {
                self.metrics.ended(sequence.generated().len(), sequence.started, ended.into());
            }
            sequence.ended.is_none()
        });
    }

    fn abort(&mut self) {
        for prefill in self.prefilling.drain(..) {
            let _ = prefill.job.events.send(Event::Failed(EngineError::Stopping));
        }
        for mut sequence in self.running.drain(..) {
            sequence.fail(EngineError::Stopping);
        }
    }

    fn drop_cancelled(&mut self) {
        self.prefilling.retain(|prefill| !prefill.job.cancelled());
        self.running.iter_mut().for_each(Sequence::check_cancelled);
        self.running.retain(|sequence| {
            let cancelled = sequence.ended == Some(Ended::Cancelled);
            if cancelled {
                let generated = sequence.generated().len();
                self.metrics.ended(generated, sequence.started, Ended::Cancelled.into());
            }
            !cancelled
        });
    }

    fn admit(&mut self) {
        loop {
            let prefilling = self.prefilling.iter().map(|p| p.job.request.choices.len());
            let taken = self.running.len() + prefilling.sum::<usize>();
            let Some(job) = self.queue.pop(self.options.max_batch.saturating_sub(taken)) else {
                return;
            };
            let chain = Some(self.prefix.root(&job.request.runtime));
            let cache = self.model.new_cache();
            self.prefilling.push_back(Prefill { job, cache, chain, cached: 0 });
        }
    }

    /// Runs prompts in turn, a chunk each, as many tokens as one chunk may have.
    fn prefill(&mut self) {
        let mut left = self.options.prefill_chunk;
        while let Some(mut prefill) = self.prefilling.pop_front() {
            self.take_cached(&mut prefill);
            let tokens = self.next_chunk(&prefill).len();
            if tokens > left {
                self.prefilling.push_front(prefill);
                return;
            }
            left -= tokens;
            let _scope = prefill.job.request.config.enter();
            match self.run_chunk(&mut prefill) {
                Err(error) => {
                    let _ = prefill.job.events.send(Event::Failed(error));
                }
                Ok(None) => self.prefilling.push_back(prefill),
                Ok(Some(logits)) => self.start(prefill, &logits),
            }
        }
    }

    fn next_chunk<'p>(&self, prefill: &'p Prefill) -> &'p [u32] {
        let rest = &prefill.job.request.prompt[prefill.cache.len()..];
        &rest[..rest.len().min(self.options.prefill_chunk)]
    }

    /// Takes what the prefix cache has, all but the chunk of the last token, whose logits are
    /// needed.
    fn take_cached(&mut self, prefill: &mut Prefill) {
        while let Some(before) = prefill.chain {
            let chunk = self.next_chunk(prefill);
            if prefill.cache.len() + chunk.len() == prefill.job.request.prompt.len() {
                return;
            }
            let Some((id, kv)) = self.prefix.get(before, chunk) else { return };
            prefill.cache.extend(&kv);
            prefill.cached += kv.len();
            prefill.chain = Some(id);
        }
    }

    /// Runs a chunk; after the last one, returns the logits of the prompt's last token.
    fn run_chunk(&mut self, prefill: &mut Prefill) -> Result<Option<Vec<f32>>, EngineError> {
        let chunk = self.next_chunk(prefill).to_vec();
        let runtime = &prefill.job.request.runtime;
        let from = prefill.cache.len();
        let step = SequenceStep { cache: &mut prefill.cache, tokens: &chunk };
        let hidden = self.model.forward_hidden(&mut [step], runtime).map_err(model_error)?;
        self.metrics.prompt_tokens.inc_by(chunk.len() as u64);
        if chunk.len() == self.options.prefill_chunk {
            prefill.chain = prefill.chain.and_then(|before| {
                let kv = prefill.cache.slice(from..from + chunk.len());
                self.prefix.insert(before, &chunk, kv)
            });
        }
        if prefill.cache.len() < prefill.job.request.prompt.len() {
            return Ok(None);
        }
        let last = hidden.len() - self.model.config().hidden_size;
        self.model.logits(&hidden[last..], runtime).map(Some).map_err(model_error)
    }

    /// Every choice takes its first token from the prompt's logits.
    fn start(&mut self, prefill: Prefill, logits: &[f32]) {
        let Prefill { job, cache, cached, .. } = prefill;
        self.metrics.cached_tokens.inc_by(cached as u64);
        let room = self.options.context - job.request.prompt.len();
        let max_tokens = job.request.max_tokens.min(room);
        let events = job.events.clone();
        let _ = events.send(Event::Started { cached_tokens: cached });
        match fork(job, cache, max_tokens, self.tokenizer) {
            Ok(mut sequences) => {
                if let Some(first) = sequences.first() {
                    self.metrics.first_token(first.shared.enqueued);
                }
                self.metrics.generated_tokens.inc_by(sequences.len() as u64);
                for sequence in &mut sequences {
                    sequence.advance(&mut logits.to_vec());
                }
                self.running.append(&mut sequences);
            }
            Err(error) => {
                let _ = events.send(Event::Failed(error));
            }
        }
    }

    /// One token of every sequence; those under one snapshot share the step.
    fn decode(&mut self) {
        let mut pending: Vec<&mut Sequence> =
            self.running.iter_mut().filter(|sequence| sequence.ended.is_none()).collect();
        while let Some(first) = pending.first() {
            let (config, runtime) = (first.shared.config.clone(), first.shared.runtime.clone());
            let _scope = config.enter();
            let (mut together, rest): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|sequence| {
                    sequence.shared.config == config && sequence.shared.runtime == runtime
                });
            for batch in together.chunks_mut(rows_together(&runtime)) {
                decode_batch(self.model, batch, &runtime, self.metrics);
            }
            pending = rest;
        }
    }

    fn report(&self) {
        let kv: usize = self.running.iter().map(|s| s.cache.bytes()).sum::<usize>()
            + self.prefilling.iter().map(|p| p.cache.bytes()).sum::<usize>();
        let metrics = self.metrics;
        metrics.kv_bytes.set(kv as i64);
        metrics.prefix_bytes.set(self.prefix.bytes() as i64);
        metrics.running.set(self.running.len() as i64);
        metrics.prefilling.set(self.prefilling.len() as i64);
        metrics.queued.set(self.queue.len() as i64);
    }
}

/// Rows of dense layers that are computed as if each were alone.
const DENSE_ROWS: usize = 16;

/// Rows for which weights are decoded on the way. More would be computed by other kernels, in
/// another order of additions, and an answer would depend on how many others were being given.
fn rows_together(runtime: &RuntimeOptions) -> usize {
    let measured = PREFILL_FROM.into_iter().fold(usize::MAX, usize::min);
    let prefill = runtime.kernel.prefill_from.unwrap_or(measured);
    prefill.min(runtime.kernel.expand_from).saturating_sub(1).clamp(1, DENSE_ROWS)
}

fn decode_batch(
    model: &Model,
    batch: &mut [&mut Sequence],
    runtime: &RuntimeOptions,
    metrics: &EngineMetrics,
) {
    let started = Instant::now();
    let tokens: Vec<[u32; 1]> = batch.iter().map(|s| [s.next_token()[0]]).collect();
    let mut steps: Vec<SequenceStep> = batch
        .iter_mut()
        .zip(&tokens)
        .map(|(sequence, tokens)| SequenceStep { cache: &mut sequence.cache, tokens })
        .collect();
    match model.forward(&mut steps, Logits::Last, runtime) {
        Ok(mut logits) => {
            // Counted before anybody hears of the tokens.
            metrics.generated_tokens.inc_by(batch.len() as u64);
            let rows = logits.par_chunks_mut(model.vocab());
            batch.par_iter_mut().zip(rows).for_each(|(sequence, row)| sequence.advance(row));
        }
        Err(error) => {
            let error = model_error(error);
            batch.iter_mut().for_each(|sequence| sequence.fail(error.clone()));
        }
    }
    metrics.step(batch.len(), started);
}

fn model_error(error: trelliq_model::ModelError) -> EngineError {
    EngineError::Model(error.to_string())
}
