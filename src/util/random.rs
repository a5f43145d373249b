//! Unpredictable numbers without a dependency.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// A random number: each `RandomState` has keys of its own, unpredictable ones.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A random time from zero to `most`, and to 584 years.
pub(crate) fn random_time(most: Duration) -> Duration {
    let nanos = most.as_nanos().min(u64::MAX.into());
    Duration::from_nanos(u64::try_from((nanos * u128::from(random())) >> 64).unwrap_or(u64::MAX))
}
