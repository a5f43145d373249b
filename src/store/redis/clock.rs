//! The time that what is remembered here is counted by.

use std::time::{Duration, Instant};

use crate::ManualClock;

pub(super) enum Clock {
    /// No correction of the time of day moves it.
    Monotonic(Instant),
    /// The one that Redis is told to decide by.
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn new(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Monotonic(Instant::now()), Self::Manual)
    }

    /// Microseconds since some moment that stays the same.
    pub(super) fn micros(&self) -> u64 {
        match self {
            Self::Monotonic(started) => micros(started.elapsed()),
            Self::Manual(clock) => clock.micros(),
        }
    }

    /// How often it went back.
    pub(super) fn times_set_back(&self) -> u64 {
        match self {
            Self::Monotonic(_) => 0,
            Self::Manual(clock) => clock.times_set_back(),
        }
    }

    /// What Redis is told to decide by.
    pub(super) fn told(&self) -> Option<u64> {
        match self {
            Self::Monotonic(_) => None,
            Self::Manual(clock) => Some(clock.micros()),
        }
    }
}

pub(super) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
