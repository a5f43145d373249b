//! Work that continues when no caller waits for it.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::runtime::Handle;

/// An exchange that is finished in the background if it is dropped. Its connection returns to the pool only after the
/// reply is read, so no other caller can read that reply.
pub(crate) struct Finish<F>(pub(crate) Option<Pin<Box<F>>>)
where
    F: Future<Output: Send> + Send + 'static;

impl<F> Future for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(exchange) = &mut self.0 else {
            panic!("Finish polled after completion");
        };
        let reply = ready!(exchange.as_mut().poll(cx));
        self.0 = None;
        Poll::Ready(reply)
    }
}

impl<F> Drop for Finish<F>
where
    F: Future<Output: Send> + Send + 'static,
{
    fn drop(&mut self) {
        // Outside a runtime the connection is not used again.
        if let (Some(exchange), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(exchange);
        }
    }
}

/// A guard for a task that runs once at a time. It is released even if the task's runtime is shut down.
pub(crate) struct Exclusive(Arc<AtomicBool>);

impl Exclusive {
    /// `None` if another task runs.
    pub(crate) fn acquire(running: &Arc<AtomicBool>) -> Option<Self> {
        (!running.swap(true, Ordering::AcqRel)).then(|| Self(running.clone()))
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
