//! A window that slides by cells, each with a count.

use super::{
    Algorithm,
    counter::{Change, Counter, Plan, exactly, usual},
    state::{Cells, State},
    twin::{Gauge, Receipt},
};
use crate::base::{Error, Quota};

/// Counts units in a window that slides over segments: the limit per period, smoothed over the window's edge.
///
/// The period is divided into [`segments`](Self::segments) that follow the clock. The current segment and
/// those before it, as many as the period has, count in full. The next older one counts by the share of it
/// that is still inside the window, as if its requests had come evenly, rounded down to whole units. With one
/// segment, the default, this is the sliding window counter that many services use.
///
/// * **Promise**: in any span that is one segment shorter than the period, at most the limit. (With one
///   segment, that span is empty.) A span of the whole period can have more if the requests of the oldest
///   segment came late in it: at worst twice the limit, if all of them came at its end. Requests of one unit
///   that come evenly, at any rate below the limit, are all admitted.
/// * **Source**: the sliding window counter, in the form with sub-windows.
/// * **Cost in Redis**: one string per key, of 23 bytes, and 5 for each of at most `segments` + 1 segments.
///   GET; SETRANGE or SET if units are charged.
/// * **Weakness**: it is an approximation. [`SlidingLog`](crate::algorithm::SlidingLog) is exact.
///
/// # Errors
///
/// [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns an error, and
/// [`Policy::algorithm`](crate::Policy::algorithm) panics, if the quota has a [`burst`](Quota::burst), or if
/// the number of [`segments`](Self::segments) is 0, is above 1000, or does not divide the period into whole
/// microseconds.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{Key, Limiter, MemoryStore, Policy, Quota, algorithm::SlidingWindow, store::ManualClock};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new(); // midnight
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("api", Quota::per_minute(60)).algorithm(SlidingWindow::new());
/// let key = Key::new("alice");
///
/// clock.advance(Duration::from_secs(59));
/// assert!(limiter.check(&policy, &key, 60).await?.is_admitted());
/// // A fixed window would admit 60 more now. Here all of the last minute still counts.
/// clock.advance(Duration::from_secs(1));
/// assert!(!limiter.check(&policy, &key, 1).await?.is_admitted());
/// // Half a minute later, half of it counts.
/// clock.advance(Duration::from_secs(30));
/// assert!(limiter.check(&policy, &key, 30).await?.is_admitted());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow {
    segments: u32,
}

const MAX_SEGMENTS: u32 = 1_000;
/// The most that 5 bytes hold, which is above every limit. Only merged cells could exceed it.
const MAX_COUNT: u64 = (1 << 40) - 1;

impl SlidingWindow {
    /// Creates a window over one segment and the one before it.
    #[must_use]
    pub const fn new() -> Self {
        Self { segments: 1 }
    }

    /// Divides the period into `segments`, at most 1000. More segments are more exact and need more memory. A
    /// segment must be in whole microseconds, so `segments` must divide the period. Defaults to 1.
    #[must_use]
    pub const fn segments(mut self, segments: u32) -> Self {
        self.segments = segments;
        self
    }
}

impl Default for SlidingWindow {
    fn default() -> Self {
        Self::new()
    }
}

impl Algorithm for SlidingWindow {
    built_in!("sliding-window", "sliding_window.lua");

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        ensure!(!quota.has_burst(), "a sliding window has no burst: leave out `burst`, or use `Gcra`");
        ensure!((1..=MAX_SEGMENTS).contains(&self.segments), "a sliding window must have 1 to 1000 segments");
        let (period, segments) = (quota.period_micros(), u64::from(self.segments));
        ensure!(
            period.is_multiple_of(segments),
            "a sliding window's segments must divide its period into whole microseconds: choose another number"
        );
        Ok(vec![quota.limit(), segments, period / segments])
    }
}

/// The window as of now.
struct OpenCells {
    limit: u64,
    width: u64,
    /// When the latest cell started.
    started: u64,
    /// Microseconds since then.
    elapsed: u64,
    /// The units per cell, the latest first. The last one is the sliding cell.
    counts: Vec<u64>,
    /// Whether a denial must write this state.
    stale: bool,
}

fn open(arguments: &[u64], state: Option<&State>, now: u64) -> OpenCells {
    let [limit, cells, width] = exactly(arguments);
    let elapsed = now % width;
    let started = now - elapsed;
    let mut counts = vec![0; cells as usize + 1];
    let mut stale = false;
    if let Some(State::Cells(cells)) = state {
        let Cells { started: latest, width: old_width, counts: old } = &**cells;
        stale = *latest > now;
        let latest = if stale { started } else { *latest };
        for (i, units) in (0_u64..).zip(old) {
            let Some(start) = latest.checked_sub(i * old_width) else { break };
            let age = if *old_width == width {
                (started - start) / width
            } else {
                // Cells of an older quota count at the time at which they ended.
                started.saturating_sub((start + old_width - 1).min(now)).div_ceil(width)
            };
            if let Some(count) = counts.get_mut(usize::try_from(age).unwrap_or(usize::MAX)) {
                *count = (*count + units).min(MAX_COUNT);
            }
        }
    }
    OpenCells { limit, width, started, elapsed, counts, stale }
}

impl OpenCells {
    /// Returns the units of the cells that count in full, and the units of the sliding cell.
    fn full_and_sliding(&self) -> (u64, u64) {
        let (sliding, full) = self.counts.split_last().unwrap_or((&0, &[]));
        (full.iter().sum(), *sliding)
    }

    fn used(&self) -> u64 {
        let (full, sliding) = self.full_and_sliding();
        let share = u128::from(sliding) * u128::from(self.width - self.elapsed);
        // Rounded down. Otherwise requests that come evenly below the limit could be denied. The value is at
        // most `sliding`, so it fits.
        full + (share / u128::from(self.width)) as u64
    }

    /// Returns the microseconds until all cells have left the window.
    fn reset(&self) -> u64 {
        let newest = self.counts.iter().position(|units| *units > 0);
        newest.map_or(0, |age| (self.counts.len() - age) as u64 * self.width - self.elapsed)
    }

    /// Returns the microseconds until at most `room` units count.
    fn wait_for(&self, room: u64) -> u64 {
        let (mut full, _) = self.full_and_sliding();
        for (passed, sliding) in (0_u64..).zip(self.counts.iter().rev()) {
            if full <= room {
                let inside = if *sliding > room - full {
                    // The longest rest of the cell of which at most the room counts. The value is below the
                    // width, because `sliding` is above the room.
                    let kept = u128::from(room - full + 1) * u128::from(self.width) - 1;
                    self.width - (kept / u128::from(*sliding)) as u64
                } else {
                    0
                };
                return (passed * self.width + inside).saturating_sub(self.elapsed);
            }
            let next = self.counts.len() - 2 - passed as usize;
            full -= self.counts[next];
        }
        unreachable!("no units count after all cells have passed")
    }
}

impl Counter for SlidingWindow {
    fn forgets_debt(&self) -> bool {
        true
    }

    fn usual(&self, arguments: &[u64]) -> Option<Vec<u64>> {
        let [limit, cells, width] = exactly(arguments);
        Some(vec![usual::SLIDING_WINDOW, limit, cells, width])
    }

    fn most_within_period(&self, _: &[u64], quota: &Quota) -> Option<u64> {
        // A whole limit may be charged at the end of one window, and another at the start of the next one.
        Some(2 * quota.limit())
    }

    fn redis_micros(&self, arguments: &[u64], _: bool) -> u64 {
        // A denial may read every cell: 205 µs for 1000 of them.
        16 + arguments.get(1).copied().unwrap_or_default() / 5
    }

    fn lease_recovery(&self, arguments: &[u64], _: u64) -> Option<u64> {
        let [_, cells, width] = exactly(arguments);
        // A charge counts until its cell has left the window.
        Some((cells + 1) * width)
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let window = open(arguments, state, now);
        let reset = window.reset();
        let before = Gauge { remaining: window.limit.saturating_sub(window.used()), reset };
        let reset_after =
            if cost > 0 { window.counts.len() as u64 * window.width - window.elapsed } else { reset };
        Plan::of(cost, window.limit, before, reset_after, window.stale && reset > 0, || {
            window.wait_for(window.limit - cost)
        })
        .marked(window.started + window.width - 1)
    }

    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64> {
        if let Change::RefundOf(units, charge) = change {
            refund(arguments, state, now, units, charge);
            return None;
        }
        let mut window = open(arguments, state.as_ref(), now);
        match change {
            Change::Charge(cost, _) => window.counts[0] += cost,
            Change::Refund(mut units, _) => {
                // The latest units are refunded first.
                for count in &mut window.counts {
                    let given = units.min(*count);
                    *count -= given;
                    units -= given;
                }
            }
            Change::Repair | Change::Renew(..) | Change::RefundOf(..) => {}
        }
        let lifetime = window.reset();
        let OpenCells { started, width, counts, .. } = window;
        // Drop the oldest cells without units.
        let kept = counts.iter().rposition(|units| *units > 0).map_or(0, |oldest| oldest + 1);
        let counts = counts[..kept].into();
        *state = (lifetime > 0).then(|| State::Cells(Box::new(Cells { started, width, counts })));
        Some(lifetime)
    }
}

/// Refunds units of the cell that `charge` is in, if it still counts.
fn refund(arguments: &[u64], state: &mut Option<State>, now: u64, units: u64, charge: Receipt) -> Option<()> {
    let [_, cells, width] = exactly(arguments);
    let Some(State::Cells(window)) = state else { return None };
    let cell = charge.mark - charge.mark % width;
    // Cells of another width are of an older quota; a latest cell in the future is of a clock that stepped
    // back.
    if window.width != width || window.started > now || now.saturating_sub(cell) >= (cells + 1) * width {
        return None;
    }
    let index = usize::try_from(window.started.checked_sub(cell)? / width).ok()?;
    // The stored cells are used as they are, because the decision may be of an older quota.
    let count = window.counts.get_mut(index)?;
    *count = count.saturating_sub(units);
    if window.counts.iter().all(|count| *count == 0) {
        *state = None;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_do_not_divide_the_period_are_an_error() {
        let rows = [(0, false), (1, true), (7, false), (10, true), (1_000, true), (1_001, false)];
        for (segments, fine) in rows {
            let built = SlidingWindow::new().segments(segments).arguments(&Quota::per_second(5));
            assert_eq!(built.is_ok(), fine, "{segments}");
        }
    }
}
