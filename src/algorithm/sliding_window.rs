use super::{
    Algorithm,
    state::{Cells, State},
    twin::{Change, Gauge, Kept, Plan, Receipt, Twin},
};
use crate::{error::Error, quota::Quota};

/// A window that slides over counters: the limit per period, smoothed over the window's edge.
///
/// The period is cut into [`segments`](Self::segments) cells that follow the clock. The latest ones count
/// in full; the one that is sliding out counts by the share of it that is still inside, as if its
/// requests had come evenly. With one cell, the default, that is the weighted pair of counters that many
/// services use.
///
/// * **Promise**: at most the limit in any span of the period less one cell, exactly. A span of the whole
///   period can hold more where the requests of the cell that slides out came late in it, at worst twice
///   the limit, where all of them came at its very end. Requests that come evenly get the limit.
/// * **Source**: the sliding window counter, in the form with sub-windows.
/// * **Cost**: one string per key in Redis, 13 bytes and 5 for each cell; GET, and SET when something is
///   charged.
/// * **Weakness**: it is an approximation; [`SlidingLog`](crate::algorithm::SlidingLog) is exact.
///
/// A quota with a [`burst`](Quota::burst) is refused: a window has none.
///
/// # Example
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{algorithm::SlidingWindow, Key, Limiter, ManualClock, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let clock = ManualClock::new(); // midnight
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let policy = Policy::new("api", Quota::per_minute(60)).algorithm(SlidingWindow::new());
/// let key = Key::new("alice");
///
/// clock.advance(Duration::from_secs(59));
/// assert!(limiter.check(&policy, &key, 60).await?.is_allowed());
/// // A fixed window would admit sixty more now. Here all of the last minute still counts,
/// clock.advance(Duration::from_secs(1));
/// assert!(!limiter.check(&policy, &key, 1).await?.is_allowed());
/// // and half a minute later half of it.
/// clock.advance(Duration::from_secs(30));
/// assert!(limiter.check(&policy, &key, 30).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow {
    segments: u32,
}

const MAX_SEGMENTS: u32 = 1_000;
/// What five bytes hold. More than any limit; only cells that are merged could come to more.
const MAX_COUNT: u64 = (1 << 40) - 1;

impl SlidingWindow {
    /// A window over one cell and the one before it.
    #[must_use]
    pub const fn new() -> Self {
        Self { segments: 1 }
    }

    /// Cuts the period into `segments` cells: more are more exact and cost more. Defaults to 1; at most
    /// 1000. A cell must be of whole microseconds, so `segments` must divide the period.
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
    fn name(&self) -> &str {
        "sliding-window"
    }

    fn lua(&self) -> &str {
        include_str!("../../lua/algorithm/sliding_window.lua")
    }

    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
        if quota.has_burst() {
            return Err(Error::invalid("a sliding window has no burst: leave out `burst`, or use `Gcra`"));
        }
        if self.segments == 0 || self.segments > MAX_SEGMENTS {
            return Err(Error::invalid("a sliding window must have 1 to 1000 segments"));
        }
        let (period, segments) = (quota.period_micros(), u64::from(self.segments));
        if !period.is_multiple_of(segments) {
            return Err(Error::invalid(
                "a sliding window's segments must divide its period into whole microseconds: choose another number",
            ));
        }
        Ok(vec![quota.limit(), segments, period / segments])
    }

    fn twin(&self) -> Option<&dyn Twin> {
        Some(self)
    }
}

/// The cells as of now, the latest first. The last one is sliding out.
struct Open {
    limit: u64,
    width: u64,
    began: u64,
    gone: u64,
    counts: Vec<u64>,
    moved: bool,
}

fn open(arguments: &[u64], state: Option<&State>, now: u64) -> Open {
    let &[limit, cells, width] = arguments else {
        unreachable!("`arguments` above makes three");
    };
    let gone = now % width;
    let began = now - gone;
    let mut counts = vec![0; cells as usize + 1];
    let mut moved = false;
    if let Some(State::Cells(cells)) = state {
        let Cells { began: latest, width: old_width, counts: old } = &**cells;
        moved = *latest > now;
        let latest = if moved { began } else { *latest };
        for (i, units) in (0_u64..).zip(old) {
            let Some(start) = latest.checked_sub(i * old_width) else { break };
            let age = if *old_width == width {
                (began - start) / width
            } else {
                // Of another quota: each cell counts where it ended.
                began.saturating_sub((start + old_width - 1).min(now)).div_ceil(width)
            };
            if let Some(count) = counts.get_mut(usize::try_from(age).unwrap_or(usize::MAX)) {
                *count = (*count + units).min(MAX_COUNT);
            }
        }
    }
    Open { limit, width, began, gone, counts, moved }
}

impl Open {
    /// The units of all cells but the one that slides out, and of that one.
    fn whole_and_sliding(&self) -> (u64, u64) {
        let (sliding, whole) = self.counts.split_last().unwrap_or((&0, &[]));
        (whole.iter().sum(), *sliding)
    }

    fn used(&self) -> u64 {
        let (whole, sliding) = self.whole_and_sliding();
        let share = u128::from(sliding) * u128::from(self.width - self.gone);
        // Not above `sliding`.
        whole + share.div_ceil(u128::from(self.width)) as u64
    }

    fn reset(&self) -> u64 {
        let newest = self.counts.iter().position(|units| *units > 0);
        newest.map_or(0, |age| (self.counts.len() - age) as u64 * self.width - self.gone)
    }

    /// Microseconds until `room` units or fewer are left.
    fn until_within(&self, room: u64) -> u64 {
        let (mut whole, _) = self.whole_and_sliding();
        for (passed, sliding) in (0_u64..).zip(self.counts.iter().rev()) {
            if whole <= room {
                let inside = if *sliding > room - whole {
                    let kept = u128::from(room - whole) * u128::from(self.width) / u128::from(*sliding);
                    // Below the width, as `sliding` is above the room.
                    self.width - kept as u64
                } else {
                    0
                };
                return (passed * self.width + inside).saturating_sub(self.gone);
            }
            let next = self.counts.len() - 2 - passed as usize;
            whole -= self.counts[next];
        }
        unreachable!("when all cells have passed nothing is left")
    }
}

impl Twin for SlidingWindow {
    fn redis_micros(&self, arguments: &[u64], _: bool) -> u64 {
        // A denial may have to look at every cell.
        16 + arguments.get(1).copied().unwrap_or_default() / 12
    }

    fn missed(&self, arguments: &[u64], _: u64) -> Option<u64> {
        let &[_, cells, width] = arguments else { return None };
        // Until the cell has slid out.
        Some((cells + 1) * width)
    }

    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan {
        let window = open(arguments, state, now);
        let reset = window.reset();
        let before = Gauge { remaining: window.limit.saturating_sub(window.used()), reset };
        let reset_after =
            if cost > 0 { window.counts.len() as u64 * window.width - window.gone } else { reset };
        Plan::of(cost, window.limit, before, reset_after, window.moved && reset > 0, || {
            window.until_within(window.limit - cost)
        })
        .marked(window.began + window.width - 1)
    }

    fn refund(
        &self,
        arguments: &[u64],
        state: &mut Option<State>,
        now: u64,
        units: u64,
        charge: Receipt,
    ) -> Option<u64> {
        let &[_, cells, width] = arguments else { return None };
        let Some(State::Cells(window)) = state else { return None };
        let cell = charge.mark - charge.mark % width;
        // Cells of another width come from another quota, and later ones from a clock that stepped back.
        if window.width != width || window.began > now || now.saturating_sub(cell) >= (cells + 1) * width {
            return None;
        }
        let index = usize::try_from(window.began.checked_sub(cell)? / width).ok()?;
        // As it stands: its decision may be of an older quota.
        let count = window.counts.get_mut(index)?;
        *count = count.saturating_sub(units);
        if window.counts.iter().all(|count| *count == 0) {
            *state = None;
        }
        None
    }

    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept> {
        let mut window = open(arguments, state.as_ref(), now);
        match change {
            Change::Charge(cost, _) => window.counts[0] += cost,
            Change::Repair | Change::Renew(_) => {}
            Change::Refund(mut units, _) => {
                // The latest units first.
                for count in &mut window.counts {
                    let given = units.min(*count);
                    *count -= given;
                    units -= given;
                }
            }
        }
        let lifetime = window.reset();
        let Open { began, width, counts, .. } = window;
        // Cells with nothing in them need not be kept.
        let kept = counts.iter().rposition(|units| *units > 0).map_or(0, |oldest| oldest + 1);
        let counts = counts[..kept].into();
        (lifetime > 0)
            .then(|| Kept { state: State::Cells(Box::new(Cells { began, width, counts })), lifetime })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_that_do_not_divide_the_period_are_refused() {
        let rows = [(0, false), (1, true), (7, false), (10, true), (1_000, true), (1_001, false)];
        for (segments, fine) in rows {
            let built = SlidingWindow::new().segments(segments).arguments(&Quota::per_second(5));
            assert_eq!(built.is_ok(), fine, "{segments}");
        }
    }
}
