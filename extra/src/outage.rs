//! Detects when an outage starts, so that each is logged once.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// An outage ends after this time without a failure.
const EXPIRY: Duration = Duration::from_secs(60);

/// An outage lasts from its first failure until no call has failed for a minute. The core has the same few
/// lines, which are not worth a public type.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    last_failure: Mutex<Option<Instant>>,
}

impl Outage {
    /// Records a failure. Returns whether it starts an outage.
    pub(crate) fn failed(&self) -> bool {
        let now = Instant::now();
        let last = self.last_failure.lock().replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) > EXPIRY)
    }
}
