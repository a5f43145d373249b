use std::time::Duration;

use super::{
    Algorithm, Replenishment,
    bucket::{Bucket, HasBucket, micros, rate},
    twin::Twin,
};
use crate::{error::Error, quota::Quota};

/// Tokens come at the quota's rate until the bucket is full, and a request takes as many as it costs.
///
/// Refilled continuously and full at first, it says the same as [`Gcra`](crate::algorithm::Gcra). It is here for
/// what GCRA has no words for: tokens that come [in steps](Self::refill_every), and a bucket that is
/// [not full](Self::starting_at) at first.
///
/// * **Promise**: in any span of time `t`, at most capacity + rate x `t` units; in steps, at most a step
///   more.
/// * **Source**: J. Turner, "New directions in communications", IEEE Communications Magazine 24(10), 1986.
/// * **Cost**: one number per key in Redis; GET, and SET when something is charged.
/// * **Weakness**: as [`Gcra`](crate::algorithm::Gcra); in steps, clients come back together when a step is due.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::TokenBucket, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// // Ten more every six seconds, up to a hundred, and twenty to begin with.
/// let bucket = TokenBucket::new().refill_every(Duration::from_secs(6)).starting_at(20);
/// let policy = Policy::new("jobs", Quota::per_minute(100)).algorithm(bucket);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 20).await?.is_allowed());
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert!(!refused.is_allowed());
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(6)));
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
    /// A bucket that is full at first, and refilled continuously.
    #[must_use]
    pub const fn new() -> Self {
        Self { step: None, initial: None }
    }

    /// Adds tokens all at once, after every `interval`: as many as the quota allows for that time, which
    /// must be a whole number. The first interval begins with the first charge of a full bucket. Defaults
    /// to a continuous refill.
    #[must_use]
    pub const fn refill_every(mut self, interval: Duration) -> Self {
        self.step = Some(interval);
        self
    }

    /// Gives a key that was never seen `tokens` tokens instead of a full bucket. More than the bucket
    /// holds is a full one. Defaults to full.
    ///
    /// A key that is left alone is forgotten, and then never seen again, once its bucket is full and as
    /// long again as an empty one takes to fill. A refund to a key that was never seen gives nothing; to one
    /// that was, it may fill up what was missing at first.
    #[must_use]
    pub const fn starting_at(mut self, tokens: u64) -> Self {
        self.initial = Some(tokens);
        self
    }
}

/// Exact in Lua.
const MAX_STEP: u64 = 1 << 44;

impl Algorithm for TokenBucket {
    fn name(&self) -> &str {
        "token-bucket"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/token_bucket.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        let (period, units) = match self.step {
            None => rate(quota),
            Some(step) => {
                let problem = "a token bucket's refill interval must be of whole microseconds, at least 1 millisecond, \
                    and bring a whole number of tokens, at least one";
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

    fn replenishment(&self) -> Replenishment {
        match self.step {
            None => Replenishment::Evenly,
            Some(_) => Replenishment::AtReset,
        }
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

impl HasBucket for TokenBucket {
    fn bucket(arguments: &[u64]) -> Bucket {
        let &[period, units, burst, stepped, initial] = arguments else {
            unreachable!("`arguments` above makes five");
        };
        Bucket { stepped: stepped == 1, initial, ..Bucket::continuous(period, units, burst) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_brings_no_whole_number_of_tokens_is_refused() {
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
