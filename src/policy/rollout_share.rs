//! For which keys a policy is enforced.

use sha2::{Digest as _, Sha256};

use crate::{base::Error, key::Key};

/// The share of keys for which a policy is enforced, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RolloutShare(u32);

const ALL: u32 = 1_000_000;

impl RolloutShare {
    pub(super) const FOR_ALL: Self = Self(ALL);
    pub(super) const FOR_NONE: Self = Self(0);

    pub(super) fn for_share(share: f64) -> Result<Self, Error> {
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
    /// a smaller one. The preflights of a client are enforced as its other requests, or it could not be banned for both.
    #[cold]
    pub(super) fn has(self, name: &str, key: &Key) -> bool {
        let (_, client) = key.split_preflight();
        self.0 > 0 && place(name, client) < self.0
    }
}

impl Default for RolloutShare {
    fn default() -> Self {
        Self::FOR_ALL
    }
}

/// A number below a million, spread evenly over the keys, and differently for each policy.
fn place(name: &str, key: &str) -> u32 {
    let hash = Sha256::new().chain_update(name).chain_update([0]).chain_update(key).finalize();
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
            let smaller = RolloutShare::for_share(f64::from(before) / 100.0).unwrap();
            let share = RolloutShare::for_share(f64::from(percent) / 100.0).unwrap();
            let count = keys.iter().filter(|key| share.has("api", key)).count();
            let expected = 200 * percent as usize;
            assert!(count.abs_diff(expected) <= 300, "{percent} %: {count}");
            assert!(keys.iter().all(|key| !smaller.has("api", key) || share.has("api", key)), "{percent} %");
            before = percent;
        }
        // Every version finds the same keys. Computed with another implementation of SHA-256.
        assert_eq!(place("api", "alice"), PLACE_OF_ALICE);
    }

    const PLACE_OF_ALICE: u32 = 136_432;

    #[test]
    fn a_share_that_is_none_is_an_error() {
        for share in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(RolloutShare::for_share(share).is_err(), "{share}");
        }
    }
}
