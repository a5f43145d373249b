//! Detects when an outage starts, so that each is logged once.

use std::{sync::Mutex, time::Duration};

use tokio::time::Instant;

use super::sync::lock;

/// An outage ends after this time without a failure.
const EXPIRY: Duration = Duration::from_secs(60);

/// An outage lasts from its first failure until no call has failed for a minute.
#[derive(Debug, Default)]
pub(crate) struct OutageWatch {
    last_failure: Mutex<Option<Instant>>,
}

impl OutageWatch {
    /// Records a failure. Returns whether it starts an outage.
    pub(crate) fn failed(&self) -> bool {
        let now = Instant::now();
        let last = lock(&self.last_failure).replace(now);
        last.is_none_or(|last| now.saturating_duration_since(last) > EXPIRY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_lasts_until_nothing_has_failed_for_a_minute() {
        let outage = OutageWatch::default();
        assert_eq!([outage.failed(), outage.failed()], [true, false]);
        tokio::time::advance(EXPIRY).await;
        assert!(!outage.failed());
        tokio::time::advance(EXPIRY + Duration::from_millis(1)).await;
        assert!(outage.failed());
    }
}
