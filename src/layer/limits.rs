use std::{fmt, sync::Arc};

use super::{config::Config, event::DecisionEvent, layer::RateLimitLayer, rule::Rule, rules::Rules};
use crate::{
    key::{KeyExtractor, RequestMatcher},
    limiter::Limiter,
    policy::{EnforcementSwitch, PolicySource},
    response::{HeaderWriter, Headers, ResponseMapper},
};

/// Makes layers with common settings: one store, one format of rejections, the same headers, bans and exemptions.
///
/// A setting of a layer itself wins over the common one; its exemptions and bans add to the common ones. Cloning is
/// cheap, and does not copy the store.
///
/// # Example
///
/// ```
/// # #[cfg(feature = "axum")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use axum::{Json, Router, body::Body, routing::get};
/// use http::{Request, request::Parts};
/// use tower::ServiceExt;
/// use tower_ratelimit::{key::Constant, layer::RateLimits, Headers, MemoryStore, Policy, Quota, Rejection};
///
/// let limits = RateLimits::new(MemoryStore::new())
///     .response(|rejection: &Rejection, _: &Parts| Json(rejection.to_string()))
///     .headers(Headers::legacy_delta())
///     .exempt(|parts: &Parts| parts.uri.path() == "/health");
///
/// let search = limits.layer(Policy::new("search", Quota::per_hour(1)), Constant::new("all"));
/// let export = limits.layer(Policy::new("export", Quota::per_day(1)), Constant::new("all"));
/// let app = Router::new()
///     .route("/search", get(async || "found").layer(search))
///     .route("/export", get(async || "exported").layer(export));
///
/// for path in ["/search", "/export"] {
///     let request = || Request::get(path).body(Body::empty());
///     assert_eq!(app.clone().oneshot(request()?).await?.status(), 200);
///     let rejection = app.clone().oneshot(request()?).await?;
///     assert_eq!(rejection.status(), 429);
///     assert_eq!(rejection.headers()["content-type"], "application/json");
///     assert_eq!(rejection.headers()["x-ratelimit-remaining"], "0");
/// }
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "axum"))]
/// # fn main() {}
/// ```
#[derive(Clone)]
#[must_use = "it does nothing until it makes layers"]
pub struct RateLimits(Config);

impl RateLimits {
    /// Layers with the counts in `store`: see [`RateLimitLayer::new`].
    pub fn new(store: impl Into<Limiter>) -> Self {
        Self(Config::new(store.into()))
    }

    /// A layer that limits each `key` to `policy`, with the common settings.
    ///
    /// # Panics
    ///
    /// Where [`RateLimitLayer::new`] panics.
    #[track_caller]
    pub fn layer(&self, policy: impl Into<PolicySource>, key: impl KeyExtractor) -> RateLimitLayer {
        let rule = Rule::new(policy, key);
        RateLimitLayer::of(&self.0, rule)
    }

    /// A layer with the rules of a table, or with one [`Rule`], and with the common settings.
    ///
    /// # Panics
    ///
    /// Where [`RateLimitLayer::with_rules`] panics.
    #[track_caller]
    pub fn with_rules(&self, rules: impl Into<Rules>) -> RateLimitLayer {
        RateLimitLayer::of(&self.0, rules)
    }

    /// The limiter of all layers.
    #[must_use]
    pub const fn limiter(&self) -> &Limiter {
        &self.0.limiter
    }

    /// See [`RateLimitLayer::response`].
    pub fn response(mut self, mapper: impl ResponseMapper) -> Self {
        self.0.mapper = Arc::new(mapper);
        self
    }

    /// See [`RateLimitLayer::grpc_response`].
    pub fn grpc_response(mut self, mapper: impl ResponseMapper) -> Self {
        self.0.grpc = Arc::new(mapper);
        self
    }

    /// See [`RateLimitLayer::headers`].
    pub fn headers(mut self, headers: Headers) -> Self {
        self.0.headers = HeaderWriter::new(headers);
        self
    }

    /// See [`RateLimitLayer::exempt`].
    pub fn exempt(mut self, exempt: impl RequestMatcher) -> Self {
        self.0.exempt.push(Arc::new(exempt));
        self
    }

    /// See [`RateLimitLayer::ban`].
    pub fn ban(mut self, banned: impl RequestMatcher) -> Self {
        self.0.banned.push(Arc::new(banned));
        self
    }

    /// See [`RateLimitLayer::on_decision`].
    pub fn on_decision(mut self, function: impl Fn(&DecisionEvent<'_>) + Send + Sync + 'static) -> Self {
        self.0.on_decision = Some(Arc::new(function));
        self
    }

    /// See [`RateLimitLayer::enabled`].
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.0.enabled = enabled;
        self
    }

    /// See [`RateLimitLayer::enforcement`].
    pub fn enforcement(mut self, switch: &EnforcementSwitch) -> Self {
        self.0.switch = Some(switch.clone());
        self
    }
}

impl fmt::Debug for RateLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimits").field(&self.0).finish()
    }
}
