use std::time::Duration;

use tokio::time::Instant;

use crate::decision::Decision;

/// How long a denied request has waited, and how long it waits next.
#[derive(Clone, Copy)]
pub(super) struct WaitState {
    since: Instant,
    /// The next wait for a permit.
    permit_wait: Duration,
}

const FIRST_PERMIT_WAIT: Duration = Duration::from_millis(10);
const MAX_PERMIT_WAIT: Duration = Duration::from_millis(250);

impl WaitState {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), permit_wait: FIRST_PERMIT_WAIT }
    }

    /// The next wait after `decision` denied the request; `None` if the request cannot be admitted in time.
    pub(super) fn next(&mut self, decision: &Decision, patience: Duration) -> Option<Duration> {
        let left = patience.saturating_sub(self.since.elapsed());
        let mut wait = Duration::ZERO;
        let mut needs_permit = false;
        for outcome in decision.outcomes().iter().filter(|outcome| !outcome.is_allowed()) {
            let retry_after = outcome.retry_after()?;
            if outcome.policy().has_permits() {
                // The denial names when a permit expires if its holder is gone. It may be released earlier.
                needs_permit = true;
            } else {
                wait = wait.max(retry_after);
            }
        }
        if left.is_zero() || wait > left {
            return None;
        }
        if needs_permit {
            wait = wait.max(self.permit_wait).min(left);
            self.permit_wait = (self.permit_wait * 2).min(MAX_PERMIT_WAIT);
        }
        Some(wait)
    }
}
