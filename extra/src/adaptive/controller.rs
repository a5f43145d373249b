//! The part that all controllers share: it completes windows of requests, and keeps the rules that no
//! controller may break.

use std::time::Duration;

use tower_ratelimit::{Error, ErrorKind};

use super::{
    meter::{LoadMeter, Mark, Window},
    source::{Bounds, LARGEST_CUT, Source},
};

/// How a controller reacts to what a meter measured.
pub(super) trait Law: Send {
    /// The next share, after a window in which `share` was active, and probably limited the service or not.
    /// The controller keeps it within the bounds.
    fn next(&mut self, share: f64, window: &Window, limits: bool) -> f64;

    /// The share is reduced for another reason.
    fn interrupt(&mut self) {}

    /// Whether the law measures the service with a share of its choice, which must then be active.
    #[cfg(feature = "redis")]
    fn needs_own_share(&self) -> bool {
        false
    }

    /// The time after which requests are late, if none has been answered since they began. `None` if it is
    /// not known yet.
    fn patience(&self) -> Option<Duration>;

    /// Checks the settings.
    fn check(&self) -> Result<(), Error>;
}

/// Measures windows, lets a [`Law`] react to each, and keeps to what holds for every law:
///
/// * A window has enough requests.
/// * While the queue becomes shorter, nothing is reduced further.
/// * A share that is not used does not rise, and what is not used of it is cut off first.
/// * A service that answers nothing, or fails, reduces the share. A few requests that wait do not: a client
///   can leave its own unfinished.
pub(super) struct Controller<L> {
    meter: LoadMeter,
    law: L,
    failed_up_to: f64,
    share: f64,
    /// How many of the waiting requests have reduced the share already. Each reduces it once.
    stuck: u64,
    /// Where the window begins.
    mark: Option<Mark>,
    /// When a request ended last, or the requests that waited at the mark before became late.
    silent_since: Option<Mark>,
}

/// The share of the requests that decides: with the median, so that a few clients do not.
pub(super) const HALF: f64 = 0.5;
/// A window ends with this many requests at the latest tick,
const ENOUGH: u64 = 50;
/// or with this many if it is [`LONG`],
const FEW: u64 = 10;
/// or with any after this time.
const LONGEST: Duration = Duration::from_secs(60);
/// In intervals.
const LONG: u32 = 10;
/// A limit is used if it is at most this multiple of the peak of the requests in flight.
const USED: f64 = 2.0;
/// The peak of a limit that denied requests is at least this part of it. Both are rounded.
const REACHED: f64 = 0.9;
/// How much the share rises if there were no requests for a [`LONG`] time.
const IDLE_RISE: f64 = 0.1;

impl<L: Law> Controller<L> {
    pub(super) const fn new(meter: LoadMeter, failed_up_to: f64, law: L) -> Self {
        Self { meter, law, failed_up_to, share: 1.0, stuck: 0, mark: None, silent_since: None }
    }

    /// The share after `window`, `None` if the window goes on.
    fn decide(&mut self, window: &Window, bounds: &Bounds) -> Option<f64> {
        let is_long = window.elapsed() >= bounds.interval * LONG;
        if is_long && window.is_idle() {
            self.law.interrupt();
            return Some(self.share + IDLE_RISE);
        }
        let failed = window.failed_share();
        let are_many = failed > self.failed_up_to;
        // A few clients can cause any number of failures, so these do not end a window of the others.
        let judged = window.timed() + if are_many { window.failed() } else { 0 };
        let is_over =
            judged >= ENOUGH || is_long && judged >= FEW || window.ended() > 0 && window.elapsed() >= LONGEST;
        if !is_over {
            return None;
        }
        if are_many {
            self.law.interrupt();
            return Some(self.share * (1.0 - failed / 2.0));
        }
        if judged == 0 {
            return Some(self.share);
        }
        let used = used(window, bounds);
        // The meter does not know what a rate admitted, and a full rate may limit nothing.
        let limits = used.map_or(self.share < 1.0, |used| used >= REACHED * self.share);
        let next = self.law.next(self.share, window, limits);
        let may_rise = used.is_none_or(|used| used * USED >= self.share);
        Some(if may_rise { next } else { next.min(self.share) })
    }

    /// Whether nothing is answered, and more waits than a few clients cause: at least half of a limit on the
    /// requests in flight, or further requests under a rate.
    fn is_stuck(&mut self, bounds: &Bounds) -> bool {
        let Some(since) = &self.silent_since else {
            self.silent_since = Some(self.meter.mark());
            return false;
        };
        let (silence, now) = self.meter.since(since);
        self.stuck = self.stuck.min(silence.left());
        let are_late = self.law.patience().is_some_and(|patience| silence.elapsed() > patience);
        let are_many = match bounds.most_in_flight {
            Some(most) => silence.stuck() >= FEW && silence.left() as f64 * USED >= most * self.share,
            None => silence.stuck() >= self.stuck + FEW,
        };
        let is_stuck = are_late && are_many;
        if is_stuck {
            self.stuck = silence.stuck();
        }
        if are_late || silence.ended() > 0 {
            self.silent_since = Some(now);
        }
        is_stuck
    }
}

impl<L: Law> Source for Controller<L> {
    fn next(&mut self, bounds: &Bounds) -> f64 {
        let Some(mark) = &self.mark else {
            self.mark = Some(self.meter.mark());
            return self.share;
        };
        let (window, end) = self.meter.since(mark);
        let is_stuck = self.is_stuck(bounds);
        let next = if is_stuck {
            self.law.interrupt();
            self.share * LARGEST_CUT
        } else {
            let Some(next) = self.decide(&window, bounds) else { return self.share };
            next
        };
        self.mark = Some(end);
        if next >= self.share {
            self.share = next.min(1.0);
        } else if is_stuck || !window.is_draining() {
            // Reducing an unused part has no effect.
            let kept = used(&window, bounds).map_or(1.0, |used| (used * USED / self.share).min(1.0));
            self.share = (next * kept).max(bounds.floor);
        }
        self.share
    }

    #[cfg(feature = "redis")]
    fn needs_own_share(&self) -> bool {
        self.law.needs_own_share()
    }

    #[cfg(feature = "redis")]
    fn adopt(&mut self, share: f64) {
        self.share = share;
    }

    fn check(&self) -> Result<(), Error> {
        check_share(
            self.failed_up_to,
            "`failed_up_to` must be from 0 to 1: 0.5 allows half of the requests",
        )?;
        self.law.check()
    }
}

/// The part of the full quota that was used. `None` if that cannot be known.
fn used(window: &Window, bounds: &Bounds) -> Option<f64> {
    bounds.most_in_flight.map(|most| window.peak() / most)
}

/// An error with `message` if `share` is not one.
pub(super) fn check_share(share: f64, message: &'static str) -> Result<(), Error> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(Error::new(ErrorKind::InvalidConfig, message)) }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::adaptive::{Gradient, meter::InFlight};

    /// Changes nothing, and counts.
    #[derive(Default)]
    struct Steady {
        calls: u32,
        limits: bool,
        interrupts: u32,
    }

    impl Law for Steady {
        fn next(&mut self, share: f64, _: &Window, limits: bool) -> f64 {
            self.calls += 1;
            self.limits = limits;
            share
        }

        fn interrupt(&mut self) {
            self.interrupts += 1;
        }

        fn patience(&self) -> Option<Duration> {
            Some(SECOND / 2)
        }

        fn check(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    const fn bounds(most_in_flight: Option<f64>) -> Bounds {
        Bounds { floor: 0.01, interval: SECOND, most_in_flight }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reduction_that_a_law_did_not_choose_interrupts_it() {
        let meter = LoadMeter::new();
        let mut controller = Controller::new(meter.clone(), 0.1, Steady::default());
        let rate = bounds(None);
        assert_eq!(controller.next(&rate), 1.0);
        let of = |count: usize| (0..count).map(|_| meter.begin()).collect::<Vec<_>>();
        of(60).into_iter().for_each(InFlight::succeeded);
        assert_eq!((controller.next(&rate), controller.law.calls, controller.law.interrupts), (1.0, 1, 0));
        of(60).into_iter().for_each(InFlight::failed);
        assert_eq!((controller.next(&rate), controller.law.calls, controller.law.interrupts), (0.5, 1, 1));
        let stuck = of(10);
        controller.silent_since = Some(meter.mark());
        advance(SECOND).await;
        assert_eq!((controller.next(&rate), controller.law.calls, controller.law.interrupts), (0.25, 1, 2));
        drop(stuck);
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_in_flight_limits_if_it_was_reached_and_a_rate_below_its_full_quota() {
        for (most, share, peak, expected) in [
            (Some(100.0), 1.0, 100, true),
            (Some(100.0), 1.0, 95, true),
            (Some(100.0), 1.0, 80, false),
            (Some(100.0), 0.6, 60, true),
            (Some(100.0), 0.6, 50, false),
            (None, 1.0, 100, false),
            (None, 0.9, 1, true),
        ] {
            let meter = LoadMeter::new();
            let mut controller = Controller::new(meter.clone(), 0.1, Steady::default());
            controller.next(&bounds(most));
            controller.share = share;
            drop((0..peak).map(|_| meter.begin()).collect::<Vec<_>>());
            (0..60).for_each(|_| meter.begin().succeeded());
            controller.next(&bounds(most));
            assert_eq!((controller.law.calls, controller.law.limits), (1, expected), "{share} {peak}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_used_of_a_limit_in_flight_is_its_peak() {
        let meter = LoadMeter::new();
        let mut controller = Controller::new(meter.clone(), 0.1, Steady::default());
        let bounds = bounds(Some(500.0));
        controller.next(&bounds);
        // 20 at a moment, and hardly one on average.
        let burst: Vec<_> = (0..20).map(|_| meter.begin()).collect();
        advance(SECOND / 100).await;
        burst.into_iter().for_each(InFlight::failed);
        advance(SECOND * 10).await;
        // To twice the peak, and by a half.
        assert_eq!(controller.next(&bounds), 20.0 * 2.0 / 500.0 / 2.0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_share_that_rose_without_requests_does_not_return_to_its_value_before_a_drain() {
        let meter = LoadMeter::new();
        let mut controller = Controller::new(meter.clone(), HALF, Gradient::new(&meter));
        let rate = bounds(None);
        controller.next(&rate);
        controller.share = 0.6;
        for (wait, millis) in [(0, 50), (10, 90)] {
            advance(SECOND * wait).await;
            let requests: Vec<_> = (0..60).map(|_| meter.begin()).collect();
            advance(SECOND / 1_000 * millis).await;
            requests.into_iter().for_each(InFlight::succeeded);
            controller.next(&rate);
        }
        assert!(controller.share < 0.3, "no drain: {}", controller.share);
        for _ in 0..10 {
            advance(SECOND * LONG).await;
            controller.next(&rate);
        }
        assert_eq!(controller.share, 1.0);
        (0..60).for_each(|_| meter.begin().succeeded());
        assert_eq!(controller.next(&rate), 1.0);
    }
}
