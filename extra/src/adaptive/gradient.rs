//! [`Gradient`]: the controller for services whose requests differ and whose target latency is unknown.

use std::time::Duration;

use tower_ratelimit::{Error, ErrorKind};

use super::{
    baseline::{Baseline, Step},
    controller::{Controller, HALF, Law},
    meter::{LoadMeter, Window},
    signal::Signal,
};

/// Keeps the latency near the unloaded service's latency; no target is needed.
///
/// The *baseline* is the smallest median latency of the last 20 seconds. After each window
///
/// ```text
/// limit' = limit x (gradient + headroom)
/// gradient = tolerance x baseline / median latency of the window    at least 1/2, at most 1
/// headroom = 1 / square root of the requests in flight              at most 1/2, so the limit probes for more
/// ```
///
/// A smaller limit is active immediately. Towards a larger one, the limit moves half of the way. For a limit
/// on the requests in flight that is used, there is headroom for the square root of the limit. A rate changes
/// in the same proportion.
///
/// Every ten seconds, if the limit is reached and there is a queue, one window with a smaller limit empties
/// the queue to measure the baseline again. A rate below the full quota counts as reached.
///
/// * **Source**: Gradient2 of Netflix's concurrency-limits, with the headroom of Envoy's adaptive concurrency
///   filter, and a baseline that is measured as in Envoy (`minRTT`) and BBR (`ProbeRTT`).
/// * **Weakness**: if all requests become slower and the load stays, it admits too few for up to twenty
///   seconds. If requests differ a lot, their mix moves the median: use a meter and a policy for each kind. A
///   queue that other instances cause at a shared database is part of the baseline. A long body keeps its
///   place in a limit on the requests in flight, so emptying the queue takes as long: use an
///   [`Aimd`](super::Aimd) for downloads.
///
/// Use only one policy with a `Gradient` or a [`Vegas`](super::Vegas) per meter, because only its own smaller
/// limit empties the queue. For the same reason, it cannot be [`shared`](super::Adaptive::shared).
///
/// # Example
///
/// ```
/// use tower_ratelimit::Policy;
/// use tower_ratelimit_extra::adaptive::{Adaptive, Gradient, LoadMeter};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let meter = LoadMeter::new();
/// let gradient = Gradient::new(&meter).tolerance(2.0);
/// let policy = Adaptive::new(Policy::concurrency("in-flight", 500)).follow(gradient).start()?;
/// assert_eq!(policy.policy().quota().limit(), 500);
///
/// // Less than the usual latency is impossible.
/// let impossible = Adaptive::new(Policy::concurrency("in-flight", 500)).follow(Gradient::new(&meter).tolerance(0.5));
/// assert!(impossible.start().is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing until a policy follows it"]
pub struct Gradient {
    meter: LoadMeter,
    tolerance: f64,
    failed_up_to: f64,
    baseline: Baseline,
}

/// How far the limit moves towards its next value.
const SMOOTHING: f64 = 0.5;
const SMALLEST_GRADIENT: f64 = 0.5;
/// In parts of the limit, for services with few requests in flight.
const LARGEST_HEADROOM: f64 = 0.5;
/// Requests without an answer are late after this multiple of the baseline.
const PATIENCE: f64 = 4.0;

impl Gradient {
    /// Keeps the latency that `meter` measures near its baseline.
    pub fn new(meter: &LoadMeter) -> Self {
        Self { meter: meter.clone(), tolerance: 1.5, failed_up_to: HALF, baseline: Baseline::default() }
    }

    /// How many times the baseline the latency may be before the limit falls: at least 1. Defaults to 1.5. A
    /// larger value admits more and queues longer.
    pub const fn tolerance(mut self, times: f64) -> Self {
        self.tolerance = times;
        self
    }

    /// The part of the requests that may fail, from 0 to 1. If more fail, the quota falls by half of the part
    /// that failed: by 30 % if 60 % did. Defaults to 0.5. With 1, failures change nothing. Below a half, [a
    /// few clients](super#what-a-few-clients-can-do) with failing requests can lower the quota.
    pub const fn failed_up_to(mut self, share: f64) -> Self {
        self.failed_up_to = share;
        self
    }
}

impl Law for Gradient {
    fn next(&mut self, share: f64, window: &Window, limits: bool) -> f64 {
        match self.baseline.step(share, window, limits) {
            Step::Set(share) => share,
            Step::React(ratio) => {
                let gradient = (self.tolerance / ratio).clamp(SMALLEST_GRADIENT, 1.0);
                let headroom = window.in_flight().sqrt().recip().min(LARGEST_HEADROOM);
                let change = gradient + headroom - 1.0;
                share * (1.0 + if change > 0.0 { change * SMOOTHING } else { change })
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
        self.baseline.get().map(|base| base.mul_f64(PATIENCE * self.tolerance))
    }

    fn check(&self) -> Result<(), Error> {
        if (1.0..=1_000.0).contains(&self.tolerance) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidConfig,
            "the tolerance of a `Gradient` must be from 1 to 1000 times the usual latency",
        ))
    }
}

impl From<Gradient> for Signal {
    fn from(gradient: Gradient) -> Self {
        Self::of(Controller::new(gradient.meter.clone(), gradient.failed_up_to, gradient))
    }
}
