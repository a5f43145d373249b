//! Policies that are enforced for some keys, or for none.

use super::{Policy, rollout_share::RolloutShare, traits::Traits};
use crate::{
    base::{Error, valid},
    key::Key,
};

impl Policy {
    /// Makes this a shadow policy: it decides, is counted and reported, and denies nothing. Use it to see what a new limit
    /// would do before it does.
    ///
    /// A request that it would deny is not charged under it, nor is what that request settles. Other policies of the same request are enforced as always.
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
    /// assert!(decision.shadows()[0].verdict().is_denied());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn shadow(self) -> Self {
        self.enforced(RolloutShare::FOR_NONE)
    }

    /// Enforces the policy for this share of the keys, from 0 to 1, and makes it a [shadow](Self::shadow) for the others.
    /// Defaults to 1. Use it to enforce a new limit step by step.
    ///
    /// Which keys these are depends on the key and the policy's name alone, so it is the same on every instance and for
    /// every request. A larger share has all keys of a smaller one.
    ///
    /// # Panics
    ///
    /// If `share` is not from 0 to 1. [`try_rollout`](Self::try_rollout) gives an error instead.
    #[must_use]
    #[track_caller]
    pub fn rollout(self, share: f64) -> Self {
        valid(self.try_rollout(share))
    }

    /// The fallible form of [`rollout`](Self::rollout), for a number read from a configuration.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) where [`rollout`](Self::rollout) panics.
    pub fn try_rollout(self, share: f64) -> Result<Self, Error> {
        Ok(self.enforced(RolloutShare::for_share(share)?))
    }

    fn enforced(self, enforced: RolloutShare) -> Self {
        self.set(|options| options.enforced = enforced)
    }

    /// The share of the keys for which the policy is enforced, from 0 to 1.
    pub(crate) fn enforced_share(&self) -> f64 {
        self.0.options.enforced.share()
    }

    /// Whether the policy is enforced for `key`.
    #[inline]
    pub(crate) fn is_enforced_for(&self, key: &Key) -> bool {
        !self.has(Traits::ROLLOUT) || self.0.options.enforced.has(self.name(), key)
    }
}
