//! Requests that wait for their turn: first come, first served, and only so many.

use super::request::{EngineError, Event, Request};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::UnboundedSender;

/// A request with where its events go.
#[derive(Debug)]
pub(super) struct Job {
    pub request: Request,
    pub events: UnboundedSender<Event>,
    pub enqueued: Instant,
}

impl Job {
    /// Nobody listens any more.
    pub fn cancelled(&self) -> bool {
        self.events.is_closed()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Open,
    /// No new requests; those that have begun or wait are finished.
    Draining,
    /// Nothing is finished any more.
    Aborting,
}

#[derive(Debug)]
struct State {
    waiting: VecDeque<Job>,
    phase: Phase,
}

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

impl Queue {
    pub fn new(limit: usize) -> Self {
        let state = State { waiting: VecDeque::new(), phase: Phase::Open };
        Self { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Errors when as many requests wait as may, or when the engine is stopping.
    pub fn push(&self, job: Job) -> Result<(), EngineError> {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return Err(EngineError::Stopping);
        }
        if state.waiting.len() >= self.limit {
            state.waiting.retain(|job| !job.cancelled());
        }
        let waiting = state.waiting.len();
        if waiting >= self.limit {
            return Err(EngineError::QueueFull { waiting, retry_after: Duration::from_secs(1) });
        }
        state.waiting.push_back(job);
        self.changed.notify_one();
        Ok(())
    }

    /// The request whose turn it is, if it needs no more than `slots` sequences. A larger one keeps
    /// its place and is not overtaken, so that it is never starved.
    pub fn pop(&self, slots: usize) -> Option<Job> {
        let mut state = self.lock();
        while state.waiting.front().is_some_and(Job::cancelled) {
            state.waiting.pop_front();
        }
        let fits = state.waiting.front()?.request.choices.len() <= slots;
        if fits { state.waiting.pop_front() } else { None }
    }

    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Waits for a request; false once there will be none.
    pub fn wait(&self) -> bool {
        let state = self.lock();
        let idle = |state: &mut State| state.phase == Phase::Open && state.waiting.is_empty();
        let state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        state.phase == Phase::Open || (state.phase == Phase::Draining && !state.waiting.is_empty())
    }

    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Ends everything; those who wait are told.
    pub fn abort(&self) {
        self.advance(Phase::Aborting);
        for job in self.lock().waiting.drain(..) {
            let _ = job.events.send(Event::Failed(EngineError::Stopping));
        }
    }

    pub fn aborting(&self) -> bool {
        self.lock().phase == Phase::Aborting
    }

    pub fn open(&self) -> bool {
        self.lock().phase == Phase::Open
    }

    fn advance(&self, phase: Phase) {
        let mut state = self.lock();
        state.phase = state.phase.max(phase);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
    use trelliq_config::Config;
    use trelliq_model::{RuntimeOptions, SamplingOptions};

    fn job(id: u32, choices: usize) -> (Job, UnboundedReceiver<Event>) {
        let (events, receiver) = unbounded_channel();
        let request = Request {
            prompt: vec![id],
            choices: vec![SamplingOptions::default(); choices],
            max_tokens: 1,
            stop: Vec::new(),
            adjust: Default::default(),
            logprobs: None,
            constraint: None,
            config: Config::default(),
            runtime: RuntimeOptions::default(),
        };
        (Job { request, events, enqueued: Instant::now() }, receiver)
    }

    fn popped(queue: &Queue, slots: usize) -> Option<u32> {
        queue.pop(slots).map(|job| job.request.prompt[0])
    }

    #[test]
    fn first_come_first_served_and_a_large_request_is_not_overtaken() {
        let queue = Queue::new(4);
        let jobs: Vec<_> = [(0, 1), (1, 3), (2, 1)].map(|(id, n)| job(id, n)).into();
        let receivers: Vec<_> = jobs
            .into_iter()
            .map(|(job, receiver)| {
                queue.push(job).unwrap();
                receiver
            })
            .collect();
        assert_eq!(popped(&queue, 2), Some(0));
        assert_eq!(popped(&queue, 2), None);
        assert_eq!(popped(&queue, 3), Some(1));
        assert_eq!(popped(&queue, 3), Some(2));
        drop(receivers);
    }

    #[test]
    fn the_limit_counts_only_those_who_still_listen() {
        let queue = Queue::new(2);
        let (first, first_receiver) = job(0, 1);
        let (second, _second_receiver) = job(1, 1);
        let (third, _third_receiver) = job(2, 1);
        let (fourth, _fourth_receiver) = job(3, 1);
        queue.push(first).unwrap();
        queue.push(second).unwrap();
        assert!(matches!(queue.push(third), Err(EngineError::QueueFull { waiting: 2, .. })));
        drop(first_receiver);
        queue.push(fourth).unwrap();
        assert_eq!(popped(&queue, 1), Some(1));
        assert_eq!(popped(&queue, 1), Some(3));
    }

    #[test]
    fn draining_refuses_new_requests_and_aborting_tells_those_who_wait() {
        let queue = Queue::new(2);
        let (waiting, mut receiver) = job(0, 1);
        queue.push(waiting).unwrap();
        queue.drain();
        assert!(queue.wait());
        assert_eq!(queue.push(job(1, 1).0), Err(EngineError::Stopping));
        queue.abort();
        assert!(!queue.wait() && queue.aborting());
        assert_eq!(receiver.try_recv(), Ok(Event::Failed(EngineError::Stopping)));
    }
}
