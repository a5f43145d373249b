//! Work that goes on when no caller waits for it.

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

/// An exchange that, when nobody waits for it any more, is finished in the background: its connection
/// stays out of the pool until the reply is read, so it never comes back out of step.
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
        // Outside a runtime there is nobody left to use the connection either.
        if let (Some(exchange), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            runtime.spawn(exchange);
        }
    }
}

/// A task of which there is one at a time. Its runtime may be shut down under it.
pub(crate) struct Turn(Arc<AtomicBool>);

impl Turn {
    /// `None` where it is somebody else's.
    pub(crate) fn take(taken: &Arc<AtomicBool>) -> Option<Self> {
        (!taken.swap(true, Ordering::AcqRel)).then(|| Self(taken.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
