use std::time::Duration;

use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, micros, rate},
    twin::Twin,
};
use crate::{error::Error, quota::Quota};

/// What is admitted fills a bucket that leaks at the quota's rate: as a [meter](Self::meter), which
/// refuses what would make it overflow, or as a [queue](Self::queue), which makes requests wait for
/// their turn.
///
/// * **Promise**: as a meter, in any span of time `t` at most capacity + rate x `t` units. As a queue,
///   requests leave evenly spaced at the quota's rate, in the order in which they were admitted, on
///   however many instances; none waits longer than it is allowed to.
/// * **Source**: ITU-T I.371; J. Turner, "New directions in communications", 1986. The queue's options are
///   those of nginx' `limit_req`: `burst` is its longest wait, `delay` is [`delay_after`](Self::delay_after).
/// * **Cost**: one number per key in Redis; GET, and SET when something is charged.
/// * **Weakness**: a request that waits holds its connection and its memory here, and a client that
///   gives up while it waits has used its turn.
///
/// A queue takes no [`burst`](Quota::burst): what passes at once is [`delay_after`](Self::delay_after).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     algorithm::LeakyBucket, Key, Limiter, ManualClock, MemoryStore, Policy, Quota, Verdict,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
/// // Two a second, and nobody waits longer than a second.
/// let queue = LeakyBucket::queue(Duration::from_secs(1));
/// let policy = Policy::new("mails", Quota::per_second(2)).algorithm(queue);
/// let key = Key::new("alice");
///
/// let half = Duration::from_millis(500);
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Allow);
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Delay(half));
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Delay(2 * half));
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert_eq!(refused.retry_after(), Some(half));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LeakyBucket {
    queue: Option<Queue>,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    max_wait: Duration,
    delay_after: u64,
}

impl LeakyBucket {
    /// Refuses what would make the bucket overflow. It holds the quota's capacity.
    #[must_use]
    pub const fn meter() -> Self {
        Self { queue: None }
    }

    /// Makes requests wait for their turn, and refuses those that would wait longer than `max_wait`: at
    /// most 400 days, in whole microseconds.
    ///
    /// The verdict is [`Delay`](crate::Verdict::Delay): the layer waits and then calls the service; who
    /// uses the [`Limiter`](crate::Limiter) waits for itself. A request of several units leaves with the
    /// last of them.
    #[must_use]
    pub const fn queue(max_wait: Duration) -> Self {
        Self { queue: Some(Queue { max_wait, delay_after: 1 }) }
    }

    /// Lets the first `units` units of a burst through a [queue](Self::queue) at once, and makes those
    /// after them wait. Defaults to 1: even spacing from the start. It changes nothing on a meter.
    #[must_use]
    pub const fn delay_after(mut self, units: u64) -> Self {
        if let Some(queue) = &mut self.queue {
            queue.delay_after = units;
        }
        self
    }
}

const MAX_WAITING: u64 = 1_000_000_000_000;

impl Algorithm for LeakyBucket {
    fn name(&self) -> &str {
        "leaky-bucket"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/leaky_bucket.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = rate(quota);
        let Some(queue) = self.queue else {
            return Ok(vec![period, units, quota.capacity(), 0]);
        };
        if quota.has_burst() {
            return Err(Error::invalid(
                "a leaky bucket's queue has no burst: leave out `burst`, and use `delay_after` for what passes at once",
            ));
        }
        // Checked like a burst, which it is.
        quota.try_burst(queue.delay_after).map_err(|_| {
            Error::invalid("a queue's `delay_after` must be from 1 to 10^12, and be paid within 100 years")
        })?;
        let wait =
            micros(queue.max_wait, "a queue's longest wait must be of whole microseconds, up to 400 days")?;
        let waiting = u128::from(wait) * u128::from(units) / u128::from(period);
        if waiting > u128::from(MAX_WAITING) {
            return Err(Error::invalid(
                "a queue must hold at most 10^12 units: make its longest wait shorter",
            ));
        }
        Ok(vec![period, units, queue.delay_after, wait])
    }

    fn capacity(&self, quota: &Quota) -> u64 {
        self.arguments(quota).map_or(1, |arguments| Self::bucket(&arguments).capacity())
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Evenly
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl HasBucket for LeakyBucket {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, wait] = arguments else {
            unreachable!("`arguments` above makes four");
        };
        Bucket { wait, ..Bucket::continuous(period, units, burst) }
    }
}
