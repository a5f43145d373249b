//! [`Vegas`]: the controller for services whose requests take about the same time.

use std::time::Duration;

use tower_ratelimit::Error;

use super::{
    baseline::{Baseline, Step},
    controller::{Controller, HALF, Law},
    meter::{LoadMeter, Window},
    signal::Signal,
};

/// Keeps the queue in front of the service short: a few requests, regardless of their latency.
///
/// The *baseline* is the smallest median latency of the last 20 seconds. After each window, the queue is
/// estimated from `n`, the requests in flight until they are answered (answers per second times the median):
///
/// ```text
/// queue = n x (1 - baseline / median latency of the window)
/// unit  = log10(n), at least 1
/// ```
///
/// | queue | `n` should |
/// |---|---|
/// | up to 1 unit | rise by 6 units |
/// | below 3 units | rise by a unit |
/// | 3 to 6 units | stay |
/// | more | fall by a unit, and by half of what is above 6 |
///
/// The limit, or the rate, changes by that change divided by `n`, and rises by at most half of itself. Every
/// ten seconds, if the limit is reached and there is a queue, one window with a smaller limit empties the
/// queue to measure the baseline again. A rate below the full quota counts as reached.
///
/// It admits fewer concurrent requests than [`Gradient`](super::Gradient), so the latency is lower. Prefer it
/// if all requests take about the same time.
///
/// * **Source**: TCP Vegas (Brakmo and Peterson, 1995), and the limit of the same name in Netflix's
///   concurrency-limits.
/// * **Weakness**: the same as `Gradient`. With up to six requests in flight on average, it never reduces the
///   limit, because that is not a long queue.
///
/// Use only one policy with a `Vegas` or a `Gradient` per meter, because only its own smaller limit empties
/// the queue. For the same reason, it cannot be [`shared`](super::Adaptive::shared).
///
/// # Example
///
/// ```
/// use tower_ratelimit::Policy;
/// use tower_ratelimit_extra::adaptive::{Adaptive, LoadMeter, Vegas};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let meter = LoadMeter::new();
/// let policy = Adaptive::new(Policy::concurrency("in-flight", 500)).follow(Vegas::new(&meter)).start()?;
/// assert_eq!(policy.policy().quota().limit(), 500);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing until a policy follows it"]
pub struct Vegas {
    meter: LoadMeter,
    failed_up_to: f64,
    baseline: Baseline,
}

/// The limits of the table above, in units.
const EMPTY: f64 = 1.0;
const SHORT: f64 = 3.0;
const LONG: f64 = 6.0;
/// In parts of the limit, for services with few requests in flight.
const LARGEST_RISE: f64 = 0.5;
/// Requests without an answer are late after this multiple of the baseline.
const PATIENCE: u32 = 6;

impl Vegas {
    /// Keeps the queue in front of the service that `meter` measures short.
    pub fn new(meter: &LoadMeter) -> Self {
        Self { meter: meter.clone(), failed_up_to: HALF, baseline: Baseline::default() }
    }

    /// The part of the requests that may fail, from 0 to 1. If more fail, the quota falls by half of the part
    /// that failed: by 30 % if 60 % did. Defaults to 0.5. With 1, failures change nothing. Below a half, [a
    /// few clients](super#what-a-few-clients-can-do) with failing requests can lower the quota.
    pub const fn failed_up_to(mut self, share: f64) -> Self {
        self.failed_up_to = share;
        self
    }
}

impl Law for Vegas {
    fn next(&mut self, share: f64, window: &Window, limits: bool) -> f64 {
        match self.baseline.step(share, window, limits) {
            Step::Set(share) => share,
            Step::React(ratio) => {
                let in_flight = window.in_flight().max(1.0);
                let unit = in_flight.log10().max(1.0);
                let change = change(in_flight * (1.0 - 1.0 / ratio) / unit) * unit;
                share * (1.0 + (change / in_flight).min(LARGEST_RISE))
            }
        }
    }

    fn interrupt(&mut self) {
        self.baseline.interrupt();
    }

    #[cfg(feature = "redis")]
    fn needs_own_share(&self) -> bool {
        true
    }

    fn patience(&self) -> Option<Duration> {
        self.baseline.get().map(|base| base * PATIENCE)
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// The change of the limit for a queue, both in units.
fn change(queue: f64) -> f64 {
    match queue {
        empty if empty <= EMPTY => LONG,
        short if short < SHORT => 1.0,
        long if long > LONG => -1.0 - (long - LONG) / 2.0,
        _ => 0.0,
    }
}

impl From<Vegas> for Signal {
    fn from(vegas: Vegas) -> Self {
        Self::of(Controller::new(vegas.meter.clone(), vegas.failed_up_to, vegas))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_queue_never_raises_the_limit_more() {
        let mut before = f64::INFINITY;
        for tenths in 0..200 {
            let change = change(f64::from(tenths) / 10.0);
            assert!(change <= before, "{tenths}");
            before = change;
        }
        assert_eq!((change(0.0), change(4.0), change(8.0)), (6.0, 0.0, -2.0));
    }
}
