use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::BuildHasher as _,
    sync::{Arc, LazyLock},
    time::Duration,
};

use super::{FailureMode, LeaseBound};
use crate::{
    algorithm::{self, Algorithm, Concurrency, Gcra, Replenishment},
    error::Error,
    key::Key,
    quota::Quota,
    util::per_thread::Apart,
};

/// A named limit: how much ([`Quota`]), counted how ([`Algorithm`]), and what happens when the store
/// cannot say.
///
/// The name is what clients read in the `RateLimit` fields and operators in Redis keys and logs; two
/// policies of one name share their counts. Cloning is cheap.
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
/// // A name that no header can carry is refused.
/// assert!(Policy::try_new("día", Quota::per_day(10)).is_err());
/// ```
#[derive(Clone)]
pub struct Policy(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    name: Arc<str>,
    /// See [`Policy::quoted_name`].
    quoted: Arc<str>,
    quota: Quota,
    algorithm: Arc<dyn Algorithm>,
    /// The quota and the algorithm's options as the algorithm's two forms take them.
    arguments: Arc<[u64]>,
    capacity: u64,
    /// See [`Policy::label`].
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "nothing is kept under it in process"))]
    label: Box<str>,
    /// See [`Policy::tag`].
    tag: u64,
    replenishment: Replenishment,
    on_store_failure: FailureMode,
    /// Zero where nothing is leased.
    most_leased: u64,
}

const MAX_LEASED: u64 = 1_000_000_000_000;
const MAX_NAME: usize = 64;
/// How long units in use are kept for a holder that is not heard of.
const LEASE: Duration = Duration::from_secs(30);
/// More than the largest quota's, and exact in Lua.
const MAX_CAPACITY: u64 = 1 << 44;

impl Policy {
    /// The policy `name`, counted by [`Gcra`].
    ///
    /// # Panics
    ///
    /// If `name` is empty, longer than 64 bytes, or has a character outside printable ASCII (0x20 to
    /// 0x7E), which no header could carry. [`try_new`](Self::try_new) gives an error instead.
    #[must_use]
    pub fn new(name: &str, quota: Quota) -> Self {
        match Self::try_new(name, quota) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`new`](Self::new) for a name read from a configuration.
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
                "a policy's name must be printable ASCII, because header fields carry it",
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
        })))
    }

    /// The policy `name` that admits at most `limit` units in use at any moment, over all instances: a policy counted by
    /// [`Concurrency`](crate::algorithm::Concurrency), with a lease of 30 seconds. For another lease, make it the period of the
    /// quota: `Policy::new(name, Quota::new(limit, lease)?).algorithm(Concurrency::new())`.
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

    /// [`concurrency`](Self::concurrency) for values read from a configuration.
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
    /// If the quota is not for this algorithm, such as one with a burst for a
    /// [`FixedWindow`](crate::algorithm::FixedWindow). [`try_algorithm`](Self::try_algorithm) gives an error
    /// instead.
    #[must_use]
    pub fn algorithm(self, algorithm: impl Algorithm) -> Self {
        match self.try_algorithm(algorithm) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`algorithm`](Self::algorithm) for a quota read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`algorithm`](Self::algorithm) panics.
    pub fn try_algorithm(mut self, algorithm: impl Algorithm) -> Result<Self, Error> {
        let inner = Arc::make_mut(&mut self.0);
        check(&algorithm)?;
        inner.arguments = algorithm.arguments(&inner.quota)?.into();
        let capacity = algorithm.capacity(&inner.quota);
        if capacity == 0 || capacity > MAX_CAPACITY {
            return Err(Error::invalid("an algorithm's capacity must be from 1 to 2^44"));
        }
        inner.capacity = capacity;
        inner.label = label(&inner.name, &algorithm);
        inner.tag = tag(&inner.label);
        inner.replenishment = algorithm.replenishment();
        inner.algorithm = Arc::new(algorithm);
        self.check_lease()
    }

    /// Lets each instance take up to `most` units of a hot key from Redis in one call, and spend them in
    /// process, without a call for each request. Defaults to none: every request asks Redis.
    ///
    /// For a [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) is in process anyway and
    /// takes no notice.
    ///
    /// * **Promise**: still never more than the limit, over all instances and whatever the algorithm promises
    ///   it for, counted when a unit is spent. Redis counts a unit from when it is leased, and a lease ends no
    ///   later than what it was charged to: its window, the cell of a sliding window; a bucket keeps the room
    ///   of leased units free until they are spent or the lease ends, within a second.
    /// * **Price**: an instance may hold units that another one is refused for. An instance that runs gives
    ///   back within 1.5 seconds what it does not use, and one that shuts down what it
    ///   [has](crate::RedisStore::return_leases); for one that is gone, see [`lease_bound`](Self::lease_bound).
    /// * **How many** are leased follows the demand: none for a key that is asked for less than a hundred
    ///   times a second here, twice as many each time they are used up quickly, and never more than a quarter of
    ///   what is left. Up to 4096 keys are leased at a time.
    ///
    /// Only requests that are counted by this policy alone are admitted so. Those that are counted by several
    /// policies at once, and peeks, ask Redis and take leased units for spent. What remains, and the reset, are
    /// told as of the last call, less what was spent here.
    ///
    /// A refund first returns to Redis what is on lease here. A [refund of a decision](crate::Limiter::refund)
    /// that was admitted from a lease is counted from when the lease was taken, so it may return less than one
    /// that was not. Of what another instance has on lease Redis does not know how much was spent: an
    /// [administrator's refund](crate::Limiter::refund_latest) returns none of that to a bucket, and takes all of it for
    /// spent in a window. So refund no more units than were taken that way, or a window may admit so many more.
    ///
    /// A [reset](crate::Limiter::reset) drops what is on lease here; what other instances have on lease then
    /// they may still spend. The same holds where the clock of Redis is set: units on lease at that moment may
    /// count in the window before or after.
    ///
    /// # Panics
    ///
    /// If `most` is 0 or above 10^12, or the algorithm is one whose units cannot be leased exactly:
    /// [`SlidingLog`](crate::algorithm::SlidingLog), [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue),
    /// [`Concurrency`](crate::algorithm::Concurrency), or one of your own. [`try_leased`](Self::try_leased) gives an error
    /// instead; so does [`try_algorithm`](Self::try_algorithm) where that comes later.
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
    /// // A second, and then they come back at 50 a millisecond.
    /// assert_eq!(bound.after_a_crash(), Duration::from_millis(1_020));
    ///
    /// let exact = Policy::new("exact", Quota::per_second(50_000)).algorithm(SlidingLog::new());
    /// assert!(exact.try_leased(1_000).is_err());
    /// ```
    #[must_use]
    pub fn leased(self, most: u64) -> Self {
        match self.try_leased(most) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`leased`](Self::leased) for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`leased`](Self::leased) panics.
    pub fn try_leased(mut self, most: u64) -> Result<Self, Error> {
        if most == 0 || most > MAX_LEASED {
            return Err(Error::invalid(
                "a lease must be of 1 to 10^12 units: leave out `leased` where nothing is to be leased",
            ));
        }
        Arc::make_mut(&mut self.0).most_leased = most;
        self.check_lease()
    }

    fn check_lease(self) -> Result<Self, Error> {
        if self.0.most_leased > 0 && self.missed().is_none() {
            return Err(Error::invalid(
                "this algorithm's units cannot be leased without admitting too many at times: leave out `leased`, \
                 or use `Gcra`, `TokenBucket`, `LeakyBucket::meter`, `FixedWindow` or `SlidingWindow`",
            ));
        }
        Ok(self)
    }

    fn missed(&self) -> Option<u64> {
        self.0.algorithm.twin()?.lease_recovery(&self.0.arguments, self.most_held())
    }

    /// The most units of a key that can be on lease here.
    fn most_held(&self) -> u64 {
        self.0.most_leased.min(self.0.capacity)
    }

    /// What to do when the store gives no decision in time. Defaults to [`FailureMode::Open`].
    ///
    /// Where several policies are decided together, the strictest one's mode holds for all.
    #[must_use]
    pub fn on_store_failure(mut self, mode: FailureMode) -> Self {
        Arc::make_mut(&mut self.0).on_store_failure = mode;
        self
    }

    /// The name: printable ASCII, 1 to 64 characters.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The name as fields and problems have it, see [`push_quoted`].
    pub(crate) fn quoted_name(&self) -> &str {
        &self.0.quoted
    }

    /// How much is allowed.
    #[must_use]
    pub fn quota(&self) -> Quota {
        self.0.quota
    }

    /// The most that can be taken at once.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// How many units [leases](Self::leased) may withhold, and for how long. `None` where nothing is leased.
    #[must_use]
    pub fn lease_bound(&self) -> Option<LeaseBound> {
        let units = self.most_held();
        let missed = self.missed().filter(|_| units > 0)?;
        Some(LeaseBound { units, after_a_crash: Duration::from_micros(missed) })
    }

    /// Zero where nothing is leased.
    #[cfg(feature = "redis")]
    pub(crate) fn most_leased(&self) -> u64 {
        self.0.most_leased
    }

    /// The policy's part of the key of its state.
    pub(crate) fn label(&self) -> &str {
        &self.0.label
    }

    /// A hash of the label, the same as long as the process lives.
    pub(crate) fn tag(&self) -> u64 {
        self.0.tag
    }

    /// Whether its units are in use until they are given back.
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

    /// Whether both are kept under one label.
    pub(crate) fn shares_counts_with(&self, other: &Self) -> bool {
        self.is(other) || self.label() == other.label()
    }

    /// Whether both count the same units by the same rule: what one says of a key the other would say.
    #[cfg(feature = "redis")]
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        self.is(other) || self.shares_counts_with(other) && self.arguments() == other.arguments()
    }

    /// About how many microseconds of Redis one decision takes at worst.
    #[cfg(feature = "redis")]
    pub(crate) fn redis_micros(&self, refund: bool) -> u64 {
        // Of an algorithm from outside nothing is known.
        const UNKNOWN: u64 = 50;
        self.counting().twin().map_or(UNKNOWN, |twin| twin.redis_micros(self.arguments(), refund))
    }

    pub(crate) fn failure_mode(&self) -> FailureMode {
        self.0.on_store_failure
    }

    pub(crate) fn counting(&self) -> &Arc<dyn Algorithm> {
        &self.0.algorithm
    }

    pub(crate) fn arguments(&self) -> &[u64] {
        &self.0.arguments
    }
}

/// Policies are equal if they have the same name and admit the same: the same quota, algorithm with its options, lease
/// and failure mode.
impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        let (one, other) = (&*self.0, &*other.0);
        std::ptr::eq(one, other)
            || one.label == other.label
                && one.quota == other.quota
                && one.arguments == other.arguments
                && one.on_store_failure == other.on_store_failure
                && one.most_leased == other.most_leased
    }
}

impl Eq for Policy {}

impl Apart for Policy {
    fn apart(&self) -> Self {
        Self(Arc::new(Inner::clone(&self.0)))
    }
}

/// `name:algorithm`. A name may hold braces, which a key's text does not, and colons, which would make a part
/// of the name pass for a part of a longer prefix.
fn label(name: &str, algorithm: &dyn Algorithm) -> Box<str> {
    format!("{}:{}", Key::new(name).as_str().replace(':', "%3A"), algorithm.name()).into()
}

/// `text` in quotes, as an RFC 9651 String and as a JSON string: the same for printable ASCII, which is
/// all that a policy's name and our own texts consist of.
pub(crate) fn push_quoted(to: &mut String, text: &str) {
    to.push('"');
    let mut rest = text;
    // Most texts have nothing to escape, and go in one piece.
    while let Some(at) = rest.find(['"', '\\']) {
        let (before, from) = rest.split_at(at);
        let (escaped, after) = from.split_at(1);
        for part in [before, "\\", escaped] {
            to.push_str(part);
        }
        rest = after;
    }
    to.push_str(rest);
    to.push('"');
}

fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    push_quoted(&mut quoted, text);
    quoted
}

fn tag(label: &str) -> u64 {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHER.hash_one(label)
}

/// An algorithm from outside must not pass for one of ours: they are kept under their names.
fn check(algorithm: &dyn Algorithm) -> Result<(), Error> {
    let name = algorithm.name();
    let legible = name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    if name.is_empty() || name.len() > 32 || !legible {
        return Err(Error::invalid("an algorithm's name must be 1 to 32 of a to z, 0 to 9 and -"));
    }
    if algorithm.twin().is_none() && algorithm::built_in().iter().any(|ours| ours.name() == name) {
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
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::FixedWindow;

    #[test]
    fn a_name_that_no_header_can_carry_is_refused() {
        let long = "a".repeat(65);
        for name in ["", "tab\there", "new\nline", "día", "del\u{7f}", &long] {
            assert!(Policy::try_new(name, Quota::per_second(1)).is_err(), "{name:?}");
        }
        for name in ["a", "per ip", "a\"b\\c", "{braces}", &"a".repeat(64)] {
            assert!(Policy::try_new(name, Quota::per_second(1)).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn a_burst_for_a_window_is_refused_and_the_message_says_what_to_do() {
        let error = Policy::new("p", Quota::per_second(1).burst(2))
            .try_algorithm(FixedWindow::anchored())
            .unwrap_err();
        assert_eq!(error.to_string(), "a fixed window has no burst: leave out `burst`, or use `Gcra`");
    }
}
