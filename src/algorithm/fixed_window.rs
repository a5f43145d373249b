use std::time::Duration;

use super::{
    Algorithm,
    state::{Count, State},
    twin::{Change, Gauge, Kept, Plan, Receipt, Twin},
};
use crate::{error::Error, quota::Quota};

/// A counter per window: at most the limit in each one.
///
/// Anchored by default: a client's window opens with its first request, and the next one with the
/// first request after that one closed. [`aligned`](Self::aligned) windows follow the clock instead,
/// the same for every client: the calendar minute, hour or day.
///
/// * **Promise**: at most the limit in each window.
/// * **Source**: the classic counter with an expiry, here with the window's start in the state, so that
///   neither a lost TTL nor a stepping clock can wedge it.
/// * **Cost**: one number per key in Redis; GET, and SET when something is charged.
/// * **Weakness**: the edge. A client that waits for the end of a window gets the limit just before
///   it and the limit just after: twice the limit within a moment. Aligned windows also bring every
///   client back at the same second. Where that hurts, use [`Gcra`](crate::algorithm::Gcra).
///
/// A quota with a [`burst`](Quota::burst) is refused: a window has none.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::FixedWindow, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new(); // 2026-01-01, midnight UTC
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// // Calendar days as Berlin counts them in winter, an hour ahead of UTC.
/// let berlin = FixedWindow::aligned().utc_offset_east(Duration::from_secs(3_600));
/// let policy = Policy::new("daily", Quota::per_day(1)).algorithm(berlin);
/// let key = Key::new("alice");
///
/// assert!(limiter.check(&policy, &key, 1).await?.is_allowed());
/// let refused = limiter.check(&policy, &key, 1).await?;
/// assert!(!refused.is_allowed());
/// // It is one in the morning there: the day ends in 23 hours.
/// assert_eq!(refused.retry_after(), Some(Duration::from_secs(23 * 3_600)));
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
    /// Microseconds by which every window opens later than a multiple of its period since 1970.
    Aligned { offset: i128 },
}

impl FixedWindow {
    /// Windows that open with a client's first request.
    #[must_use]
    pub const fn anchored() -> Self {
        Self { windows: Windows::Anchored }
    }

    /// Windows that open on every multiple of the quota's period since 1970 UTC: calendar minutes,
    /// hours and days for quotas of those periods.
    #[must_use]
    pub const fn aligned() -> Self {
        Self { windows: Windows::Aligned { offset: 0 } }
    }

    /// Aligned to the clock of a place `by` ahead of UTC, such as 5 h 30 min for India. Defaults to
    /// UTC. Makes the windows [`aligned`](Self::aligned).
    #[must_use]
    pub const fn utc_offset_east(self, by: Duration) -> Self {
        Self { windows: Windows::Aligned { offset: -(by.as_micros() as i128) } }
    }

    /// Aligned to the clock of a place `by` behind UTC, such as 5 h for New York in winter. Defaults
    /// to UTC. Makes the windows [`aligned`](Self::aligned).
    #[must_use]
    pub const fn utc_offset_west(self, by: Duration) -> Self {
        Self { windows: Windows::Aligned { offset: by.as_micros() as i128 } }
    }
}

impl Algorithm for FixedWindow {
    fn name(&self) -> &str {
        "fixed-window"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/fixed_window.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        if quota.has_burst() {
            return Err(Error::invalid("a fixed window has no burst: leave out `burst`, or use `Gcra`"));
        }
        let period = quota.period_micros();
        let (aligned, offset) = match self.windows {
            Windows::Anchored => (0, 0),
            // Below the period, so it fits.
            Windows::Aligned { offset } => (1, offset.rem_euclid(i128::from(period)) as u64),
        };
        Ok(vec![quota.limit(), period, aligned, offset])
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

/// A window as of now.
struct Open {
    limit: u64,
    opened: u64,
    used: u64,
    left: u64,
    moved: bool,
}

fn open(arguments: &[u64], state: Option<&State>, now: u64) -> Open {
    let &[limit, period, aligned, offset] = arguments else {
        unreachable!("`arguments` above makes four");
    };
    let opens = if aligned == 1 {
        // The first window of 1970 may have opened before it; no clock shows that.
        now.saturating_sub((now + period - offset) % period)
    } else {
        now
    };
    let (opened, used, moved) = match state {
        Some(State::Count(state)) if state.at > opens => (opens, state.count, true),
        Some(State::Count(state)) if state.at + period > now => (state.at, state.count, false),
        _ => (opens, 0, false),
    };
    Open { limit, opened, used, left: opened + period - now, moved }
}

impl Twin for FixedWindow {
    fn missed(&self, arguments: &[u64], _: u64) -> Option<u64> {
        // Until the window ends.
        arguments.get(1).copied()
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let Open { limit, opened, used, left, moved } = open(arguments, state, now);
        let reset = |used| if used > 0 { left } else { 0 };
        let before = Gauge { remaining: limit.saturating_sub(used), reset: reset(used) };
        Plan::of(cost, limit, before, reset(used + cost), moved && used > 0, || left).marked(opened)
    }

    fn refund(
        &self,
        arguments: &[u64],
        state: &mut Option<State>,
        now: u64,
        units: u64,
        charge: Receipt,
    ) -> Option<u64> {
        let _ = (arguments, now);
        // As it stands: its decision may be of an older quota. In any other window the charge counts no more.
        if let Some(State::Count(window)) = state
            && window.at == charge.mark
        {
            window.count = window.count.saturating_sub(units);
            if window.count == 0 {
                *state = None;
            }
        }
        None
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        let Open { opened, used, left, .. } = open(arguments, state.as_ref(), now);
        let used = match change {
            Change::Charge(cost, _) => used + cost,
            Change::Repair | Change::Renew(_) => used,
            Change::Refund(units, _) => used.saturating_sub(units),
        };
        (used > 0).then_some(Kept { state: State::Count(Count { at: opened, count: used }), lifetime: left })
    }
}
