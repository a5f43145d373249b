use std::time::Duration;

use tokio::time::Instant;

use super::meter::Window;

/// The latency of the service when it is not overloaded: the smallest median of the last 10 to 20 seconds.
///
/// Under an overload that lasts, no recent window is without a queue, and the baseline would rise with the load. So every ten
/// seconds the share is reduced by as much as empties the queue, for as long as it takes to measure that.
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
    /// When the requests of before have ended.
    empty_at: Instant,
}

const RENEWED_EVERY: Duration = Duration::from_secs(10);
/// A latency up to so many times the baseline is as good as that of an empty queue.
const EMPTY: f64 = 1.2;
/// The share for an empty queue leaves a part of the capacity unused.
const DRAIN: f64 = 0.8;
/// The share that is left at least.
pub(super) const LARGEST_DRAIN: f64 = 0.25;

/// What to do after a window.
#[derive(Debug, PartialEq)]
pub(super) enum Step {
    /// React to a latency that is so many times the baseline.
    React(f64),
    /// Set this share.
    Set(f64),
}

impl Baseline {
    /// The step after a window in which `share` was in force, and used or not.
    pub(super) fn step(&mut self, share: f64, window: &Window, is_used: bool) -> Step {
        let Some(typical) = window.typical() else { return Step::Set(share) };
        let now = Instant::now();
        if let Some(Drain { resume, empty_at }) = self.drain {
            // The window has requests of before.
            if now - window.elapsed() < empty_at {
                return Step::Set(share);
            }
            // Measured without a queue, so it counts even if it is longer than before.
            *self = Self { recent: Some(typical), since: Some(now), ..Self::default() };
            return Step::Set(resume);
        }
        let age = now - *self.since.get_or_insert(now);
        // While the share limits the service, any window may have a queue.
        let is_limited = is_used && share < 1.0 && self.ratio(typical) > EMPTY;
        if age >= RENEWED_EVERY && !is_limited {
            (self.before, self.recent, self.since) = (self.recent, None, Some(now));
        }
        self.recent = Some(self.recent.map_or(typical, |recent| recent.min(typical)));
        let ratio = self.ratio(typical);
        let is_acute = ratio > DRAIN / LARGEST_DRAIN && age < RENEWED_EVERY * 2;
        if age >= RENEWED_EVERY && is_limited && !is_acute {
            self.drain = Some(Drain { resume: share, empty_at: now + typical });
            return Step::Set(share * (DRAIN / ratio).max(LARGEST_DRAIN));
        }
        Step::React(ratio)
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
    use crate::adaptive::meter::LoadMeter;

    /// A window of this length in which requests took so many milliseconds.
    async fn window(length: Duration, millis: u64) -> Window {
        let meter = LoadMeter::new();
        let mark = meter.mark();
        let request = meter.begin();
        advance(Duration::from_millis(millis)).await;
        request.succeeded();
        advance(length.saturating_sub(Duration::from_millis(millis))).await;
        meter.since(&mark)
    }

    fn millis(baseline: &Baseline) -> u128 {
        // Medians are those of a bucket.
        (baseline.get().unwrap().as_secs_f64() * 1_000.0 / 5.0).round() as u128 * 5
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn the_baseline_is_the_smallest_of_the_last_ten_to_twenty_seconds() {
        let mut baseline = Baseline::default();
        assert!(baseline.get().is_none());
        for (took, expected) in [(50, 50), (40, 40), (90, 40), (45, 40)] {
            baseline.step(1.0, &window(SECOND, took).await, true);
            assert_eq!(millis(&baseline), expected);
        }
        // All requests have become slower.
        for expected in [40, 100, 100] {
            for _ in 0..10 {
                baseline.step(1.0, &window(SECOND, 100).await, true);
            }
            assert_eq!(millis(&baseline), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_ten_seconds_the_queue_is_emptied_if_there_is_one() {
        let mut baseline = Baseline::default();
        let rounded = |step: Step| match step {
            Step::React(_) => None,
            Step::Set(share) => Some((share * 100.0).round() / 100.0),
        };
        let mut set = async |share: f64, length: Duration, took: u64, is_used: bool| {
            rounded(baseline.step(share, &window(length, took).await, is_used))
        };
        assert_eq!(set(0.8, SECOND, 50, true).await, None);
        // Short, then unused, then without a limit.
        assert_eq!(set(0.8, SECOND * 10, 55, true).await, None);
        assert_eq!(set(0.8, SECOND * 10, 90, false).await, None);
        assert_eq!(set(0.8, SECOND, 50, true).await, None);
        assert_eq!(set(1.0, SECOND * 10, 90, true).await, None);
        assert_eq!(set(0.8, SECOND, 50, true).await, None);
        let drained = set(0.8, SECOND * 10, 90, true).await.unwrap();
        assert!((0.33..0.38).contains(&drained), "{drained}");
        // The first window has requests of before.
        assert_eq!(set(drained, SECOND / 10, 95, true).await, Some(drained));
        assert_eq!(set(drained, SECOND, 60, true).await, Some(0.8));
        assert_eq!(set(0.8, SECOND, 90, true).await, None);
        assert_eq!(millis(&baseline), 60);
    }
}
