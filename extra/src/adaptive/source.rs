//! The trait that closures and controllers implement, so a policy can follow either.

use std::{ops::RangeInclusive, time::Duration};

use tower_ratelimit::Error;

/// Where the share of the quota comes from.
pub(crate) trait Source: Send {
    /// The next share, from the floor to 1. Called once in every interval.
    fn next(&mut self, bounds: &Bounds) -> f64;

    /// Continues from `share`, the share of the other instances.
    #[cfg(feature = "redis")]
    fn adopt(&mut self, share: f64);

    /// Whether the share that it returns must be active, and not the mean of several.
    #[cfg(feature = "redis")]
    fn needs_own_share(&self) -> bool {
        false
    }

    /// Checks the settings.
    fn check(&self) -> Result<(), Error>;
}

/// The bounds that every source of a policy keeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) floor: f64,
    pub(crate) interval: Duration,
    /// The full quota, if it limits the requests of this process that are in flight.
    pub(crate) most_in_flight: Option<f64>,
}

/// The time between two changes of a quota.
pub(super) const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3_600);
/// A share never falls below this part of itself in one step.
pub(crate) const LARGEST_CUT: f64 = 0.5;
