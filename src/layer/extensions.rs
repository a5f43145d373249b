//! How handlers without extractors find what a layer leaves in the extensions of requests.

use http::Extensions;

use crate::{
    decision::Decision,
    limiter::{Limited, Limiter, Reservation},
};

impl Decision {
    /// The decision of the innermost layer that charged a request, from the request's extensions. If no layer charged
    /// it, one that admits and has no [outcomes](Self::outcomes). For handlers without extractors, such as tonic's. In
    /// axum, extract a `Decision`.
    ///
    /// `None` without a layer. A test of a handler can insert a `Decision`, and a middleware too, for requests that no
    /// layer charges.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        let by_layer = extensions.get::<Limited>().map(|limited| &limited.decision);
        by_layer.filter(|decision| decision.is_limited()).or_else(|| extensions.get()).or(by_layer)
    }
}

impl Limiter {
    /// The limiter of the innermost layer that charged a request, or of the innermost layer if none did, from the
    /// request's extensions. For handlers without extractors, such as tonic's. In axum, extract a `Limiter`.
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
    /// The units that layers have [reserved](crate::Rule::reserve) for a request, from the request's extensions. For
    /// handlers without extractors, such as tonic's. In axum, extract a `Reservation`.
    ///
    /// `None` if no rule of a layer reserves units. A test of a handler can insert a `Reservation`.
    #[must_use]
    pub fn from_extensions(extensions: &Extensions) -> Option<&Self> {
        let by_layers = extensions.get::<Limited>().and_then(|limited| limited.reservation.as_deref());
        by_layers.or_else(|| extensions.get())
    }
}
