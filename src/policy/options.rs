//! The optional settings of a policy: a shadow or a share of the keys, room for debts, leases.

use super::policy::Policy;
use crate::base::{Error, valid};

impl Policy {
    /// Makes this a shadow policy: it decides, counts and is reported, but never denies. Use it to see what a new limit
    /// would deny before you enforce it.
    ///
    /// If it would have denied a request, it charges neither the request nor anything settled for it later. Other policies
    /// of the request are enforced as usual. Clients see no trace of a shadow policy. Its outcome is in
    /// [`Decision::shadows`](crate::Decision::shadows), for [`on_decision`](crate::RateLimitLayer::on_decision), and the
    /// metric `ratelimit_decisions_total` counts its denials with the verdict `shadow_denied`. It has no leases, and its
    /// [failure mode](Self::on_store_failure) does not apply.
    ///
    /// Counts are kept when a policy becomes a shadow or is enforced again.
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
    /// assert!(decision.shadows()[0].verdict().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        self.with_independent(|settings| settings.enforced = 0.0)
    }

    /// Enforces the policy for this share of the keys, from 0 to 1, and makes it a [shadow](Self::shadow) for the others.
    /// Defaults to 1. Use it to enforce a new limit step by step.
    ///
    /// Whether a key is in the share depends only on the key and the policy's name, so it is the same on every instance and
    /// for every request. A larger share includes all keys of a smaller one.
    ///
    /// # Panics
    ///
    /// If `share` is not 0 and not from 0.000001 to 1. [`try_rollout`](Self::try_rollout) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::new());
    /// let strict = Policy::new("strict", Quota::per_hour(1)).rollout(0.25);
    ///
    /// let mut enforced = 0;
    /// for client in 0..1_000 {
    ///     limiter.check(&strict, &Key::new(client), 1).await?;
    ///     let second = limiter.check(&strict, &Key::new(client), 1).await?;
    ///     // For the other keys, a shadow denies.
    ///     assert_ne!(second.is_allowed(), second.shadows().is_empty());
    ///     enforced += u32::from(!second.is_allowed());
    /// }
    /// assert!((200..300).contains(&enforced));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn rollout(self, share: f64) -> Self {
        valid(self.try_rollout(share))
    }

    /// The fallible form of [`rollout`](Self::rollout), for a share read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`rollout`](Self::rollout) panics.
    pub fn try_rollout(self, share: f64) -> Result<Self, Error> {
        self.with(|settings| settings.enforced = share)
    }

    /// Lets a [debit](crate::Limiter::debit) charge up to `units` more than remain. Requests are then denied until the
    /// debt is paid off. Defaults to 0: a debit charges what remains.
    ///
    /// A bucket ([`Gcra`](crate::algorithm::Gcra), [`TokenBucket`](crate::algorithm::TokenBucket),
    /// [`LeakyBucket`](crate::algorithm::LeakyBucket)) pays the debt off at the quota's rate. Under a
    /// [`SlidingLog`](crate::algorithm::SlidingLog) or a [`SlidingWindow`](crate::algorithm::SlidingWindow), the units
    /// count for a period, as usual. Under a [`FixedWindow`](crate::algorithm::FixedWindow), the debt ends with its
    /// window. While the store [fails](crate::FailureMode::Local), there is no debt: debits charge what remains in this
    /// process.
    ///
    /// Redis makes the decisions of such a policy with a longer script, which takes about twice the time.
    ///
    /// # Panics
    ///
    /// If the algorithm allows no debt ([`Concurrency`](crate::algorithm::Concurrency), or a custom one), or quota and
    /// debt together are above the bounds of a [`Quota`](crate::Quota). [`try_debt`](Self::try_debt) gives an error
    /// instead.
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
    /// // The answer took 1,200 tokens. 1,000 of them were available.
    /// let debited = limiter.debit(&request, 1_199).await?;
    /// assert_eq!((debited.outcomes()[0].granted(), debited.remaining()), (1_199, Some(0)));
    /// // 200 tokens of debt and one for this request, of 1,000 an hour.
    /// let denied = limiter.check(&tokens, &alice, 1).await?;
    /// assert_eq!(denied.retry_after().unwrap().as_secs().div_ceil(60), 13);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[track_caller]
    pub fn debt(self, units: u64) -> Self {
        valid(self.try_debt(units))
    }

    /// The fallible form of [`debt`](Self::debt), for a debt read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`debt`](Self::debt) panics.
    pub fn try_debt(self, units: u64) -> Result<Self, Error> {
        self.with(|settings| settings.debt = units)
    }

    /// Lets each instance lease up to `most` units of a hot key from Redis in one call, and spend them in
    /// process. Defaults to no leases: every request is decided by Redis.
    ///
    /// For a [`RedisStore`](crate::RedisStore). A [`MemoryStore`](crate::MemoryStore) decides in process already and
    /// ignores this setting.
    ///
    /// All instances together never admit more than the limit. The price: one instance may hold unused units while another
    /// denies requests. See [leases](crate::policy#leases) for their exactness, their size, and refunds.
    ///
    /// # Panics
    ///
    /// If `most` is 0 or above 1,000,000,000,000, or the units of the algorithm cannot be leased exactly:
    /// [`SlidingLog`](crate::algorithm::SlidingLog), [`LeakyBucket::queue`](crate::algorithm::LeakyBucket::queue),
    /// [`Concurrency`](crate::algorithm::Concurrency), or a custom one; or the policy has a
    /// [penalty](Self::penalty). [`try_leased`](Self::try_leased) gives an error instead.
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Policy, Quota};
    ///
    /// let api = Policy::new("api", Quota::per_second(50_000)).leased(1_000);
    /// // One second, plus 20 ms to replenish 1,000 units at 50 per millisecond.
    /// assert_eq!(api.lease_bound(), Some(Duration::from_millis(1_020)));
    /// ```
    #[must_use]
    #[track_caller]
    pub fn leased(self, most: u64) -> Self {
        valid(self.try_leased(most))
    }

    /// The fallible form of [`leased`](Self::leased), for a lease read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`leased`](Self::leased) panics.
    pub fn try_leased(self, most: u64) -> Result<Self, Error> {
        self.with(|settings| settings.lease = Some(most))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        algorithm::{Concurrency, FixedWindow, LeakyBucket, SlidingLog},
        base::{ErrorKind, Quota},
        policy::Penalty,
    };

    #[test]
    fn a_debt_that_cannot_be_counted_is_an_error() {
        let rows = [
            (
                "permits",
                Policy::concurrency("permits", 5).try_debt(1),
                "this algorithm allows no debt: leave out `debt`, or use another built-in algorithm than `Concurrency`",
            ),
            (
                "too large",
                Policy::new("large", Quota::per_second(1)).try_debt(u64::MAX),
                "the debt is too large: quota and debt together must be within the bounds of a burst",
            ),
            (
                "takes a century",
                Policy::new("slow", Quota::per_day(1)).try_debt(40_000),
                "the debt is too large: quota and debt together must be within the bounds of a burst",
            ),
        ];
        for (name, policy, message) in rows {
            assert_eq!(policy.unwrap_err().to_string(), message, "{name}");
        }
        // The one that is set first.
        let queue = Policy::new("queue", Quota::per_second(1)).debt(3);
        assert!(queue.try_algorithm(Concurrency::new()).is_err());
    }

    #[test]
    fn policies_that_cannot_be_leased_are_errors_in_either_order() {
        let queue = LeakyBucket::queue(Duration::from_secs(1));
        let policy = || Policy::new("p", Quota::per_second(10));
        let rows = [
            ("log", policy().leased(5).try_algorithm(SlidingLog::new())),
            ("log", policy().algorithm(SlidingLog::new()).try_leased(5)),
            ("queue", policy().leased(5).try_algorithm(queue)),
            ("queue", policy().algorithm(queue).try_leased(5)),
            ("in use", policy().leased(5).try_algorithm(Concurrency::new())),
            ("in use", policy().algorithm(Concurrency::new()).try_leased(5)),
            ("nothing", policy().try_leased(0)),
            ("too much", policy().try_leased(u64::MAX)),
        ];
        for (name, built) in rows {
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{name}");
            assert!(error.to_string().contains("leave out `leased`"), "{name}: {error}");
        }
        let either = [
            policy().leased(5).algorithm(FixedWindow::anchored()),
            policy().algorithm(FixedWindow::anchored()).leased(5),
        ];
        for policy in either {
            let bound = policy.lease_bound().unwrap();
            assert_eq!(bound, Duration::from_secs(1));
        }
        assert_eq!(policy().lease_bound(), None);
        // A lease never holds more units than the limit.
        let bound = Policy::new("p", Quota::per_minute(100)).leased(1_000_000).lease_bound().unwrap();
        assert_eq!(bound, Duration::from_secs(61));
    }

    #[test]
    fn a_policy_with_a_penalty_cannot_be_leased() {
        let (penalty, quota) = (Penalty::manual(), Quota::per_second(1_000));
        let leased = Policy::new("p", quota).leased(10);
        let punishing = Policy::new("p", quota).penalty(penalty);
        for built in [leased.try_penalty(penalty), punishing.try_leased(10)] {
            let error = built.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
            assert!(error.to_string().contains("leave out `leased` or `penalty`"), "{error}");
        }
    }
}
