//! Closures as signals. A value that jumps or is missing moves the share in small steps.

use tower_ratelimit::Error;

use super::source::{Bounds, LARGEST_CUT, Source};
use crate::{outage::Outage, panics::caught};

/// A share never rises by more than this part of the full quota in one step.
const LARGEST_RISE: f64 = 0.1;
/// After this many intervals without a value, the quota rises to its full value.
const PATIENCE: u32 = 10;

/// Follows a closure, in steps.
pub(super) struct Followed<F> {
    signal: F,
    share: f64,
    /// Calls without a value since the last one.
    silent: u32,
    outage: Outage,
}

impl<F> Followed<F> {
    pub(super) fn new(signal: F) -> Self {
        Self { signal, share: 1.0, silent: 0, outage: Outage::default() }
    }
}

impl<F: FnMut() -> f64 + Send> Source for Followed<F> {
    fn next(&mut self, bounds: &Bounds) -> f64 {
        // A panic leaves nothing of ours half done, and what the closure has is its own.
        let value = caught(&mut self.signal).filter(|value| !value.is_nan());
        let target = match value {
            Some(value) => {
                self.silent = 0;
                value.clamp(0.0, 1.0)
            }
            None => {
                if self.outage.failed() {
                    log!(warn, "the signal of an adaptive policy panicked or is not a number");
                }
                self.silent = self.silent.saturating_add(1);
                if self.silent < PATIENCE { self.share } else { 1.0 }
            }
        };
        let step = target.clamp(self.share * LARGEST_CUT, self.share + LARGEST_RISE);
        self.share = step.clamp(bounds.floor, 1.0);
        self.share
    }

    #[cfg(feature = "redis")]
    fn adopt(&mut self, share: f64) {
        self.share = share;
    }

    fn check(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOUNDS: Bounds = Bounds { floor: 0.1, interval: Duration::from_secs(1), most_in_flight: None };

    fn shares(values: impl IntoIterator<Item = f64, IntoIter: Send>) -> Vec<f64> {
        let mut values = values.into_iter();
        let (steps, _) = values.size_hint();
        let mut source = Followed::new(move || values.next().unwrap());
        (0..steps).map(|_| (source.next(&BOUNDS) * 1000.0).round() / 1000.0).collect()
    }

    #[test]
    fn a_share_falls_by_half_and_rises_by_a_tenth_of_the_quota_at_most() {
        assert_eq!(shares([0.9, 0.4, 0.0, 0.0, 0.0]), [0.9, 0.45, 0.225, 0.113, 0.1]);
        assert_eq!(shares([0.5, 1.0, 1.0, 0.65, 0.9]), [0.5, 0.6, 0.7, 0.65, 0.75]);
    }

    #[test]
    fn values_out_of_bounds_are_clamped() {
        assert_eq!(shares([f64::INFINITY, 7.0, -1.0, f64::NEG_INFINITY]), [1.0, 1.0, 0.5, 0.25]);
    }

    #[test]
    fn without_a_value_the_share_stays_for_ten_intervals_and_then_rises_to_the_full_quota() {
        let values = [0.5, 0.3].into_iter().chain([f64::NAN; 18]);
        let expected =
            [[0.5, 0.3].as_slice(), &[0.3; 9], &[0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0]].concat();
        assert_eq!(shares(values.collect::<Vec<_>>()), expected);

        let mut calls = 0;
        let mut source = Followed::new(move || {
            calls += 1;
            assert!(calls == 1 || calls == 14, "the sensor does not answer");
            0.5
        });
        let shares: Vec<f64> = (0..14).map(|_| source.next(&BOUNDS)).collect();
        assert_eq!(shares[..10], [0.5; 10]);
        assert!(shares[12] > 0.75 && shares[13] == 0.5, "{shares:?}");
    }

    #[test]
    fn a_larger_signal_never_gives_a_smaller_share() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 11) as f64 / (1_u64 << 53) as f64
        };
        let low: Vec<f64> = (0..1_000).map(|_| next() * 1.2 - 0.1).collect();
        let high: Vec<f64> = low.iter().map(|low| low + next() * 0.3).collect();
        for (low, high) in shares(low).into_iter().zip(shares(high)) {
            assert!((0.1..=1.0).contains(&low) && low <= high, "{low} {high}");
        }
    }
}
