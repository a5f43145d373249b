//! [`Adaptive`]: the builder of a policy whose quota follows signals.

use std::{fmt, time::Duration};

use tokio::{runtime::Handle, sync::watch};
#[cfg(feature = "redis")]
use tower_ratelimit::RedisStore;
use tower_ratelimit::{Error, ErrorKind, PolicySource};

use super::{
    follow::{Follower, most_in_flight, scaled},
    policy::AdaptivePolicy,
    signal::Signal,
    source::{Bounds, INTERVALS},
};

/// Builds a policy whose quota follows a signal, between a [floor](Self::floor) and the policy's own quota.
///
/// Limit and burst are multiplied by the *share*, from the floor to 1, and rounded to whole units, at least
/// one. Name and algorithm stay, so [the counts are
/// kept](tower_ratelimit::policy#what-happens-to-the-counts). The share is rounded to about 1 % of itself, so
/// the policy does not follow every small change of the signal.
///
/// # Example
///
/// A closure as the signal, here the part of the disk that is free:
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer};
/// use tower_ratelimit_extra::adaptive::Adaptive;
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let free_disk = || 0.25;
/// let uploads = Adaptive::new(Policy::new("uploads", Quota::per_second(1_000))).floor(0.1).follow(free_disk).start()?;
/// let layer = RateLimitLayer::new(MemoryStore::new(), &uploads, Key::new("all"));
///
/// assert_eq!(uploads.share(), 1.0);
/// // In each half second, it falls by at most half.
/// tokio::time::sleep(Duration::from_secs(2)).await;
/// assert_eq!((uploads.share(), uploads.policy().quota()), (0.25, Quota::per_second(250)));
/// # drop(layer);
/// # Ok(())
/// # }
/// ```
///
/// The latency of the service as the signal:
///
/// ```
/// use std::time::Duration;
/// use axum::{Router, routing::get};
/// use tower_ratelimit::{Key, MemoryStore, Policy, Quota, RateLimitLayer};
/// use tower_ratelimit_extra::adaptive::{Adaptive, Aimd, LoadMeter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let meter = LoadMeter::new();
/// let search = Adaptive::new(Policy::new("search", Quota::per_second(1_000)))
///     .follow(Aimd::new(&meter, Duration::from_millis(250)))
///     .start()?;
///
/// let app: Router = Router::new()
///     .route("/search", get(async || "nothing found"))
///     // The inner one: what is denied is not measured.
///     .layer(meter)
///     .layer(RateLimitLayer::new(MemoryStore::new(), search, Key::new("all")));
/// # drop(app);
/// # Ok(())
/// # }
/// ```
#[must_use = "a policy follows its signals once it is started"]
pub struct Adaptive {
    policy: PolicySource,
    floor: f64,
    interval: Duration,
    signals: Vec<Signal>,
    #[cfg(feature = "redis")]
    shared: Option<RedisStore>,
}

impl Adaptive {
    /// Begins with `policy`, whose quota is the most that is ever admitted. If it is a source of a policy
    /// that changes, such as one of `LivePolicies::get` or [`PolicySource::watched`], its changes are
    /// followed immediately, and the share applies to the new quota. A change that cannot be counted at the
    /// [`floor`](Self::floor) is logged at warn and not used. A [`Policy`](tower_ratelimit::Policy) does not
    /// change.
    ///
    /// A policy on the [requests in flight](tower_ratelimit::Policy::concurrency) is treated as a limit of
    /// this process, counted in a [`MemoryStore`](tower_ratelimit::MemoryStore), unless it is
    /// [`shared`](Self::shared): the controllers compare it with this process's requests in flight. If it is
    /// counted in Redis but not shared, it does not rise while this instance uses less than half of it.
    pub fn new(policy: impl Into<PolicySource>) -> Self {
        Self {
            policy: policy.into(),
            floor: 0.05,
            interval: Duration::from_millis(500),
            signals: Vec::new(),
            #[cfg(feature = "redis")]
            shared: None,
        }
    }

    /// Follows `signal`: a closure that returns the share to admit, from 0 to 1, or one of
    /// [`Aimd`](super::Aimd), [`Gradient`](super::Gradient) and [`Vegas`](super::Vegas). See [`Signal`] for
    /// what happens to invalid values.
    ///
    /// At least one is required. If there are several, the smallest share is active.
    pub fn follow(mut self, signal: impl Into<Signal>) -> Self {
        self.signals.push(signal.into());
        self
    }

    /// The smallest share of the quota, above 0 and at most 1. Defaults to 0.05. It cannot be 0, because
    /// nothing can be measured without requests.
    ///
    /// A request that costs more than the whole reduced quota is denied without `Retry-After`, because
    /// waiting does not help under that quota. Choose a floor at which the largest cost fits.
    pub const fn floor(mut self, share: f64) -> Self {
        self.floor = share;
        self
    }

    /// The time between two changes of the quota, from 10 milliseconds to an hour. Defaults to 500
    /// milliseconds.
    pub const fn every(mut self, interval: Duration) -> Self {
        self.interval = interval;
        self
    }

    /// Shares the signal with all instances that call this with the same Redis, prefix, policy name and
    /// algorithm: each publishes its share, and all use the mean. For policies that are counted in Redis,
    /// with closures and [`Aimd`](super::Aimd).
    ///
    /// * All instances decide by the same quota, within an interval of a change. Without this, each decides
    ///   by its own quota, on the [same counts](tower_ratelimit::policy#what-happens-to-the-counts).
    /// * The mean suits requests that are spread over the instances: one overloaded instance in ten has a
    ///   tenth of the effect. With the smallest share, one sick instance would throttle all.
    /// * A new instance starts with the mean of the others. One that stops without notice counts for four
    ///   more [intervals](Self::every), at least two seconds.
    /// * While Redis is unavailable, each instance uses its own share.
    /// * A shared limit on the requests in flight covers all instances. So it also rises while this instance
    ///   uses little of it, and falls from the whole limit instead of from twice what is used.
    /// * [`Gradient`](super::Gradient) and [`Vegas`](super::Vegas) cannot be shared: they sometimes reduce
    ///   the share to empty the queue, and a mean would hide that.
    ///
    /// The shares are in one hash, `prefix:adaptive:policy:algorithm`, with a TTL of a minute, or four
    /// intervals if they are longer. Each instance sends three commands in every interval, and no request
    /// waits for them. The Redis user needs `+hset +hdel +hgetall +pexpire`, which are part of
    /// [`acl_rule`](RedisStore::acl_rule).
    #[cfg(feature = "redis")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
    pub fn shared(mut self, store: &RedisStore) -> Self {
        self.shared = Some(store.clone());
        self
    }

    /// Starts to follow the signals, in a task of this runtime. The task ends when the last handle, source
    /// and layer of the policy is dropped. If the runtime is shut down, the last quota stays.
    ///
    /// # Errors
    ///
    /// * [`InvalidConfig`](ErrorKind::InvalidConfig): there is no signal, a setting is out of its bounds, the
    ///   policy depends on the request, the algorithm cannot count the quota at the floor, or a signal cannot
    ///   be shared.
    /// * [`MissingSetup`](ErrorKind::MissingSetup): no Tokio runtime runs here.
    pub fn start(self) -> Result<AdaptivePolicy, Error> {
        let runtime = Handle::try_current().map_err(|_| {
            let message = "an adaptive policy needs a Tokio runtime to follow its signals: start it in an async function, or \
                           inside `runtime.enter()`";
            Error::new(ErrorKind::MissingSetup, message)
        })?;
        if self.signals.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "an adaptive policy needs a signal: call `follow`",
            ));
        }
        if !(self.floor > 0.0 && self.floor <= 1.0) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the floor of an adaptive policy must be above 0 and at most 1",
            ));
        }
        if !INTERVALS.contains(&self.interval) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the interval of an adaptive policy must be from 10 milliseconds to an hour",
            ));
        }
        let Some(mut origin) = self.policy.receiver() else {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the policy of an adaptive policy cannot depend on the request: make each of the policies adaptive",
            ));
        };
        let full = origin.borrow_and_update().clone();
        scaled(&full, self.floor, self.interval)?;
        let sources: Vec<_> = self.signals.into_iter().map(Signal::into_source).collect();
        sources.iter().try_for_each(|source| source.check())?;
        #[cfg(feature = "redis")]
        if self.shared.is_some() && sources.iter().any(|source| source.needs_own_share()) {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "`Gradient` and `Vegas` cannot be shared: they empty the queue with a smaller share, which the mean of all \
                 instances is not; share an `Aimd` or a closure, or limit each instance without `shared`",
            ));
        }
        #[cfg(feature = "redis")]
        let shared = self.shared.map(|store| super::shared::Shares::new(&store, &full, self.interval));
        #[cfg(feature = "redis")]
        let is_shared = shared.is_some();
        #[cfg(not(feature = "redis"))]
        let is_shared = false;
        let most_in_flight = most_in_flight(&full, is_shared);
        let (policies, active) = watch::channel(full.clone());
        let (shares, share) = watch::channel(1.0);
        let follower = Follower {
            full,
            origin,
            is_shared,
            bounds: Bounds { floor: self.floor, interval: self.interval, most_in_flight },
            sources,
            #[cfg(feature = "redis")]
            shared,
            policies,
            shares,
        };
        runtime.spawn(follower.run());
        Ok(AdaptivePolicy::new(active, share))
    }
}

impl fmt::Debug for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Adaptive")
            .field("policy", &self.policy)
            .field("floor", &self.floor)
            .field("interval", &self.interval)
            .finish_non_exhaustive()
    }
}
