//! The default algorithm: a bucket that drains continuously.

use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, rate},
    counter::Counter,
};
use crate::base::{Error, Quota};

/// The generic cell rate algorithm: the quota's rate, with bursts up to its capacity. The default.
///
/// * **Promise**: in any span of time `t`, at most capacity + rate × `t` units. Units become available one by
///   one at the quota's rate, so there is no window edge at which a client gets twice its share.
/// * **Source**: "virtual scheduling" of ITU-T I.371 and ATM Forum Traffic Management 4.1. The Redis module
///   redis-cell made it popular; decisions have the same values (limit, remaining, retry after, reset after),
///   in microseconds instead of whole seconds.
/// * **Cost in Redis**: one string per key. GET; SETRANGE or SET if units are charged.
/// * **Weakness**: `Quota::per_minute(10)` admits up to 19 requests in the first minute: the burst of 10, and
///   9 that become available in the meantime. If no minute may have more than 10, use `.burst(1)` or a
///   [`SlidingLog`](crate::algorithm::SlidingLog).
///
/// Works with every quota.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::Gcra, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("api", Quota::per_second(3).burst(2)).algorithm(Gcra::new());
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 2).await?.is_admitted());
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert!(!denied.is_admitted());
/// // A third of a second, rounded up to the microsecond.
/// assert_eq!(denied.retry_after(), Some(Duration::from_micros(333_334)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Gcra(());

impl Gcra {
    /// Creates the algorithm. A [`Policy`](crate::Policy) without another algorithm uses it.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Algorithm for Gcra {
    built_in!("gcra", "gcra.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = rate(quota);
        Ok(vec![period, units, quota.capacity()])
    }

    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::Evenly
    }
}

impl HasBucket for Gcra {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, ref debt @ ..] = arguments else {
            unreachable!("`arguments` above makes three");
        };
        Bucket::continuous(period, units, burst).with_debt(debt)
    }
}
