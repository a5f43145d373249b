//! [`BufferBodyLayer`]: the builder and the layer.

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Response, request::Parts};
use http_body::Body;
use tower_layer::Layer;
use tower_ratelimit::response::RejectionBody;

use super::{
    body_bytes::BodyBytes, rejection::BodyRejection, service::BufferBody, settings::Settings, total::Total,
};

/// A layer that reads the body of each request into memory before it calls the service, so that key
/// extractors, costs and policy sources of the layers behind it can read it. See the [module](super) for an
/// example.
///
/// | the request has | what happens |
/// |---|---|
/// | no body | the service is called, with empty [`BodyBytes`] |
/// | a body that is complete in time and within the bounds | the service is called, with the bytes in [`BodyBytes`] |
/// | an announced length above the bound | 413; the body is not read, and no `100 Continue` is sent |
/// | a body that turns out to be larger | 413 as soon as it is |
/// | a body that is not complete in time | 408 |
/// | more bytes than all buffers together may have | 503 with `Retry-After`, immediately |
/// | a body that fails, or that [`parse_with`](Self::parse_with) cannot read | 400. Otherwise a client could evade a cost with such a body |
/// | a compressed body, or is a gRPC call | the service is called, the body passes through unread, and [`BodyBytes`] has the [reason](super::Unread) |
///
/// The inner service gets the same bytes, in one frame, and the same trailers. If the client leaves, the
/// buffer is dropped.
///
/// Clones of the layer, and all services made of them, share one [total](Self::max_total_bytes).
#[derive(Clone)]
#[must_use = "a layer does nothing until it is added to a service"]
pub struct BufferBodyLayer {
    settings: Arc<Settings>,
}

impl BufferBodyLayer {
    /// Buffers bodies of at most `max_bytes`. Trailers count, with 32 bytes more for each.
    pub fn new(max_bytes: usize) -> Self {
        Self { settings: Arc::new(Settings::new(max_bytes)) }
    }

    /// Sets the time in which a body must be complete. A later body is answered with 408. Defaults to 10
    /// seconds.
    ///
    /// The time begins when the layer first waits for the body. It is for the whole body, so it also ends one
    /// that arrives a byte at a time.
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.timeout = timeout)
    }

    /// Sets the most bytes that all buffers of this layer and its clones have together. A body that needs more
    /// is answered with 503, without waiting for other buffers. At least the bound on one body. Defaults to 64
    /// MiB.
    ///
    /// A buffer grows as bytes arrive, and counts with its capacity: announced bytes do not count. It counts
    /// until the last clone of its bytes is dropped, so until the service has dropped the request and what it
    /// kept of the body. While a buffer grows, its old memory exists for a moment too.
    pub fn max_total_bytes(self, bytes: usize) -> Self {
        self.with(|settings| settings.total = Total::new(bytes.max(settings.max_bytes)))
    }

    /// Rejects requests whose body is not read, with 415: compressed ones and gRPC calls. Defaults to passing
    /// them through, with the [reason](super::Unread) in their [`BodyBytes`].
    ///
    /// Use it if a cost reads the body, because a cost cannot fail, and the client chooses its headers. To read
    /// compressed bodies, put tower-http's `RequestDecompressionLayer` in front of this layer, which then
    /// bounds the bytes after decompression.
    pub fn reject_unread(self) -> Self {
        self.with(|settings| settings.rejects_unread = true)
    }

    /// Calls `parse` with the body of each request, once, and puts the value into the extensions of the
    /// request. If it fails, the request is rejected: with 400 and the text of the error, or with 415 if the
    /// body was not read. Can be called several times, for values of different types. Defaults to no function.
    ///
    /// Reject a body that a rule cannot read but the service might. Otherwise it evades the rule. The function
    /// also gets [empty](BodyBytes::get) bodies.
    ///
    /// It runs before the inner service is called, so its time and memory should be proportional to the length
    /// of the body at most. Its value is not part of the [total](Self::max_total_bytes).
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use http_body_util::BodyExt;
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer, RequestBody};
    ///
    /// #[derive(Clone)]
    /// struct Lines(usize);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let lines = |body: &BodyBytes| {
    ///     let text = std::str::from_utf8(body.get()?).map_err(|_| "the body of the request is not UTF-8")?;
    ///     Ok::<_, Box<dyn std::error::Error>>(Lines(text.lines().count()))
    /// };
    /// let service = BufferBodyLayer::new(1_024).parse_with(lines).layer(tower::service_fn(
    ///     |request: Request<RequestBody<String>>| async move {
    ///         let lines = request.extensions().get::<Lines>().map(|lines| lines.0);
    ///         Ok::<_, std::convert::Infallible>(Response::new(format!("{lines:?}")))
    ///     },
    /// ));
    /// let response = service.oneshot(Request::post("/").body(String::from("one\ntwo"))?).await?;
    /// assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "Some(2)");
    /// # Ok(())
    /// # }
    /// ```
    pub fn parse_with<T, E>(self, parse: impl Fn(&BodyBytes) -> Result<T, E> + Send + Sync + 'static) -> Self
    where
        T: Clone + Send + Sync + 'static,
        E: fmt::Display,
    {
        self.with(|settings| {
            settings.parsers.push(Arc::new(move |body, extensions| {
                extensions.insert(parse(body).map_err(|error| error.to_string())?);
                Ok(())
            }));
        })
    }

    /// Sets the response to requests that this layer rejects. Defaults to
    /// [`BodyRejection::to_problem`].
    ///
    /// The layer adds what the function did not set: the rejection's status if the response has 200,
    /// `Retry-After` of a 503, `Accept-Encoding: identity` of a 415, and `Cache-Control: no-store`. Over
    /// HTTP/1, it adds `Connection: close` if the rest of the body is still on the connection.
    pub fn response<B>(
        self,
        response: impl Fn(&BodyRejection, &Parts) -> Response<B> + Send + Sync + 'static,
    ) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        self.with(|settings| {
            settings.response =
                Arc::new(move |rejection, request| response(rejection, request).map(RejectionBody::new));
        })
    }

    /// The bytes that all buffers of this layer and its clones have now: a gauge, and for tests.
    #[must_use]
    pub fn buffered_bytes(&self) -> usize {
        self.settings.total.used()
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S> Layer<S> for BufferBodyLayer {
    type Service = BufferBody<S>;

    fn layer(&self, inner: S) -> Self::Service {
        BufferBody::new(inner, self.settings.clone())
    }
}

impl fmt::Debug for BufferBodyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
