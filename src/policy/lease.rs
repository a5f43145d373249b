//! How many units of a policy may be leased.

use std::{sync::Arc, time::Duration};

use super::Policy;
use crate::base::{Error, valid};

const MAX_LEASED: u64 = 1_000_000_000_000;

impl Policy {
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
    ///   [`Limiter::drain`](crate::Limiter::drain). After a crash they are missing for the time of
    ///   [`lease_bound`](Self::lease_bound).
    /// * **Size**: the lease follows the demand. A key with fewer than a hundred requests a second on this instance is not
    ///   leased. The lease doubles when it is used up quickly, and is never more than a quarter of what remains. An instance
    ///   leases up to 4096 keys at a time.
    ///
    /// Leases serve requests with this policy alone. Requests with several policies, and peeks, are decided by Redis,
    /// which counts leased units as spent. The remaining units and the reset in a decision come from the last Redis
    /// call, less what this instance has spent since.
    ///
    /// A refund first returns the units that this instance has on lease, and the next request leases again. So do not lease
    /// under a policy that refunds most of its requests: it makes more calls than without leases. A [refund of a decision](crate::Limiter::refund)
    /// that was admitted from a lease counts from when the lease began, so it may return fewer units. Redis does not know
    /// how many of another instance's leased units are spent. An
    /// [operator's refund](crate::Operator::refund_latest) returns none of them to a bucket, and counts all of them as
    /// spent in a window. Do not refund more units than were charged that way: a window may then admit that many more.
    ///
    /// A [reset](crate::Operator::reset) drops this instance's leases. Other instances can still spend theirs, and units that
    /// they return unspent free as many units of later charges.
    /// If the clock of Redis is changed, units on lease at that moment may count in the window before or after.
    ///
    /// # Panics
    ///
    /// If `most` is 0 or above 1,000,000,000,000, or the units of the algorithm cannot be leased exactly:
    /// [`SlidingLog`](crate::algorithm::SlidingLog), [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue),
    /// [`Concurrency`](crate::algorithm::Concurrency), or a custom one. [`try_leased`](Self::try_leased) returns an
    /// error instead, as does a later call of [`try_algorithm`](Self::try_algorithm).
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{algorithm::SlidingLog, Policy, Quota};
    ///
    /// let api = Policy::new("api", Quota::per_second(50_000)).leased(1_000);
    /// // A second, and then the units return at 50 a millisecond.
    /// assert_eq!(api.lease_bound(), Some(Duration::from_millis(1_020)));
    ///
    /// let exact = Policy::new("exact", Quota::per_second(50_000)).algorithm(SlidingLog::new());
    /// assert!(exact.try_leased(1_000).is_err());
    /// ```
    #[must_use]
    #[track_caller]
    pub fn leased(self, most: u64) -> Self {
        valid(self.try_leased(most))
    }

    /// The fallible form of [`leased`](Self::leased), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`leased`](Self::leased) panics.
    pub fn try_leased(mut self, most: u64) -> Result<Self, Error> {
        if most == 0 || most > MAX_LEASED {
            return Err(Error::invalid(
                "a lease must be of 1 to 1,000,000,000,000 units: leave out `leased` for no lease",
            ));
        }
        Arc::make_mut(&mut self.0).options.lease = most;
        self.checked()
    }

    pub(super) fn check_lease(&self) -> Result<(), Error> {
        let options = &self.0.options;
        if options.lease > 0 && options.penalty.is_some() {
            return Err(Error::invalid(
                "a policy with a penalty cannot be leased, because an instance would spend leased units of a banned key: \
                 leave out `leased` or `penalty`",
            ));
        }
        if options.lease > 0 && self.missed().is_none() {
            return Err(Error::invalid(
                "the units of this algorithm cannot be leased exactly: leave out `leased`, \
                 or use `Gcra`, `TokenBucket`, `LeakyBucket::meter`, `FixedWindow` or `SlidingWindow`",
            ));
        }
        Ok(())
    }

    fn missed(&self) -> Option<u64> {
        self.counting().counter()?.lease_recovery(self.arguments(), self.most_held())
    }

    /// The most units of a key that can be on lease here.
    fn most_held(&self) -> u64 {
        self.0.options.lease.min(self.capacity())
    }

    /// How long the units of a crashed instance stay charged that it had on [lease](Self::leased). The same holds for an
    /// instance that lost its connection to Redis, or shut down without [`Limiter::drain`](crate::Limiter::drain). A window
    /// counts them until it ends, a bucket counts them as charged within a second after the crash. `None` if nothing is
    /// leased.
    #[must_use]
    pub fn lease_bound(&self) -> Option<Duration> {
        let missed = self.missed().filter(|_| self.0.options.lease > 0)?;
        Some(Duration::from_micros(missed))
    }

    /// 0 if nothing is leased.
    #[cfg(feature = "redis")]
    pub(crate) fn most_leased(&self) -> u64 {
        self.0.options.lease
    }
}
