//! The axum extractors, and what handlers may return.

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};
use http::{
    HeaderValue, Request,
    header::{CACHE_CONTROL, RETRY_AFTER},
    request::Parts,
};

use crate::{
    decision::Decision,
    error::{Error, ErrorKind},
    limiter::Limiter,
    response::{ProblemDetails, Rejection, ResponseMapper as _},
};

/// The decision of the innermost layer that charged this request. Use `Option<Decision>` in a handler that exempt
/// requests reach too.
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
        request.extensions.get::<Self>().cloned().ok_or_else(|| {
            no_layer(
                "the handler extracts a `Decision`, and the request has none: add a `RateLimitLayer`, or extract an \
                 `Option<Decision>`",
            )
        })
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Rejection> {
        Ok(request.extensions.get::<Self>().cloned())
    }
}

/// The limiter of the innermost layer that charged this request, or of the innermost layer if none did. Use it to
/// charge more once the handler knows the cost.
impl<S: Sync> FromRequestParts<S> for Limiter {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
        request.extensions.get::<Self>().cloned().ok_or_else(|| {
            no_layer("the handler extracts a `Limiter`, and no `RateLimitLayer` is in front of it: add one")
        })
    }
}

fn no_layer(message: &'static str) -> Rejection {
    Rejection::Unidentified(Error::new(ErrorKind::MissingSetup, message))
}

/// The response of [`ProblemDetails`], with `Retry-After`. The layer in front of the handler adds its headers.
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        let (request, ()) = Request::new(()).into_parts();
        let mut response = ProblemDetails.response(&self, &request).map(axum::body::Body::new);
        if let Some(seconds) = self.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(decision) = self.into_decision() {
            response.extensions_mut().insert(decision);
        }
        response
    }
}

/// Reports this decision, which is newer than the layer's own, in the response's headers.
impl IntoResponseParts for Decision {
    type Error = std::convert::Infallible;

    fn into_response_parts(self, mut response: ResponseParts) -> Result<ResponseParts, Self::Error> {
        response.extensions_mut().insert(self);
        Ok(response)
    }
}
