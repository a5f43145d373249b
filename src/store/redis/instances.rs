//! How many instances use the limits of one prefix.
//!
//! Each instance holds a permit of one internal policy, whose key is the same for all instances of a prefix.
//! The scripts thereby count the instances by the clock of Redis, in a key with a TTL, with the commands that
//! decisions need anyway.

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
/// The time after which a process that has ended, or has no traffic, no longer counts.
const EXPIRY: Duration = Duration::from_secs(15);
/// The most instances that are counted.
pub(super) const MOST: u64 = 100_000;

pub(super) struct Instances {
    /// When to announce this instance, by the clock of the store, which starts at 0 with the store.
    pub(super) due: AtomicU64,
    /// The permit that this instance holds.
    pub(super) permit: Charge,
}

impl Instances {
    pub(super) fn new() -> Self {
        // The numbers of this quota are valid for the algorithm.
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
