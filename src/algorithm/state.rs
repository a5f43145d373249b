//! The state that the algorithms keep per key, in process.

use std::collections::VecDeque;

use super::twin::KeyState;

/// The state of a key under one algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Count(Count),
    /// The state of a bucket with more than a level.
    Bucket(Box<(Count, Extra, Rate)>),
    /// The state of a fixed window with a debt.
    Window(Box<(Count, Owed)>),
    // Boxed, so that a count, the most frequent state, stays small.
    Log(Box<Log>),
    Cells(Box<Cells>),
    Holders(Box<Holders>),
    Record(Box<Record>),
    Custom(Box<KeyState>),
}

/// A time and a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub at: u64,
    pub count: u64,
}

/// What a bucket has in addition to its level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    pub refunds: Refunds,
    /// The units above the level; see "Two quotas of a bucket" in `lua/README.md`.
    pub above: u64,
    /// The capacity of the quota that the level is of.
    pub capacity: u64,
    /// The units of the level that are owed: a debt.
    pub owed: u64,
    /// If this is after the time of the level, no time passed in between: refunds drained the bucket for that
    /// much longer.
    pub real_from: u64,
}

/// What a fixed window has in addition to its count; see "The debt of a window" in `lua/README.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// The units beyond the limit that debits charged, for which the next windows pay.
    pub units: u64,
    /// The units of the count that were charged in earlier windows.
    pub carried: u64,
    /// The mark of the charges in the last of those windows.
    pub from: u64,
}

/// A period in microseconds, and the units that drain in it.
pub(super) type Rate = (u64, u64);

/// By how many microseconds refunds moved the front of a bucket, and when that sum last started from 0; see
/// "Refunds of a bucket" in `lua/README.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refunds {
    pub by: u64,
    pub since: u64,
}

/// The units of consecutive cells of time, the latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// When the latest cell started.
    pub started: u64,
    pub width: u64,
    pub counts: Box<[u64]>,
}

/// The requests that may still count, the oldest first. Like the list in Redis, it stores running totals, so
/// that the units in use are known without iterating.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// The total before the first entry.
    pub(super) before: u128,
    pub(super) entries: VecDeque<Entry>,
}

/// A request in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) at: u64,
    /// The units charged up to and including this request.
    pub(super) total: u128,
}

/// The denials and bans of a key under a penalty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When the window of denials started, or when the key was banned after it.
    pub(super) started: u64,
    /// The denials in the window.
    pub(super) denials: u64,
    /// How many bans denials have caused.
    pub(super) bans: u64,
    /// When the latest ban ends; 0 if none is remembered.
    pub(super) ends: u64,
}

/// The holders of permits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// The units of all holders.
    pub(super) units: u64,
    /// The holders, sorted by the time they expire, then by `id`, as Redis sorts them.
    pub(super) sorted: Vec<Holder>,
}

/// A holder of permits, which expire unless they are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub(super) expires: u64,
    pub(super) id: u128,
    pub(super) units: u64,
    /// How long its permits last after a renewal: the period of its charge.
    pub(super) period: u64,
}
