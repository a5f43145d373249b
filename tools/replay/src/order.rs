//! Sorts requests by their arrival: a log has them in the order of their ends.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use crate::request::Step;

/// The most steps that wait to be sorted, which bounds the memory.
const MOST: usize = 250_000;

/// Steps that wait until all that arrived before them were read.
pub(crate) struct Order {
    waiting: BinaryHeap<Reverse<Waiting>>,
    /// How much later than a request the last line of an earlier one may come, in microseconds.
    patience: u64,
    /// The latest arrival that was added, and that was taken out.
    added: u64,
    taken: u64,
    /// The number of requests whose line came too late to be sorted.
    pub(crate) late: u64,
}

struct Waiting {
    time: u64,
    line: u64,
    step: Step,
}

impl Order {
    pub(crate) const fn new(patience: u64) -> Self {
        Self { waiting: BinaryHeap::new(), patience, added: 0, taken: 0, late: 0 }
    }

    /// Adds the step of a line. A line that was skipped has no time, and stays after the line before it.
    pub(crate) fn add(&mut self, time: Option<u64>, line: u64, step: Step) {
        let time = time.unwrap_or(self.added);
        self.added = self.added.max(time);
        self.waiting.push(Reverse(Waiting { time, line, step }));
    }

    /// The first step, if no earlier one can follow or if `is_over`.
    pub(crate) fn next(&mut self, is_over: bool) -> Option<Step> {
        let first = &self.waiting.peek()?.0;
        let waits = first.time.saturating_add(self.patience) >= self.added;
        if waits && !is_over && self.waiting.len() < MOST {
            return None;
        }
        let Reverse(Waiting { time, mut step, .. }) = self.waiting.pop()?;
        if let Step::Request(request) = &mut step {
            self.late += u64::from(time < self.taken);
            // A clock that steps back would change what the algorithms do.
            request.time = time.max(self.taken);
        }
        self.taken = self.taken.max(time);
        Some(step)
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.line).cmp(&(other.time, other.line))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Waiting {}
