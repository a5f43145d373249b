//! A mapper's response, with everything that must hold for any mapper.

use std::mem;

use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode,
    header::{
        AGE, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
        CONTENT_LOCATION, CONTENT_RANGE, CONTENT_TYPE, ETAG, EXPIRES, LAST_MODIFIED, RETRY_AFTER, TRAILER,
        TRANSFER_ENCODING,
    },
    request::Parts,
    response,
};
use http_body::Body as _;

use super::{
    body::RejectionBody,
    head::is_grpc,
    headers::{HeaderWriter, RETRY_AFTER_MS, add_wait, insert_new},
    mapper::ResponseMapper,
    problem::ProblemDetails,
    rejection::Rejection,
};

/// The response to a request that the layer rejects.
pub(crate) fn reject(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &Parts,
    headers: &HeaderWriter,
) -> Response<RejectionBody> {
    let mut response = mapped(mapper, rejection, request, headers.headers().millis());
    if let Some(decision) = rejection.decision() {
        headers.decorate_rejection(&mut response, decision, request);
    }
    finish(&mut response, request);
    response
}

/// The response to a request that the service has rejected with the response `returned`: without the headers
/// of the layer. A status other than the rejection's, and headers that do not describe the body, are the
/// service's own and kept.
pub(crate) fn replace(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &Parts,
    returned: response::Parts,
    in_millis: bool,
) -> Response<RejectionBody> {
    let mut response = mapped(mapper, rejection, request, in_millis);
    if returned.status != rejection.status() && !is_grpc(request) {
        *response.status_mut() = returned.status;
    }
    let headers = response.headers_mut();
    // A cache follows the directives that are for it alone (RFC 9213), such as `CDN-Cache-Control`, before
    // `Cache-Control`.
    let is_replaced = |name: &HeaderName| REPLACED.contains(name) || name.as_str().ends_with("cache-control");
    let is_own = |name: &&HeaderName| !is_replaced(name) && !headers.contains_key(*name);
    for name in returned.headers.keys().filter(is_own).collect::<Vec<_>>() {
        for value in returned.headers.get_all(name) {
            let _ = headers.try_append(name, value.clone());
        }
    }
    if let Rejection::Denied(decision) = rejection {
        add_wait(headers, decision.advised_wait(), in_millis);
    }
    finish(&mut response, request);
    // The mapper's own extensions win.
    let mut extensions = returned.extensions;
    extensions.extend(mem::take(response.extensions_mut()));
    *response.extensions_mut() = extensions;
    if let Some(decision) = rejection.decision() {
        response.extensions_mut().insert(decision.clone());
    }
    response
}

/// Headers that describe the replaced body, that let a cache keep the response, or that the layer sets.
const REPLACED: [HeaderName; 23] = [
    AGE,
    CACHE_CONTROL,
    CONTENT_LOCATION,
    EXPIRES,
    HeaderName::from_static("edge-control"),
    HeaderName::from_static("surrogate-control"),
    HeaderName::from_static("x-accel-expires"),
    RETRY_AFTER_MS,
    CONTENT_DISPOSITION,
    CONTENT_ENCODING,
    CONTENT_LANGUAGE,
    CONTENT_LENGTH,
    CONTENT_RANGE,
    CONTENT_TYPE,
    ETAG,
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("digest"),
    HeaderName::from_static("repr-digest"),
    LAST_MODIFIED,
    RETRY_AFTER,
    TRAILER,
    TRANSFER_ENCODING,
    HeaderName::from_static("content-md5"),
];

fn mapped(
    mapper: &dyn ResponseMapper,
    rejection: &Rejection,
    request: &Parts,
    in_millis: bool,
) -> Response<RejectionBody> {
    // The wait is chosen first, so that the mapper's clones of the rejection have the wait of the header.
    let wait = if let Rejection::Unavailable(_) = rejection { rejection.wait() } else { None };
    let mut response = mapper.response(rejection, request);
    // A mapper that returns the rejection's own response leaves it. An outer layer would map it again.
    response.extensions_mut().remove::<Rejection>();
    if response.status() == StatusCode::OK && !is_grpc(request) {
        // The mapper has set no status. A client would take the rejection for a success.
        *response.status_mut() = rejection.status();
    }
    if response.status() == StatusCode::SERVICE_UNAVAILABLE {
        add_wait(response.headers_mut(), wait, in_millis);
    }
    response
}

fn finish(response: &mut Response<RejectionBody>, request: &Parts) {
    // The response is about one client at one moment, and caches keep some statuses by default.
    insert_new(response.headers_mut(), CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if request.method == Method::HEAD {
        // The length of the content that GET would get.
        if let Some(length) = response.body().size_hint().exact() {
            let _ = response.headers_mut().try_insert(CONTENT_LENGTH, length.into());
        }
        *response.body_mut() = RejectionBody::empty();
    }
}

impl Rejection {
    /// The response of [`ProblemDetails`], with `Retry-After`: for a service that rejects a request itself.
    ///
    /// The innermost layer in front of the service replaces it with the response of its
    /// [`ResponseMapper`](crate::response::ResponseMapper), and adds its
    /// [`RateLimitHeaders`](crate::RateLimitHeaders). Another status and further headers that the service
    /// sets are kept. With the feature `axum`, a handler returns the rejection itself; it becomes this
    /// response.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response, request::Parts};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer, Rejection, response::RejectionBody};
    ///
    /// /// Exports cost more than the layer has charged.
    /// async fn export(request: Request<String>) -> Result<Response<RejectionBody>, std::convert::Infallible> {
    ///     let limiter = Limiter::from_extensions(request.extensions()).unwrap();
    ///     let exports = Policy::new("exports", Quota::per_hour(1));
    ///     let charged = limiter.check(&exports, &Key::new("alice"), 1).await;
    ///     Ok(match charged.map_err(Rejection::from).and_then(|decision| decision.into_result()) {
    ///         Ok(_) => Response::new(RejectionBody::new(String::from("exported"))),
    ///         Err(rejection) => rejection.into_http(),
    ///     })
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::new("api", Quota::per_minute(100));
    /// let service = RateLimitLayer::new(MemoryStore::new(), policy, Key::new("all"))
    ///     .response(|rejection: &Rejection, parts: &Parts| Response::new(format!("{}: slow down", parts.uri)))
    ///     .layer(tower::service_fn(export));
    /// let request = || Request::get("/export").body(String::new());
    /// assert_eq!(service.clone().oneshot(request()?).await?.status(), 200);
    /// let rejection = service.oneshot(request()?).await?;
    /// assert_eq!((rejection.status().as_u16(), &rejection.headers()["retry-after"]), (429, &"3600".parse()?));
    /// let body = http_body_util::BodyExt::collect(rejection.into_body()).await.unwrap().to_bytes();
    /// assert_eq!(body, "/export: slow down");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn into_http(self) -> Response<RejectionBody> {
        let (request, ()) = Request::new(()).into_parts();
        let mut response = mapped(&ProblemDetails, &self, &request, false);
        finish(&mut response, &request);
        if let Some(decision) = self.decision() {
            add_wait(response.headers_mut(), decision.advised_wait(), false);
            response.extensions_mut().insert(decision.clone());
        }
        // Tells the layer in front of the service.
        response.extensions_mut().insert(self);
        response
    }
}

/// The response of [`Rejection::into_http`], which the layer in front of the handler replaces with its
/// mapper's response.
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Rejection {
    fn into_response(self) -> axum::response::Response {
        self.into_http().map(axum::body::Body::new)
    }
}
