//! A bucket that is refilled continuously or in steps.

use std::time::Duration;

use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, micros, rate},
    counter::Counter,
};
use crate::base::{Error, Quota};

/// Tokens are added at the quota's rate until the bucket is full; each unit charged removes one.
///
/// With the default options it makes the same decisions as [`Gcra`](crate::algorithm::Gcra). Use it to add
/// tokens [in steps](Self::refill_every), or to start with a bucket that is [not full](Self::starting_at).
///
/// * **Promise**: in any span of time `t`, at most capacity + rate × `t` units, and with steps at most one
///   step more.
/// * **Source**: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986.
/// * **Cost in Redis**: one string per key. GET; SETRANGE or SET if units are charged.
/// * **Weakness**: the same as [`Gcra`](crate::algorithm::Gcra). With steps, clients retry together when a
///   step is due.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, if the [refill interval](Self::refill_every) is
/// shorter than 1 millisecond, longer than 400 days, not in whole microseconds, or does not add a whole
/// number of tokens.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::TokenBucket, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// // 20 tokens at first; 10 more every six seconds, up to 100.
/// let bucket = TokenBucket::new().refill_every(Duration::from_secs(6)).starting_at(20);
/// let policy = Policy::new("jobs", Quota::per_minute(100)).algorithm(bucket);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 20).await?.is_admitted());
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert!(!denied.is_admitted());
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(6)));
/// clock.advance(Duration::from_secs(6));
/// assert_eq!(limiter.peek(&policy, &key, 0).await?.outcomes()[0].remaining(), 10);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenBucket {
    step: Option<Duration>,
    initial: Option<u64>,
}

impl TokenBucket {
    /// Creates a bucket that is full at first and refilled continuously.
    #[must_use]
    pub const fn new() -> Self {
        Self { step: None, initial: None }
    }

    /// Adds the tokens of each `interval` together at its end. The quota must allow a whole number of tokens
    /// per interval. The first interval starts with the first charge of a full bucket, or with the first
    /// request of a new key that [starts](Self::starting_at) with fewer tokens. Defaults to a continuous
    /// refill.
    #[must_use]
    pub const fn refill_every(mut self, interval: Duration) -> Self {
        self.step = Some(interval);
        self
    }

    /// Starts the bucket of a new key with `tokens` tokens, or full if its capacity is smaller. Defaults to
    /// full.
    ///
    /// A key counts as new again when its bucket has been full for as long as an empty one takes to fill. A
    /// refund to a new key has no effect. A refund to a key that is no longer new may add the tokens that
    /// were missing at the start.
    #[must_use]
    pub const fn starting_at(mut self, tokens: u64) -> Self {
        self.initial = Some(tokens);
        self
    }
}

/// The most tokens per step that Lua computes exactly.
const MAX_STEP: u64 = 1 << 44;

impl Algorithm for TokenBucket {
    built_in!("token-bucket", "token_bucket.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = match self.step {
            None => rate(quota),
            Some(step) => {
                let problem = "a token bucket's refill interval must be in whole microseconds, at least 1 millisecond, \
                    and add a whole number of tokens, at least one";
                let step = micros(step, problem)?;
                let tokens = u128::from(step) * u128::from(quota.limit());
                let period = u128::from(quota.period_micros());
                match u64::try_from(tokens / period) {
                    Ok(units) if step >= 1_000 && (1..=MAX_STEP).contains(&units) && tokens % period == 0 => {
                        (step, units)
                    }
                    _ => return Err(Error::invalid(problem)),
                }
            }
        };
        let burst = quota.capacity();
        let initial = self.initial.map_or(burst, |initial| initial.min(burst));
        Ok(vec![period, units, burst, self.step.is_some().into(), initial])
    }

    fn replenishment(&self, quota: &Quota) -> Replenishment {
        match (self.step, self.arguments(quota).as_deref()) {
            (None, _) => Replenishment::Evenly,
            // A step that fills the bucket ends a window.
            (Some(_), Ok([_, units, burst, ..])) if units >= burst => Replenishment::InWindows,
            (Some(_), _) => Replenishment::AtReset,
        }
    }
}

impl HasBucket for TokenBucket {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, stepped, initial, ref debt @ ..] = arguments else {
            unreachable!("`arguments` above makes five");
        };
        let bucket = Bucket { stepped: stepped == 1, initial, ..Bucket::continuous(period, units, burst) };
        bucket.with_debt(debt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_adds_no_whole_number_of_tokens_is_an_error() {
        let rows = [
            ("a third of a token", Quota::per_second(1), Duration::from_millis(333), false),
            ("one and a half", Quota::per_second(3), Duration::from_millis(500), false),
            ("too short", Quota::per_second(1_000_000), Duration::from_micros(10), false),
            ("not in microseconds", Quota::per_second(1), Duration::from_nanos(1_000_000_001), false),
            ("too long", Quota::per_second(1), Duration::MAX, false),
            ("one", Quota::per_second(2), Duration::from_millis(500), true),
            ("longer than the period", Quota::per_second(2), Duration::from_secs(3), true),
        ];
        for (name, quota, step, fine) in rows {
            assert_eq!(TokenBucket::new().refill_every(step).arguments(&quota).is_ok(), fine, "{name}");
        }
    }
}
