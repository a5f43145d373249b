use std::time::Duration;

use tokio::time::Instant;

use crate::decision::Decision;

/// How long a request has waited for its turn.
#[derive(Clone, Copy)]
pub(super) struct Waited {
    since: Instant,
    /// How long it would wait for units in use.
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl Waited {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), pause: FIRST_PAUSE }
    }

    /// How long it waits now that `decision` denies it; `None` where its turn cannot come in time.
    pub(super) fn next(&mut self, decision: &Decision, patience: Duration) -> Option<Duration> {
        let left = patience.saturating_sub(self.since.elapsed());
        let mut wait = Duration::ZERO;
        let mut in_use = false;
        for outcome in decision.outcomes().iter().filter(|outcome| !outcome.is_allowed()) {
            let named = outcome.retry_after()?;
            if outcome.policy().has_permits() {
                // It names when a permit ends that is not renewed, as of an instance that was killed.
                in_use = true;
            } else {
                wait = wait.max(named);
            }
        }
        if left.is_zero() || wait > left {
            return None;
        }
        if in_use {
            wait = wait.max(self.pause).min(left);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        }
        Some(wait)
    }
}
