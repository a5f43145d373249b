//! [`Window`]: what a controller reads of a meter.

use std::time::Duration;

use super::histogram::Counts;

/// The measurements between two moments.
#[derive(Debug)]
pub(crate) struct Window {
    pub(super) elapsed: Duration,
    pub(super) answered: Counts,
    pub(super) unserved: Counts,
    pub(super) failed: Counts,
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

    /// The requests that ended, regardless of the cause.
    pub(crate) fn ended(&self) -> u64 {
        self.answered.total() + self.unserved.total() + self.failed.total()
    }

    /// The requests whose times show how quick the service is, without those that a client can end as often
    /// as it likes.
    pub(crate) fn timed(&self) -> u64 {
        self.times().total()
    }

    /// The requests that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.total()
    }

    /// Whether the service carried out a request.
    pub(crate) fn has_answers(&self) -> bool {
        self.answered.total() > 0
    }

    /// The share of requests that failed, or of the requests in flight, if that is smaller: a few clients can
    /// cause many failures that are quick, or a few that are slow.
    pub(crate) fn failed_share(&self) -> f64 {
        let (failed, work) = (self.failed.total(), self.failed.work());
        let of_requests = share(failed as f64, (self.answered.total() + failed) as f64);
        of_requests.min(share(work, self.times().work() + work))
    }

    /// The share of requests that took longer than `target`, including those that the client ended.
    pub(crate) fn late_share(&self, target: Duration) -> f64 {
        let unserved = self.unserved.above(target);
        share((self.answered.above(target) + unserved) as f64, (self.answered.total() + unserved) as f64)
    }

    /// The median latency.
    pub(crate) fn typical(&self) -> Option<Duration> {
        self.times().median()
    }

    /// The number of requests without an answer, by Little's law with the median: a few clients can hold
    /// requests for as long as they like, which a mean would include.
    pub(crate) fn in_flight(&self) -> f64 {
        self.times().work() / self.elapsed.as_secs_f64().max(1e-6)
    }

    /// A request that a client ended after a longer time than the median would have taken longer still, so it
    /// counts. One that ended earlier says nothing.
    fn times(&self) -> Counts {
        self.answered.with_longer(&self.unserved)
    }

    /// The most requests in flight at a moment, also of those whose body is being sent. A limit that denied
    /// one was reached at that moment, however low the mean is.
    pub(crate) const fn peak(&self) -> f64 {
        self.peak as f64
    }

    /// Whether clearly more requests ended than began, so the queue becomes shorter.
    pub(crate) fn is_draining(&self) -> bool {
        self.ended() as f64 > 1.1 * self.began as f64
    }

    /// The requests that have waited for all of the window: those that waited when it began, if none has
    /// ended since.
    pub(crate) fn stuck(&self) -> u64 {
        if self.ended() == 0 { self.waiting } else { 0 }
    }

    /// The requests without an answer when it ended.
    pub(crate) const fn left(&self) -> u64 {
        self.left
    }

    /// Whether no request waited for an answer.
    pub(crate) fn is_idle(&self) -> bool {
        self.ended() + self.waiting + self.left == 0
    }
}

fn share(part: f64, all: f64) -> f64 {
    if all == 0.0 { 0.0 } else { part / all }
}
