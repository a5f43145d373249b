//! What a layer inserts into the extensions of requests.

use std::sync::Arc;

use http::{Extensions, request::Parts};

use super::config::Config;
use crate::{decision::Decision, limiter::Limiter, response::mark_request};

impl Config {
    /// Inserts the decision, with the limiter, into the request's extensions. If the layer only reports, also marks a request
    /// over the limit with a header.
    pub(super) fn annotate(&self, request: &mut Parts, decision: Option<&Decision>, report_only: bool) {
        if report_only {
            mark_request(request, decision);
        }
        let limiter = self.limiter(report_only);
        let Some(decision) = decision else {
            return self.annotate_uncharged(&mut request.extensions, limiter);
        };
        if let Some(outer) = request.extensions.insert(decision.clone().with_limiter(limiter)) {
            self.notices.charged_twice(&outer, decision);
        }
    }

    /// Inserts what the handler of a request may extract that this layer does not charge, unless an outer layer does.
    pub(super) fn annotate_uncharged(&self, extensions: &mut Extensions, limiter: Arc<Limiter>) {
        self.reserve_nothing(extensions);
        // The handler charges more to the decision of an outer layer, so it needs the limiter of that layer.
        if !extensions.get::<Decision>().is_some_and(Decision::is_limited) {
            extensions.insert(Decision::not_limited().with_limiter(limiter));
        }
    }
}

impl Limiter {
    /// The limiter of the innermost layer that charged a request, or of the innermost layer if none did, from the
    /// request's extensions. For handlers without extractors, such as tonic's. In axum, extract a `Limiter`.
    ///
    /// `None` without a layer, or if a service between the layer and the handler has replaced the [`Decision`] in the
    /// extensions, which holds the limiter. A test of a handler can insert a `Limiter`.
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
        extensions.get::<Decision>().and_then(Decision::limiter).or_else(|| extensions.get())
    }
}
