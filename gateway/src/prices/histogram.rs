//! [`Histogram`]: a decaying distribution of numbers of tokens.

/// The ranges of numbers that double. Numbers in the last one are not told apart.
const DOUBLINGS: usize = 24;
/// The ranges of each doubling, so a range is at most a fifth wider than its lower end.
const STEPS: usize = 4;

/// How often numbers in each range were added, where each addition makes the earlier ones weigh less.
#[derive(Clone)]
pub(super) struct Histogram {
    weights: [f32; DOUBLINGS * STEPS],
    added: u32,
}

impl Histogram {
    pub(super) const fn new() -> Self {
        Self { weights: [0.0; DOUBLINGS * STEPS], added: 0 }
    }

    /// The number of additions, at most [`u32::MAX`].
    pub(super) const fn added(&self) -> u32 {
        self.added
    }

    /// Adds `number`. The earlier numbers weigh `kept` of what they weighed before.
    pub(super) fn add(&mut self, number: u64, kept: f32) {
        self.weights.iter_mut().for_each(|weight| *weight *= kept);
        if let Some(weight) = self.weights.get_mut(range_of(number)) {
            *weight += 1.0;
        }
        self.added = self.added.saturating_add(1);
    }

    /// The upper end of the range below which `percent` of the weight is. 0 if nothing was added.
    pub(super) fn percentile(&self, percent: u8) -> u64 {
        let target = self.weights.iter().sum::<f32>() * f32::from(percent) / 100.0;
        let mut below = 0.0;
        for (range, weight) in self.weights.iter().enumerate() {
            below += weight;
            // The sums are rounded.
            if *weight > 0.0 && below >= target * 0.999_99 {
                return upper_end(range);
            }
        }
        0
    }
}

/// The range with `number`: the first whose upper end is not below it.
fn range_of(number: u64) -> usize {
    (0..DOUBLINGS * STEPS).find(|range| upper_end(*range) >= number).unwrap_or(DOUBLINGS * STEPS - 1)
}

/// The largest number of a range: 1.19, 1.41, 1.68 and 2 times a power of two, rounded down.
fn upper_end(range: usize) -> u64 {
    let factor = [1_219, 1_448, 1_722, 2_048].get(range % STEPS).copied().unwrap_or(2_048);
    (factor << (range / STEPS)) / 1_024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_at_most_a_fifth_above_each_of_its_numbers() {
        for number in (1..5_000).chain([1 << 20, (1 << 20) + 1, 15_000_000]) {
            let end = upper_end(range_of(number));
            assert!(end >= number && end * 5 <= number * 6 + 5, "{number}: {end}");
        }
        assert_eq!([range_of(0), range_of(u64::MAX)], [0, DOUBLINGS * STEPS - 1]);
    }

    #[test]
    fn a_percentile_follows_what_was_added_last() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.percentile(90), 0);
        for number in 1..=100 {
            histogram.add(number * 10, 1.0);
        }
        assert!((500..=600).contains(&histogram.percentile(50)), "{}", histogram.percentile(50));
        assert!((900..=1_080).contains(&histogram.percentile(90)), "{}", histogram.percentile(90));
        assert!((1_000..=1_200).contains(&histogram.percentile(100)), "{}", histogram.percentile(100));
        for _ in 0..300 {
            histogram.add(20, 0.99);
        }
        assert!((20..=24).contains(&histogram.percentile(90)), "{}", histogram.percentile(90));
        assert_eq!(histogram.added(), 400);
    }
}
