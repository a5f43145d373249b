//! [`Timeline`]: counts over time, in bounded memory.

/// The widths of a span, in seconds. Each is a multiple of the one before, so spans can be merged.
const WIDTHS: [u64; 15] =
    [1, 5, 15, 30, 60, 300, 900, 1_800, 3_600, 10_800, 21_600, 43_200, 86_400, 604_800, 4_233_600];
/// With more spans than this, spans are merged.
const MOST_SPANS: usize = 120;

/// Counts in spans of time that are as long as the number of spans requires.
#[derive(Debug)]
pub(crate) struct Timeline {
    width: usize,
    /// The number of the first span.
    first: u64,
    /// For each span, the counts.
    spans: Vec<Vec<u64>>,
    counts: usize,
}

impl Timeline {
    /// A timeline of this many counts.
    pub(crate) const fn new(counts: usize) -> Self {
        Self { width: 0, first: 0, spans: Vec::new(), counts }
    }

    /// The counts of the span with this time, in microseconds.
    pub(crate) fn at(&mut self, time: u64) -> &mut [u64] {
        let second = time / 1_000_000;
        if self.spans.is_empty() {
            self.first = second / self.seconds();
            self.spans.push(vec![0; self.counts]);
        }
        loop {
            let (number, last) = (second / self.seconds(), self.first + self.spans.len() as u64 - 1);
            let needed = number.max(last) - number.min(self.first) + 1;
            if needed <= MOST_SPANS as u64 || self.width + 1 == WIDTHS.len() {
                break;
            }
            self.merge();
        }
        let number = second / self.seconds();
        // Only a JSON line can have an earlier time. Beyond the longest span, the ends count the rest.
        while number < self.first && self.spans.len() < MOST_SPANS {
            self.spans.insert(0, vec![0; self.counts]);
            self.first -= 1;
        }
        let place =
            usize::try_from(number.saturating_sub(self.first)).unwrap_or(usize::MAX).min(MOST_SPANS - 1);
        if place >= self.spans.len() {
            self.spans.resize(place + 1, vec![0; self.counts]);
        }
        &mut self.spans[place]
    }

    /// Makes spans longer.
    fn merge(&mut self) {
        let old = self.seconds();
        self.width += 1;
        let factor = self.seconds() / old;
        let first = self.first / factor;
        let mut merged: Vec<Vec<u64>> = Vec::new();
        for (place, span) in self.spans.iter().enumerate() {
            let number = ((self.first + place as u64) / factor - first) as usize;
            if number >= merged.len() {
                merged.resize(number + 1, vec![0; self.counts]);
            }
            merged[number].iter_mut().zip(span).for_each(|(sum, count)| *sum += count);
        }
        (self.first, self.spans) = (first, merged);
    }

    /// The length of a span.
    pub(crate) const fn seconds(&self) -> u64 {
        WIDTHS[self.width]
    }

    /// The start of the first span, in seconds since 1970.
    pub(crate) const fn start(&self) -> u64 {
        self.first * self.seconds()
    }

    /// For each span, the counts.
    pub(crate) fn spans(&self) -> &[Vec<u64>] {
        &self.spans
    }
}
