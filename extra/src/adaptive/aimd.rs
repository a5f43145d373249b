//! [`Aimd`]: the controller for services whose target latency is known.

use std::time::Duration;

use tower_ratelimit::{Error, ErrorKind};

use super::{
    controller::{Controller, HALF, Law, check_share},
    meter::{LoadMeter, Window},
    signal::Signal,
};

/// Keeps the latency below a target that you know: additive increase, multiplicative decrease.
///
/// If a window's median latency is above the target (more than [half](Self::late_up_to) of the requests took
/// longer), the share falls in proportion to the late requests: by half if all were late. A limit on the
/// requests in flight first falls to [twice what is used](super#what-holds-for-all-three). After any other
/// window, the share rises by 2 % of the full quota.
///
/// Suits requests in flight and rates. Choose the target well above the usual latency and below the clients'
/// timeout.
///
/// * **Source**: TCP's congestion avoidance (RFC 5681), and the limit of the same name in Netflix's
///   concurrency-limits. The proportional decrease follows DCTCP (RFC 8257).
/// * **Weakness**: if the service never meets the target, for example because all requests have become
///   slower, the quota stays at the floor. Different kinds of requests hide each other: a majority of quick
///   requests hides late ones, and a single answered request hides those that hang. Use a meter and a policy
///   for each kind.
///
/// See the [module](super) for an example.
#[derive(Clone, Debug)]
#[must_use = "a signal does nothing until a policy follows it"]
pub struct Aimd {
    meter: LoadMeter,
    target: Duration,
    late_up_to: f64,
    failed_up_to: f64,
}

/// In parts of the full quota.
const RISE: f64 = 0.02;

impl Aimd {
    /// Keeps the latency that `meter` measures below `target`.
    pub fn new(meter: &LoadMeter, target: Duration) -> Self {
        Self { meter: meter.clone(), target, late_up_to: HALF, failed_up_to: HALF }
    }

    /// The share of requests that may take longer than the target, from 0 to 1. Defaults to 0.5: the target
    /// is for the median. With 0.05, it is for the 95th percentile, but then [a few
    /// clients](super#what-a-few-clients-can-do) that send bodies slowly can lower the quota.
    pub const fn late_up_to(mut self, share: f64) -> Self {
        self.late_up_to = share;
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

impl Law for Aimd {
    fn next(&mut self, share: f64, window: &Window, _: bool) -> f64 {
        let late = window.late_share(self.target);
        if late > self.late_up_to { share * (1.0 - late / 2.0) } else { share + RISE }
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.target)
    }

    fn check(&self) -> Result<(), Error> {
        if self.target.is_zero() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "the target latency of an `Aimd` must be above zero",
            ));
        }
        check_share(self.late_up_to, "`late_up_to` must be from 0 to 1: 0.5 allows half of the requests")
    }
}

impl From<Aimd> for Signal {
    fn from(aimd: Aimd) -> Self {
        Self::of(Controller::new(aimd.meter.clone(), aimd.failed_up_to, aimd))
    }
}
