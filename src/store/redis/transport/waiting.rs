//! Decisions that wait, and their deadlines.
//!
//! A timer for each decision would cost 660 of its instructions, and a lock that all threads share. So lanes keep the
//! deadlines: each lane has one timer, and answers late decisions whenever it waits. If no lane has done so lately,
//! because all of them wait for a thread that is blocked, a decision has a separate timer.
//!
//! A lane looks at the deadlines every [`TICK`]. What a tick takes longer than that does not count, see
//! [`deadline`](super::deadline).

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::deadline::{TICK, TOLERANCE};
use crate::{base::Error, store::redis::job::Job};

/// A decision that has waited for this time waits for lanes that are stuck.
pub(super) const STUCK: Duration = Duration::from_millis(5);
/// Lanes that have not looked at the deadlines for this time do not keep them. Longer than a busy machine takes for a tick,
/// or each decision would need a timer there.
pub(super) const LOST: Duration = Duration::from_millis(50);

/// The time in which the runtime ran while lanes were open.
#[derive(Default)]
pub(super) struct RunTime {
    time: Duration,
    last_tick: Option<Instant>,
}

impl RunTime {
    /// The time that deadlines are points in.
    pub(super) const fn time(&self) -> Duration {
        self.time
    }

    /// Counts the time since the latest tick of any lane. Returns all that was counted.
    pub(super) fn tick(&mut self) -> Duration {
        let now = Instant::now();
        let since = self.last_tick.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.time += since.min(TICK + TOLERANCE);
        self.last_tick = Some(now);
        self.time
    }

    /// Call it when the last lane closes.
    pub(super) const fn stop(&mut self) {
        self.last_tick = None;
    }

    /// Whether lanes keep deadlines at the time `now`.
    pub(super) fn is_kept(&self, now: Instant) -> bool {
        self.last_tick.is_some_and(|last| now.saturating_duration_since(last) < LOST)
    }
}

/// A decision that waits for a lane, or is in its batch. If it is dropped, its caller is woken.
pub(super) struct Waiting {
    pub(super) job: Arc<Job>,
    /// Of its queue.
    pub(super) number: u64,
    pub(super) entered: Instant,
    /// A point in the [`RunTime`].
    pub(super) deadline: Duration,
}

impl Waiting {
    /// Whether nothing waits for the decision any more.
    pub(super) fn is_gone(&self) -> bool {
        Arc::strong_count(&self.job) == 1
    }

    /// Ends it with an error, unless it is decided.
    pub(super) fn fail(&self, error: Error) {
        self.job.slot.set(Err(error));
        self.job.slot.close();
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.job.end();
    }
}

/// Fails the undecided decisions of a batch whose deadlines have passed at the time `now`. Returns the last one's
/// error.
pub(super) fn expire(batch: &[Waiting], now: Duration, error: impl Fn() -> Error) -> Option<Error> {
    let late = batch.iter().filter(|waiting| waiting.deadline <= now && waiting.job.slot.is_open());
    let fail = |waiting: &Waiting| {
        let late = error();
        waiting.fail(late.clone());
        late
    };
    late.map(fail).last()
}
