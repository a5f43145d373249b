//! A layer that keeps request bodies for retries.

use std::{
    mem,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower::{
    Layer, Service,
    retry::{Retry, future},
    util::MapRequest,
};

use crate::{BufferedBody, ReplayBody, RetryPolicy};

/// Retries rejected requests whose bodies are not `Clone`: a layer around a tonic `Channel`, or around a
/// client of `http_body_util`'s boxed bodies.
///
/// It keeps each request's body until the response arrives, and sends it again if the [`RetryPolicy`]
/// retries. A body is kept if all of it is ready when the request is sent, and if it is within the
/// [bound](Self::max_body). Unary and server streaming calls of tonic meet this, and so does a client's
/// stream if all its messages are ready. A request with any other body, such as a stream with an unknown end,
/// is sent once, and its response is returned.
///
/// The service must be `Clone`, as a `Channel` is. All services of one layer, and of its clones, share the
/// policy's [budget](RetryPolicy::budget).
///
/// # Example
///
#[cfg_attr(not(feature = "tonic"), doc = "```ignore")]
#[cfg_attr(feature = "tonic", doc = "```")]
/// use std::sync::atomic::{AtomicU32, Ordering};
///
/// use bytes::Bytes;
/// use http::{Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use tokio::time::Instant;
/// use tonic::{Status, body::Body};
/// use tower::{Service, ServiceBuilder, service_fn};
/// use tower_ratelimit_retry::{BufferedRetryLayer, RetryPolicy};
///
/// // The clock is tokio's paused one: the example takes no time.
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// static CALLS: AtomicU32 = AtomicU32::new(0);
/// // In a program: `Channel::from_static("http://greeter:50051").connect_lazy()`.
/// let channel = service_fn(async |request: Request<Body>| {
///     assert_eq!(request.into_body().collect().await?.to_bytes(), "hello");
///     let mut response = Response::new(Body::empty());
///     if CALLS.fetch_add(1, Ordering::Relaxed) == 0 {
///         response = Status::resource_exhausted("over the limit").into_http();
///         response.headers_mut().insert("grpc-retry-pushback-ms", 20_000.into());
///     }
///     Ok::<_, Status>(response)
/// });
///
/// // In a program, a generated client sends the requests: `GreeterClient::new(channel)`.
/// let mut channel =
///     ServiceBuilder::new().layer(BufferedRetryLayer::new(RetryPolicy::new())).service(channel);
/// let start = Instant::now(); let request =
/// Request::post("/greeter.Greeter/SayHello").body(Body::new(Full::new(Bytes::from("hello"))))?; let response
/// = channel.call(request).await?; assert!(!response.headers().contains_key("grpc-status"));
/// assert_eq!((CALLS.load(Ordering::Relaxed), start.elapsed().as_secs()), (2, 20));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BufferedRetryLayer {
    policy: RetryPolicy,
    max_body: usize,
}

impl BufferedRetryLayer {
    /// Creates the layer.
    #[must_use]
    pub const fn new(policy: RetryPolicy) -> Self {
        Self { policy, max_body: 1 << 20 }
    }

    /// The largest body that is kept, in bytes. Defaults to 1 MiB, as in gRPC's Java client.
    ///
    /// A body of more than 1,024 frames is not kept either, because each frame takes memory beside its bytes.
    /// tonic puts up to 32 KiB of messages that are ready into one frame.
    #[must_use]
    pub const fn max_body(mut self, bytes: usize) -> Self {
        self.max_body = bytes;
        self
    }
}

impl<S> Layer<S> for BufferedRetryLayer {
    type Service = BufferedRetry<S>;

    fn layer(&self, inner: S) -> BufferedRetry<S> {
        BufferedRetry { inner, layer: self.clone() }
    }
}

/// The service of [`BufferedRetryLayer`].
#[derive(Clone, Debug)]
pub struct BufferedRetry<S> {
    inner: S,
    layer: BufferedRetryLayer,
}

impl<S> BufferedRetry<S> {
    /// The inner service.
    pub const fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to change it.
    pub const fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service, without the retries.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, R> Service<Request<B>> for BufferedRetry<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
    B: BufferedBody,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let request = request.map(|body| ReplayBody::new(body, self.layer.max_body));
        // The service that is ready, not its clone, must be called.
        let clone = self.inner.clone();
        let ready = mem::replace(&mut self.inner, clone);
        let rebuild: fn(Request<ReplayBody<B>>) -> _ = |request| request.map(B::rebuild);
        Retry::new(self.layer.policy.clone(), MapRequest::new(ready, rebuild)).call(request)
    }
}

/// The response future of [`BufferedRetry`](crate::BufferedRetry). It resolves to the last try's response or
/// error.
pub type ResponseFuture<S, B> = future::ResponseFuture<
    RetryPolicy,
    MapRequest<S, fn(Request<ReplayBody<B>>) -> Request<B>>,
    Request<ReplayBody<B>>,
>;
