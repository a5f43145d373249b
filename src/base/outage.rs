//! Detects when an outage starts, so that each is logged once.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// An outage lasts from the first failure until there was none for some time.
#[derive(Debug)]
pub(crate) struct Outage {
    /// Time of the last failure, in milliseconds of [`uptime`]; 0 before the first one.
    last_failure: AtomicU64,
    /// A failure starts a new outage if the last one is older than this, in milliseconds.
    expiry: u64,
}

impl Outage {
    /// An outage that ends once there is no failure for `expiry`.
    pub(crate) const fn until_expiry(expiry: Duration) -> Self {
        Self { last_failure: AtomicU64::new(0), expiry: expiry.as_millis() as u64 }
    }

    /// Records a failure. Returns whether it starts an outage.
    pub(crate) fn failed(&self) -> bool {
        let now = uptime();
        let last = self.last_failure.swap(now, Ordering::Relaxed);
        last == 0 || now.saturating_sub(last) > self.expiry
    }
}

/// Milliseconds since the first call of this function, at least 1.
fn uptime() -> u64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_failure_begins_an_outage() {
        let outage = Outage::until_expiry(Duration::from_secs(3_600));
        assert_eq!([outage.failed(), outage.failed()], [true, false]);
    }

    #[test]
    fn a_time_without_failures_ends_an_outage() {
        let outage = Outage::until_expiry(Duration::ZERO);
        assert!(outage.failed());
        // An outage counts time in milliseconds.
        std::thread::sleep(Duration::from_millis(3));
        assert!(outage.failed());
    }
}
