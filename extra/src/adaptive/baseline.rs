//! The latency of a service without a queue, with which [`Gradient`](super::Gradient) and
//! [`Vegas`](super::Vegas) compare.

use std::time::Duration;

use tokio::time::Instant;

use super::meter::Window;

/// The latency of the service when it is not overloaded: the smallest median of the last 10 to 20 seconds.
///
/// Under an overload that lasts, no recent window is without a queue, and the baseline would rise with the
/// load. So every ten seconds the share is reduced by as much as empties the queue, for as long as it takes
/// to measure that.
#[derive(Clone, Debug, Default)]
pub(super) struct Baseline {
    /// The smallest since `since`, and the smallest of the time before.
    recent: Option<Duration>,
    before: Option<Duration>,
    since: Option<Instant>,
    drain: Option<Drain>,
}

/// A time in which the queue is emptied.
#[derive(Clone, Copy, Debug)]
struct Drain {
    /// The share to return to.
    resume: f64,
    /// When the requests from before the drain have ended.
    empty_at: Instant,
}

const RENEWED_EVERY: Duration = Duration::from_secs(10);
/// A latency up to this multiple of the baseline counts as the latency of an empty queue.
const EMPTY: f64 = 1.2;
/// The share for an empty queue leaves a part of the capacity unused.
const DRAIN: f64 = 0.8;
/// The part of the share that is left at least.
const LARGEST_DRAIN: f64 = 0.25;

/// The step after a window.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// React to a latency that is this multiple of the baseline.
    React(f64),
    /// Set this share.
    Set(f64),
}

impl Baseline {
    /// The step after a window in which `share` was active, and limited the service or not.
    pub(super) fn step(&mut self, share: f64, window: &Window, limits: bool) -> Step {
        let Some(typical) = window.typical() else { return Step::Set(share) };
        // Requests that clients ended do not show how quick the service is.
        let measured = window.has_answers().then_some(typical);
        let now = Instant::now();
        if let Some(Drain { resume, empty_at }) = self.drain {
            // The window includes requests from before the drain.
            if now - window.elapsed() < empty_at {
                return Step::Set(share);
            }
            // Measured without a queue, so it counts even if it is longer than before.
            let before = if measured.is_none() { self.get() } else { None };
            *self = Self { recent: measured, before, since: Some(now), drain: None };
            return Step::Set(resume);
        }
        let age = now - *self.since.get_or_insert(now);
        // While the share limits the service, any window may have a queue.
        let is_limited = limits && self.ratio(typical) > EMPTY;
        if age >= RENEWED_EVERY && !is_limited {
            (self.before, self.recent, self.since) = (self.recent, None, Some(now));
        }
        self.recent = self.recent.into_iter().chain(measured).min();
        let ratio = self.ratio(typical);
        let is_acute = ratio > DRAIN / LARGEST_DRAIN && age < RENEWED_EVERY * 2;
        // While the queue becomes shorter the share is not reduced, so a drain would not empty it.
        if age >= RENEWED_EVERY && is_limited && !is_acute && !window.is_draining() {
            self.drain = Some(Drain { resume: share, empty_at: now + typical });
            return Step::Set(share * (DRAIN / ratio).max(LARGEST_DRAIN));
        }
        Step::React(ratio)
    }

    /// The share was reduced for another reason, so it does not return to its value before a drain.
    pub(super) const fn interrupt(&mut self) {
        self.drain = None;
    }

    /// The baseline. `None` before the first window.
    pub(super) fn get(&self) -> Option<Duration> {
        self.recent.into_iter().chain(self.before).min()
    }

    fn ratio(&self, typical: Duration) -> f64 {
        let base = self.get().unwrap_or(typical).max(Duration::from_micros(1));
        (typical.as_secs_f64() / base.as_secs_f64()).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::adaptive::meter::{InFlight, LoadMeter};

    /// A window of this length in which requests took this many milliseconds.
    async fn window(length: Duration, millis: u64) -> Window {
        window_after(length, millis, 0).await
    }

    /// The same, with this many more requests that began before it.
    async fn window_after(length: Duration, millis: u64, waiting: usize) -> Window {
        let meter = LoadMeter::new();
        let before: Vec<_> = (0..waiting).map(|_| meter.begin()).collect();
        let mark = meter.mark();
        let request = meter.begin();
        advance(Duration::from_millis(millis)).await;
        before.into_iter().for_each(InFlight::succeeded);
        request.succeeded();
        advance(length.saturating_sub(Duration::from_millis(millis))).await;
        meter.since(&mark).0
    }

    fn millis(baseline: &Baseline) -> u128 {
        // Medians have the resolution of a histogram bucket.
        (baseline.get().unwrap().as_secs_f64() * 1_000.0 / 5.0).round() as u128 * 5
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_baseline_is_the_smallest_of_the_last_ten_to_twenty_seconds() {
        let mut baseline = Baseline::default();
        assert!(baseline.get().is_none());
        for (took, expected) in [(50, 50), (40, 40), (90, 40), (45, 40)] {
            baseline.step(1.0, &window(SECOND, took).await, false);
            assert_eq!(millis(&baseline), expected);
        }
        // All requests have become slower.
        for expected in [40, 100, 100] {
            for _ in 0..10 {
                baseline.step(1.0, &window(SECOND, 100).await, false);
            }
            assert_eq!(millis(&baseline), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_clients_end_quickly_do_not_shorten_the_baseline() {
        let (meter, mut baseline) = (LoadMeter::new(), Baseline::default());
        let mark = meter.mark();
        let hasty = meter.begin();
        advance(SECOND / 1_000).await;
        drop(hasty);
        let (hasty, _) = meter.since(&mark);
        assert_eq!(baseline.step(1.0, &hasty, false), Step::React(1.0));
        assert!(baseline.get().is_none());
        baseline.step(1.0, &window(SECOND, 50).await, false);
        baseline.step(1.0, &hasty, false);
        assert_eq!(millis(&baseline), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn every_ten_seconds_the_queue_is_emptied_if_there_is_one() {
        let mut baseline = Baseline::default();
        let rounded = |step: Step| match step {
            Step::React(_) => None,
            Step::Set(share) => Some((share * 100.0).round() / 100.0),
        };
        let mut set = async |share: f64, length: Duration, took: u64, limits: bool| {
            rounded(baseline.step(share, &window(length, took).await, limits))
        };
        assert_eq!(set(0.8, SECOND, 50, true).await, None);
        // Short, then without a limit.
        assert_eq!(set(0.8, SECOND * 10, 55, true).await, None);
        assert_eq!(set(0.8, SECOND * 10, 90, false).await, None);
        assert_eq!(set(0.8, SECOND, 50, true).await, None);
        let drained = set(0.8, SECOND * 10, 90, true).await.unwrap();
        assert!((0.33..0.38).contains(&drained), "{drained}");
        // The first window includes requests from before.
        assert_eq!(set(drained, SECOND / 10, 95, true).await, Some(drained));
        assert_eq!(set(drained, SECOND, 60, true).await, Some(0.8));
        assert_eq!(set(0.8, SECOND, 90, true).await, None);
        assert_eq!(millis(&baseline), 60);
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_becomes_shorter_is_not_drained_yet() {
        let mut baseline = Baseline::default();
        assert_eq!(baseline.step(0.8, &window(SECOND, 50).await, true), Step::React(1.0));
        let shorter = window_after(SECOND * 10, 90, 5).await;
        assert!(shorter.is_draining());
        assert!(matches!(baseline.step(0.8, &shorter, true), Step::React(ratio) if ratio > 1.5));
        assert!(
            matches!(baseline.step(0.8, &window(SECOND, 90).await, true), Step::Set(share) if share < 0.5)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_another_reduction_the_share_does_not_return_to_its_value_before_the_drain() {
        for is_interrupted in [false, true] {
            let mut baseline = Baseline::default();
            baseline.step(0.8, &window(SECOND, 50).await, true);
            assert!(matches!(baseline.step(0.8, &window(SECOND * 10, 90).await, true), Step::Set(_)));
            if is_interrupted {
                baseline.interrupt();
            }
            advance(SECOND).await;
            let after = baseline.step(0.05, &window(SECOND, 50).await, false);
            assert_eq!(after, if is_interrupted { Step::React(1.0) } else { Step::Set(0.8) });
        }
    }
}
