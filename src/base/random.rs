//! Random numbers without a dependency.

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::LazyLock,
    time::Duration,
};

/// An unpredictable number: each `RandomState` has its own random keys.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// The hasher of tables whose keys clients choose. Its keys are random and constant in the process, so a test
/// can repeat what depends on the order of a table.
pub(crate) fn hasher() -> RandomState {
    static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    HASHER.clone()
}

/// A random time from zero to `most`, and at most 584 years.
pub(crate) fn random_time(most: Duration) -> Duration {
    let nanos = most.as_nanos().min(u64::MAX.into());
    Duration::from_nanos(u64::try_from((nanos * u128::from(random())) >> 64).unwrap_or(u64::MAX))
}
