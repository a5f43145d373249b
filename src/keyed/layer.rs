use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{
    rule::{Config, KeyedRule},
    service::KeyedRateLimit,
};
use crate::{base::valid, key::IntoKey, limiter::Limiter, policy::Policy};

/// Puts a rate limit in front of a Tower service with any type of request: messages, jobs, calls to a remote API.
///
/// A closure returns the key of a request. A rejected request fails with a [`Rejection`](crate::Rejection) in a boxed
/// error, as in tower's `load_shed` and `timeout`. Get it with `error.downcast_ref::<Rejection>()`; it has the wait. If
/// your service is a client that must stay within a limit, let requests [`wait`](Self::wait) instead.
///
/// For HTTP services use [`RateLimitLayer`](crate::RateLimitLayer), which responds instead of failing.
///
/// # Example
///
/// ```
/// use tower::{ServiceBuilder, ServiceExt};
/// use tower_ratelimit::{keyed::KeyedRateLimitLayer, MemoryStore, Policy, Quota, Rejection};
///
/// #[derive(Clone)]
/// struct Job {
///     tenant: String,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower::BoxError> {
/// let policy = Policy::new("jobs", Quota::per_hour(1));
/// let limit = KeyedRateLimitLayer::new(MemoryStore::new(), policy, |job: &Job| job.tenant.clone());
/// let service = ServiceBuilder::new()
///     .layer(limit)
///     .service_fn(|job: Job| async move { Ok::<_, std::io::Error>(format!("done for {}", job.tenant)) });
///
/// let job = |tenant: &str| Job { tenant: tenant.into() };
/// assert_eq!(service.clone().oneshot(job("acme")).await?, "done for acme");
/// let error = service.clone().oneshot(job("acme")).await.unwrap_err();
/// let rejection = error.downcast_ref::<Rejection>().unwrap();
/// assert_eq!(rejection.retry_after_seconds(), Some(3600));
/// service.oneshot(job("globex")).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it wraps a service"]
pub struct KeyedRateLimitLayer<R> {
    config: Arc<Config<R>>,
}

impl<R: 'static> KeyedRateLimitLayer<R> {
    /// Limits each key that `key` returns for a request to `policy`, with the counts in `store`.
    ///
    /// # Panics
    ///
    /// If the store does not support the policy's algorithm.
    #[track_caller]
    pub fn new<K: IntoKey>(
        store: impl Into<Limiter>,
        policy: Policy,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
    ) -> Self {
        Self::with_rule(store, KeyedRule::new(policy, key))
    }

    /// Limits requests by `rule`, such as one with a [cost](KeyedRule::cost), with the counts in `store`. [`and`](Self::and)
    /// adds more.
    ///
    /// # Panics
    ///
    /// If the store does not support the policy's algorithm.
    #[track_caller]
    pub fn with_rule(store: impl Into<Limiter>, rule: KeyedRule<R>) -> Self {
        let config = Config { limiter: store.into(), rules: Vec::new(), patience: Duration::ZERO };
        Self { config: Arc::new(config) }.and(rule)
    }

    /// Adds a rule. All rules are decided in one atomic step: if one policy denies a request, none is charged.
    /// In a Redis Cluster this holds for each identity.
    ///
    /// # Panics
    ///
    /// If the layer already has a policy of that name, or the store does not support the policy's algorithm.
    #[track_caller]
    pub fn and(self, rule: KeyedRule<R>) -> Self {
        let config = &self.config;
        let accept = |policy| config.limiter.accept_beside(policy, config.known_policies());
        valid(rule.known.as_ref().map_or(Ok(()), accept));
        self.with(|config| config.rules.push(rule))
    }

    /// Lets a denied request wait and try again, for up to `patience` in all. A request that cannot be admitted by then
    /// is rejected immediately. Defaults to zero: every denied request is rejected immediately.
    ///
    /// The time of a permit's release is not known in advance. Under a [`Concurrency`](crate::algorithm::Concurrency)
    /// policy the layer therefore tries again after 10 ms, then after ever longer waits of at most 250 ms, until the
    /// patience is over.
    ///
    /// A [penalty](Policy::penalty) counts a request that is rejected, and not its tries before.
    ///
    /// A waiting request does not keep the inner service ready, so it holds no permit of an inner concurrency limit.
    /// Once admitted, it waits for the service to be ready again. That wait does not count as patience, and an error of
    /// the service's `poll_ready` fails the request.
    pub fn wait(self, patience: Duration) -> Self {
        self.with(|config| config.patience = patience)
    }

    fn with(mut self, change: impl FnOnce(&mut Config<R>)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S, R> Layer<S> for KeyedRateLimitLayer<R> {
    type Service = KeyedRateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        #[cfg(feature = "metrics")]
        self.config.limiter.count_from_zero(self.config.known_policies().cloned());
        KeyedRateLimit::new(inner, self.config.clone())
    }
}

// Written out because derives would require the traits of `R`.

impl<R> Clone for KeyedRateLimitLayer<R> {
    fn clone(&self) -> Self {
        Self { config: self.config.clone() }
    }
}

impl<R> fmt::Debug for KeyedRateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimitLayer").field("config", &self.config).finish()
    }
}
