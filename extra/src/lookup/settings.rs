//! The settings of a lookup, which its cache and its tasks share.

use std::time::Duration;

/// The settings of a lookup.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) ttl: Duration,
    pub(super) stale_for: Duration,
    pub(super) timeout: Duration,
    pub(super) capacity: usize,
    pub(super) misses: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(60),
            stale_for: Duration::from_secs(3_600),
            timeout: Duration::from_secs(1),
            capacity: 10_000,
            misses: 10_000,
        }
    }
}

impl Settings {
    /// The longest time after its lookup for which a value is used.
    pub(super) const fn lifetime(&self) -> Duration {
        self.ttl.saturating_add(self.stale_for)
    }
}
