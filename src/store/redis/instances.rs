//! How many instances use the limits of one prefix.
//!
//! Each holds a permit of one policy, under one key for each prefix. So the scripts count them: by the clock of Redis, in a
//! key with a TTL, without a command that decisions do not need.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    algorithm::Concurrency,
    base::{Quota, time::micros},
    decision::Charge,
    key::Key,
    policy::Policy,
};

/// The time between two announcements, and until the first one.
const INTERVAL: Duration = Duration::from_secs(5);
/// After this time, a process without traffic no longer counts. One that ended does not either.
const EXPIRY: Duration = Duration::from_secs(15);
/// The most instances that are counted.
pub(super) const MOST: u64 = 100_000;

pub(super) struct Instances {
    /// When to announce this instance, by the clock of the store, which starts with it.
    pub(super) due: AtomicU64,
    /// What this instance holds.
    pub(super) permit: Charge,
}

impl Instances {
    pub(super) fn new() -> Self {
        // Its numbers are valid for the algorithm.
        let quota = Quota::new(MOST, EXPIRY);
        let policy = Policy::new("%instances", quota).algorithm(Concurrency::new());
        let permit = Charge::new(&policy, &Key::new("%instances"), 1);
        Self { due: AtomicU64::new(micros(INTERVAL)), permit }
    }

    /// Whether to announce this instance at the time `now`. True once in each interval.
    #[cold]
    pub(super) fn is_due(&self, now: u64) -> bool {
        let next = |due| (now >= due).then_some(now + micros(INTERVAL));
        self.due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}
