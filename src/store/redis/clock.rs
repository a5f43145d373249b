//! The time that what is remembered here is counted by.

use std::time::{Duration, Instant, SystemTime};

use crate::ManualClock;

pub(super) enum Clock {
    /// No correction of the time of day moves it. It stands still while the machine is suspended.
    Monotonic(Instant),
    /// As the monotonic clock, or as the time of day where more of that has passed: so it goes on while the machine
    /// is suspended, as far as the time of day is right afterwards. A correction of the time of day can only make it
    /// say that more time has passed, or that it went back, and either ends leases.
    Suspended(Instant, SystemTime),
    /// The one that Redis is told to decide by.
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn new(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Monotonic(Instant::now()), Self::Manual)
    }

    /// One that does not stand still while the machine is suspended.
    pub(super) fn through_suspension(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Suspended(Instant::now(), SystemTime::now()), Self::Manual)
    }

    /// Microseconds since some moment that stays the same.
    pub(super) fn micros(&self) -> u64 {
        match self {
            Self::Monotonic(started) => micros(started.elapsed()),
            Self::Suspended(started, time) => {
                micros(started.elapsed().max(time.elapsed().unwrap_or_default()))
            }
            Self::Manual(clock) => clock.micros(),
        }
    }

    /// How often it went back.
    pub(super) fn times_set_back(&self) -> u64 {
        match self {
            Self::Monotonic(_) | Self::Suspended(..) => 0,
            Self::Manual(clock) => clock.times_set_back(),
        }
    }

    /// What Redis is told to decide by.
    pub(super) fn told(&self) -> Option<u64> {
        match self {
            Self::Monotonic(_) | Self::Suspended(..) => None,
            Self::Manual(clock) => Some(clock.micros()),
        }
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
