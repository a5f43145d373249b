//! How units are counted.
//!
//! # Which one when
//!
//! | algorithm | promises | at a window's edge | pick it for |
//! |---|---|---|---|
//! | [`Gcra`] (default) | the quota's rate, and a burst | none: quota comes back evenly | APIs, logins, nearly everything |
//! | [`TokenBucket`] | the same, refilled evenly or in steps, full or not at first | none, or a step | budgets that are topped up; clients that must earn their burst |
//! | [`LeakyBucket::meter`] | the same, told as a level that leaks | none | whoever thinks in leaky buckets |
//! | [`LeakyBucket::queue`] | departures evenly spaced at the quota's rate | none | smoothing the load on something slow, instead of refusing |
//! | [`FixedWindow`] | at most the limit in each window | twice the limit within a moment | quotas people count by: per calendar day, per hour of a plan |
//! | [`SlidingWindow`] | at most the limit in a window that slides over cells, within the width of a cell | smoothed | large limits for which a window's edge matters |
//! | [`Concurrency`] | at most the limit **at once** | none | what is in use for a while: exports, uploads, jobs |
//! | [`SlidingLog`] | at most the limit in **any** span of the period, exactly | none | small limits that must hold to the letter |
//!
//! | algorithm | Redis memory a key, with a key of 20 bytes | Redis commands: a refusal, a charge |
//! |---|---|---|
//! | [`Gcra`], [`TokenBucket`], [`LeakyBucket`], [`FixedWindow`] | 72 bytes, or 104 where a count passes 999 | GET; GET and SET |
//! | [`SlidingWindow`] | 104 bytes with one cell or two, and 5 for each cell more | GET; GET and SET |
//! | [`Concurrency`] | 50 to 140 bytes for each holder | ZSCORE, ZREVRANGE, ZRANGEBYSCORE; and ZADD |
//! | [`SlidingLog`] | 15 bytes for each admitted request that still counts | three or four LINDEX; those and RPUSH |
//!
//! A bucket takes up to 50 bytes more while units of it are on [lease](crate::Policy::leased), and as much after a refund,
//! for as long as any of its charges could be refunded.
//!
//! Coming from a Redis recipe, see [`recipes`]. To find out what a policy would have refused before it is
//! turned on, run `cargo run -p tools --bin replay` in the repository over an access log.
//!
//! # Each exists twice
//!
//! As a Lua file under `lua/`, which Redis runs, and as Rust, which [`MemoryStore`](crate::MemoryStore)
//! runs. A differential test holds the two, and a naive model, equal to the microsecond.
//!
//! # Common to all
//!
//! * A refused request is not charged. Neither is one of cost 0.
//! * A cost above the capacity is refused with no retry time: waiting cannot help.
//! * The retry time is the shortest wait after which the same request, on an otherwise idle key, is
//!   admitted: exactly then, and not a microsecond sooner.
//! * A clock that steps back gives nothing back and locks nobody out: the state is taken to be as old
//!   as it was, from the new time on.
//! * A changed quota keeps the state. A raised one counts what was charged against the new limit, and
//!   a lowered one binds at once; nobody waits longer than it takes to refill the new quota.

#[expect(unnameable_types, reason = "part of the sealed twins")]
mod bucket;
mod concurrency;
mod contract;
mod fixed_window;
mod gcra;
mod leaky_bucket;
pub mod recipes;
mod sliding_log;
mod sliding_window;
#[expect(unnameable_types, reason = "part of the sealed twins")]
pub(crate) mod state;
mod token_bucket;
#[expect(unnameable_types, reason = "this is what keeps twins to this crate")]
pub(crate) mod twin;

use std::sync::LazyLock;

pub use self::{
    concurrency::Concurrency,
    contract::{Algorithm, Replenishment},
    fixed_window::FixedWindow,
    gcra::Gcra,
    leaky_bucket::LeakyBucket,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
    token_bucket::TokenBucket,
};

/// One of each algorithm of this crate, whatever its options.
pub(crate) fn built_in() -> &'static [Box<dyn Algorithm>] {
    static ALL: LazyLock<Vec<Box<dyn Algorithm>>> = LazyLock::new(|| {
        vec![
            Box::new(Concurrency::new()),
            Box::new(FixedWindow::anchored()),
            Box::new(Gcra::new()),
            Box::new(LeakyBucket::meter()),
            Box::new(SlidingLog::new()),
            Box::new(SlidingWindow::new()),
            Box::new(TokenBucket::new()),
        ]
    });
    &ALL
}
