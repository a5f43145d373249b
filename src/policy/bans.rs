//! Policies that ban keys.

use std::sync::Arc;

use super::{Penalty, Policy};
use crate::base::{Error, Quota};

impl Policy {
    /// Bans a key for a time after too many denials, over all instances. Defaults to no penalty.
    ///
    /// A ban denies every request of the key that costs something, and its CORS preflights, whatever remains of the quota. It
    /// charges nothing, like any other denial. [`Decision::banned_for`](crate::Decision::banned_for) has the time left. Clients get the problem
    /// type `abnormal-usage-detected`, and `Retry-After` with the rest of the ban.
    ///
    /// * **What counts**: each request that this policy denies while no key of the request is banned. A banned request, a
    ///   peek, and a debit do not count. In a Redis Cluster, policies whose identities are in different slots are decided
    ///   slot by slot, and only those of the first slot that denies count the denial, also if a key in a later one is banned.
    /// * **Bans by hand**: [`Limiter::ban`](crate::Limiter::ban), [`unban`](crate::Limiter::unban) and
    ///   [`bans`](crate::Limiter::bans). [`Limiter::reset`](crate::Limiter::reset) does not end a ban.
    /// * **Shadows**: a [shadow](Self::shadow) policy neither counts denials nor bans, for all keys or for its share of
    ///   them. A key that is banned under it by hand is listed, and banned once the policy is enforced.
    /// * **Deny cache**: a [`RedisStore`](crate::RedisStore) answers requests of a banned key in process for up to its
    ///   [`deny_cache`](crate::store::RedisStoreBuilder::deny_cache) time, then asks Redis again. So a ban that was ended
    ///   through another instance lasts that much longer here. Other denials are cached only under
    ///   [`Penalty::manual`], because any other penalty must count each of them.
    /// * **Failure of the store**: under [`FailureMode::Local`](crate::FailureMode::Local), denials are counted and keys are
    ///   banned in this process, by the same numbers. The bans in the store are not known meanwhile. Those of this process
    ///   do not apply while the store answers; in a later outage they apply again, until their time is over or
    ///   [`unban`](crate::Limiter::unban) ends them.
    /// * **Full Redis**: a denial needs a write to be counted. If Redis is out of memory, cannot save, or has too few
    ///   replicas, a denial is still a denial, but it does not count and bans no key.
    /// * **Lost keys**: a ban is a key in Redis. An eviction, or a failover to a replica that has not got it, ends it.
    /// * **Your own stores** ignore a penalty, unless they pass charges on to a store of this crate.
    /// * **Changes**: a changed penalty keeps what was counted, and a ban lasts as long as it was when it was imposed.
    ///
    /// Redis makes the decisions of such a policy with a longer script, and keeps a second key for each key that was denied
    /// or banned, as long as that matters: 72 bytes, and 40 more while bans are remembered.
    ///
    /// # Panics
    ///
    /// If the numbers are out of bounds (1 to 1 000 000 denials within 1 ms to 400 days, bans of 1 ms to 3650 days), the
    /// longest ban is shorter than the first, or the policy is [leased](Self::leased).
    /// [`try_penalty`](Self::try_penalty) gives an error instead, and so does [`try_leased`](Self::try_leased) if it is
    /// called later.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{policy::Penalty, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
    /// let (minute, hour, day) = (Duration::from_secs(60), Duration::from_secs(3_600), Duration::from_secs(86_400));
    /// let login = Policy::new("login", Quota::per_minute(5))
    ///     .penalty(Penalty::after(10, 10 * minute).ban(hour).up_to(day));
    /// let mallory = Key::new("203.0.113.7");
    ///
    /// for _ in 0..5 + 9 {
    ///     assert!(!limiter.check(&login, &mallory, 1).await?.is_banned());
    /// }
    /// assert!(limiter.check(&login, &mallory, 1).await?.is_banned());
    /// clock.advance(minute);
    /// let banned = limiter.check(&login, &mallory, 1).await?;
    /// assert_eq!(banned.banned_for(), Some(59 * minute));
    ///
    /// limiter.unban(&login, &mallory).await?;
    /// assert!(limiter.check(&login, &mallory, 1).await?.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn penalty(self, penalty: Penalty) -> Self {
        match self.try_penalty(penalty) {
            Ok(policy) => policy,
            Err(error) => panic!("{error}"),
        }
    }

    /// The fallible form of [`penalty`](Self::penalty), for numbers read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`penalty`](Self::penalty) panics.
    pub fn try_penalty(mut self, penalty: Penalty) -> Result<Self, Error> {
        let bans = Self::try_new(self.name(), Quota::per_second(1))?.try_algorithm(penalty.strikes()?)?;
        Arc::make_mut(&mut self.0).penalty = Some(bans);
        self.check_lease()
    }

    /// Whether the policy has a [penalty](Self::penalty), so that keys can be banned under it.
    #[must_use]
    pub fn has_penalty(&self) -> bool {
        self.0.penalty.is_some()
    }

    /// Whether each denial must reach the store, because the penalty counts it.
    pub(crate) fn counts_denials(&self) -> bool {
        let after = self.bans().and_then(|bans| bans.arguments().first());
        after.is_some_and(|after| *after > 0)
    }

    /// The policy that counts denials and bans.
    pub(crate) fn bans(&self) -> Option<&Self> {
        self.0.penalty.as_ref()
    }

    /// The policy without its penalty.
    pub(crate) fn without_penalty(&self) -> Self {
        let mut policy = self.clone();
        if policy.has_penalty() {
            Arc::make_mut(&mut policy.0).penalty = None;
        }
        policy
    }
}
