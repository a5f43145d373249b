//! Policies that are enforced for some keys, or for none.

use sha2::{Digest as _, Sha256};

use super::{Policy, traits::Traits};
use crate::{base::Error, key::Key};

impl Policy {
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

    fn enforced(self, enforced: Enforced) -> Self {
        self.set(|options| options.enforced = enforced)
    }

    /// Whether the policy is enforced for `key`.
    #[inline]
    pub(crate) fn is_enforced_for(&self, key: &Key) -> bool {
        !self.has(Traits::ROLLOUT) || self.0.options.enforced.has(self.name(), key)
    }
}

/// The share of keys for which a policy is enforced, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Enforced(u32);

const ALL: u32 = 1_000_000;

impl Enforced {
    pub(super) const FOR_ALL: Self = Self(ALL);
    const FOR_NONE: Self = Self(0);

    fn for_share(share: f64) -> Result<Self, Error> {
        if (0.0..=1.0).contains(&share) {
            // In the range, so it fits.
            Ok(Self((share * f64::from(ALL)).round() as u32))
        } else {
            Err(Error::invalid(
                "the share of keys must be from 0 to 1: 0.25 enforces the policy for a quarter of them",
            ))
        }
    }

    /// The share, from 0 to 1.
    pub(super) fn share(self) -> f64 {
        f64::from(self.0) / f64::from(ALL)
    }

    /// Whether the policy `name` is enforced for `key`. Every instance finds the same, and a larger share has all keys of
    /// a smaller one.
    #[cold]
    fn has(self, name: &str, key: &Key) -> bool {
        self.0 > 0 && place(name, key) < self.0
    }
}

impl Default for Enforced {
    fn default() -> Self {
        Self::FOR_ALL
    }
}

/// A number below a million, spread evenly over the keys, and differently for each policy.
fn place(name: &str, key: &Key) -> u32 {
    let hash = Sha256::new().chain_update(name).chain_update([0]).chain_update(key.as_bytes()).finalize();
    let first = hash.iter().take(8).fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
    // Below a million.
    (first % u64::from(ALL)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_keys_is_stable_and_grows() {
        let keys: Vec<Key> = (0..20_000).map(|i| Key::new(i.to_string())).collect();
        let mut before = 0;
        for percent in [0, 1, 25, 50, 99, 100] {
            let smaller = Enforced::for_share(f64::from(before) / 100.0).unwrap();
            let share = Enforced::for_share(f64::from(percent) / 100.0).unwrap();
            let count = keys.iter().filter(|key| share.has("api", key)).count();
            let expected = 200 * percent as usize;
            assert!(count.abs_diff(expected) <= 300, "{percent} %: {count}");
            assert!(
                keys.iter().all(|key| !smaller.has("api", key) || share.has("api", key)),
                "{percent} %"
            );
            before = percent;
        }
        // Every version finds the same keys. Computed with another implementation of SHA-256.
        assert_eq!(place("api", &Key::new("alice")), PLACE_OF_ALICE);
    }

    const PLACE_OF_ALICE: u32 = 136_432;

    #[test]
    fn a_share_that_is_none_is_an_error() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Enforced::for_share(share).is_err(), "{share}");
        }
    }
}
