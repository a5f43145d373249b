use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use crate::{
    layer::{ResponseBody, config::Config, future::ResponseFuture},
    util::per_thread::PerThread,
};

/// A service behind a rate limit. Made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the inner service is. Whether a request is admitted is found out in `call`, because
/// only then is it known who asks.
///
/// See [`RateLimitLayer`](crate::RateLimitLayer) and the [crate docs](crate) for examples.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    config: Arc<PerThread<Config>>,
}

impl<S> RateLimit<S> {
    pub(super) const fn new(inner: S, config: Arc<PerThread<Config>>) -> Self {
        Self { inner, config }
    }

    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the limit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, ReqBody, ResBody> Service<Request<ReqBody>> for RateLimit<S>
where
    S: Service<Request<ReqBody>, Response = Response<ResBody>> + Clone,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, ReqBody>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqBody>) -> Self::Future {
        // The service that was driven to readiness is the one to call; its clone, which may not be ready,
        // stays behind to be driven again.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        ResponseFuture::new(ready, request, self.config.here().clone())
    }
}

#[cfg(feature = "tonic")]
impl<S: tonic::server::NamedService> tonic::server::NamedService for RateLimit<S> {
    const NAME: &'static str = S::NAME;
}
