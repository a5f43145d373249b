//! The axum extractors, and what handlers may return.

use std::sync::atomic::{AtomicBool, Ordering};

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, IntoResponseParts, Response, ResponseParts},
};
use http::request::Parts;

use crate::{
    base::{Error, ErrorKind},
    decision::Decision,
    limiter::{Limiter, Reservation},
    response::Rejection,
};

/// The decision of the innermost layer that charged this request. If none did, one that admits and has no
/// [outcomes](Decision::outcomes): use `Option<Decision>` to tell these requests apart.
impl<S: Sync> FromRequestParts<S> for Decision {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
        or_missing(
            request,
            Self::from_extensions(&request.extensions).cloned(),
            "the handler extracts a `Decision`, and no `RateLimitLayer` is in front of it: add one, or extract an \
             `Option<Decision>`",
        )
    }
}

/// `None` if no layer charged the request, nor would have if its store had not failed.
impl<S: Sync> OptionalFromRequestParts<S> for Decision {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Rejection> {
        Ok(Self::from_extensions(&request.extensions).filter(|decision| decision.is_limited()).cloned())
    }
}

/// The limiter of the innermost layer that charged this request, or of the innermost layer if none did. Use it to
/// charge more once the handler knows the cost.
impl<S: Sync> FromRequestParts<S> for Limiter {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
        or_missing(
            request,
            Self::from_extensions(&request.extensions).cloned(),
            "the handler extracts a `Limiter`, and no `RateLimitLayer` is in front of it: add one",
        )
    }
}

/// The units that a layer has [reserved](crate::Rule::reserve) for this request. If the layer did not charge it,
/// a reservation that covers nothing and settles to nothing.
impl<S: Sync> FromRequestParts<S> for Reservation {
    type Rejection = Rejection;

    async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
        or_missing(
            request,
            Self::from_extensions(&request.extensions).cloned(),
            "the handler extracts a `Reservation`, and the request has none: add `Rule::reserve` to a rule",
        )
    }
}

/// What a layer has left in the request, `found`. `message` says why it may be missing.
fn or_missing<T>(request: &Parts, found: Option<T>, message: &'static str) -> Result<T, Rejection> {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    found.ok_or_else(|| {
        // A layer in front logs it.
        if Limiter::from_extensions(&request.extensions).is_none() && !LOGGED.swap(true, Ordering::Relaxed) {
            log!(error, error = message, "the rate limit is misconfigured; requests are rejected with 500");
        }
        Rejection::Unidentified(Error::new(ErrorKind::MissingSetup, message))
    })
}

/// The response of [`Rejection::into_http`], which the layer in front of the handler replaces with its mapper's
/// response.
impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        self.into_http().map(axum::body::Body::new)
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
