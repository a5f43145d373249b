//! What the algorithms remember of a key, in process.

use std::collections::VecDeque;

/// What an algorithm remembers of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Count(Count),
    /// A bucket's, after a refund.
    Refunded(Box<(Count, Refunds)>),
    // In a box, so that the most common state, a count, does not take up the room of the largest.
    Log(Box<Log>),
    Cells(Box<Cells>),
    Holders(Box<Holders>),
}

/// A time and a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub at: u64,
    pub count: u64,
}

impl State {
    /// A bucket's, which takes less room where there was no refund.
    pub fn bucket(count: Count, refunds: Refunds) -> Self {
        if refunds == Refunds::default() {
            Self::Count(count)
        } else {
            Self::Refunded(Box::new((count, refunds)))
        }
    }
}

/// By how many microseconds refunds moved a bucket's front, and since when; see `lua/include/bucket.lua`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refunds {
    pub by: u64,
    pub since: u64,
}

/// The counts of equal spans of time, the latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    pub began: u64,
    pub width: u64,
    pub counts: Box<[u64]>,
}

/// The requests that may still count, oldest first. Like the list in Redis, it keeps for each the units
/// charged up to and with it, so that what is used is known without a walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The units of everything before the first entry.
    pub(super) before: u128,
    pub(super) entries: VecDeque<Entry>,
}

/// A request of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: u64,
    pub(super) total: u128,
}

/// Who has units in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The units of all of them.
    pub(super) units: u64,
    /// Sorted by when they expire.
    pub(super) sorted: Vec<Holder>,
}

/// A holder of units, and when it expires unless it is renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) expires: u64,
    pub(super) units: u64,
    pub(super) id: u128,
}
