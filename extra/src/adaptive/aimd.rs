use std::time::Duration;

use tower_ratelimit::{Error, ErrorKind};

use super::{
    controller::{Controller, HALF, Law, check_share},
    meter::{LoadMeter, Window},
    signal::Signal,
};

/// Keeps the latency below a target that you know: additive increase, multiplicative decrease.
///
/// After a window whose median latency is above the target, so that more than [half](Self::late_up_to) of the requests took
/// longer, the share falls in proportion: by half of the part of requests that were late, so to a half if all were. A limit on
/// the requests in flight first falls to [twice what is used](super#what-holds-for-all-three). After any other window the share
/// rises by 2 % of the full quota.
///
/// For requests in flight as well as for rates. Choose the target well above the usual latency and below the clients' timeout.
///
/// * **Source**: AIMD is how TCP avoids congestion (RFC 5681), and the limit of that name in Netflix'
///   concurrency-limits. The proportional decrease follows DCTCP (RFC 8257).
/// * **Weakness**: a target that the service never meets, for example because all requests have become slower, holds the quota
///   at the floor. Requests that differ hide each other: quick ones the late ones, unless these are the majority, and one that
///   is answered those that hang. Use a meter and a policy for each kind.
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

    /// The share of requests that may take longer than the target, from 0 to 1. Defaults to 0.5: the target is for the median.
    /// With 0.05 it is for the 95th percentile, but then [a few clients](super#what-a-few-clients-can-do) that send their bodies
    /// slowly lower the quota.
    pub const fn late_up_to(mut self, share: f64) -> Self {
        self.late_up_to = share;
        self
    }

    /// The share of requests that may fail, from 0 to 1. Above it, the quota falls by half of the share. Defaults to 0.5; with
    /// 1, failures change nothing. With less than a half, [a few clients](super#what-a-few-clients-can-do) lower the quota if
    /// their requests fail.
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
