use std::{
    fmt, mem,
    sync::Arc,
    task::{Context, Poll},
};

use tower_service::Service;

use super::{
    future::{BoxError, KeyedResponseFuture},
    rule::Config,
};

/// A service behind a rate limit, made by [`KeyedRateLimitLayer`](super::KeyedRateLimitLayer), which has an example.
pub struct KeyedRateLimit<S, R> {
    inner: S,
    config: Arc<Config<R>>,
}

impl<S, R> KeyedRateLimit<S, R> {
    pub(super) const fn new(inner: S, config: Arc<Config<R>>) -> Self {
        Self { inner, config }
    }
}

impl<S, R> Service<R> for KeyedRateLimit<S, R>
where
    S: Service<R> + Clone,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = KeyedResponseFuture<S, R>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: R) -> Self::Future {
        // Call the service that is ready. Its clone, which may not be ready, stays behind.
        let clone = self.inner.clone();
        let service = mem::replace(&mut self.inner, clone);
        KeyedResponseFuture::new(service, request, self.config.clone())
    }
}

// Written out because derives would require the traits of `R`.

impl<S: Clone, R> Clone for KeyedRateLimit<S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), config: self.config.clone() }
    }
}

impl<S: fmt::Debug, R> fmt::Debug for KeyedRateLimit<S, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimit").field("inner", &self.inner).field("config", &self.config).finish()
    }
}
