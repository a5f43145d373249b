use std::time::Duration;

use super::histogram::Counts;

/// What a meter measured between two moments.
#[derive(Debug)]
pub(crate) struct Window {
    pub(super) elapsed: Duration,
    pub(super) answered: Counts,
    pub(super) abandoned: Counts,
    pub(super) failed: u64,
    /// The time that all requests took that ended, in microseconds.
    pub(super) busy: u64,
    /// The requests without an answer when it began.
    pub(super) waiting: u64,
    /// The requests without an answer when it ended.
    pub(super) left: u64,
    /// The requests that began.
    pub(super) began: u64,
    /// The most requests in flight at a moment.
    pub(super) peak: u64,
}

impl Window {
    pub(crate) const fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// The requests that ended: they were answered, or their clients gave up.
    pub(crate) fn ended(&self) -> u64 {
        self.answered.total() + self.abandoned.total() + self.failed
    }

    /// The share of requests that failed.
    pub(crate) fn failed_share(&self) -> f64 {
        share(self.failed, self.answered.total() + self.failed)
    }

    /// The share of requests that took longer than `target`, also of those that the client has given up.
    pub(crate) fn late_share(&self, target: Duration) -> f64 {
        let abandoned = self.abandoned.above(target);
        share(self.answered.above(target) + abandoned, self.answered.total() + abandoned)
    }

    /// The median latency. A request that was given up after a longer time would have taken longer still, so it counts; one
    /// that was given up earlier says nothing.
    pub(crate) fn typical(&self) -> Option<Duration> {
        self.answered.with_longer(&self.abandoned).median()
    }

    /// The mean number of requests without an answer, by Little's law.
    pub(crate) fn in_flight(&self) -> f64 {
        self.busy as f64 / (self.elapsed.as_micros() as f64).max(1.0)
    }

    /// The most requests in flight at a moment, also of those whose body is being sent. A limit that denied one was reached at
    /// that moment, however low the mean is.
    pub(crate) const fn peak(&self) -> f64 {
        self.peak as f64
    }

    /// Whether clearly more requests ended than began, so the queue becomes shorter.
    pub(crate) fn is_draining(&self) -> bool {
        self.ended() as f64 > 1.1 * self.began as f64
    }

    /// The requests that have waited for all of the window: those that waited when it began, if none has ended since.
    pub(crate) fn stuck(&self) -> u64 {
        if self.ended() == 0 { self.waiting } else { 0 }
    }

    /// Whether no request waited for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.ended() + self.waiting + self.left == 0
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { part as f64 / all as f64 }
}
