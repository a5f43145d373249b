//! Time as the algorithms count it: in whole microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The whole microseconds of `duration`, and the most that fit where it is longer.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since 1970 by the machine's wall clock.
pub(crate) fn wall_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, micros)
}
