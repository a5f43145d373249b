use std::time::Duration;

use super::{
    baseline::LARGEST_DRAIN,
    meter::{LoadMeter, Mark, Window},
    source::{Bounds, LARGEST_CUT, Source},
};
use crate::error::Error;

/// How a controller reacts to what a meter measured.
pub(super) trait Law: Send {
    /// The next share, after a window in which `share` was in force, and whether so much was used that it had an effect. The
    /// controller keeps it within the bounds.
    fn next(&mut self, share: f64, window: &Window, is_used: bool) -> f64;

    /// The time after which requests are late, if none has been answered since they began. `None` if it is not known yet.
    fn patience(&self) -> Option<Duration>;

    /// What is wrong with the settings.
    fn check(&self) -> Result<(), Error>;
}

/// Measures windows, lets a [`Law`] react to each, and keeps to what holds for every law:
///
/// * A window has enough requests.
/// * While the queue becomes shorter, nothing is reduced further.
/// * A share that is not used does not rise.
/// * A service that answers nothing, or fails, reduces the share.
pub(super) struct Controller<L> {
    meter: LoadMeter,
    law: L,
    failed_up_to: f64,
    share: f64,
    /// Where the window begins.
    mark: Option<Mark>,
}

/// A window ends with so many requests at the latest tick,
const ENOUGH: u64 = 50;
/// or with so many if it is [`LONG`],
const FEW: u64 = 10;
/// or with any after this time.
const LONGEST: Duration = Duration::from_secs(60);
/// In intervals.
const LONG: u32 = 10;
/// A limit is used if it is at most so many times the requests in flight.
const USED: f64 = 2.0;
/// How much the share rises if there were no requests for a [`LONG`] time.
const IDLE_RISE: f64 = 0.1;

impl<L: Law> Controller<L> {
    pub(super) const fn new(meter: LoadMeter, failed_up_to: f64, law: L) -> Self {
        Self { meter, law, failed_up_to, share: 1.0, mark: None }
    }

    /// The share after `window`, `None` if the window goes on.
    fn decide(&mut self, window: &Window, bounds: &Bounds) -> Option<f64> {
        let (ended, is_long) = (window.ended(), window.elapsed() >= bounds.interval * LONG);
        let is_stuck = self.law.patience().is_some_and(|patience| window.elapsed() > patience);
        if is_stuck && window.stuck() >= FEW {
            return Some(self.share * LARGEST_CUT);
        }
        if is_long && window.is_idle() {
            return Some(self.share + IDLE_RISE);
        }
        let is_over = ended >= ENOUGH || is_long && ended >= FEW || ended > 0 && window.elapsed() >= LONGEST;
        if !is_over {
            return None;
        }
        let failed = window.failed_share();
        if failed > self.failed_up_to {
            return Some(self.share * (1.0 - failed / 2.0));
        }
        let is_used = bounds.most_in_flight.is_none_or(|most| window.in_flight() * USED >= self.share * most);
        let next = self.law.next(self.share, window, is_used);
        Some(if is_used { next } else { next.min(self.share) })
    }
}

impl<L: Law> Source for Controller<L> {
    fn next(&mut self, bounds: &Bounds) -> f64 {
        let Some(mark) = &self.mark else {
            self.mark = Some(self.meter.mark());
            return self.share;
        };
        let window = self.meter.since(mark);
        let Some(next) = self.decide(&window, bounds) else { return self.share };
        self.mark = Some(self.meter.mark());
        if next >= self.share {
            self.share = next.min(1.0);
        } else if !window.is_draining() {
            // To reduce what is not used has no effect.
            let used = bounds.most_in_flight.map_or(1.0, |most| window.most_in_flight() * USED / most);
            let cut = (next / self.share).max(LARGEST_DRAIN);
            self.share = (self.share.min(used) * cut).max(bounds.floor);
        }
        self.share
    }

    #[cfg(feature = "redis")]
    fn adopt(&mut self, share: f64) {
        self.share = share;
    }

    fn check(&self) -> Result<(), Error> {
        check_share(
            self.failed_up_to,
            "`failed_up_to` must be from 0 to 1: 0.1 allows a tenth of the requests",
        )?;
        self.law.check()
    }
}

/// An error with `message` if `share` is not one.
pub(super) fn check_share(share: f64, message: &'static str) -> Result<(), Error> {
    if (0.0..=1.0).contains(&share) { Ok(()) } else { Err(Error::invalid(message)) }
}
