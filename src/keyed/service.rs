//! The service of a keyed layer.

use std::{
    error::Error as StdError,
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::sleep;
use tower_service::Service;

use crate::{
    base::Answer,
    decision::Charge,
    layer::unready,
    limiter::{Limiter, WaitState},
    response::Rejection,
};

/// A service behind a rate limit, made by [`KeyedRateLimitLayer`](super::KeyedRateLimitLayer), which has an
/// example.
///
/// Its future resolves to the inner service's response, or to a rejection. If it is dropped before the
/// decision, the request may still be charged.
pub struct KeyedRateLimit<S, R> {
    pub(super) inner: S,
    pub(super) limiter: Limiter,
    pub(super) charges: Charges<R>,
    pub(super) patience: Duration,
}

type BoxError = Box<dyn StdError + Send + Sync>;

/// Returns the charges of a request.
pub(super) type Charges<R> = Arc<dyn Fn(&R) -> Answer<Vec<Charge>> + Send + Sync>;

impl<S, R> KeyedRateLimit<S, R> {
    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the rate limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, R> Service<R> for KeyedRateLimit<S, R>
where
    S: Service<R, Future: Send, Error: Into<BoxError>> + Clone + Send + 'static,
    R: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = ResponseFuture<S::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // Call the service that is ready. Its clone, which may not be ready, stays behind.
        let clone = self.inner.clone();
        let mut service = mem::replace(&mut self.inner, clone);
        let (limiter, patience) = (self.limiter.clone(), self.patience);
        let charges = (self.charges)(&request);
        ResponseFuture(Box::pin(async move {
            let charges = charges.await.map_err(Rejection::Unidentified)?;
            let (mut waited, mut is_ready) = (WaitState::new(patience), true);
            // A ready service must not be kept during a wait.
            let waits = || (service, is_ready) = (service.clone(), false);
            let decision = limiter.check_until(&charges, &mut waited, waits).await;
            let decision = decision.map_err(Rejection::Unavailable)?;
            if decision.is_denied() {
                return Err(Rejection::Denied(decision).into());
            }
            if let Some(delay) = decision.delay().filter(|delay| !delay.is_zero()) {
                (service, is_ready) = (unready(service), false);
                sleep(delay).await;
            }
            if !is_ready {
                poll_fn(|cx| service.poll_ready(cx)).await.map_err(Into::into)?;
            }
            let response = service.call(request);
            drop(service);
            // The decision holds the permit until the response.
            let response = response.await.map_err(Into::into);
            drop(decision);
            response
        }))
    }
}

/// The response future of [`KeyedRateLimit`](super::KeyedRateLimit). It resolves to the inner service's
/// response, or to a rejection.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<T>(Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>);

impl<T> Future for ResponseFuture<T> {
    type Output = Result<T, BoxError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.as_mut().poll(cx)
    }
}

opaque_debug!(ResponseFuture<T>);

// Written out because derives would require the traits of `R`.

impl<S: Clone, R> Clone for KeyedRateLimit<S, R> {
    fn clone(&self) -> Self {
        let Self { inner, limiter, charges, patience } = self;
        let (inner, limiter, charges) = (inner.clone(), limiter.clone(), charges.clone());
        Self { inner, limiter, charges, patience: *patience }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for KeyedRateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimit").field("inner", &self.inner).finish_non_exhaustive()
    }
}
