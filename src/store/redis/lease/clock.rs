//! The clock of the leases.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{self, SystemTime},
};

use crate::{
    base::time::micros,
    store::{ManualClock, StoreClock},
};

/// The lead of the wall clock that is ignored, in microseconds: small against the life of a lease.
const DRIFT: u64 = 1_000;

/// The clock of a store, plus the largest lead that the wall clock ever had over it. The clock also counts
/// the time during which the machine was suspended, if the wall clock is correct afterwards. It never goes
/// back, and a correction of the wall clock can only move it forward, which ends leases early.
///
/// A test can pause `time`, but not the clocks of `wall_start` and `real_start`.
pub(crate) struct Clock {
    time: StoreClock,
    real_start: time::Instant,
    wall_start: SystemTime,
    max_lead: AtomicU64,
}

impl Clock {
    pub(crate) fn including_suspension(manual: Option<ManualClock>) -> Self {
        Self {
            time: StoreClock::new(manual, 0),
            real_start: time::Instant::now(),
            wall_start: SystemTime::now(),
            max_lead: AtomicU64::new(0),
        }
    }

    /// Microseconds since a fixed moment.
    pub(crate) fn micros(&self) -> u64 {
        let elapsed = self.time.micros();
        if self.time.manual().is_some() {
            return elapsed;
        }
        let max_known = self.max_lead.load(Ordering::Relaxed);
        // The clocks are not read at the same moment and drift, so a small lead is ignored.
        let lead_over = |elapsed| {
            let lead = self.wall_start.elapsed().map_or(0, micros).saturating_sub(elapsed);
            (lead > max_known + DRIFT).then_some(lead)
        };
        match lead_over(elapsed).and_then(|_| lead_over(micros(self.real_start.elapsed()))) {
            Some(lead) => elapsed + self.max_lead.fetch_max(lead, Ordering::Relaxed).max(lead),
            None => elapsed + max_known,
        }
    }

    /// How often the clock was set back.
    pub(crate) fn times_set_back(&self) -> u64 {
        self.time.manual().map_or(0, ManualClock::times_set_back)
    }

    /// The time for Redis to decide by; `None` for the server's own clock.
    pub(crate) fn manual_micros(&self) -> Option<u64> {
        self.time.manual().map(ManualClock::micros)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn started_at(wall_start: SystemTime) -> Clock {
        Clock { wall_start, ..Clock::including_suspension(None) }
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
            clock.wall_start += correction;
            assert!(clock.micros() >= before, "{correction:?}");
        }
    }
}
