//! The snapshot that a thread or a future runs under.

use crate::Config;
use pin_project_lite::pin_project;
use std::cell::RefCell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

thread_local! {
    /// One stack for threads and futures alike, so that either nests within the other.
    static SCOPES: RefCell<Vec<Config>> = const { RefCell::new(Vec::new()) };
}

/// While it lives, its snapshot is the current one of this thread; then the outer one is again.
#[derive(Debug)]
#[must_use = "the scope ends where this is dropped"]
pub struct Scope {
    depth: usize,
    /// Scopes end on the thread that they began on.
    not_send: PhantomData<*const ()>,
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.truncate(self.depth));
    }
}

impl Config {
    /// The snapshot of the innermost scope; outside of any, one that holds nothing.
    pub fn current() -> Config {
        SCOPES.with_borrow(|scopes| scopes.last().cloned()).unwrap_or_default()
    }

    /// Makes this snapshot the current one of the thread until the returned value is dropped.
    pub fn enter(&self) -> Scope {
        SCOPES.with_borrow_mut(|scopes| {
            scopes.push(self.clone());
            Scope { depth: scopes.len() - 1, not_send: PhantomData }
        })
    }

    /// Runs `future` under this snapshot: task-local, on whatever threads it is polled.
    pub fn scope<F: Future>(self, future: F) -> Scoped<F> {
        Scoped { config: self, future }
    }

    /// Wraps a function so that it runs under the snapshot that is current here, for work that is
    /// handed to another thread.
    pub fn carry<T>(function: impl FnOnce() -> T) -> impl FnOnce() -> T {
        let config = Config::current();
        move || {
            let _scope = config.enter();
            function()
        }
    }
}

pin_project! {
    /// A future under a snapshot, made by [`Config::scope`].
    #[derive(Debug)]
    pub struct Scoped<F> {
        config: Config,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context) -> Poll<F::Output> {
        let this = self.project();
        let _scope = this.config.enter();
        this.future.poll(context)
    }
}
