use std::collections::VecDeque;

use super::{
    Algorithm,
    rules::{Change, Count, Gauge, Kept, Plan, State, Twin},
};
use crate::{Error, Quota};

/// Remembers when each admitted request came: at most the limit in any span of the period, exactly.
///
/// * **Promise**: in **any** span of the period, at most the limit. No burst at an edge, no
///   approximation.
/// * **Source**: the sliding window log, usually a sorted set of time stamps. Here a list, because a
///   sorted set takes ten times the memory and loses requests that come in the same microsecond.
/// * **Cost**: one entry of about 15 bytes in Redis for each admitted request that still counts, whatever
///   it cost; three or four LINDEX for a refusal, an RPUSH more for a charge.
/// * **Weakness**: memory grows with the limit. For a limit of more than a few thousand requests use a
///   [`SlidingWindow`](crate::SlidingWindow).
///
/// A quota with a [`burst`](Quota::burst) is refused: a log has none.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, ManualClock, MemoryStore, Policy, Quota, SlidingLog};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::new().manual_clock(clock.clone()));
/// let policy = Policy::new("codes", Quota::per_minute(2)).algorithm(SlidingLog);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_allowed());
/// clock.advance(Duration::from_secs(50));
/// assert!(limiter.check(&policy, &key, 1).await?.is_allowed());
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert!(!refused.is_allowed());
/// // The first is a minute old in ten seconds.
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(10)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SlidingLog;

impl Algorithm for SlidingLog {
    fn name(&self) -> &str {
        "sliding-log"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/sliding_log.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        if quota.has_burst() {
            return Err(Error::invalid("a sliding log has no burst: leave out `burst`, or use `Gcra`"));
        }
        Ok(vec![quota.limit(), quota.period_micros()])
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

/// The entries that count, oldest first, none of a time after now.
struct Open<'a> {
    limit: u64,
    period: u64,
    log: Option<&'a VecDeque<Count>>,
    now: u64,
}

impl Open<'_> {
    fn entries(&self) -> impl DoubleEndedIterator<Item = Count> {
        let (now, period) = (self.now, self.period);
        self.log
            .into_iter()
            .flatten()
            .filter(move |entry| entry.at + period > now)
            .map(move |entry| Count { at: entry.at.min(now), ..*entry })
    }

    fn used(&self) -> u64 {
        self.entries().map(|entry| entry.count).sum()
    }

    /// Microseconds until the oldest entries that hold `units` units count no more.
    fn until_freed(&self, units: u64) -> u64 {
        let mut freed = 0;
        let last = self.entries().find(|entry| {
            freed += entry.count;
            freed >= units
        });
        last.map_or(0, |entry| entry.at + self.period - self.now)
    }

    fn reset(&self) -> u64 {
        self.entries().next_back().map_or(0, |entry| entry.at + self.period - self.now)
    }
}

fn open<'a>(arguments: &[u64], state: Option<&'a State>, now: u64) -> Open<'a> {
    let &[limit, period] = arguments else {
        unreachable!("`arguments` above makes two");
    };
    let log = match state {
        Some(State::Log(log)) => Some(log),
        _ => None,
    };
    Open { limit, period, log, now }
}

impl Twin for SlidingLog {
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let log = open(arguments, state, now);
        let used = log.used();
        let reset = log.reset();
        let before = Gauge { remaining: log.limit.saturating_sub(used), reset };
        let stale = log.log.and_then(VecDeque::back).is_some_and(|latest| latest.at > now);
        let reset_after = if cost > 0 { log.period } else { reset };
        Plan::of(cost, log.limit, before, reset_after, stale, || log.until_freed(used + cost - log.limit))
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        let period = open(arguments, None, now).period;
        let mut log = match state {
            Some(State::Log(log)) => log,
            _ => VecDeque::new(),
        };
        while log.front().is_some_and(|entry| entry.at + period <= now) {
            log.pop_front();
        }
        for entry in log.iter_mut().rev().take_while(|entry| entry.at > now) {
            entry.at = now;
        }
        match change {
            Change::Charge(cost, _) => log.push_back(Count { at: now, count: cost }),
            Change::Repair | Change::Renew(_) => {}
            Change::Refund(mut units, _) => {
                // The latest units first.
                while let Some(latest) = log.back_mut().filter(|_| units > 0) {
                    let given = units.min(latest.count);
                    units -= given;
                    latest.count -= given;
                    if latest.count == 0 {
                        log.pop_back();
                    }
                }
            }
        }
        let lifetime = log.back()?.at + period - now;
        Some(Kept { state: State::Log(log), lifetime })
    }
}
