//! Detects when an outage starts and ends, so each is logged once.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// An outage lasts from the first failure to the last.
#[derive(Debug)]
pub(crate) struct Outage {
    /// Time of the last failure, in milliseconds of [`uptime`]; 0 outside an outage.
    last_failure: AtomicU64,
    /// A success ends the outage if the last failure is older than this, in milliseconds: during an outage, some
    /// requests still succeed.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only Redis has outages that end with a success")
    )]
    recovery: u64,
    /// A failure starts a new outage if the last one is older than this, in milliseconds.
    expiry: u64,
}

impl Outage {
    /// An outage that ends with a success, if the last failure is older than `recovery`.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only Redis has outages that end with a success")
    )]
    pub(crate) const fn until_success(recovery: Duration) -> Self {
        Self { last_failure: AtomicU64::new(0), recovery: recovery.as_millis() as u64, expiry: u64::MAX }
    }

    /// An outage that ends once there is no failure for `expiry`.
    pub(crate) const fn until_expiry(expiry: Duration) -> Self {
        Self { last_failure: AtomicU64::new(0), recovery: u64::MAX, expiry: expiry.as_millis() as u64 }
    }

    /// Records a failure. Returns whether it starts an outage.
    pub(crate) fn failed(&self) -> bool {
        let now = uptime();
        let last = self.last_failure.swap(now, Ordering::Relaxed);
        last == 0 || now.saturating_sub(last) > self.expiry
    }

    /// Records a success. Returns whether it ends an outage.
    #[cfg_attr(
        not(feature = "redis"),
        allow(dead_code, reason = "only Redis has outages that end with a success")
    )]
    pub(crate) fn succeeded(&self) -> bool {
        let last = self.last_failure.load(Ordering::Relaxed);
        // Outside an outage this is one load.
        last != 0
            && uptime().saturating_sub(last) > self.recovery
            && self.last_failure.compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
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
        let outage = Outage::until_success(Duration::from_secs(3_600));
        assert_eq!([outage.failed(), outage.failed()], [true, false]);
        // Too soon after the last failure.
        assert!(!outage.succeeded());
        assert!(!outage.failed());
    }

    #[test]
    fn a_success_after_the_recovery_time_ends_an_outage_once() {
        let outage = Outage::until_success(Duration::ZERO);
        assert!(!outage.succeeded(), "there was no outage");
        assert!(outage.failed());
        // An outage counts time in milliseconds.
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!([outage.succeeded(), outage.succeeded()], [true, false]);
        assert!(outage.failed());
    }

    #[test]
    fn a_time_without_failures_ends_an_outage() {
        let outage = Outage::until_expiry(Duration::ZERO);
        assert!(outage.failed());
        std::thread::sleep(Duration::from_millis(3));
        assert!(outage.failed());
        assert!(!Outage::until_expiry(Duration::MAX).succeeded());
    }
}
