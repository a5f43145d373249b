//! A service that is called after a delay.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};
use tower_service::Service;

/// Waits for the delay of an admitted request, and then for the service to be ready.
pub(super) struct DelayedService<S> {
    service: S,
    delay: Duration,
    /// Created at the first poll, because a service may be called outside a runtime.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether the delay is over.
    elapsed: bool,
}

impl<S> DelayedService<S> {
    /// Waits `delay`, then for `service`.
    pub(super) const fn after(delay: Duration, service: S) -> Self {
        Self { service, delay, sleep: None, elapsed: delay.is_zero() }
    }

    /// Ready when the delay is over and the service is ready. Then call [`into_service`](Self::into_service).
    pub(super) fn poll<R>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<R>,
    {
        if !self.elapsed {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(self.delay)));
            ready!(sleep.as_mut().poll(cx));
            (self.elapsed, self.sleep) = (true, None);
        }
        self.service.poll_ready(cx)
    }

    pub(super) fn into_service(self) -> S {
        self.service
    }
}

/// Replaces a ready service by a clone that is not ready. A ready service may hold what other requests need,
/// such as a permit of an inner concurrency limit, so it must not be kept during a wait.
#[expect(clippy::redundant_clone, reason = "a clone of a ready service is not ready")]
pub(crate) fn unready<S: Clone>(service: S) -> S {
    service.clone()
}
