//! A log of all charges of the latest period.

use super::{
    Algorithm,
    counter::{Change, Counter, Plan, exactly},
    state::{Entry, Log, State},
    twin::Gauge,
};
use crate::base::{Error, Quota};

/// Stores the time of each admitted request: at most the limit in any span as long as the period, exactly.
///
/// * **Promise**: at most the limit in **any** span as long as the period. There is no window edge and no
///   approximation.
/// * **Source**: the sliding window log, usually a sorted set of timestamps. This one is a list: a sorted set
///   needs ten times the memory and loses requests that come in the same microsecond.
/// * **Cost in Redis**: one list per key, with an entry of about 15 bytes for each admitted request that
///   still counts, regardless of its cost. LLEN and two to four LINDEX, and a binary search with LINDEX if
///   entries have expired or the request is denied; LTRIM, RPUSH and PEXPIRE if units are charged.
/// * **Weakness**: memory grows with the limit. For a limit of more than a few thousand requests use a
///   [`SlidingWindow`](crate::algorithm::SlidingWindow).
///
/// A refund of a decision removes its entry. If more than 1000 entries came before it and as many after it,
/// the refund removes the oldest units instead, which expire sooner.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, if the quota has a [`burst`](Quota::burst).
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::SlidingLog, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new();
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("codes", Quota::per_minute(2)).algorithm(SlidingLog::new());
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// clock.advance(Duration::from_secs(50));
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert!(!denied.is_admitted());
/// // In ten seconds the first request is a minute old.
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(10)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct SlidingLog(());

impl SlidingLog {
    /// Creates the algorithm. It has no options.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Algorithm for SlidingLog {
    built_in!("sliding-log", "sliding_log.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        ensure!(!quota.has_burst(), "a sliding log has no burst: leave out `burst`, or use `Gcra`");
        Ok(vec![quota.limit(), quota.period_micros()])
    }
}

impl Log {
    /// Returns the index of the oldest entry that counts at `now`, and the total before it.
    fn first(&self, period: u64, now: u64) -> (usize, u128) {
        let first = self.entries.partition_point(|entry| entry.at + period <= now);
        let before = first
            .checked_sub(1)
            .and_then(|last| self.entries.get(last))
            .map_or(self.before, |last| last.total);
        (first, before)
    }

    fn total(&self) -> u128 {
        self.entries.back().map_or(self.before, |latest| latest.total)
    }

    /// Drops the entries that no longer count, and replaces the entries in the future by one of the time
    /// `now`.
    fn bring_up_to(&mut self, period: u64, now: u64) {
        let (first, before) = self.first(period, now);
        self.entries.drain(..first);
        self.before = before;
        // As totals are cumulative, one entry stands for all entries in the future.
        let total = self.total();
        let known = self.entries.partition_point(|entry| entry.at <= now);
        if known < self.entries.len() {
            self.entries.truncate(known);
            self.entries.push_back(Entry { at: now, total });
        }
        if self.entries.capacity() > 4 * self.entries.len() {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }
}

/// As in `lua/algorithm/sliding_log.lua`: the most entries that one refund writes.
const MAX_REWRITTEN: usize = 1_000;

impl Log {
    /// Removes up to `units` units from the charges that were made at `made`, which still count.
    fn remove_units(&mut self, made: u64, units: u64) {
        let low = self.entries.partition_point(|entry| entry.at < made);
        let end = self.entries.partition_point(|entry| entry.at <= made);
        if low == end {
            return;
        }
        let total_before = |place: usize| match place {
            0 => self.before,
            _ => self.entries[place - 1].total,
        };
        let (before, upto) = (total_before(low), total_before(end));
        let units = u128::from(units).min(upto - before);
        if end > MAX_REWRITTEN && self.entries.len() - low >= MAX_REWRITTEN {
            self.before += units;
            let place = self.entries.partition_point(|entry| entry.total < self.before);
            self.entries.drain(..place);
        } else {
            for entry in self.entries.range_mut(low..end) {
                entry.total = entry.total.min(upto - units);
            }
            for entry in self.entries.range_mut(end..) {
                entry.total -= units;
            }
        }
        // Drop the latest entries that have no units left.
        while let Some(latest) = self.entries.pop_back() {
            if latest.total > self.total() {
                self.entries.push_back(latest);
                break;
            }
        }
    }
}

impl Counter for SlidingLog {
    fn forgets_debt(&self) -> bool {
        true
    }

    fn most_within_period(&self, _: &[u64], quota: &Quota) -> Option<u64> {
        Some(quota.limit())
    }

    fn redis_micros(&self, _: &[u64], refund: bool) -> u64 {
        if refund { 2 * MAX_REWRITTEN as u64 } else { 16 }
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let [limit, period] = exactly(arguments);
        let Some(State::Log(log)) = state else {
            let before = Gauge { remaining: limit, reset: 0 };
            return Plan::of(cost, limit, before, if cost > 0 { period } else { 0 }, false, || 0);
        };
        let (first, before) = log.first(period, now);
        // The units are at most the limit under which they were charged, so they fit.
        let used = (log.total() - before) as u64;
        let left = |entry: &Entry| entry.at.min(now) + period - now;
        let latest = log.entries.back().filter(|_| first < log.entries.len());
        let reset = latest.map_or(0, left);
        let stale = latest.is_some_and(|latest| latest.at > now);
        let gauge = Gauge { remaining: limit.saturating_sub(used), reset };
        Plan::of(cost, limit, gauge, if cost > 0 { period } else { reset }, stale, || {
            // Wait until the oldest entries with that many units have expired.
            let freed = before + u128::from(used + cost - limit);
            let last = log.entries.partition_point(|entry| entry.total < freed);
            log.entries.get(last).map_or(0, left)
        })
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        let [_, period] = exactly(arguments);
        if let Change::RefundOf(units, charge) = change {
            let Some(State::Log(log)) = state else { return None };
            let stepped_back = log.entries.back().is_none_or(|latest| latest.at > now);
            if !stepped_back && charge.made + period > now {
                log.remove_units(charge.made, units);
                if log.entries.is_empty() {
                    *state = None;
                }
            }
            return None;
        }
        let mut log = match state.take() {
            Some(State::Log(log)) => log,
            _ => Box::default(),
        };
        log.bring_up_to(period, now);
        match change {
            Change::Charge(cost, _) => {
                let total = log.total() + u128::from(cost);
                log.entries.push_back(Entry { at: now, total });
            }
            Change::Refund(units, _) => {
                let kept = log.total().saturating_sub(u128::from(units)).max(log.before);
                let last = log.entries.partition_point(|entry| entry.total < kept);
                log.entries.truncate(if kept == log.before { 0 } else { last + 1 });
                if let Some(latest) = log.entries.back_mut() {
                    latest.total = kept;
                }
            }
            Change::Repair | Change::Renew(..) | Change::RefundOf(..) => {}
        }
        let lifetime = log.entries.back().map_or(0, |latest| latest.at + period - now);
        *state = (lifetime > 0).then_some(State::Log(log));
        Some(lifetime)
    }
}
