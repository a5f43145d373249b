//! The time that what is remembered here is counted by.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Instant, SystemTime},
};

use crate::{store::ManualClock, util::time::micros};

/// A millisecond: a lease lasts hundreds of them.
const DRIFT: u64 = 1_000;

pub(crate) enum Clock {
    /// No correction of the time of day moves it. It stands still while the machine is suspended.
    Monotonic(Instant),
    /// As the monotonic clock, and ahead of it by as much as the time of day ever was: so it goes on while the machine
    /// is suspended, as far as the time of day is right afterwards. It never goes back, and a correction of the time
    /// of day can only make it say that more time has passed, which ends leases early.
    Suspended { started: Instant, time: SystemTime, ahead: AtomicU64 },
    /// The one that Redis is told to decide by.
    Manual(ManualClock),
}

impl Clock {
    pub(crate) fn new(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Monotonic(Instant::now()), Self::Manual)
    }

    /// One that does not stand still while the machine is suspended.
    pub(crate) fn through_suspension(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(
            || Self::Suspended { started: Instant::now(), time: SystemTime::now(), ahead: AtomicU64::new(0) },
            Self::Manual,
        )
    }

    /// Microseconds since some moment that stays the same.
    pub(crate) fn micros(&self) -> u64 {
        match self {
            Self::Monotonic(started) => micros(started.elapsed()),
            Self::Suspended { started, time, ahead } => {
                let passed = micros(started.elapsed());
                let lead = time.elapsed().map_or(0, micros).saturating_sub(passed);
                let known = ahead.load(Ordering::Relaxed);
                // The two are read one after the other and drift, which is no news.
                if lead > known + DRIFT {
                    ahead.fetch_max(lead, Ordering::Relaxed);
                }
                passed + if lead > known + DRIFT { lead } else { known }
            }
            Self::Manual(clock) => clock.micros(),
        }
    }

    /// How often it went back.
    pub(crate) fn times_set_back(&self) -> u64 {
        match self {
            Self::Monotonic(_) | Self::Suspended { .. } => 0,
            Self::Manual(clock) => clock.times_set_back(),
        }
    }

    /// What Redis is told to decide by.
    pub(crate) fn told(&self) -> Option<u64> {
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

    fn started_at(time: SystemTime) -> Clock {
        Clock::Suspended { started: Instant::now(), time, ahead: AtomicU64::new(0) }
    }

    #[test]
    fn time_that_passed_while_the_machine_was_suspended_counts() {
        // The monotonic clock says that it was started just now.
        let clock = started_at(SystemTime::now() - HOUR);
        assert!(clock.micros() >= micros(HOUR));
    }

    #[test]
    fn a_time_of_day_that_steps_back_does_not_make_it_go_back() {
        let mut clock = started_at(SystemTime::now() - HOUR);
        let before = clock.micros();
        // Corrected by half an hour, and then by a day.
        for correction in [HOUR / 2, 24 * HOUR] {
            let Clock::Suspended { time, .. } = &mut clock else { unreachable!("it was made so") };
            *time += correction;
            assert!(clock.micros() >= before, "{correction:?}");
        }
    }
}
