use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::time::{Sleep, sleep};
use tower_service::Service;

/// Waits for a request's turn, and then for the service to be ready for it.
pub(crate) struct Turn<S> {
    service: S,
    delay: Duration,
    /// Made at the first poll: a service may be called where there is no runtime yet.
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether the turn has come.
    come: bool,
}

impl<S> Turn<S> {
    /// The turn of a request that waits `delay` for it.
    pub(crate) const fn after(delay: Duration, service: S) -> Self {
        Self { service, delay, sleep: None, come: delay.is_zero() }
    }

    /// Whether the turn has come and the service, which [`into_service`](Self::into_service) gives, is ready.
    pub(crate) fn poll<R>(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>>
    where
        S: Service<R>,
    {
        if !self.come {
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep(self.delay)));
            ready!(sleep.as_mut().poll(cx));
            (self.come, self.sleep) = (true, None);
        }
        self.service.poll_ready(cx)
    }

    pub(crate) fn into_service(self) -> S {
        self.service
    }
}

/// A clone of `service`, to wait on. A ready service may hold what other requests need, such as a permit of an inner
/// concurrency limit, and must not hold it while this request waits for its turn: so that one is dropped.
#[expect(clippy::needless_pass_by_value, reason = "the ready service must not live on")]
pub(crate) fn unready<S: Clone>(service: S) -> S {
    service.clone()
}
