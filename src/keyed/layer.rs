use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::{config::Config, rule::KeyedRule, service::KeyedRateLimit};
use crate::{key::IntoKey, limiter::Limiter, policy::Policy, util::per_thread::PerThread};

/// Puts a rate limit in front of a Tower service whatever its requests are: messages, jobs, calls to
/// somebody else's API.
///
/// The key comes from a closure over the request. A rejection is an error, a [`Rejection`] in a boxed error as
/// tower's own `load_shed` and `timeout` do it: `error.downcast_ref::<Rejection>()` finds it, with the wait in
/// it. Or, on the calling side of a limit, [`wait`](Self::wait) has requests wait for their turn.
///
/// For HTTP there is [`RateLimitLayer`](crate::RateLimitLayer), which answers instead.
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
    config: Arc<PerThread<Config<R>>>,
}

impl<R: 'static> KeyedRateLimitLayer<R> {
    /// Limits each key that `key` finds in a request to `policy`, with the counts in `store`.
    ///
    /// # Panics
    ///
    /// If the store cannot count as the policy wants it to.
    pub fn new<K: IntoKey>(
        store: impl Into<Limiter>,
        policy: Policy,
        key: impl Fn(&R) -> K + Send + Sync + 'static,
    ) -> Self {
        let config = Config { limiter: store.into(), rules: Vec::new(), patience: Duration::ZERO };
        Self { config: Arc::new(PerThread::new(config)) }.and(KeyedRule::new(policy, key))
    }

    /// Limits requests by `rule` as well. All rules are decided in one atomic step: a request that one of their
    /// policies denies is charged to none.
    ///
    /// # Panics
    ///
    /// If the layer has a policy of that name already; and where [`new`](Self::new) panics.
    #[track_caller]
    pub fn and(self, rule: KeyedRule<R>) -> Self {
        let config = self.config.original();
        let others = config.rules.iter().map(|other| &other.policy);
        if let Err(error) = config.limiter.accept(&rule.policy, others) {
            panic!("{error}");
        }
        self.with(|config| config.rules.push(rule))
    }

    /// What a request costs, in units, under the policy that [`new`](Self::new) was given. Defaults to 1. For the
    /// policies of other rules, see [`KeyedRule::cost`].
    pub fn cost(self, cost: impl Fn(&R) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|config| {
            if let Some(first) = config.rules.first_mut() {
                first.cost = Some(Arc::new(cost));
            }
        })
    }

    /// Has a request that is over the limit wait for its turn, asking again when it may be there, for up to
    /// `patience` in all; one whose turn cannot come by then is rejected at once. Defaults to rejecting it at once.
    ///
    /// Units in use, of a [`Concurrency`](crate::algorithm::Concurrency) policy, come back when whoever has them is done, which
    /// nobody knows beforehand. For these it looks again after 10 milliseconds and then ever later, up to every 250,
    /// until the patience is over.
    ///
    /// A request that waits does not keep the inner service ready: a permit of an inner concurrency limit is free
    /// for others meanwhile. When the request is admitted, it waits for the service to be ready again, which does
    /// not count as patience; an error of the service's `poll_ready` is the request's error.
    pub fn wait(self, patience: Duration) -> Self {
        self.with(|config| config.patience = patience)
    }

    fn with(mut self, change: impl FnOnce(&mut Config<R>)) -> Self {
        change(PerThread::change(&mut self.config));
        self
    }
}

impl<S, R> Layer<S> for KeyedRateLimitLayer<R> {
    type Service = KeyedRateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        KeyedRateLimit::new(inner, self.config.clone())
    }
}

// Written out, because derived ones would ask the same of `R`.

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
