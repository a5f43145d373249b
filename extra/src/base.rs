//! Small helpers.

#![allow(dead_code, unused_imports, reason = "each is for some of the features")]

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// An unpredictable number: each `RandomState` has its own random keys.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(())
}

/// A random time from zero to `most`, and at most 584 years.
pub(crate) fn random_time(most: Duration) -> Duration {
    let nanos = most.as_nanos().min(u64::MAX.into());
    Duration::from_nanos(u64::try_from((nanos * u128::from(random())) >> 64).unwrap_or(u64::MAX))
}

/// The whole microseconds of `duration`, capped at `u64::MAX`.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Locks, even if a thread has panicked with the lock: every change under one is a single step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An outage ends after this time without a failure.
const OUTAGE_EXPIRY: Duration = Duration::from_secs(60);

/// So that each outage is logged once. It lasts from its first failure until no call has failed for a minute.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    last_failure: Mutex<Option<Instant>>,
}

impl Outage {
    /// Records a failure. Returns whether it starts an outage.
    pub(crate) fn failed(&self) -> bool {
        let now = Instant::now();
        let last = lock(&self.last_failure).replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) > OUTAGE_EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_nothing_has_failed_for_a_minute() {
        let outage = Outage::default();
        assert_eq!([outage.failed(), outage.failed()], [true, false]);
        tokio::time::advance(OUTAGE_EXPIRY).await;
        assert!(!outage.failed());
        tokio::time::advance(OUTAGE_EXPIRY + Duration::from_millis(1)).await;
        assert!(outage.failed());
    }
}
