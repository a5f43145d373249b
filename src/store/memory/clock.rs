use tokio::time::Instant;

use crate::{base::time::wall_micros, store::ManualClock};

#[derive(Clone)]
pub(super) enum Clock {
    /// The wall clock at `started`, in microseconds, and the monotonic time since.
    Monotonic {
        started: Instant,
        wall: u64,
    },
    Manual(ManualClock),
}

impl Clock {
    pub(super) fn new(manual: Option<ManualClock>) -> Self {
        manual.map_or_else(|| Self::Monotonic { started: Instant::now(), wall: wall_micros() }, Self::Manual)
    }

    pub(super) const fn is_manual(&self) -> bool {
        matches!(self, Self::Manual(_))
    }

    /// Microseconds since 1970-01-01T00:00:00Z.
    pub(super) fn now(&self) -> u64 {
        match self {
            Self::Monotonic { started, wall } => {
                let elapsed = started.elapsed();
                wall + elapsed.as_secs() * 1_000_000 + u64::from(elapsed.subsec_micros())
            }
            Self::Manual(clock) => clock.micros(),
        }
    }
}
