//! The algorithms that count a policy's units.
//!
//! # Choosing an algorithm
//!
//! | algorithm | promises | at a window's edge | use it for |
//! |---|---|---|---|
//! | [`Gcra`] (default) | the quota's rate, and a burst | no edge: units become available evenly | APIs, nearly everything |
//! | [`TokenBucket`] | the same; refills evenly or in steps, starts full or not | no edge, or a step | budgets that are topped up; clients that must earn their burst |
//! | [`LeakyBucket::meter`] | the same, as a level that drains | no edge | if you prefer the leaky bucket model |
//! | [`LeakyBucket::queue`] | requests leave evenly spaced at the quota's rate | no edge | smoothing the load on a slow service by delaying requests |
//! | [`FixedWindow`] | at most the limit in each window | up to twice the limit within a moment | quotas of a plan, per hour, calendar day, month or year |
//! | [`SlidingWindow`] | the limit per period if requests come evenly, up to twice the limit at worst; with `n` segments, at most the limit in any span one segment shorter than the period | smoothed | limits for which a window's edge matters |
//! | [`Concurrency`] | at most the limit **concurrently** | no edge | exports, uploads, jobs, connections |
//! | [`SlidingLog`] | at most the limit in **any** span as long as the period, exactly | no edge | small limits that must be exact |
//!
//! The memory in this table is for a key of 20 bytes. Redis's own tables take about 56 bytes more per key.
//!
//! | algorithm | Redis memory | Redis commands of a denial; of a charge |
//! |---|---|---|
//! | [`Gcra`], [`TokenBucket`], [`LeakyBucket`], [`FixedWindow`] | 104 bytes | GET; GET and SETRANGE or SET |
//! | [`SlidingWindow`] | 120 bytes with one or two segments, and 5 per further segment | GET; GET and SETRANGE or SET |
//! | [`Concurrency`] | 60 to 140 bytes per request that holds permits | ZSCORE, ZREVRANGE, ZRANGEBYSCORE; those and ZADD, PEXPIRE |
//! | [`SlidingLog`] | 15 bytes per admitted request that still counts | LLEN, LINDEX; those and RPUSH, PEXPIRE |
//!
//! A key of the first two rows is kept twice as long as its state matters, so that Redis can write it in place
//! while its client is active. After the last request, it is gone at the latest after twice the time in which
//! the quota is fully replenished.
//!
//! A key of [`Gcra`], [`TokenBucket`] or [`LeakyBucket`] takes up to 50 bytes more while units are
//! [leased](crate::Policy::max_lease), and after a refund, until none of the key's charges can be refunded
//! any more.
//!
//! If you know the algorithm as a Redis recipe, see [`recipes`]. To see what a policy would have denied, run
//! `cargo run -p replay` in the repository over an access log.
//!
//! # Rules of all algorithms
//!
//! * A denied request is not charged. A cost of 0 is always admitted.
//! * A cost above the capacity is denied without a retry time, because waiting does not help.
//! * The retry time is exact to the microsecond: the shortest wait after which the same request is admitted,
//!   if the key is idle until then. Under [`Concurrency`], it is the time until permits expire; they may be
//!   released sooner.
//! * A clock that steps back neither refills a quota nor blocks a client: the stored state is treated as if
//!   it had been written at the new time.
//! * A changed quota keeps the state. A raised limit admits more immediately; a lowered one applies
//!   immediately. No request waits longer than the new quota takes to refill.
//!
//! # Implementation
//!
//! Each algorithm exists twice: as a Lua file in `lua/`, which Redis runs, and in Rust, which
//! [`MemoryStore`](crate::MemoryStore) runs. A differential test compares both, and a naive model, to the
//! microsecond. For your own algorithm, see the [`Algorithm`] trait; its [`Twin`] in Rust is optional.

use std::sync::LazyLock;

/// The methods of [`Algorithm`] that every built-in algorithm has: its name, its file in `lua/algorithm`, and
/// its Rust form.
macro_rules! built_in {
    ($name:expr, $file:literal) => {
        fn name(&self) -> &str {
            $name
        }

        // See `lua!` in `store/redis/script.rs`.
        #[cfg(not(lua_at_run_time))]
        fn lua(&self) -> &str {
            include_str!(concat!("../../lua/algorithm/", $file))
        }

        #[cfg(lua_at_run_time)]
        fn lua(&self) -> &str {
            concat!("@algorithm/", $file)
        }

        fn counter(&self) -> Option<&dyn Counter> {
            Some(self)
        }
    };
}

#[expect(unnameable_types, reason = "part of the sealed counters")]
mod bucket;
#[expect(unnameable_types, reason = "part of the sealed counters")]
mod calendar;
pub(crate) mod checked_twin;
mod concurrency;
mod contract;
#[expect(unnameable_types, reason = "this is what keeps counters to this crate")]
pub(crate) mod counter;
mod fixed_window;
mod gcra;
pub(crate) mod guarantee;
mod leaky_bucket;
pub(crate) mod penalty;
pub mod recipes;
mod sliding_log;
mod sliding_window;
#[expect(unnameable_types, reason = "part of the sealed counters")]
pub(crate) mod state;
mod token_bucket;
#[expect(unnameable_types, reason = "part of the sealed counters")]
pub(crate) mod twin;

pub use self::{
    calendar::Weekday,
    concurrency::Concurrency,
    contract::{Algorithm, Replenishment},
    fixed_window::FixedWindow,
    gcra::Gcra,
    leaky_bucket::LeakyBucket,
    sliding_log::SlidingLog,
    sliding_window::SlidingWindow,
    token_bucket::TokenBucket,
    twin::{Evaluation, Input, KeyState, Receipt, Twin, Update},
};

/// Returns one instance of each algorithm of this crate, with any options.
pub(crate) fn built_in() -> &'static [Box<dyn Algorithm>] {
    static ALL: LazyLock<Vec<Box<dyn Algorithm>>> = LazyLock::new(|| {
        vec![
            Box::new(Concurrency::new()),
            Box::new(FixedWindow::anchored()),
            Box::new(Gcra::new()),
            Box::new(guarantee::Guarantee),
            Box::new(LeakyBucket::meter()),
            Box::new(SlidingLog::new()),
            Box::new(SlidingWindow::new()),
            Box::new(TokenBucket::new()),
            Box::new(penalty::Strikes { after: 1, within: 1, first: 1, longest: 1, remembered: 0 }),
        ]
    });
    &ALL
}
