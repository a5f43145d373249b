use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, rate},
    twin::Twin,
};
use crate::{error::Error, quota::Quota};

/// The generic cell rate algorithm: the quota's rate, with bursts up to its capacity. The default.
///
/// * **Promise**: in any span of time `t`, at most capacity + rate x `t` units. Units come back one by
///   one, evenly, so there is no edge at which a client gets a double share.
/// * **Source**: ITU-T I.371 and ATM Forum Traffic Management 4.1, "virtual scheduling"; known from the
///   redis-cell module, whose reply (limit, remaining, retry after, reset after) is the one given
///   here, but never rounded down.
/// * **Cost**: one number per key in Redis; GET, and SET when something is charged.
/// * **Weakness**: "10 a minute" admits, over the first minute of a busy client, the burst of 10 and
///   the 10 that come back meanwhile. Where no span of a minute may hold more than ten, choose a
///   smaller burst, or a [`SlidingLog`](crate::algorithm::SlidingLog).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::Gcra, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("api", Quota::per_second(3).burst(2)).algorithm(Gcra::new());
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 2).await?.is_allowed());
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert!(!refused.is_allowed());
/// // A third of a second, rounded up to the microsecond.
/// assert_eq!(refused.retry_after(), Some(Duration::from_micros(333_334)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Gcra(());

impl Gcra {
    /// Counts with the generic cell rate algorithm. The default of every [`Policy`](crate::Policy).
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Algorithm for Gcra {
    fn name(&self) -> &str {
        "gcra"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/gcra.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = rate(quota);
        Ok(vec![period, units, quota.capacity()])
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Evenly
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl HasBucket for Gcra {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst] = arguments else {
            unreachable!("`arguments` above makes three");
        };
        Bucket::continuous(period, units, burst)
    }
}
