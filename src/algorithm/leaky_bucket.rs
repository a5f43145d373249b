//! A bucket that drains continuously, as a meter or as a queue.

use std::time::Duration;

use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, micros, rate},
    counter::Counter,
};
use crate::base::{Error, Quota};

/// Admitted units fill a bucket that drains at the quota's rate.
///
/// A [meter](Self::meter) denies requests that would overflow the bucket. A [queue](Self::queue) delays
/// requests until it is their turn.
///
/// * **Promise of a meter**: in any span of time `t`, at most capacity + rate × `t` units.
/// * **Promise of a queue**: after the first [`delay_after`](Self::delay_after) units of a burst, by default
///   one, requests leave evenly spaced at the quota's rate, in the order in which they were admitted, over
///   all instances. No request waits longer than the queue's longest wait.
/// * **Source**: ITU-T I.371; J. Turner, "New directions in communications", 1986. A queue has the options of
///   nginx's `limit_req`: without `delay`, the longest wait is `burst` / rate; with it, the longest wait is
///   (`burst` - `delay`) / rate, and [`delay_after`](Self::delay_after) is `delay` + 1.
/// * **Cost in Redis**: one string per key. GET; SETRANGE or SET if units are charged.
/// * **Weakness of a queue**: a waiting request holds its connection and its memory in the instance. A client
///   that disconnects while it waits has used its turn.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, for a queue
///
/// * with a quota that has a [`burst`](Quota::burst): use [`delay_after`](Self::delay_after) instead;
/// * with a longest wait above 400 days, not in whole microseconds, or in which more than 1,000,000,000,000
///   units drain;
/// * with a `delay_after` of 0, above 1,000,000,000,000, or that takes more than 100 years to drain.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     Key, Limiter, MemoryStore, Policy, Quota, algorithm::LeakyBucket, decision::Verdict,
///     store::ManualClock,
/// };
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
/// // Two requests per second. No request waits longer than a second.
/// let queue = LeakyBucket::queue(Duration::from_secs(1));
/// let policy = Policy::new("mails", Quota::per_second(2)).algorithm(queue);
/// let key = Key::new("alice");
///
/// let half = Duration::from_millis(500);
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Admit);
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Delay(half));
/// assert_eq!(limiter.check(&policy, &key, 1).await?.verdict(), Verdict::Delay(2 * half));
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert_eq!(denied.retry_after(), Some(half));
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
    /// Creates a bucket that denies requests which would overflow it. Its size is the quota's capacity.
    #[must_use]
    pub const fn meter() -> Self {
        Self { queue: None }
    }

    /// Creates a queue: delays requests until it is their turn, and denies those that would wait longer than
    /// `max_wait`, which is at most 400 days and in whole microseconds.
    ///
    /// A delayed request gets the verdict [`Delay`](crate::decision::Verdict::Delay). The layer waits and
    /// then calls the service, and [`Limiter::wait`](crate::Limiter::wait) waits too. After a
    /// [`check`](crate::Limiter::check), your code must wait for the [delay](crate::Decision::delay). A
    /// request of several units leaves when the last of them may leave.
    #[must_use]
    pub const fn queue(max_wait: Duration) -> Self {
        Self { queue: Some(Queue { max_wait, delay_after: 1 }) }
    }

    /// Admits the first `units` units of a burst without a delay, and delays those after them. Defaults to 1,
    /// which spaces requests evenly from the start. Has no effect on a [meter](Self::meter).
    ///
    /// # Example
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::LeakyBucket, store::ManualClock};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_ratelimit::Error> {
    /// let limiter = Limiter::new(MemoryStore::with_clock(ManualClock::new()));
    /// let queue = LeakyBucket::queue(Duration::from_secs(1)).delay_after(2);
    /// let policy = Policy::new("mails", Quota::per_second(2)).algorithm(queue);
    /// let key = Key::new("alice");
    ///
    /// assert_eq!(limiter.check(&policy, &key, 1).await?.delay(), None);
    /// assert_eq!(limiter.check(&policy, &key, 1).await?.delay(), None);
    /// assert_eq!(limiter.check(&policy, &key, 1).await?.delay(), Some(Duration::from_millis(500)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub const fn delay_after(mut self, units: u64) -> Self {
        if let Some(queue) = &mut self.queue {
            queue.delay_after = units;
        }
        self
    }
}

/// The most units that may wait in a queue.
const MAX_WAITING: u64 = 1_000_000_000_000;

impl Algorithm for LeakyBucket {
    built_in!("leaky-bucket", "leaky_bucket.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = rate(quota);
        let Some(queue) = self.queue else {
            return Ok(vec![period, units, quota.capacity(), 0]);
        };
        ensure!(
            !quota.has_burst(),
            "a leaky bucket's queue has no burst: leave out `burst`, and use `delay_after` for the units without a delay"
        );
        // The number has the bounds of a burst.
        quota.try_burst(queue.delay_after).map_err(|_| {
            Error::invalid(
                "a queue's `delay_after` must be from 1 to 1,000,000,000,000 and drain within 100 years",
            )
        })?;
        let wait = micros(
            queue.max_wait,
            "a queue's longest wait must be in whole microseconds and at most 400 days",
        )?;
        let waiting = u128::from(wait) * u128::from(units) / u128::from(period);
        ensure!(
            waiting <= u128::from(MAX_WAITING),
            "a queue must hold at most 1,000,000,000,000 units: make its longest wait shorter"
        );
        Ok(vec![period, units, queue.delay_after, wait])
    }

    fn capacity(&self, quota: &Quota) -> u64 {
        self.arguments(quota).map_or(1, |arguments| Self::bucket(&arguments).capacity())
    }

    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::Evenly
    }
}

impl HasBucket for LeakyBucket {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, wait, ref debt @ ..] = arguments else {
            unreachable!("`arguments` above makes four");
        };
        Bucket { wait, ..Bucket::continuous(period, units, burst) }.with_debt(debt)
    }
}
