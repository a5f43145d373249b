//! What makes the response to a rejected request.

#[cfg(not(feature = "axum"))]
use std::error::Error as StdError;

#[cfg(not(feature = "axum"))]
use bytes::Bytes;
use http::{Response, request::Parts};
#[cfg(not(feature = "axum"))]
use http_body::Body;

use super::{body::RejectionBody, rejection::Rejection};

/// Makes the response to a rejected request.
///
/// Implemented by [`ProblemDetails`](crate::response::ProblemDetails), the default, by
/// [`GrpcStatus`](crate::response::GrpcStatus), the default for gRPC, and by closures and functions that
/// return an `http::Response` with any body of bytes or, with the feature `axum`, anything that is
/// `IntoResponse`.
///
/// The mapper sets status, body and content type. The layer adds what the mapper did not set: the rejection's
/// status if the response has 200 and the request is not a gRPC call, `Retry-After` and the
/// [`RateLimitHeaders`](crate::RateLimitHeaders) of a denial, the `Retry-After` of a 503, and
/// `Cache-Control: no-store`. It removes the body in response to HEAD.
///
/// The mapper also answers a rejection that the service itself returns: see
/// [`Rejection::into_http`](crate::Rejection::into_http).
///
/// # Closures and functions
///
/// A closure must annotate the types of its arguments, or be passed to [`from_fn`]. A function that returns
/// `impl IntoResponse` must not capture the lifetimes of its arguments; in edition 2024, add `+ use<>`.
///
/// ```
/// # #[cfg(feature = "axum")]
/// # fn main() {
/// use axum::{Json, response::IntoResponse};
/// use http::request::Parts;
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, response};
///
/// fn slow_down(rejection: &Rejection, _: &Parts) -> impl IntoResponse + use<> {
///     Json(rejection.retry_after_seconds())
/// }
///
/// let policy = Policy::new("api", Quota::per_hour(1));
/// let layer = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"));
/// let layer = layer.response(slow_down);
/// let layer = layer.response(response::from_fn(|rejection, _| rejection.to_string()));
/// # drop(layer);
/// # }
/// # #[cfg(not(feature = "axum"))]
/// # fn main() {}
/// ```
///
/// # Your own 401
///
/// An [unknown identity](crate::ErrorKind::UnknownIdentity) is rejected with 401, for which HTTP requires a
/// `WWW-Authenticate` header. Add it here. [`source`](std::error::Error::source) of the rejection returns the
/// [`Error`](crate::Error), whose own `source` is the error that you passed to
/// [`with_source`](crate::Error::with_source).
///
/// ```
/// use http::{HeaderValue, Request, header::WWW_AUTHENTICATE, request::Parts};
/// use tower_ratelimit::{response::{ProblemDetails, ResponseMapper}, Error, ErrorKind, Rejection};
///
/// let mapper = |rejection: &Rejection, request: &Parts| {
///     let mut response = ProblemDetails::default().response(rejection, request);
///     if response.status() == 401 {
///         response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer error=\"invalid_token\""));
///     }
///     response
/// };
///
/// let (request, ()) = Request::get("/").body(())?.into_parts();
/// let unknown = Rejection::Unidentified(Error::new(ErrorKind::UnknownIdentity, "no account has this token"));
/// assert_eq!(mapper(&unknown, &request).headers()["www-authenticate"], "Bearer error=\"invalid_token\"");
/// # Ok::<(), http::Error>(())
/// ```
///
/// # Example
///
/// ```
/// use http::{Request, Response, request::Parts};
/// use tower::{Layer, ServiceExt};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer, Rejection};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(
///     MemoryStore::new(),
///     Policy::new("api", Quota::per_hour(1)),
///     Key::new("all"),
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
/// let rejection = service.clone().oneshot(request()?).await?;
/// assert_eq!(rejection.status(), 429);
/// assert_eq!(rejection.headers()["retry-after"], "3600");
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot make the response to a rejected request",
    note = "a closure must write the types of its arguments, `|rejection: &Rejection, request: &Parts| ...`, or be passed to \
            `tower_ratelimit::response::from_fn`",
    note = "and return an `http::Response` with a body of bytes or, with the feature `axum`, anything that is `IntoResponse`",
    note = "a function that returns `impl IntoResponse` must add `+ use<>`"
)]
pub trait ResponseMapper: Send + Sync + 'static {
    /// Builds the response to a rejected request; `request` is its head.
    fn response(&self, rejection: &Rejection, request: &Parts) -> Response<RejectionBody>;

    /// Whether [`response`](Self::response) reads more of the request than its method and content type.
    /// Defaults to `true`.
    ///
    /// If `true`, the layer keeps a copy of each admitted request's head, in case the service
    /// [rejects](crate::Rejection::into_http) the request. The copy includes the extensions, so their values
    /// are dropped only when the service has answered. If `false`, such a rejection is mapped with a head
    /// that has only the method HEAD, or the method and the content type of a gRPC call.
    fn reads_request(&self) -> bool {
        true
    }
}

/// The closure `map` as a [`ResponseMapper`]. Here its arguments need no types.
///
/// # Example
///
/// ```
/// use http::{Request, Response};
/// use tower_ratelimit::{Rejection, response::{ResponseMapper, from_fn}};
///
/// let mapper = from_fn(|rejection, _| {
///     let mut response = Response::new(String::from("slow down"));
///     *response.status_mut() = rejection.status();
///     response
/// });
/// let (request, ()) = Request::get("/").body(())?.into_parts();
/// assert_eq!(mapper.response(&Rejection::Blocked, &request).status(), 429);
/// # Ok::<(), http::Error>(())
/// ```
#[must_use = "a mapper does nothing until a layer has it"]
pub const fn from_fn<F, R>(map: F) -> F
where
    F: Fn(&Rejection, &Parts) -> R + Send + Sync + 'static,
{
    map
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

/// An `http::Response` with a body of bytes is `IntoResponse` too.
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
