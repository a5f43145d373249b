//! When an outage begins and ends, so that each is logged once.

use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// From the first failure of something to the last.
#[derive(Debug)]
pub(crate) struct Outage {
    /// When the last failure was, in milliseconds of [`uptime`]; 0 outside an outage.
    last_failure: AtomicU64,
    /// A success ends the outage if the last failure was so long ago: in an outage, some requests succeed while
    /// others fail.
    calm: u64,
    /// A failure begins a new outage if the last one was so long ago.
    silence: u64,
}

impl Outage {
    /// An outage that ends with a success, if there was no failure for `calm`.
    pub(crate) const fn until_success(calm: Duration) -> Self {
        Self { last_failure: AtomicU64::new(0), calm: calm.as_millis() as u64, silence: u64::MAX }
    }

    /// An outage that ends when there was no failure for `silence`.
    pub(crate) const fn until_silence(silence: Duration) -> Self {
        Self { last_failure: AtomicU64::new(0), calm: u64::MAX, silence: silence.as_millis() as u64 }
    }

    /// Notes a failure. `true` if an outage begins with it.
    pub(crate) fn failed(&self) -> bool {
        let now = uptime();
        let last = self.last_failure.swap(now, Ordering::Relaxed);
        last == 0 || now.saturating_sub(last) > self.silence
    }

    /// Notes a success. `true` if an outage ends with it.
    pub(crate) fn succeeded(&self) -> bool {
        let last = self.last_failure.load(Ordering::Relaxed);
        // The usual case is one load.
        last != 0
            && uptime().saturating_sub(last) > self.calm
            && self.last_failure.compare_exchange(last, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Milliseconds since this was first called, and never 0.
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
    fn a_success_after_calm_ends_an_outage_once() {
        let outage = Outage::until_success(Duration::ZERO);
        assert!(!outage.succeeded(), "there was no outage");
        assert!(outage.failed());
        // Time is counted in milliseconds.
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!([outage.succeeded(), outage.succeeded()], [true, false]);
        assert!(outage.failed());
    }

    #[test]
    fn silence_ends_an_outage() {
        let outage = Outage::until_silence(Duration::ZERO);
        assert!(outage.failed());
        std::thread::sleep(Duration::from_millis(3));
        assert!(outage.failed());
        assert!(!Outage::until_silence(Duration::MAX).succeeded());
    }
}
