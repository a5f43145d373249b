use std::{fmt, hash::BuildHasher as _, sync::Arc, time::Duration};

use super::{FailureMode, LeaseBound, enforced::Enforced, quoted::quoted};
#[cfg(feature = "metrics")]
use crate::metrics::PolicyCounters;
use crate::{
    algorithm::{self, Algorithm, Concurrency, Gcra, Replenishment},
    error::Error,
    key::Key,
    quota::Quota,
    util::random::hasher,
};

/// A named limit: a [`Quota`], the [`Algorithm`] that counts it, and what happens when the store is unavailable.
///
/// Clients read the name in the `RateLimit` headers, operators in Redis keys and logs. Two policies with one name and
/// algorithm share their counts. Cloning is cheap. With the feature `serde`, policies are read
/// [from a configuration file](crate::policy).
///
/// # Example
///
/// ```
/// use tower_ratelimit::{algorithm::FixedWindow, FailureMode, Policy, Quota};
///
/// let burst = Policy::new("burst", Quota::per_second(10).burst(20));
/// assert_eq!(burst.name(), "burst");
///
/// let daily = Policy::new("daily", Quota::per_day(10_000))
///     .algorithm(FixedWindow::aligned())
///     .on_store_failure(FailureMode::Closed);
/// assert_eq!(daily.quota().limit(), 10_000);
///
/// // A header could not carry this name.
/// assert!(Policy::try_new("día", Quota::per_day(10)).is_err());
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

// Every request changes the reference count. Aligned to two cache lines, the fields are not in its line, so threads read
// them while others count. With the same for a layer's configuration, two threads need 1 % less CPU time for an
// admitted request and 3 % less for a denied one.
#[derive(Clone)]
#[repr(align(128))]
struct Inner {
    name: Arc<str>,
    /// See [`Policy::quoted_name`].
    quoted: Arc<str>,
    quota: Quota,
    algorithm: Arc<dyn Algorithm>,
    /// The quota and the algorithm's options, as the Lua file and its Rust twin take them.
    arguments: Arc<[u64]>,
    capacity: u64,
    /// See [`Policy::label`].
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis keys contain it"))]
    label: Box<str>,
    /// See [`Policy::tag`].
    tag: u64,
    replenishment: Replenishment,
    on_store_failure: FailureMode,
    /// 0 if nothing is leased.
    most_leased: u64,
    /// The units by which debits may exceed what remains.
    debt: u64,
    /// What debits are counted by: this policy with so much more room. `None` without a debt.
    debits: Option<Policy>,
    /// Whether its units are bytes of content.
    bytes: bool,
    enforced: Enforced,
    #[cfg(feature = "metrics")]
    counters: PolicyCounters,
}

const MAX_LEASED: u64 = 1_000_000_000_000;
const MAX_NAME: usize = 64;
/// How long units stay in use if their holder no longer renews them.
const LEASE: Duration = Duration::from_secs(30);
/// Above every quota's capacity, and exact in Lua.
const MAX_CAPACITY: u64 = 1 << 44;

impl Policy {
    /// The policy `name`, counted by [`Gcra`].
    ///
    /// # Panics
    ///
    /// If `name` is empty, longer than 64 bytes, or has a character outside printable ASCII (0x20 to
    /// 0x7E), which no header could carry. [`try_new`](Self::try_new) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(name: &str, quota: Quota) -> Self {
        match Self::try_new(name, quota) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`new`](Self::new), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`new`](Self::new) panics.
    pub fn try_new(name: &str, quota: Quota) -> Result<Self, Error> {
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid("a policy's name must have 1 to 64 characters"));
        }
        if !name.bytes().all(|byte| (0x20..=0x7e).contains(&byte)) {
            return Err(Error::invalid(
                "a policy's name must be printable ASCII, because response headers carry it",
            ));
        }
        let label = label(name, &Gcra::new());
        Ok(Self(Arc::new(Inner {
            name: name.into(),
            quoted: quoted(name).into(),
            quota,
            arguments: Gcra::new().arguments(&quota)?.into(),
            capacity: quota.capacity(),
            tag: tag(&label),
            label,
            replenishment: Gcra::new().replenishment(),
            algorithm: Arc::new(Gcra::new()),
            on_store_failure: FailureMode::default(),
            most_leased: 0,
            debt: 0,
            debits: None,
            bytes: false,
            enforced: Enforced::FOR_ALL,
            #[cfg(feature = "metrics")]
            counters: PolicyCounters::new(),
        })))
    }

    /// The policy `name` with at most `limit` units in use at any moment, over all instances, counted by
    /// [`Concurrency`](crate::algorithm::Concurrency). Units of a crashed instance are released after 30 seconds. For another
    /// time, make it the period of the quota: `Policy::new(name, Quota::new(limit, time)?).algorithm(Concurrency::new())`.
    ///
    /// # Panics
    ///
    /// Where [`new`](Self::new) panics, and if `limit` is 0 or above a million.
    /// [`try_concurrency`](Self::try_concurrency) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let exports = Policy::concurrency("exports", 1);
    /// let tenant = Key::new("acme");
    ///
    /// let running = limiter.check(&exports, &tenant, 1).await?;
    /// assert!(running.is_allowed());
    /// assert!(!limiter.check(&exports, &tenant, 1).await?.is_allowed());
    /// drop(running);
    /// assert!(limiter.check(&exports, &tenant, 1).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn concurrency(name: &str, limit: u64) -> Self {
        match Self::try_concurrency(name, limit) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`concurrency`](Self::concurrency), for values read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`concurrency`](Self::concurrency) panics.
    pub fn try_concurrency(name: &str, limit: u64) -> Result<Self, Error> {
        Self::try_new(name, Quota::new(limit, LEASE)?)?.try_algorithm(Concurrency::new())
    }

    /// Counts by `algorithm`. Defaults to [`Gcra`].
    ///
    /// # Panics
    ///
    /// If the algorithm cannot count the quota, such as one with a burst for a
    /// [`FixedWindow`](crate::algorithm::FixedWindow). [`try_algorithm`](Self::try_algorithm) gives an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub fn algorithm(self, algorithm: impl Algorithm) -> Self {
        match self.try_algorithm(algorithm) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`algorithm`](Self::algorithm), for a quota read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`algorithm`](Self::algorithm) panics.
    pub fn try_algorithm(mut self, algorithm: impl Algorithm) -> Result<Self, Error> {
        let inner = Arc::make_mut(&mut self.0);
        check(&algorithm)?;
        inner.arguments = algorithm.arguments(&inner.quota)?.into();
        inner.capacity = checked_capacity(&algorithm, &inner.quota)?;
        inner.label = label(&inner.name, &algorithm);
        inner.tag = tag(&inner.label);
        inner.replenishment = algorithm.replenishment();
        inner.algorithm = Arc::new(algorithm);
        self.apply_debt()?.check_lease()
    }

    /// Lets each instance lease up to `most` units of a hot key from Redis in one call, and spend them in
    /// process. Defaults to no leases: every request is decided by Redis.
    ///
    /// For a [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) decides in process already and
    /// ignores this setting.
    ///
    /// * **Exactness**: all instances together never admit more than the limit, in the sense of the algorithm, counted when
    ///   a unit is spent. Redis charges a unit when it is leased. A lease ends no later than the window or cell that it was
    ///   charged to. A bucket keeps the room of leased units free until they are spent or the lease ends, within a second.
    /// * **Price**: one instance may hold unused units while another denies requests. A running instance
    ///   returns unused units within 1.5 seconds; an instance that shuts down returns them with
    ///   [`return_leases`](crate::RedisStore::return_leases). After a crash they are missing for the time of
    ///   [`lease_bound`](Self::lease_bound).
    /// * **Size**: the lease follows the demand. A key with fewer than a hundred requests a second on this instance is not
    ///   leased. The lease doubles when it is used up quickly, and is never more than a quarter of what remains. An instance
    ///   leases up to 4096 keys at a time.
    ///
    /// Leases serve requests with this policy alone. Requests with several policies, and peeks, are decided by Redis, which
    /// counts leased units as spent. The remaining units and the reset in a decision are those of the last Redis call, less
    /// what this instance has spent since.
    ///
    /// A refund first returns the units that this instance has on lease. A [refund of a decision](crate::Limiter::refund)
    /// that was admitted from a lease counts from when the lease began, so it may return fewer units. Redis does not know
    /// how many of another instance's leased units are spent. An
    /// [administrator's refund](crate::Limiter::refund_latest) returns none of them to a bucket, and counts all of them as
    /// spent in a window. Do not refund more units than were charged that way: a window may then admit that many more.
    ///
    /// A [reset](crate::Limiter::reset) drops this instance's leases. Other instances can still spend theirs.
    /// If the clock of Redis is changed, units on lease at that moment may count in the window before or after.
    ///
    /// # Panics
    ///
    /// If `most` is 0 or above 10^12, or the units of the algorithm cannot be leased exactly:
    /// [`SlidingLog`](crate::algorithm::SlidingLog), [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue),
    /// [`Concurrency`](crate::algorithm::Concurrency), or one of your own. [`try_leased`](Self::try_leased) gives an error
    /// instead, and so does [`try_algorithm`](Self::try_algorithm) if it is called later.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{algorithm::SlidingLog, Policy, Quota};
    ///
    /// let api = Policy::new("api", Quota::per_second(50_000)).leased(1_000);
    /// let bound = api.lease_bound().unwrap();
    /// assert_eq!(bound.units(), 1_000);
    /// // A second, and then the units return at 50 a millisecond.
    /// assert_eq!(bound.after_a_crash(), Duration::from_millis(1_020));
    ///
    /// let exact = Policy::new("exact", Quota::per_second(50_000)).algorithm(SlidingLog::new());
    /// assert!(exact.try_leased(1_000).is_err());
    /// ```
    #[must_use]
    #[track_caller]
    pub fn leased(self, most: u64) -> Self {
        match self.try_leased(most) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`leased`](Self::leased), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`leased`](Self::leased) panics.
    pub fn try_leased(mut self, most: u64) -> Result<Self, Error> {
        if most == 0 || most > MAX_LEASED {
            return Err(Error::invalid(
                "a lease must be of 1 to 10^12 units: leave out `leased` for no lease",
            ));
        }
        Arc::make_mut(&mut self.0).most_leased = most;
        self.check_lease()
    }

    fn check_lease(self) -> Result<Self, Error> {
        if self.0.most_leased > 0 && self.missed().is_none() {
            return Err(Error::invalid(
                "the units of this algorithm cannot be leased exactly: leave out `leased`, \
                 or use `Gcra`, `TokenBucket`, `LeakyBucket::meter`, `FixedWindow` or `SlidingWindow`",
            ));
        }
        Ok(self)
    }

    fn missed(&self) -> Option<u64> {
        self.0.algorithm.counter()?.lease_recovery(&self.0.arguments, self.most_held())
    }

    /// The most units of a key that can be on lease here.
    fn most_held(&self) -> u64 {
        self.0.most_leased.min(self.0.capacity)
    }

    /// What happens to a request when the store gives no decision in time. Defaults to [`FailureMode::Local`].
    ///
    /// If several policies are decided together and one is [`Closed`](FailureMode::Closed), the request is rejected.
    /// Otherwise those that are [`Local`](FailureMode::Local) decide.
    #[must_use]
    pub fn on_store_failure(mut self, mode: FailureMode) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.on_store_failure = mode;
        inner.debits = inner.debits.take().map(|debits| debits.on_store_failure(mode));
        self
    }

    /// The name: printable ASCII, 1 to 64 characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The name in quotes, as headers and problems carry it.
    pub(crate) fn quoted_name(&self) -> &str {
        &self.0.quoted
    }

    /// The limit per period, and the burst.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.0.quota
    }

    /// The most units that can be charged at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Makes this a shadow policy: it decides, is counted and reported, and denies nothing. Use it to see what a new limit
    /// would do before it does.
    ///
    /// A request that it would deny is not charged under it. Other policies of the same request are enforced as always.
    /// Clients see nothing of a shadow policy. [`Decision::shadows`](crate::Decision::shadows) has its outcome, for
    /// [`on_decision`](crate::RateLimitLayer::on_decision), and the metric `ratelimit_decisions_total` counts it with the
    /// verdict `shadow_denied`. It has no leases, and its [failure mode](Self::on_store_failure) is not applied.
    ///
    /// Counts stay when a policy becomes a shadow or is enforced again.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let strict = Policy::new("strict", Quota::per_hour(1)).shadow();
    /// let alice = Key::new("alice");
    ///
    /// assert!(limiter.check(&strict, &alice, 1).await?.is_allowed());
    /// let decision = limiter.check(&strict, &alice, 1).await?;
    /// assert!(decision.is_allowed());
    /// assert!(!decision.shadows()[0].is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        self.enforced(Enforced::FOR_NONE)
    }

    /// Enforces the policy for this share of the keys, from 0 to 1, and makes it a [shadow](Self::shadow) for the others.
    /// Defaults to 1. Use it to enforce a new limit step by step.
    ///
    /// Which keys these are depends on the key and the policy's name alone, so it is the same on every instance and for
    /// every request. A larger share has all keys of a smaller one.
    ///
    /// # Panics
    ///
    /// If `share` is not from 0 to 1. [`try_enforced_for`](Self::try_enforced_for) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn enforced_for(self, share: f64) -> Self {
        match self.try_enforced_for(share) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`enforced_for`](Self::enforced_for), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`enforced_for`](Self::enforced_for) panics.
    pub fn try_enforced_for(self, share: f64) -> Result<Self, Error> {
        Ok(self.enforced(Enforced::for_share(share)?))
    }

    fn enforced(mut self, enforced: Enforced) -> Self {
        let inner = Arc::make_mut(&mut self.0);
        inner.enforced = enforced;
        inner.debits = inner.debits.take().map(|debits| debits.enforced(enforced));
        self
    }

    /// Whether the policy is enforced for `key`.
    pub(crate) fn is_enforced_for(&self, key: &Key) -> bool {
        self.0.enforced.is_for(&self.0.name, key)
    }

    /// Says that its units are bytes of content: `RateLimit-Policy` then has the quota unit `content-bytes`. Without it,
    /// clients take them for requests. What is charged does not depend on it.
    ///
    /// # Example
    ///
    /// ```
    /// use http::{Request, Response};
    /// use tower::{Layer, ServiceExt};
    /// use tower_ratelimit::{key::Constant, MemoryStore, Policy, Quota, RateLimitLayer};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let bytes = Policy::new("bytes", Quota::per_minute(100_000)).content_bytes();
    /// let layer = RateLimitLayer::new(MemoryStore::new(), bytes, Constant::new("all")).charge_response_bytes("bytes");
    /// let download = layer.layer(tower::service_fn(|_: Request<()>| async {
    ///     Ok::<_, std::convert::Infallible>(Response::new(String::from("hello")))
    /// }));
    /// let response = download.oneshot(Request::new(())).await?;
    /// assert_eq!(response.headers()["ratelimit-policy"], r#""bytes";q=100000;qu="content-bytes";w=60"#);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn content_bytes(mut self) -> Self {
        Arc::make_mut(&mut self.0).bytes = true;
        self
    }

    /// Whether its units are bytes of content.
    pub(crate) fn counts_bytes(&self) -> bool {
        self.0.bytes
    }

    /// Lets a [debit](crate::Limiter::debit) charge up to `units` more than remain. Requests are then denied until the
    /// debt is paid off. Defaults to 0: a debit charges what remains.
    ///
    /// A bucket ([`Gcra`], [`TokenBucket`](crate::algorithm::TokenBucket),
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket)) pays the debt off at the quota's rate. Under a
    /// [`SlidingLog`](crate::algorithm::SlidingLog) or a [`SlidingWindow`](crate::algorithm::SlidingWindow) the units
    /// count for a period, as all others. Under a [`FixedWindow`](crate::algorithm::FixedWindow) the debt ends with its
    /// window. While the store [fails](crate::FailureMode::Local), debits charge what remains in this process.
    ///
    /// Redis makes the decisions of such a policy with a longer script, which takes about twice the time.
    ///
    /// # Panics
    ///
    /// If the algorithm allows no debt ([`Concurrency`], or one of your own), or quota and debt together are above the
    /// bounds of a [`Quota`]. [`try_debt`](Self::try_debt) gives an error instead, and so does
    /// [`try_algorithm`](Self::try_algorithm) if it is called later.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let tokens = Policy::new("tokens", Quota::per_hour(1_000)).debt(500);
    /// let alice = Key::new("alice");
    ///
    /// let request = limiter.check(&tokens, &alice, 1).await?;
    /// // The answer took 1 200 tokens. 1 000 of them were available.
    /// let debited = limiter.debit(&request, 1_199).await?;
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (1_199, Some(0)));
    /// // 200 tokens of debt and one for this request, of 1 000 an hour.
    /// let denied = limiter.check(&tokens, &alice, 1).await?;
    /// assert_eq!(denied.retry_after().unwrap().as_secs().div_ceil(60), 13);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn debt(self, units: u64) -> Self {
        match self.try_debt(units) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`debt`](Self::debt), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`debt`](Self::debt) panics.
    pub fn try_debt(mut self, units: u64) -> Result<Self, Error> {
        Arc::make_mut(&mut self.0).debt = units;
        self.apply_debt()
    }

    /// Computes what follows from the debt, the quota and the algorithm.
    fn apply_debt(mut self) -> Result<Self, Error> {
        let inner = Arc::make_mut(&mut self.0);
        inner.debits = None;
        let (quota, debt) = (inner.quota, inner.debt);
        let arguments = inner.algorithm.arguments(&quota)?;
        if debt == 0 {
            inner.arguments = arguments.into();
            return Ok(self);
        }
        let capacity = inner.capacity.saturating_add(debt);
        if capacity > MAX_CAPACITY || quota.try_burst(quota.capacity().saturating_add(debt)).is_err() {
            return Err(Error::invalid(
                "the debt is too large: quota and debt together must be within the bounds of a burst",
            ));
        }
        let counter = inner.algorithm.counter();
        let Some([own, debits]) = counter.and_then(|counter| counter.with_debt(&arguments, debt)) else {
            return Err(Error::invalid(
                "this algorithm allows no debt: leave out `debt`, or use another built-in algorithm than `Concurrency`",
            ));
        };
        inner.arguments = own.into();
        let mut room = self.clone();
        let inner = Arc::make_mut(&mut room.0);
        (inner.arguments, inner.capacity) = (debits.into(), capacity);
        (inner.debt, inner.most_leased) = (0, 0);
        Arc::make_mut(&mut self.0).debits = Some(room);
        Ok(self)
    }

    /// The policy that counts debits, and the units of debt that it has room for.
    pub(crate) fn debits(&self) -> (&Self, u64) {
        (self.0.debits.as_ref().unwrap_or(self), self.0.debt)
    }

    /// The most that [leases](Self::leased) can withhold. `None` if nothing is leased.
    #[must_use]
    pub fn lease_bound(&self) -> Option<LeaseBound> {
        let units = self.most_held();
        let missed = self.missed().filter(|_| units > 0)?;
        Some(LeaseBound { units, after_a_crash: Duration::from_micros(missed) })
    }

    /// 0 if nothing is leased.
    #[cfg(feature = "redis")]
    pub(crate) fn most_leased(&self) -> u64 {
        self.0.most_leased
    }

    /// The counters of its decisions.
    #[cfg(feature = "metrics")]
    pub(crate) fn counters(&self) -> &PolicyCounters {
        &self.0.counters
    }

    /// The policy's part of the key of its state.
    pub(crate) fn label(&self) -> &str {
        &self.0.label
    }

    /// A hash of the label, the same for the lifetime of the process.
    pub(crate) fn tag(&self) -> u64 {
        self.0.tag
    }

    /// Whether its units are permits, in use until they are released.
    pub(crate) fn has_permits(&self) -> bool {
        self.0.replenishment == Replenishment::OnRelease
    }

    /// How its units come back.
    pub(crate) fn replenishment(&self) -> Replenishment {
        self.0.replenishment
    }

    /// Whether both are clones of one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether both have one label, and so one state per key.
    pub(crate) fn shares_counts_with(&self, other: &Self) -> bool {
        self.is(other) || self.label() == other.label()
    }

    /// Whether both count the same units in the same way, and so decide alike.
    #[cfg(feature = "redis")]
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.is(other) || self.shares_counts_with(other) && self.arguments() == other.arguments()
    }

    /// About how many microseconds of Redis one decision takes at worst.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_micros(&self, refund: bool) -> u64 {
        // The cost of a user's algorithm is unknown.
        const UNKNOWN: u64 = 50;
        self.counting().counter().map_or(UNKNOWN, |counter| counter.redis_micros(self.arguments(), refund))
    }

    pub(crate) fn failure_mode(&self) -> FailureMode {
        self.0.on_store_failure
    }

    /// The policy that counts in this process while the store fails: of this instance's share of the quota, and of GCRA
    /// if the algorithm has no form in Rust.
    pub(crate) fn local_share(&self) -> Self {
        let FailureMode::Local { instances } = self.failure_mode() else { return self.clone() };
        let quota = self.0.quota.share_of(instances.max(1));
        let algorithm = self.counting();
        let in_rust = algorithm.counter().is_some() || algorithm.twin().is_some();
        let algorithm = if in_rust { algorithm.clone() } else { Arc::new(Gcra::new()) };
        let Ok(arguments) = algorithm.arguments(&quota) else { return self.clone() };
        let mut share = self.clone();
        let inner = Arc::make_mut(&mut share.0);
        inner.arguments = arguments.into();
        inner.capacity = algorithm.capacity(&quota);
        inner.replenishment = algorithm.replenishment();
        (inner.quota, inner.algorithm) = (quota, algorithm);
        (inner.debt, inner.debits) = (0, None);
        share
    }

    /// The policy with another quota, counted by the same algorithm with the same options.
    #[cfg(any(feature = "adaptive", all(feature = "redis", feature = "reload")))]
    pub(crate) fn with_quota(&self, quota: Quota) -> Result<Self, Error> {
        let mut changed = self.clone();
        let inner = Arc::make_mut(&mut changed.0);
        inner.quota = quota;
        inner.arguments = inner.algorithm.arguments(&quota)?.into();
        inner.capacity = checked_capacity(&*inner.algorithm, &quota)?;
        changed.apply_debt()?.check_lease()
    }

    /// The policy with this share of its quota, which is from 0 to 1: of at least one unit.
    #[cfg(feature = "adaptive")]
    pub(crate) fn share(&self, share: f64) -> Result<Self, Error> {
        self.with_quota(self.0.quota.scaled(share))
    }

    pub(crate) fn counting(&self) -> &Arc<dyn Algorithm> {
        &self.0.algorithm
    }

    pub(crate) fn arguments(&self) -> &[u64] {
        &self.0.arguments
    }
}

/// Policies are equal if they have the same name, admit the same and look the same to clients: the same quota and unit,
/// algorithm with its options, lease, debt, share of keys and failure mode.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&*self.0, &*other.0);
        std::ptr::eq(one, other)
            || one.label == other.label
                && one.quota == other.quota
                && one.arguments == other.arguments
                && one.on_store_failure == other.on_store_failure
                && one.most_leased == other.most_leased
                && one.debt == other.debt
                && one.bytes == other.bytes
                && one.enforced == other.enforced
    }
}

impl Eq for Policy {}

/// `name:algorithm`. The name is encoded like a key: a brace would break the hash tag, and a colon would look like the
/// end of a prefix.
fn label(name: &str, algorithm: &dyn Algorithm) -> Box<str> {
    format!("{}:{}", Key::new(name).as_str().replace(':', "%3A"), algorithm.name()).into()
}

fn checked_capacity(algorithm: &dyn Algorithm, quota: &Quota) -> Result<u64, Error> {
    let capacity = algorithm.capacity(quota);
    if capacity == 0 || capacity > MAX_CAPACITY {
        return Err(Error::invalid("an algorithm's capacity must be from 1 to 2^44"));
    }
    Ok(capacity)
}

fn tag(label: &str) -> u64 {
    hasher().hash_one(label)
}

/// State is stored under the algorithm's name, so a user's algorithm must not have the name of a built-in one.
fn check(algorithm: &dyn Algorithm) -> Result<(), Error> {
    let name = algorithm.name();
    let legible = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if name.is_empty() || name.len() > 32 || !legible {
        return Err(Error::invalid("an algorithm's name must be 1 to 32 of a to z, 0 to 9 and -"));
    }
    if algorithm.counter().is_none() && algorithm::built_in().iter().any(|ours| ours.name() == name) {
        return Err(Error::invalid("an algorithm of your own needs a name that no built-in one has"));
    }
    Ok(())
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("name", &self.0.name)
            .field("quota", &self.0.quota)
            .field("algorithm", &self.0.algorithm)
            .field("on_store_failure", &self.0.on_store_failure)
            .field("most_leased", &self.0.most_leased)
            .field("debt", &self.0.debt)
            .field("enforced", &self.0.enforced)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;

    #[test]
    fn a_name_that_no_header_can_carry_is_an_error() {
        let long = "a".repeat(65);
        for name in ["", "tab\there", "new\nline", "día", "del\u{7f}", &long] {
            assert!(Policy::try_new(name, Quota::per_second(1)).is_err(), "{name:?}");
        }
        for name in ["a", "per ip", "a\"b\\c", "{braces}", &"a".repeat(64)] {
            assert!(Policy::try_new(name, Quota::per_second(1)).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn a_window_with_a_burst_is_an_error_that_says_what_to_do() {
        let error = Policy::new("p", Quota::per_second(1).burst(2))
            .try_algorithm(FixedWindow::anchored())
            .unwrap_err();
        assert_eq!(error.to_string(), "a fixed window has no burst: leave out `burst`, or use `Gcra`");
    }
}
