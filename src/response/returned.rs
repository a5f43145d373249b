//! Rejections that a service returns itself, for the layer in front of it to answer.

use http::{
    HeaderValue, Method, Request, Response,
    header::{CACHE_CONTROL, CONTENT_TYPE},
    request::Parts,
};

use super::{
    body::RejectionBody,
    grpc::grpc_type,
    headers::{add_retry_after, add_retry_after_of_store},
    mapper::ResponseMapper,
    problem::ProblemDetails,
    rejection::Rejection,
};

/// In a response's extensions: the rejection that it is the response of.
#[derive(Clone, Debug)]
pub(crate) struct Returned(Rejection);

impl Returned {
    /// The rejection that `response` is the response of.
    pub(crate) fn take<B>(response: &mut Response<B>) -> Option<Rejection> {
        response.extensions_mut().remove::<Self>().map(|returned| returned.0)
    }
}

impl Rejection {
    /// The response of [`ProblemDetails`], with `Retry-After`: for a service that rejects a request itself.
    ///
    /// The innermost layer in front of the service replaces it with the response of its
    /// [`ResponseMapper`](crate::response::ResponseMapper), and adds its [`Headers`](crate::Headers). Another status
    /// and further headers that the service sets are kept. With the feature `axum`, a handler returns the rejection
    /// itself; it becomes this response.
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
    ///     let limiter: &Limiter = request.extensions().get().unwrap();
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
        let mut response = ProblemDetails.response(&self, &request);
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Self::Unavailable(_) = self {
            add_retry_after_of_store(response.headers_mut());
        }
        if let Some(decision) = self.decision() {
            add_retry_after(response.headers_mut(), decision);
            response.extensions_mut().insert(decision.clone());
        }
        response.extensions_mut().insert(Returned(self));
        response
    }
}

/// What a mapper reads of a request that is with the service, in case the service rejects it.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A HEAD request.
    Head,
    /// A gRPC call of this content type.
    Call(&'static str),
    Other,
    /// The whole head, for a mapper that reads it.
    Whole(Box<Parts>),
}

impl Kept {
    /// What `mapper` reads of `request`, which is a gRPC call or not.
    #[inline]
    pub(crate) fn of(request: &Parts, is_call: bool, mapper: &dyn ResponseMapper) -> Self {
        if mapper.reads_request() {
            Self::Whole(Box::new(request.clone()))
        } else if is_call {
            Self::Call(grpc_type(&request.headers))
        } else if request.method == Method::HEAD {
            Self::Head
        } else {
            Self::Other
        }
    }

    pub(crate) fn into_parts(self) -> Parts {
        let (mut parts, ()) = Request::new(()).into_parts();
        match self {
            Self::Whole(parts) => return *parts,
            Self::Head => parts.method = Method::HEAD,
            Self::Call(kind) => {
                parts.method = Method::POST;
                parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
            }
            Self::Other => {}
        }
        parts
    }
}
