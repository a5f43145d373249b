//! Windows of a period, each with a count from 0.

use std::time::Duration;

use super::{
    Algorithm, Replenishment,
    counter::{Change, Counter, Plan, exactly, usual},
    state::{Count, State},
    twin::Gauge,
};
use crate::base::{Error, Quota};

/// Counts the units of each window: at most the limit in each one.
///
/// A window is [anchored](Self::anchored) by default: it starts with a client's first charge, and the next
/// one with the first charge after it ended. [Aligned](Self::aligned) windows follow the clock instead, the
/// same for every client: calendar minutes, hours or days.
///
/// * **Promise**: at most the limit in each window.
/// * **Source**: the classic counter with an expiry. Here the state has the time of the window's first
///   charge, so a lost TTL or a clock that steps back cannot block a client.
/// * **Cost in Redis**: one string per key. GET; SETRANGE or SET if units are charged.
/// * **Weakness**: a client can use the limit at the end of one window and again at the start of the next:
///   twice the limit within a moment. Aligned windows also make all clients retry in the same second. If that
///   is a problem, use [`Gcra`](crate::algorithm::Gcra).
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
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::FixedWindow, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new(); // 2026-01-01, midnight UTC
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// // Calendar days of Berlin in winter, one hour ahead of UTC.
/// let berlin = FixedWindow::aligned().utc_offset_east(Duration::from_secs(3_600));
/// let policy = Policy::new("daily", Quota::per_day(1)).algorithm(berlin);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_admitted());
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert!(!denied.is_admitted());
/// // It is 01:00 in Berlin: the day ends in 23 hours.
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(23 * 3_600)));
///
/// // A day from the client's first request.
/// let policy = Policy::new("trial", Quota::per_day(1)).algorithm(FixedWindow::anchored());
/// limiter.check(&policy, &key, 1).await?;
/// let denied = limiter.check(&policy, &key, 1).await?;
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(24 * 3_600)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct FixedWindow {
    windows: Windows,
}

#[derive(Clone, Copy, Debug, Default)]
enum Windows {
    #[default]
    Anchored,
    /// Every window starts `offset` microseconds after a multiple of its period since 1970.
    Aligned { offset: i128 },
}

impl FixedWindow {
    /// Starts a window with a client's first charge.
    #[must_use]
    pub const fn anchored() -> Self {
        Self { windows: Windows::Anchored }
    }

    /// Starts windows at fixed times, the same for every client: at each multiple of the quota's period since
    /// 1970-01-01T00:00:00Z. A quota per minute, hour or day follows the clock and the calendar. A week
    /// begins on Thursday, as 1970 did; [`utc_offset_west`](Self::utc_offset_west) of 4 days begins it on
    /// Monday. There are no calendar months, because their lengths differ.
    #[must_use]
    pub const fn aligned() -> Self {
        Self { windows: Windows::Aligned { offset: 0 } }
    }

    /// Aligns the windows to a time zone that is `by` ahead of UTC, such as 5 h 30 min for India. Defaults to
    /// UTC. Implies [`aligned`](Self::aligned). Fractions of a microsecond are ignored.
    #[must_use]
    pub const fn utc_offset_east(self, by: Duration) -> Self {
        Self { windows: Windows::Aligned { offset: -(by.as_micros() as i128) } }
    }

    /// Aligns the windows to a time zone that is `by` behind UTC, such as 5 h for New York in winter.
    /// Defaults to UTC. Implies [`aligned`](Self::aligned). Fractions of a microsecond are ignored.
    #[must_use]
    pub const fn utc_offset_west(self, by: Duration) -> Self {
        Self { windows: Windows::Aligned { offset: by.as_micros() as i128 } }
    }
}

impl Algorithm for FixedWindow {
    built_in!("fixed-window", "fixed_window.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        ensure!(!quota.has_burst(), "a fixed window has no burst: leave out `burst`, or use `Gcra`");
        let period = quota.period_micros();
        let (aligned, offset) = match self.windows {
            Windows::Anchored => (0, 0),
            // The value is below the period, so it fits into 64 bits.
            Windows::Aligned { offset } => (1, offset.rem_euclid(i128::from(period)) as u64),
        };
        Ok(vec![quota.limit(), period, aligned, offset])
    }

    fn replenishment(&self, _: &Quota) -> Replenishment {
        Replenishment::InWindows
    }
}

/// The window as of now.
struct OpenWindow {
    limit: u64,
    /// When the first of its units was charged.
    started: u64,
    used: u64,
    /// Microseconds until the window ends.
    left: u64,
    /// Whether a denial must write this state.
    stale: bool,
}

fn open(arguments: &[u64], state: Option<&State>, now: u64) -> OpenWindow {
    let [limit, period, aligned, offset] = exactly(arguments);
    // The first window of 1970 may start before 0.
    let aligned = (aligned == 1).then(|| now.saturating_sub((now + period - offset) % period));
    let is_over = |at: u64| aligned.map_or(at + period <= now, |starts| at < starts);
    let (started, used, stale) = match state {
        Some(State::Count(state)) if state.at > now => (now, state.count, true),
        Some(State::Count(state)) if !is_over(state.at) => (state.at, state.count, false),
        _ => (now, 0, false),
    };
    OpenWindow { limit, started, used, left: aligned.unwrap_or(started) + period - now, stale }
}

impl Counter for FixedWindow {
    fn usual(&self, arguments: &[u64]) -> Option<Vec<u64>> {
        let [limit, period, aligned, offset] = exactly(arguments);
        Some(vec![usual::WINDOW, limit, period, if aligned == 1 { offset } else { period }])
    }

    fn most_within_period(&self, _: &[u64], quota: &Quota) -> Option<u64> {
        // A whole limit may be charged at the end of one window, and another at the start of the next one.
        Some(2 * quota.limit())
    }

    fn lease_recovery(&self, arguments: &[u64], _: u64) -> Option<u64> {
        // A charge counts until the window ends, at most a period later.
        arguments.get(1).copied()
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let OpenWindow { limit, started, used, left, stale } = open(arguments, state, now);
        let reset = |used| if used > 0 { left } else { 0 };
        let before = Gauge { remaining: limit.saturating_sub(used), reset: reset(used) };
        Plan::of(cost, limit, before, reset(used + cost), stale && used > 0, || left).marked(started)
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        if let Change::RefundOf(units, charge) = change {
            // The stored window is used as it is, because the decision may be of an older quota. In another
            // window, the charge no longer counts.
            if let Some(State::Count(window)) = state
                && window.at == charge.mark
            {
                window.count = window.count.saturating_sub(units);
                if window.count == 0 {
                    *state = None;
                }
            }
            return None;
        }
        let OpenWindow { started, used, left, .. } = open(arguments, state.as_ref(), now);
        let used = match change {
            Change::Charge(cost, _) => used + cost,
            Change::Refund(units, _) => used.saturating_sub(units),
            Change::Repair | Change::Renew(..) | Change::RefundOf(..) => used,
        };
        *state = (used > 0).then_some(State::Count(Count { at: started, count: used }));
        Some(if used > 0 { left } else { 0 })
    }
}
