//! Waits as clients read them: in whole seconds, rounded up.

use std::time::Duration;

use crate::{base::random::random_time, decision::Decision};

/// The largest `Retry-After`: clients hold it in 32 bits, with a sign.
pub(super) const MAX_RETRY_AFTER: u64 = i32::MAX as u64;

/// A store that is back is used within this time.
const LONGEST_WAIT_FOR_STORE: Duration = Duration::from_secs(5);

/// The seconds that `Retry-After` names for a denial: never too short, never 0.
pub(super) fn retry_after(decision: &Decision) -> Option<u64> {
    Some(seconds_up(decision.advised_wait()?).clamp(1, MAX_RETRY_AFTER))
}

/// The seconds that `Retry-After` names if the store is unavailable: random, so that not all clients return in the same
/// second.
pub(super) fn retry_after_of_store() -> u64 {
    seconds_up(random_time(LONGEST_WAIT_FOR_STORE)).max(1)
}

pub(super) fn seconds_up(duration: Duration) -> u64 {
    duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0))
}
