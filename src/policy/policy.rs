//! [`Policy`]: a quota with a name, and the algorithm that counts it.

use std::{
    collections::BTreeMap,
    fmt,
    hash::BuildHasher as _,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::{
    Criticality, FailureMode, Penalty, QuotaUnit,
    criticality::YIELDING,
    parameters::{Parameters, check},
    settings::{EVERY_KEY, PolicySettings},
};
#[cfg(feature = "redis")]
use crate::algorithm::counter::Calendar;
#[cfg(feature = "metrics")]
use crate::metrics::PolicyHandles;
use crate::{
    algorithm::{Algorithm, Concurrency, Gcra, Replenishment, counter::usual, guarantee::Guarantee},
    base::{Error, Quota, random::hasher, valid, watched},
    key::Key,
};

/// A [`Quota`] with a name, the [`Algorithm`] that counts it, and what happens when the store is unavailable.
///
/// Clients see the name in the `RateLimit` headers, operators in Redis keys and logs. Two policies with the
/// same name and algorithm share their counts on one store, even if their quotas differ. Cloning is cheap. To
/// read policies from a configuration file, use `config` of the crate `tower-ratelimit-operate`.
///
/// `Display` writes the settings, except the name, the algorithm's options and the numbers of a penalty:
/// `5/min, gcra, failure mode local`.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{algorithm::FixedWindow, FailureMode, Policy, Quota};
///
/// let burst = Policy::new("burst", Quota::per_second(10).burst(20));
/// assert_eq!((burst.name(), burst.capacity()), ("burst", 20));
///
/// let daily = Policy::new("daily", Quota::per_day(10_000))
///     .algorithm(FixedWindow::aligned())
///     .failure_mode(FailureMode::Closed);
/// assert_eq!(daily.to_string(), "10000/day, fixed-window, failure mode closed");
///
/// // A header could not carry this name.
/// assert!(Policy::try_new("día", Quota::per_day(10)).is_err());
/// ```
#[derive(Clone)]
pub struct Policy(pub(super) Arc<PolicyData>);

// Every request changes the reference count. Aligned to two cache lines, the fields are not in its line, so
// threads read them while others count. With the same for a layer's configuration, two threads need 1 % less
// CPU time for an admitted request and 3 % less for a denied one.
#[repr(align(128))]
pub(super) struct PolicyData {
    /// That of the policy that this is a copy of: see [`Policy::apart`].
    id: u64,
    name: PolicyName,
    settings: PolicySettings,
    // The following fields are computed from the settings.
    parameters: Parameters,
    /// The units that requests of each criticality but the highest leave unused, from the least critical ones.
    headroom: [u64; YIELDING.len()],
    /// The policy at its full quota, if this is a part of it, and after what time it may have grown.
    reduced: Option<(Policy, Duration)>,
    /// The policy of the same name that counts denials and bans keys.
    bans: Option<Policy>,
    /// The policy that counts debits, if it allows debt: a copy whose capacity is larger by the debt.
    debits: Option<Policy>,
    /// Whether this is the internal policy for debits.
    counts_debits: bool,
    /// See [`Policy::resets`]. Made for the first reset or refund.
    resets: OnceLock<Policy>,
    /// See [`Policy::guarantee_in`]. That of the first pool.
    guarantee: OnceLock<Policy>,
    #[cfg(feature = "metrics")]
    handles: PolicyHandles,
}

/// The name of a policy in all its forms.
#[derive(Clone)]
struct PolicyName {
    text: Arc<str>,
    /// See [`Policy::quoted_name`].
    quoted: Arc<str>,
    /// See [`Policy::label`].
    label: Box<str>,
    /// See [`Policy::tag`].
    tag: u64,
    /// See [`Policy::pool`].
    pool: Option<u64>,
}

const MAX_NAME: usize = 64;
/// The time after which a permit expires if its holder no longer renews it.
const PERMIT_EXPIRY: Duration = Duration::from_secs(30);
/// The bounds of [`Policy::refundable_for`]. The upper one is above the time in which any quota refills.
const LEAST_REFUNDABLE: Duration = Duration::from_secs(3_600);
const MOST_REFUNDABLE: Duration = Duration::from_secs(200 * 365 * 86_400);

impl Policy {
    /// The policy `name`, counted by [`Gcra`]. A quota per month, quarter or year is counted by
    /// [`FixedWindow::aligned`](crate::algorithm::FixedWindow::aligned), and one of more than
    /// 10,000,000,000,000 units, which no bucket counts, by
    /// [`FixedWindow::anchored`](crate::algorithm::FixedWindow::anchored).
    ///
    /// # Panics
    ///
    /// If `name` is empty, longer than 64 bytes, or has a character outside printable ASCII (0x20 to
    /// 0x7E), which no header could carry. [`try_new`](Self::try_new) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn new(name: &str, quota: Quota) -> Self {
        valid(Self::try_new(name, quota))
    }

    /// The fallible form of [`new`](Self::new), for a name read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`new`](Self::new) panics.
    pub fn try_new(name: &str, quota: Quota) -> Result<Self, Error> {
        ensure!((1..=MAX_NAME).contains(&name.len()), "a policy's name must have 1 to 64 characters");
        ensure!(
            name.bytes().all(|byte| (0x20..=0x7e).contains(&byte)),
            "a policy's name must be printable ASCII, because response headers carry it"
        );
        let settings = PolicySettings::new(quota);
        Self::build(PolicyName::new(name, &*settings.algorithm), settings)
    }

    /// The policy `name` with at most `limit` units in use at any moment, over all instances, counted by
    /// [`Concurrency`](crate::algorithm::Concurrency).
    ///
    /// Units of a crashed instance are released after 30 seconds. To change this time, set it as the period
    /// of the quota: `Policy::new(name, Quota::new(limit, time)).algorithm(Concurrency::new())`.
    ///
    /// # Panics
    ///
    /// Where [`new`](Self::new) panics, and if `limit` is 0 or above a million. [`Quota::try_new`],
    /// [`try_new`](Self::try_new) and [`try_algorithm`](Self::try_algorithm) give an error instead.
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
    /// assert!(running.is_admitted());
    /// assert!(!limiter.check(&exports, &tenant, 1).await?.is_admitted());
    /// drop(running);
    /// assert!(limiter.check(&exports, &tenant, 1).await?.is_admitted());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn concurrency(name: &str, limit: u64) -> Self {
        let quota = Quota::try_new(limit, PERMIT_EXPIRY);
        valid(quota.and_then(|quota| Self::try_new(name, quota)?.try_algorithm(Concurrency::new())))
    }

    /// Counts by `algorithm`. Defaults to [`Gcra`].
    ///
    /// # Panics
    ///
    /// If the algorithm cannot count the quota: for example, the quota has a burst, and the algorithm is
    /// [`FixedWindow`](crate::algorithm::FixedWindow). [`try_algorithm`](Self::try_algorithm) gives an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub fn algorithm(self, algorithm: impl Algorithm) -> Self {
        valid(self.try_algorithm(algorithm))
    }

    /// The fallible form of [`algorithm`](Self::algorithm), for a quota read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`algorithm`](Self::algorithm) panics.
    pub fn try_algorithm(self, algorithm: impl Algorithm) -> Result<Self, Error> {
        self.with(|settings| settings.algorithm = Arc::new(algorithm))
    }

    /// The policy of this name with other settings, which are checked together. So settings that exclude each
    /// other can be exchanged, such as a lease for a penalty.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if a setting is invalid, or if settings do not fit
    /// together.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, policy::Penalty};
    ///
    /// let leased = Policy::new("api", Quota::per_second(1_000)).max_lease(50);
    /// // A policy with a lease cannot have a penalty.
    /// assert!(leased.clone().try_penalty(Penalty::manual()).is_err());
    ///
    /// let mut settings = leased.settings().clone();
    /// (settings.max_lease, settings.penalty) = (None, Some(Penalty::manual()));
    /// let banning = leased.with_settings(settings)?;
    /// assert_eq!(banning, Policy::new("api", Quota::per_second(1_000)).penalty(Penalty::manual()));
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn with_settings(&self, settings: PolicySettings) -> Result<Self, Error> {
        self.with(|own| *own = settings)
    }

    /// This policy with a change of its settings.
    pub(super) fn with(&self, change: impl FnOnce(&mut PolicySettings)) -> Result<Self, Error> {
        let own = &self.0.settings;
        let mut settings = own.clone();
        change(&mut settings);
        if !Arc::ptr_eq(&settings.algorithm, &own.algorithm) {
            check(&*settings.algorithm)?;
            return Self::build(PolicyName::new(self.name(), &*settings.algorithm), settings);
        }
        if settings.agrees_with(own) {
            return Ok(self.clone());
        }
        Self::build(self.0.name.clone(), settings)
    }

    /// Checks the settings against each other, and computes what follows from them.
    fn build(name: PolicyName, mut settings: PolicySettings) -> Result<Self, Error> {
        let algorithm = settings.algorithm.clone();
        let strikes = settings.penalty.map(Penalty::strikes).transpose()?;
        let mut parameters = Parameters::new(&*algorithm, &settings.quota)?;
        settings.check(parameters.lease_recovery(&*algorithm, settings.max_lease).is_some())?;
        settings.enforced = f64::from(settings.enforced_keys()) / f64::from(EVERY_KEY);
        let debits = match settings.max_debt {
            0 => None,
            units => {
                let parameters = parameters.make_room(&*algorithm, &settings.quota, units)?;
                let mut settings =
                    PolicySettings { max_lease: None, max_debt: 0, penalty: None, ..settings.clone() };
                settings.headroom.clear();
                let inner = PolicyData::new(name.clone(), settings, parameters);
                Some(Self(Arc::new(PolicyData { counts_debits: true, ..inner })))
            }
        };
        let bans = match strikes {
            None => None,
            Some(strikes) => {
                let name = PolicyName::new(&name.text, &strikes);
                let algorithm: Arc<dyn Algorithm> = Arc::new(strikes);
                let settings = PolicySettings { algorithm, ..PolicySettings::new(Quota::per_second(1)) };
                Some(Self::build(name, settings)?)
            }
        };
        Ok(Self(Arc::new(PolicyData { bans, debits, ..PolicyData::new(name, settings, parameters) })))
    }

    /// Changes a setting on which no other setting depends.
    pub(super) fn with_independent(&self, change: impl FnOnce(&mut PolicySettings)) -> Self {
        // The change cannot fail, because the other settings are valid already.
        self.with(change).unwrap_or_else(|_| self.clone())
    }

    /// The name: printable ASCII, 1 to 64 characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name.text
    }

    /// The name in quotes, as headers and problems carry it.
    pub(crate) fn quoted_name(&self) -> &str {
        &self.0.name.quoted
    }

    /// The limit per period, and the burst.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.0.settings.quota
    }

    /// All settings except the name: for pages and tests that show or compare policies.
    #[must_use]
    pub fn settings(&self) -> &PolicySettings {
        &self.0.settings
    }

    /// The name of the algorithm, such as `gcra`.
    pub(crate) fn algorithm_name(&self) -> &str {
        self.settings().algorithm.name()
    }

    /// The most units that an idle key can be charged in one step.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.parameters.capacity
    }

    /// The handles of its metrics.
    #[cfg(feature = "metrics")]
    pub(crate) fn handles(&self) -> &PolicyHandles {
        &self.0.handles
    }

    /// `name:algorithm`, the policy's part of the [name](crate::Operator::stored_name) under which a store
    /// keeps a count. The name of the policy is encoded as an identity is.
    pub(crate) fn label(&self) -> &str {
        &self.0.name.label
    }

    /// A hash of the label, the same for the lifetime of the process.
    pub(crate) fn tag(&self) -> u64 {
        self.0.name.tag
    }

    /// Whether the units are permits, in use until they are released: the algorithm is
    /// [`Concurrency`](crate::algorithm::Concurrency), or a custom one with permits.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota};
    ///
    /// assert!(Policy::concurrency("exports", 3).has_permits());
    /// assert!(!Policy::new("api", Quota::per_second(3)).has_permits());
    /// ```
    #[must_use]
    pub fn has_permits(&self) -> bool {
        matches!(self.replenishment(), Replenishment::OnRelease)
    }

    /// Whether requests wait in a [queue](crate::algorithm::LeakyBucket::queue): then decisions may have a
    /// [delay](crate::Decision::delay).
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Policy, Quota, algorithm::LeakyBucket};
    ///
    /// let policy = Policy::new("api", Quota::per_second(10));
    /// assert!(!policy.queues());
    /// assert!(policy.algorithm(LeakyBucket::queue(Duration::from_secs(1))).queues());
    /// ```
    #[must_use]
    pub fn queues(&self) -> bool {
        self.settings().algorithm.counter().is_some_and(|counter| counter.queues(self.arguments()))
    }

    /// The way in which units become available again.
    pub(crate) fn replenishment(&self) -> Replenishment {
        self.0.parameters.replenishment
    }

    /// Whether the algorithm is a custom one.
    #[cfg(feature = "redis")]
    pub(crate) fn is_custom(&self) -> bool {
        self.0.parameters.redis_micros.is_none()
    }

    /// Whether the policy is enforced for `key`.
    #[inline]
    pub(crate) fn is_enforced_for(&self, key: &Key) -> bool {
        self.0.settings.enforced >= 1.0 || self.is_rolled_out_to(key)
    }

    /// Computes the same on every instance; a larger share includes all keys of a smaller one. The preflights
    /// of a client are in the share if its other requests are, because a ban is for both.
    #[cold]
    fn is_rolled_out_to(&self, key: &Key) -> bool {
        let (_, client) = key.split_preflight();
        // A guarantee is for no key: it denies nothing.
        self.0.settings.enforced > 0.0 && place(self.name(), client) < self.0.settings.enforced_keys()
    }

    /// The internal policy that counts what a client may always take of `pool`: at this policy's quota. It denies nothing, and where
    /// it admits, the charge on the pool leaves no headroom.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if one of them is not a bucket that drains continuously.
    pub(crate) fn guarantee_in(&self, pool: &Self) -> Result<Self, Error> {
        let mode = pool.settings().failure_mode;
        let is_of_it =
            |known: &&Self| known.pool() == Some(pool.tag()) && known.settings().failure_mode == mode;
        if let Some(known) = self.0.guarantee.get().filter(is_of_it) {
            return Ok(known.clone());
        }
        self.buckets(pool)?;
        let of = |policy: &Self| {
            policy.label().split_once(':').map_or_else(String::new, |(name, _)| name.to_owned())
        };
        let label: Box<str> = format!("{}%@{}:{}", of(self), of(pool), Guarantee.name()).into();
        let tag = hasher().hash_one(&*label);
        let name = PolicyName { tag, label, pool: Some(pool.tag()), ..self.0.name.clone() };
        let settings = PolicySettings {
            algorithm: Arc::new(Guarantee),
            failure_mode: mode,
            max_lease: None,
            penalty: None,
            headroom: BTreeMap::new(),
            enforced: 0.0,
            ..self.settings().clone()
        };
        let guarantee = Self::build(name, settings)?;
        let _ = self.0.guarantee.set(guarantee.clone());
        Ok(guarantee)
    }

    /// Checks that this policy can be a guarantee in `pool`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) as [`guarantee_in`](Self::guarantee_in), and if it could not hold for one
    /// client alone.
    pub(crate) fn check_guarantee_in(&self, pool: &Self) -> Result<(), Error> {
        let (name, its_name, settings) = (self.name(), pool.name(), self.settings());
        let [[period, units, burst], [its_period, its_units, capacity]] = self.buckets(pool)?;
        let (burst, headroom) = (burst + settings.max_debt, pool.headroom_of(Criticality::Sheddable));
        if burst > headroom {
            return Err(invalid!(
                "the guarantee {name:?} has {burst} units with its debt, and {its_name:?} keeps {headroom}: set \
                 `Policy::headroom` for `Sheddable` to the sum of all guarantees at least"
            ));
        }
        if headroom >= capacity {
            return Err(invalid!(
                "{its_name:?} keeps all of its {capacity} units for guarantees, so none can borrow: raise its burst, or \
                 lower `Policy::headroom`"
            ));
        }
        if u128::from(units) * u128::from(its_period) > u128::from(its_units) * u128::from(period) {
            return Err(invalid!("the guarantee {name:?} is more than the quota of {its_name:?}"));
        }
        if settings.penalty.is_some() || settings.enforced < 1.0 {
            return Err(invalid!(
                "the guarantee {name:?} has a penalty or is a shadow, and a guarantee denies nothing: leave these out, or \
                 set them for {its_name:?}"
            ));
        }
        Ok(())
    }

    /// The numbers of a guarantee and of its pool, as buckets. Units that are left unused stay in such a pool.
    fn buckets(&self, pool: &Self) -> Result<[[u64; 3]; 2], Error> {
        let (name, its_name) = (self.name(), pool.name());
        self.continuous_bucket().zip(pool.continuous_bucket()).map(Into::into).ok_or_else(|| {
            invalid!(
                "{name:?} cannot be a guarantee in {its_name:?}: count both by `Gcra`, or a `TokenBucket` or `LeakyBucket::meter` \
                 without steps, start or queue, because others lose what is left unused there"
            )
        })
    }

    /// The period, the units that drain in it and the burst of a bucket that drains continuously, starts full and does not queue.
    fn continuous_bucket(&self) -> Option<[u64; 3]> {
        match self.settings().algorithm.counter()?.usual(self.arguments())?[..] {
            [usual::BUCKET | usual::DEBT, period, units, burst, ..] => Some([period, units, burst]),
            _ => None,
        }
    }

    /// The [tag](Self::tag) of the pool in which this is a guarantee.
    #[inline]
    pub(crate) fn pool(&self) -> Option<u64> {
        self.0.name.pool
    }

    /// The internal policy that counts denials and bans.
    pub(crate) fn bans(&self) -> Option<&Self> {
        self.0.bans.as_ref()
    }

    /// The internal policy under whose label a store keeps when a key was reset. No other policy has this label,
    /// because `%` is in no name of an algorithm.
    pub(crate) fn resets(&self) -> &Self {
        self.0.resets.get_or_init(|| {
            let label: Box<str> = format!("{}%reset", self.label()).into();
            let name = PolicyName { tag: hasher().hash_one(&*label), label, ..self.0.name.clone() };
            Self(Arc::new(PolicyData::new(name, self.0.settings.clone(), self.0.parameters.clone())))
        })
    }

    /// For how long a charge can be refunded at most, and at least an hour. A charge from before a reset may be of a
    /// longer quota, so the stores keep the mark of a reset at least as long as they would have kept the state.
    pub(crate) fn refundable_for(&self) -> Duration {
        let units = self.capacity().saturating_add(self.settings().max_debt);
        // A bucket drains in as many periods. A window counts for up to two.
        let periods =
            u32::try_from(units.div_ceil(self.quota().limit())).unwrap_or(u32::MAX).saturating_add(1);
        self.quota().period().saturating_mul(periods).clamp(LEAST_REFUNDABLE, MOST_REFUNDABLE)
    }

    /// The policy that counts debits.
    pub(crate) fn debits(&self) -> &Self {
        self.0.debits.as_ref().unwrap_or(self)
    }

    /// The [capacity](Self::capacity), for the policy of debits without the room that these have for debt.
    pub(crate) fn capacity_without_debt(&self) -> u64 {
        let settings = self.settings();
        if self.counts_debits() { settings.algorithm.capacity(&settings.quota) } else { self.capacity() }
    }

    /// Whether this is the internal policy for the debits of another one.
    pub(crate) fn counts_debits(&self) -> bool {
        self.0.counts_debits
    }

    /// How long units [leased](Self::max_lease) by an instance stay charged after it crashes, loses its
    /// connection to Redis, or shuts down without [`Limiter::drain`](crate::Limiter::drain). A window counts
    /// them until it ends. A bucket keeps them charged for up to a second, and then replenishes them. `None`
    /// if the policy leases no units.
    #[must_use]
    pub fn lease_bound(&self) -> Option<Duration> {
        self.0.parameters.lease_recovery(&*self.0.settings.algorithm, self.most_leased())
    }

    /// The units that requests of this criticality leave unused.
    #[inline]
    pub(crate) fn headroom_of(&self, criticality: Criticality) -> u64 {
        self.0.headroom.get(criticality as usize).copied().unwrap_or(0)
    }

    /// The policy at its full quota, if this is a part of it, and after what time it may have grown.
    pub(crate) fn reduced_from(&self) -> Option<(&Self, Duration)> {
        self.0.reduced.as_ref().map(|(full, wait)| (full, *wait))
    }

    /// Whether both are clones of one, or copies.
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }

    /// A copy with a reference count that no clone of this policy has.
    pub(crate) fn apart(&self) -> Self {
        let PolicyData { id, name, settings, parameters, reduced, bans, debits, counts_debits, .. } =
            &*self.0;
        let copy = PolicyData::new(name.clone(), settings.clone(), parameters.clone());
        let (bans, debits) = (bans.clone(), debits.clone());
        Self(Arc::new(PolicyData {
            id: *id,
            reduced: reduced.clone(),
            bans,
            debits,
            counts_debits: *counts_debits,
            ..copy
        }))
    }

    /// Whether both have one label, and so one state per key.
    pub(crate) fn shares_counts_with(&self, other: &Self) -> bool {
        self.is(other) || self.label() == other.label()
    }

    /// Whether both count the same units in the same way, and so decide alike.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.is(other)
            || self.shares_counts_with(other)
                && self.arguments() == other.arguments()
                // A custom algorithm may have no argument for the burst.
                && self.capacity() == other.capacity()
                && self.bans().map(Self::arguments) == other.bans().map(Self::arguments)
    }

    /// About how many microseconds of Redis one decision takes at worst.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_micros(&self, refund: bool) -> u64 {
        // The cost of a user's algorithm is unknown.
        const UNKNOWN: u64 = 50;
        self.0.parameters.redis_micros.map_or(UNKNOWN, |micros| micros[usize::from(refund)])
    }

    /// The policy that counts in this process while the store fails: with this instance's share of the quota,
    /// and counted by GCRA if the algorithm has no form in Rust. If the failure mode sets no number of
    /// instances, it is the one `seen` last.
    pub(crate) fn local_share(&self, seen: u32) -> Self {
        let FailureMode::Local { instances } = self.settings().failure_mode else { return self.clone() };
        let instances = if instances == 0 { seen } else { instances };
        let quota = self.quota().share_of(instances.max(1));
        let mut settings = PolicySettings { quota, max_lease: None, max_debt: 0, ..self.0.settings.clone() };
        settings.headroom.values_mut().for_each(|headroom| *headroom = headroom.share_of(instances.max(1)));
        if settings.algorithm.counter().is_none() && settings.algorithm.twin().is_none() {
            settings.algorithm = Arc::new(Gcra::new());
        }
        Self::build(self.0.name.clone(), settings).unwrap_or_else(|_| self.clone())
    }

    /// The policy with another quota, and all other settings as they are.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the algorithm or another setting does not
    /// support the quota.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Policy, Quota, algorithm::FixedWindow};
    ///
    /// let free = Policy::new("api", Quota::per_day(100)).try_algorithm(FixedWindow::anchored())?;
    /// let paid = free.with_quota(Quota::per_day(10_000))?;
    /// assert_eq!((paid.name(), paid.quota()), ("api", Quota::per_day(10_000)));
    /// assert_eq!(paid.to_string(), "10000/day, fixed-window, failure mode local");
    /// // Windows have no burst.
    /// assert!(free.with_quota(Quota::per_day(100).try_burst(5)?).is_err());
    /// # Ok::<(), tower_ratelimit::Error>(())
    /// ```
    pub fn with_quota(&self, quota: Quota) -> Result<Self, Error> {
        self.with(|settings| settings.quota = quota)
    }

    /// A copy with a smaller quota, as a controller uses it under load until it takes another one. What does not fit into the
    /// smaller capacity, cost and [headroom](Self::headroom) together, and would fit into that of this policy, is denied with the
    /// wait `grows_in`, after which the quota may have grown, instead of with none. Call it last: a copy with another setting does
    /// not know this policy.
    ///
    /// # Errors
    ///
    /// The same as [`with_quota`](Self::with_quota).
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let (full, limiter) = (Policy::new("api", Quota::per_minute(100)), Limiter::new(MemoryStore::new()));
    /// let reduced = full.with_reduced_quota(Quota::per_minute(10), Duration::from_secs(1))?;
    /// let wait = async |cost| limiter.check(&reduced, &Key::new("alice"), cost).await.map(|one| one.retry_after());
    /// assert_eq!((wait(50).await?, wait(101).await?), (Some(Duration::from_secs(1)), None));
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_reduced_quota(&self, quota: Quota, grows_in: Duration) -> Result<Self, Error> {
        let mut reduced = self.with_quota(quota)?.apart();
        // It has one reference.
        if let Some(data) = Arc::get_mut(&mut reduced.0) {
            data.reduced = Some((self.clone(), grows_in));
        }
        Ok(reduced)
    }

    /// Whether it reports shares of its quota that are used.
    #[inline]
    pub(crate) fn notifies(&self) -> bool {
        !self.0.settings.notify_at.is_empty()
    }

    /// The quota and the algorithm's options, as the Lua file and its Rust twin take them.
    pub(crate) fn arguments(&self) -> &[u64] {
        &self.0.parameters.arguments
    }

    /// The calendar that has its windows, and how many windows on each side of the three around a call a debt reaches.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn calendar(&self) -> Option<&(Calendar, u64)> {
        self.0.parameters.calendar.as_ref()
    }

    /// The numbers by which `lua/usual.lua` makes the usual decisions, as it takes them. Empty if it makes
    /// none.
    #[cfg(feature = "redis")]
    pub(crate) fn usual(&self) -> &[u8] {
        &self.0.parameters.usual
    }
}

/// Policies are equal if they have the same name, admit the same and look the same to clients: the same quota
/// and unit, algorithm with its options, lease, debt, penalty, headroom, share of keys and failure mode.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&*self.0, &*other.0);
        std::ptr::eq(one, other)
            || one.name.label == other.name.label
                && one.parameters.arguments == other.parameters.arguments
                && one.settings.agrees_with(&other.settings)
    }
}

impl Eq for Policy {}

impl PolicyData {
    fn new(name: PolicyName, settings: PolicySettings, parameters: Parameters) -> Self {
        if !settings.notify_at.is_empty() {
            watched::watch(watched::THRESHOLDS);
        }
        let (mut headroom, mut most) = ([0; YIELDING.len()], 0);
        for criticality in YIELDING {
            // The less critical ones leave at least as much.
            let own = settings.headroom.get(&criticality).map_or(0, |own| own.of(parameters.capacity));
            most = own.max(most);
            headroom[criticality as usize] = most;
        }
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            name,
            headroom,
            settings,
            parameters,
            reduced: None,
            bans: None,
            debits: None,
            counts_debits: false,
            resets: OnceLock::new(),
            guarantee: OnceLock::new(),
            #[cfg(feature = "metrics")]
            handles: PolicyHandles::new(),
        }
    }
}

impl PolicyName {
    fn new(name: &str, algorithm: &dyn Algorithm) -> Self {
        // The name is encoded like a key: a brace would break the hash tag, and a colon would look like the
        // end of a prefix.
        let label = format!("{}:{}", Key::new(name).as_str().replace(':', "%3A"), algorithm.name());
        let mut quoted = String::with_capacity(name.len() + 2);
        push_quoted(&mut quoted, name);
        Self {
            text: name.into(),
            quoted: quoted.into(),
            tag: hasher().hash_one(&*label),
            label: label.into(),
            pool: None,
        }
    }
}

/// A number below [`EVERY_KEY`], spread evenly over the keys, and differently for each policy.
fn place(name: &str, key: &[u8]) -> u32 {
    let hash = Sha256::new().chain_update(name).chain_update([0]).chain_update(key).finalize();
    let first = hash.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // Below a million.
    (first % u64::from(EVERY_KEY)) as u32
}

/// Appends `text` in quotes, as an RFC 9651 String and as a JSON string. The two forms are equal for
/// printable ASCII, the only characters in the names of policies and in this crate's texts.
pub(crate) fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    for char in text.chars() {
        if matches!(char, '"' | '\\') {
            to.push('\\');
        }
        to.push(char);
    }
    to.push('"');
}

/// Writes all settings that differ from their defaults, except the name.
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = self.settings();
        write!(f, "{}, {}", settings.quota, self.algorithm_name())?;
        if settings.quota_unit != QuotaUnit::Requests {
            write!(f, ", of {}", settings.quota_unit)?;
        }
        if settings.max_debt > 0 {
            write!(f, ", debt up to {}", settings.max_debt)?;
        }
        if let Some(lease) = settings.max_lease {
            write!(f, ", leases up to {lease}")?;
        }
        if settings.penalty.is_some() {
            f.write_str(", penalty")?;
        }
        for (criticality, headroom) in settings.headroom.iter().rev() {
            write!(f, ", headroom {headroom} of {criticality}")?;
        }
        match settings.enforced_keys() {
            EVERY_KEY => {}
            _ if self.pool().is_some() => {}
            0 => f.write_str(", shadow")?,
            // In millionths, so four digits are enough.
            keys => write!(f, ", enforced for {} % of the keys", f64::from(keys) / 1e4)?,
        }
        write!(f, ", failure mode {}", settings.failure_mode)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({:?}: {self}, {:?})", self.name(), self.settings().algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;

    #[test]
    fn a_changed_policy_keeps_what_is_special_about_it() {
        let quota = Quota::per_second(9);
        let plain = || Policy::new("p", quota);
        let rows = [
            plain().max_lease(2),
            Policy::concurrency("p", 9),
            plain().max_debt(2),
            plain().penalty(Penalty::manual()),
            plain().shadow(),
            plain().rollout(0.5),
            plain().max_lease(2).max_debt(2),
        ];
        for policy in rows {
            let changed = policy
                .clone()
                .failure_mode(FailureMode::Open)
                .quota_unit(QuotaUnit::ContentBytes)
                .with_quota(quota);
            let (changed, before) = (changed.unwrap(), policy.settings().clone());
            assert_eq!(policy.has_permits(), changed.has_permits());
            let (failure_mode, quota_unit) = (FailureMode::Open, QuotaUnit::ContentBytes);
            let expected = PolicySettings { quota, failure_mode, quota_unit, ..before };
            assert!(changed.settings().agrees_with(&expected), "{changed}");
        }
    }

    #[test]
    #[cfg(feature = "redis")]
    fn policies_with_different_bursts_do_not_count_alike() {
        #[derive(Debug)]
        struct Custom;

        impl Algorithm for Custom {
            fn name(&self) -> &str {
                "custom"
            }
            fn lua(&self) -> &str {
                "return { decide = function() return 0, 1, 0, nil, nil, 1, 1, 1 end }"
            }
            fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
                Ok(vec![quota.limit()])
            }
        }

        let of = |quota| Policy::new("p", quota).algorithm(Custom);
        assert!(of(Quota::per_hour(10)).counts_as(&of(Quota::per_hour(10))));
        assert!(!of(Quota::per_hour(10)).counts_as(&of(Quota::per_hour(10).burst(5))));
    }

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

    #[test]
    fn a_share_of_the_keys_is_stable_and_grows() {
        let keys: Vec<Key> = (0..20_000).map(|i| Key::new(i.to_string())).collect();
        let mut before = 0;
        for percent in [0, 1, 25, 50, 99, 100] {
            let share_of =
                |percent| Policy::new("api", Quota::per_day(1)).rollout(f64::from(percent) / 100.0);
            let smaller = share_of(before);
            let share = share_of(percent);
            let count = keys.iter().filter(|key| share.is_enforced_for(key)).count();
            let expected = 200 * percent as usize;
            assert!(count.abs_diff(expected) <= 300, "{percent} %: {count}");
            assert!(
                keys.iter().all(|key| !smaller.is_enforced_for(key) || share.is_enforced_for(key)),
                "{percent} %"
            );
            before = percent;
        }
        // Every version finds the same keys. Computed with another implementation of SHA-256.
        assert_eq!(place("api", b"alice"), PLACE_OF_ALICE);
    }

    const PLACE_OF_ALICE: u32 = 136_432;

    #[test]
    fn a_share_that_is_none_is_an_error() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Policy::new("api", Quota::per_day(1)).try_rollout(share).is_err(), "{share}");
        }
    }
}
