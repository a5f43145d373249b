//! The layer for requests that are not HTTP.

use std::{fmt, sync::Arc, time::Duration};

use tower_layer::Layer;

use super::service::{Charges, KeyedRateLimit};
use crate::{
    base::{Answer, valid},
    decision::Charge,
    key::IntoKey,
    limiter::Limiter,
    policy::Policy,
};

/// Puts a rate limit in front of a Tower service with any type of request: messages, jobs, calls to a remote
/// API.
///
/// A closure returns the key of a request. A rejected request fails with a boxed error, as in tower's
/// `load_shed` and `timeout`: `error.downcast_ref::<Rejection>()` returns the
/// [`Rejection`](crate::Rejection), which has the wait. If your service is a client that must stay within a
/// limit, let requests [`wait`](Self::wait) instead.
///
/// For HTTP services use [`RateLimitLayer`](crate::RateLimitLayer), which responds instead of failing. The
/// service must be `Clone`, and its error must convert into a boxed error. The service, its future and the
/// requests must be `Send + 'static`.
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
/// assert_eq!(rejection.retry_after_seconds(), Some(3_600));
/// service.oneshot(job("globex")).await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a layer does nothing until it wraps a service"]
pub struct KeyedRateLimitLayer<R> {
    limiter: Limiter,
    charges: Charges<R>,
    patience: Duration,
    /// The policy, if it is the same for all requests.
    policy: Option<Policy>,
}

impl<R: 'static> KeyedRateLimitLayer<R> {
    /// Applies `policy` to each request, counted under the key that `key` returns, at a cost of one unit per
    /// request. The counts are in `store`.
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
        let (limiter, known) = (store.into(), policy.clone());
        valid(limiter.supports(&known));
        let charge = move |request: &R| {
            let policy = policy.clone();
            key(request).into_key().map(move |key| vec![Charge::of(policy, key, 1)])
        };
        Self { policy: Some(known), ..Self::with_charges(limiter, charge) }
    }

    /// Makes the charges that `charges` returns for a request, with the counts in `store`. Use it for costs,
    /// for several policies, or for policies that depend on the request. `charges` returns a `Vec` of them, a
    /// `Result`, or an [`Answer`] that resolves to them.
    ///
    /// All charges of a request are made in one atomic step: if one policy denies the request, none is
    /// charged. In a Redis Cluster, charges to different keys are decided [one after the
    /// other](crate::guide::redis#cluster). If the list is empty, the request is admitted. If `charges`
    /// fails, the request is rejected as [`Unidentified`](crate::Rejection::Unidentified).
    /// [`Limiter::check_all`] states what a list may contain.
    ///
    /// # Example
    ///
    /// ```
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_ratelimit::{Charge, Key, MemoryStore, Policy, Quota, keyed::KeyedRateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// let messages = Policy::new("messages", Quota::per_hour(100));
    /// let bytes = Policy::new("bytes", Quota::per_hour(10));
    /// let all = Key::new("all");
    /// let limit = KeyedRateLimitLayer::with_charges(MemoryStore::new(), move |message: &String| {
    ///     vec![Charge::new(&messages, &all, 1), Charge::new(&bytes, &all, message.len() as u64)]
    /// });
    /// let service = ServiceBuilder::new()
    ///     .layer(limit)
    ///     .service_fn(|message: String| async move { Ok::<_, std::io::Error>(message.len()) });
    ///
    /// assert_eq!(service.clone().oneshot("12345678".into()).await?, 8);
    /// assert!(service.oneshot("12345678".into()).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_charges<C: Into<Answer<Vec<Charge>>>>(
        store: impl Into<Limiter>,
        charges: impl Fn(&R) -> C + Send + Sync + 'static,
    ) -> Self {
        Self {
            limiter: store.into(),
            charges: Arc::new(move |request| charges(request).into()),
            patience: Duration::ZERO,
            policy: None,
        }
    }

    /// Lets a denied request wait and try again, for up to `patience` in total. A request that cannot be
    /// admitted by then is rejected immediately. Defaults to zero: every denied request is rejected
    /// immediately.
    ///
    /// The delay of a [queue](crate::algorithm::LeakyBucket::queue) is waited for in any case. The queue's
    /// own longest wait bounds it, not `patience`.
    ///
    /// The time of a permit's release is not known in advance. Under a
    /// [`Concurrency`](crate::algorithm::Concurrency) policy, the layer therefore tries again after 10 ms,
    /// then after increasing waits of at most 250 ms, until the patience is over.
    ///
    /// A [penalty](Policy::penalty) counts one denial for a request that is rejected in the end, and none for
    /// one that is admitted.
    ///
    /// A failure of the store that may pass, such as a missed deadline, is waited out too, see
    /// [`Limiter::wait`](crate::Limiter::wait).
    ///
    /// While a request waits, it does not keep the inner service ready, so it does not occupy an inner
    /// concurrency limit. Once admitted, it waits until the service is ready again. That wait does not count
    /// as patience, and an error of the service's `poll_ready` fails the request.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    ///
    /// use tower::{ServiceBuilder, ServiceExt};
    /// use tower_ratelimit::{Key, keyed::KeyedRateLimitLayer, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower::BoxError> {
    /// let policy = Policy::new("partner-api", Quota::per_second(50).burst(1));
    /// let limit = KeyedRateLimitLayer::new(MemoryStore::new(), policy, |_: &u32| Key::new("partner"))
    ///     .wait(Duration::from_secs(5));
    /// let service = ServiceBuilder::new()
    ///     .layer(limit)
    ///     .service_fn(|call: u32| async move { Ok::<_, std::io::Error>(call) });
    ///
    /// let started = Instant::now();
    /// assert_eq!(service.clone().oneshot(1).await?, 1);
    /// // Waits for a fiftieth of a second.
    /// assert_eq!(service.oneshot(2).await?, 2);
    /// assert!(started.elapsed() >= Duration::from_millis(19));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn wait(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }
}

/// For closures that know their charges immediately.
impl From<Vec<Charge>> for Answer<Vec<Charge>> {
    fn from(charges: Vec<Charge>) -> Self {
        Self::ready(Ok(charges))
    }
}

impl<S, R> Layer<S> for KeyedRateLimitLayer<R> {
    type Service = KeyedRateLimit<S, R>;

    fn layer(&self, inner: S) -> Self::Service {
        #[cfg(feature = "metrics")]
        self.limiter.count_from_zero(self.policy.iter().cloned());
        let (limiter, charges) = (self.limiter.clone(), self.charges.clone());
        KeyedRateLimit { inner, limiter, charges, patience: self.patience }
    }
}

// Written out because a derive would require the traits of `R`.
impl<R> Clone for KeyedRateLimitLayer<R> {
    fn clone(&self) -> Self {
        let Self { limiter, charges, patience, policy } = self;
        Self {
            limiter: limiter.clone(),
            charges: charges.clone(),
            patience: *patience,
            policy: policy.clone(),
        }
    }
}

impl<R> fmt::Debug for KeyedRateLimitLayer<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedRateLimitLayer")
            .field("policy", &self.policy)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
