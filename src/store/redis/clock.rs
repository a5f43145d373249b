//! The clock of the deny cache and the leases.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{self, SystemTime},
};

use tokio::time::Instant;

use crate::{base::time::micros, store::ManualClock};

/// One millisecond, which is small against the life of a lease.
const DRIFT: u64 = 1_000;

pub(crate) enum Clock {
    /// Not affected by corrections of the wall clock. Stops while the machine is suspended.
    Monotonic(Instant),
    /// The monotonic clock, plus the largest lead that the wall clock ever had over it. So it also counts the time
    /// during which the machine was suspended, if the wall clock is correct afterwards. It never goes back, and a
    /// correction of the wall clock can only move it forward, which ends leases early.
    ///
    /// A test can pause the clock of `started`, but not the clocks of `wall_start` and `real_start`.
    Suspended { started: Instant, real_start: time::Instant, wall_start: SystemTime, max_lead: AtomicU64 },
    /// The clock that Redis uses too.
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn new(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Monotonic(Instant::now()), Self::Manual)
    }

    /// A clock that also counts while the machine is suspended.
    pub(crate) fn including_suspension(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(
            || Self::Suspended {
                started: Instant::now(),
                real_start: time::Instant::now(),
                wall_start: SystemTime::now(),
                max_lead: AtomicU64::new(0),
            },
            Self::Manual,
        )
    }

    /// Microseconds since a fixed moment.
    pub(crate) fn micros(&self) -> u64 {
        match self {
            Self::Monotonic(started) => micros(started.elapsed()),
            Self::Suspended { started, real_start, wall_start, max_lead } => {
                let elapsed = micros(started.elapsed());
                let max_known = max_lead.load(Ordering::Relaxed);
                // The clocks are not read at the same moment and drift, so a small lead is ignored.
                let lead_over = |elapsed| {
                    let lead = wall_start.elapsed().map_or(0, micros).saturating_sub(elapsed);
                    (lead > max_known + DRIFT).then_some(lead)
                };
                match lead_over(elapsed).and_then(|_| lead_over(micros(real_start.elapsed()))) {
                    Some(lead) => elapsed + max_lead.fetch_max(lead, Ordering::Relaxed).max(lead),
                    None => elapsed + max_known,
                }
            }
            Self::Manual(clock) => clock.micros(),
        }
    }

    /// How often the clock was set back.
    pub(crate) fn times_set_back(&self) -> u64 {
        match self {
            Self::Monotonic(_) | Self::Suspended { .. } => 0,
            Self::Manual(clock) => clock.times_set_back(),
        }
    }

    /// The time for Redis to decide by; `None` for the server's own clock.
    pub(crate) fn manual_micros(&self) -> Option<u64> {
        match self {
            Self::Monotonic(_) | Self::Suspended { .. } => None,
            Self::Manual(clock) => Some(clock.micros()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn started_at(wall_start: SystemTime) -> Clock {
        let real_start = time::Instant::now();
        Clock::Suspended { started: Instant::now(), real_start, wall_start, max_lead: AtomicU64::new(0) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_is_not_a_suspension() {
        let clock = started_at(SystemTime::now());
        std::thread::sleep(Duration::from_micros(3 * DRIFT));
        assert_eq!(clock.micros(), 0);
        tokio::time::advance(HOUR).await;
        assert_eq!(clock.micros(), micros(HOUR));
    }

    #[test]
    fn time_that_passed_while_the_machine_was_suspended_counts() {
        // The monotonic clock was started just now.
        let clock = started_at(SystemTime::now() - HOUR);
        assert!(clock.micros() >= micros(HOUR));
    }

    #[test]
    fn a_time_of_day_that_steps_back_does_not_make_it_go_back() {
        let mut clock = started_at(SystemTime::now() - HOUR);
        let before = clock.micros();
        // The wall clock is set back by half an hour, and then by a day.
        for correction in [HOUR / 2, 24 * HOUR] {
            let Clock::Suspended { wall_start, .. } = &mut clock else {
                unreachable!("made by `started_at`")
            };
            *wall_start += correction;
            assert!(clock.micros() >= before, "{correction:?}");
        }
    }
}
