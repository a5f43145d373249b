//! What handlers use of a layer: the extensions of a request, axum's extractors, and rejections as errors.

use http::Extensions;

use crate::{
    base::Error,
    decision::{Decision, Verdict},
    limiter::{Limited, Limiter, Reservation},
    response::Rejection,
};

impl Decision {
    /// The decision of the innermost layer that charged a request, from the request's extensions. If no layer
    /// charged it, one that admits and has no [outcomes](Self::outcomes). For handlers without extractors,
    /// such as tonic's. In axum, extract a `Decision`.
    ///
    /// `None` without a layer. A test of a handler can insert a `Decision`, and a middleware too, for
    /// requests that no layer charges.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        let by_layer = extensions.get::<Limited>().map(|limited| &limited.decision);
        by_layer.filter(|decision| decision.is_limited()).or_else(|| extensions.get()).or(by_layer)
    }

    /// Returns this decision if the request may go on now, and a [`Rejection`] if it is denied. For handlers
    /// that use a [`Limiter`](crate::Limiter).
    ///
    /// # Errors
    ///
    /// * [`Rejection::Denied`] with the decision.
    /// * [`Rejection::Unavailable`], with the status 500, if a queue delays the request, which is already
    ///   charged: use [`Limiter::wait`](crate::Limiter::wait), or wait for [`Decision::delay`] instead of
    ///   calling this.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, Rejection};
    ///
    /// async fn export(limiter: &Limiter, exports: &Policy, user: &Key) -> Result<&'static str, Rejection> {
    ///     limiter.check(exports, user, 1).await?.into_result()?;
    ///     Ok("exported")
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let (exports, alice) = (Policy::new("exports", Quota::per_hour(1)), Key::new("alice"));
    /// assert!(export(&limiter, &exports, &alice).await.is_ok());
    /// let rejection = export(&limiter, &exports, &alice).await.unwrap_err();
    /// assert_eq!((rejection.status().as_u16(), rejection.retry_after_seconds()), (429, Some(3600)));
    /// # }
    /// ```
    pub fn into_result(self) -> Result<Self, Rejection> {
        match self.verdict() {
            Verdict::Admit => Ok(self),
            Verdict::Delay(_) => Err(Rejection::Unavailable(Error::invalid(
                "a queue delays the request, which the handler must wait for: use `Limiter::wait`",
            ))),
            Verdict::Deny { .. } => Err(Rejection::Denied(self)),
        }
    }
}

impl Limiter {
    /// The limiter of the innermost layer that charged a request, or of the innermost layer if none did, from
    /// the request's extensions. For handlers without extractors, such as tonic's. In axum, extract a
    /// `Limiter`.
    ///
    /// `None` without a layer. A test of a handler can insert a `Limiter`.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{BoxError, Layer, ServiceExt, service_fn};
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// async fn export(request: Request<u64>) -> Result<Response<String>, BoxError> {
    ///     let limiter = Limiter::from_extensions(request.extensions()).ok_or("the rate limit layer is missing")?;
    ///     let rows = Policy::new("rows", Quota::per_hour(10));
    ///     limiter.check(&rows, &Key::new("alice"), *request.body()).await?.into_result()?;
    ///     Ok(Response::new(String::from("exported")))
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let requests = Policy::new("requests", Quota::per_hour(3));
    /// let layer = RateLimitLayer::new(MemoryStore::new(), requests, Key::new("alice"));
    /// assert!(layer.layer(service_fn(export)).oneshot(Request::new(8)).await.is_ok());
    ///
    /// // A test without a layer.
    /// let mut request = Request::new(11);
    /// request.extensions_mut().insert(Limiter::new(MemoryStore::new()));
    /// assert!(export(request).await.is_err());
    /// # }
    /// ```
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        let by_layer = extensions.get::<Limited>().map(|limited| &*limited.limiter);
        by_layer.or_else(|| extensions.get())
    }
}

impl Reservation {
    /// The units that layers have [reserved](crate::Rule::reserve) for a request, from the request's
    /// extensions. For handlers without extractors, such as tonic's. In axum, extract a `Reservation`.
    ///
    /// `None` if no rule of a layer reserves units. A test of a handler can insert a `Reservation`.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        let by_layers = extensions.get::<Limited>().and_then(|limited| limited.reservation.as_deref());
        by_layers.or_else(|| extensions.get())
    }
}

#[cfg(feature = "axum")]
mod extractors {
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::{
        extract::{FromRequestParts, OptionalFromRequestParts},
        response::{IntoResponseParts, ResponseParts},
    };
    use http::request::Parts;

    use super::{Decision, Error, Limiter, Rejection, Reservation};
    use crate::base::ErrorKind;

    /// Extracts what a layer has left in the request. The message says why it may be missing.
    macro_rules! extractor {
        ($(#[$attribute:meta])* $type:ident, $message:literal) => {
            $(#[$attribute])*
            impl<S: Sync> FromRequestParts<S> for $type {
                type Rejection = Rejection;

                async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Self, Rejection> {
                    let found = Self::from_extensions(&request.extensions).cloned();
                    found.ok_or_else(|| missing(request, $message))
                }
            }
        };
    }

    extractor! {
        /// The decision of the innermost layer that charged this request. If none did, one that admits and has
        /// no [outcomes](Decision::outcomes): use `Option<Decision>` to tell these requests apart.
        Decision, "the handler extracts a `Decision`, and no `RateLimitLayer` is in front of it: add one, or extract an \
         `Option<Decision>`"
    }

    extractor! {
        /// The limiter of the innermost layer that charged this request, or of the innermost layer if none
        /// did. Use it to charge more once the handler knows the cost.
        Limiter, "the handler extracts a `Limiter`, and no `RateLimitLayer` is in front of it: add one"
    }

    extractor! {
        /// The units that a layer has [reserved](crate::Rule::reserve) for this request. If the layer did not
        /// charge it, a reservation that covers nothing and settles to nothing.
        Reservation, "the handler extracts a `Reservation`, and the request has none: add `Rule::reserve` to a rule"
    }

    /// `None` if no layer charged the request, nor would have if its store had not failed.
    impl<S: Sync> OptionalFromRequestParts<S> for Decision {
        type Rejection = Rejection;

        async fn from_request_parts(request: &mut Parts, _: &S) -> Result<Option<Self>, Rejection> {
            Ok(Self::from_extensions(&request.extensions).filter(|decision| decision.is_limited()).cloned())
        }
    }

    /// The rejection of a request that lacks a layer. `message` is logged, unless a layer in front logs it.
    fn missing(request: &Parts, message: &'static str) -> Rejection {
        static LOGGED: AtomicBool = AtomicBool::new(false);
        if Limiter::from_extensions(&request.extensions).is_none() && !LOGGED.swap(true, Ordering::Relaxed) {
            log!(error, error = message, "the rate limit is misconfigured; requests are rejected with 500");
        }
        Rejection::Unidentified(Error::new(ErrorKind::MissingSetup, message))
    }

    /// Reports this decision, which is newer than the layer's own, in the response's headers.
    impl IntoResponseParts for Decision {
        type Error = std::convert::Infallible;

        fn into_response_parts(self, mut response: ResponseParts) -> Result<ResponseParts, Self::Error> {
            response.extensions_mut().insert(self);
            Ok(response)
        }
    }
}
