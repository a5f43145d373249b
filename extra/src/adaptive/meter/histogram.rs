//! Counts of latencies, from which a window takes its median.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Bits of a time that a bucket tells apart, after the first one. A bucket is a sixteenth of its power of two
/// wide.
const BITS: u32 = 4;
const STEPS: usize = 1 << BITS;
/// Times of 2^32 microseconds and more, 71 minutes, count as just below.
const LARGEST: u64 = (1 << 32) - 1;
const BUCKETS: usize = bucket(LARGEST) + 1;

/// Times, or other numbers, in buckets whose width is at most 6 % of the number. Counts only up, so each
/// reader subtracts what it has read before.
#[derive(Debug)]
pub(super) struct Histogram([AtomicU64; BUCKETS]);

/// The number of entries in each bucket at a moment, or between two moments.
#[derive(Clone, Debug)]
pub(super) struct Counts(Box<[u64]>);

impl Histogram {
    pub(super) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; BUCKETS])
    }

    pub(super) fn record(&self, time: Duration) {
        self.record_number(bounded_micros(time));
    }

    pub(super) fn record_number(&self, number: u64) {
        self.0[bucket(number.min(LARGEST))].fetch_add(1, Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        Counts(self.0.iter().map(|count| count.load(Relaxed)).collect())
    }
}

impl Counts {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self(self.0.iter().zip(&before.0).map(|(now, before)| now.saturating_sub(*before)).collect())
    }

    pub(super) fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of times above `time`, to the precision of a bucket.
    pub(super) fn above(&self, time: Duration) -> u64 {
        self.0[bucket(bounded_micros(time)) + 1..].iter().sum()
    }

    /// The median: the middle of its bucket. `None` without a time.
    pub(super) fn median(&self) -> Option<Duration> {
        self.median_bucket().map(|bucket| Duration::from_micros(middle(bucket)))
    }

    /// The seconds that all took together, if each took the median, and a microsecond at least.
    pub(super) fn work(&self) -> f64 {
        let median = self.median().unwrap_or_default().max(Duration::from_micros(1));
        self.total() as f64 * median.as_secs_f64()
    }

    /// The largest number: the middle of its bucket, so exact below 32. 0 without a number.
    pub(super) fn largest(&self) -> u64 {
        self.0.iter().rposition(|count| *count > 0).map_or(0, middle)
    }

    /// The same times, and the times of `longer` above their median.
    pub(super) fn with_longer(&self, longer: &Self) -> Self {
        let from = self.median_bucket().map_or(0, |bucket| bucket + 1);
        let mut counts = self.clone();
        counts.0[from..].iter_mut().zip(&longer.0[from..]).for_each(|(count, more)| *count += more);
        counts
    }

    fn median_bucket(&self) -> Option<usize> {
        let half = self.total().div_ceil(2);
        let mut below = 0;
        self.0.iter().position(|count| {
            below += count;
            half > 0 && below >= half
        })
    }
}

/// The bucket of a number, such as a time in microseconds, at most [`LARGEST`].
/// The whole microseconds of `time`, at most [`LARGEST`].
fn bounded_micros(time: Duration) -> u64 {
    time.as_micros().min(LARGEST.into()) as u64
}

const fn bucket(number: u64) -> usize {
    if number < STEPS as u64 {
        return number as usize;
    }
    let power = number.ilog2();
    let step = (number >> (power - BITS)) as usize % STEPS;
    (power - BITS + 1) as usize * STEPS + step
}

/// The middle of a bucket.
const fn middle(bucket: usize) -> u64 {
    if bucket < STEPS {
        return bucket as u64;
    }
    let width = 1 << (bucket / STEPS - 1);
    (STEPS + bucket % STEPS) as u64 * width + width / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_times_that_differ_by_at_most_six_percent() {
        let mut before = 0;
        let mut time = 0;
        while time < 1 << 33 {
            let bucket = bucket(time.min(LARGEST));
            assert!(bucket == before || bucket == before + 1, "{time}: {bucket} after {before}");
            let middle = middle(bucket) as f64;
            assert!((middle - time.min(LARGEST) as f64).abs() <= 0.033 * middle + 0.5, "{time}: {middle}");
            before = bucket;
            time += time / 100 + 1;
        }
        assert_eq!(before, BUCKETS - 1);
    }

    #[test]
    fn the_median_and_those_above_a_time_are_exact_to_the_bucket() {
        let histogram = Histogram::new();
        let empty = histogram.counts();
        assert_eq!((empty.total(), empty.median()), (0, None));
        for millis in 1..=101 {
            histogram.record(Duration::from_millis(millis));
        }
        let counts = histogram.counts();
        let median = counts.median().unwrap().as_secs_f64();
        assert!((0.0495..0.0525).contains(&median), "{median}");
        assert!((38..=42).contains(&counts.above(Duration::from_millis(60))));
        histogram.record(Duration::MAX);
        assert_eq!(histogram.counts().since(&counts).total(), 1);
        assert_eq!(histogram.counts().above(Duration::from_secs(3_600)), 1);
        assert_eq!(histogram.counts().above(Duration::MAX), 0);
    }

    #[test]
    fn the_largest_number_is_exact_below_32_and_to_the_bucket_above() {
        let histogram = Histogram::new();
        assert_eq!(histogram.counts().largest(), 0);
        for number in 1..32 {
            histogram.record_number(number);
            assert_eq!(histogram.counts().largest(), number);
        }
        histogram.record_number(1_000);
        histogram.record_number(7);
        assert!((970..=1_030).contains(&histogram.counts().largest()));
    }

    #[test]
    fn only_longer_times_are_added() {
        let of = |millis: &[u64]| {
            let histogram = Histogram::new();
            millis.iter().for_each(|millis| histogram.record(Duration::from_millis(*millis)));
            histogram.counts()
        };
        let both = of(&[100, 100, 100]).with_longer(&of(&[1, 1, 1, 1, 900, 900, 900, 900]));
        assert_eq!(both.total(), 7);
        assert!(both.median().unwrap() > Duration::from_millis(800));
        assert_eq!(of(&[]).with_longer(&of(&[1, 2])).total(), 2);
    }
}
