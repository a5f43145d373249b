use std::{
    error::Error as StdError,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_LENGTH},
    request::Parts,
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, combinators::UnsyncBoxBody};

use super::{
    grpc::{bound, is_grpc},
    headers::{Headers, decorate_rejection, insert},
    rejection::Rejection,
};

/// Makes the response to a request that is not let through.
///
/// Implemented by [`ProblemDetails`](crate::response::ProblemDetails), the default, by
/// [`GrpcStatus`](crate::response::GrpcStatus), the default for gRPC, and by closures that return any
/// `http::Response<impl Body>` or, with the feature `axum`, anything that is `IntoResponse`.
///
/// The mapper decides status, body and content type. What must hold whatever it says is added by the
/// layer afterwards, where the mapper did not set it: the rejection's status in place of 200,
/// `Retry-After` and the [`Headers`] on a refusal, `Cache-Control: no-store`, no content for
/// HEAD, and the [`Decision`](crate::Decision) in the response's extensions.
///
/// # Example
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer, Rejection};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(
///     MemoryStore::new(),
///     Policy::new("api", Quota::per_hour(1)),
///     Constant::new("all"),
/// )
/// .response(|rejection: &Rejection, _: &Parts| {
///     let mut response = Response::new(String::from("slow down"));
///     *response.status_mut() = rejection.status();
///     response
/// });
/// let service = layer.layer(tower::service_fn(|_: Request<String>| async {
///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
/// }));
///
/// let request = || Request::get("/").body(String::new());
/// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
/// let refused = service.clone().oneshot(request()?).await?;
/// assert_eq!(refused.status(), 429);
/// assert_eq!(refused.headers()["retry-after"], "3600");
/// # Ok(())
/// # }
/// ```
pub trait ResponseMapper: Send + Sync + 'static {
    /// The response to the request with the head `request`, which is not let through because of
    /// `rejection`.
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody>;
}

#[cfg(not(feature = "axum"))]
impl<F, B> ResponseMapper for F
where
    F: Fn(&Rejection, &Parts) -> Response<B> + Send + Sync + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        self(rejection, request).map(RejectionBody::new)
    }
}

/// `Response` of any body of bytes is `IntoResponse` too.
#[cfg(feature = "axum")]
impl<F, R> ResponseMapper for F
where
    F: Fn(&Rejection, &Parts) -> R + Send + Sync + 'static,
    R: axum::response::IntoResponse,
{
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody> {
        self(rejection, request).into_response().map(RejectionBody::new)
    }
}

/// The response of `mapper`, with everything that must hold whatever the mapper does.
pub(crate) fn refuse(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &Parts,
    headers: &Headers,
) -> Response<RejectionBody> {
    let mut response = mapper.response(rejection, request);
    if response.status() == StatusCode::OK && !is_grpc(request) {
        // What a mapper that says nothing of a status leaves. A refusal that passes for a success is one that
        // no client notices.
        *response.status_mut() = rejection.status();
    }
    if let Some(decision) = rejection.decision() {
        decorate_rejection(&mut response, decision, headers);
        if is_grpc(request) {
            bound(response.headers_mut());
        }
    }
    let fields = response.headers_mut();
    // Whatever the status: it is about one client at one moment, and some statuses are cached unasked.
    if !fields.contains_key(CACHE_CONTROL) {
        insert(fields, CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    if request.method == Method::HEAD {
        // What GET would be answered with, but for the content.
        if let Some(length) = response.body().size_hint().exact() {
            insert(response.headers_mut(), CONTENT_LENGTH, length);
        }
        *response.body_mut() = RejectionBody::new(http_body_util::Empty::new());
    }
    response
}

/// The body of a response that stands in for the service's: any body of bytes.
///
/// What a type of one's own that implements [`ResponseMapper`] returns:
///
/// ```
/// use http::{Response, request::Parts};
/// use tower_ratelimit::{response::{RejectionBody, ResponseMapper}, Rejection};
///
/// struct Curt;
///
/// impl ResponseMapper for Curt {
///     fn response(&self, rejection: &Rejection, _: &Parts) -> Response<RejectionBody> {
///         let mut response = Response::new(RejectionBody::new(String::from("no")));
///         *response.status_mut() = rejection.status();
///         response
///     }
/// }
/// ```
pub struct RejectionBody(UnsyncBoxBody<Bytes, Box<dyn StdError + Send + Sync>>);

impl RejectionBody {
    /// `body`, whatever its type.
    pub fn new<B>(body: B) -> Self
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        Self(body.map_err(Into::into).boxed_unsync())
    }
}

impl Body for RejectionBody {
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

impl fmt::Debug for RejectionBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RejectionBody").finish_non_exhaustive()
    }
}
