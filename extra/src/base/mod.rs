//! Small helpers.

#![allow(dead_code, unused_imports, reason = "each is for some of the features")]

mod outage;

use std::{
    hash::{BuildHasher as _, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) use self::outage::Outage;

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
