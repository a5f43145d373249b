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
#[expect(unnameable_types, reason = "part of the sealed twins")]
mod concurrency;
mod fixed_window;
mod gcra;
mod leaky_bucket;
pub mod recipes;
#[expect(unnameable_types, reason = "this is what keeps twins to this crate")]
pub(crate) mod rules;
#[expect(unnameable_types, reason = "part of the sealed twins")]
mod sliding_log;
mod sliding_window;
mod token_bucket;

use std::{fmt, sync::LazyLock};

use self::rules::Twin;
pub use self::{
    concurrency::Concurrency, fixed_window::FixedWindow, gcra::Gcra, leaky_bucket::LeakyBucket,
    sliding_log::SlidingLog, sliding_window::SlidingWindow, token_bucket::TokenBucket,
};
use crate::{Error, Quota};

/// A way to count, handed to [`Policy::algorithm`](crate::Policy::algorithm).
///
/// An algorithm is a Lua file and the numbers it is called with. One of your own needs
/// [`name`](Self::name), [`lua`](Self::lua) and [`arguments`](Self::arguments), runs on
/// [`RedisStore`](crate::RedisStore), and is decided in one atomic step with the built-in ones. Those have
/// a twin in Rust for [`MemoryStore`](crate::MemoryStore) besides; a layer with a `MemoryStore` and an
/// algorithm of your own is refused when it is built.
///
/// # The Lua file
///
/// is the body of a function. It returns the function `plan(key, cost, arg)`, and, if units can be
/// refunded, the function `refund(key, units, arg, made, mark)` after it. `arg` is the place in `ARGV` of the first
/// of [`arguments`](Self::arguments). A refund is of the charge that was made at the time `made` and whose plan had
/// the `mark`; it must return no unit that another charge took. Where `made` is nil, an administrator returns the
/// latest units.
///
/// `plan` may read `key`, and no other key, and **writes nothing**. It returns a table:
///
/// | field | is |
/// |---|---|
/// | `retry` | 0: `cost` can be charged now; above 0: it can after so many microseconds; -1: never |
/// | `remaining` | the units that could be charged now |
/// | `reset` | the microseconds until the state is as good as new |
/// | `remaining_after`, `reset_after` | the same two after the charge; needed where `retry` is 0 |
/// | `delay` | nil, or the microseconds that the admitted request has to wait for its turn |
/// | `mark` | nil, or an integer from 0 that tells `refund`, together with the time, which charge this one was |
/// | `charge` | a function that writes the charge down, **with a TTL**; called only if every plan of the decision admits |
/// | `repair` | nil, or a function that writes stale state down anew; called when the decision is a refusal |
///
/// Numbers are integers below 2^53; a cost of 0 is always admitted. These stand ready, see
/// `lua/include/prelude.lua`: `now`, the only clock, in microseconds since 1970; `muldiv(a, b, m)` and
/// `muldiv_up(a, b, m)`, a product divided exactly; `integer(number)`, its digits; `ttl(microseconds)`, a
/// lifetime as `PX` wants it; and for state of one time and one count `read_count(key)` and
/// `write_count(key, at, count, lifetime)`.
///
/// A file that does not compile, a plan of another form, and, in a debug build, a write without a TTL are
/// [`StoreRefused`](crate::ErrorKind::StoreRefused) errors that say so;
/// [`RedisStore::try_out`](crate::RedisStore::try_out) finds them when the service starts.
///
/// # Example
///
/// `examples/custom_algorithm.rs`, with its Lua file beside it.
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// A short and stable name: 1 to 32 of `a` to `z`, `0` to `9` and `-`.
    ///
    /// It is part of the key that the state is kept under, so another format of the state takes another
    /// name.
    fn name(&self) -> &str;

    /// The Lua source, see [above](Self#the-lua-file).
    fn lua(&self) -> &str;

    /// `quota` and the algorithm's options as the integers that the Lua file finds from `ARGV[arg]` on.
    /// Below 2^53, or Lua does not hold them exactly.
    ///
    /// # Errors
    ///
    /// Where the quota is not for this algorithm. It surfaces when the policy is built.
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error>;

    /// The most units that can be taken at once; a cost above it is refused for good. Defaults to the
    /// quota's [`capacity`](Quota::capacity).
    fn capacity(&self, quota: &Quota) -> u64 {
        quota.capacity()
    }

    /// How units come back, for the fields that tell a client. Defaults to
    /// [`AtReset`](Replenishment::AtReset).
    fn replenishment(&self) -> Replenishment {
        Replenishment::AtReset
    }

    /// The same in Rust, for [`MemoryStore`](crate::MemoryStore). For now only this crate has twins.
    #[doc(hidden)]
    fn twin(&self) -> Option<&dyn Twin> {
        None
    }
}

/// One of each algorithm of this crate, whatever its options.
pub(crate) fn built_in() -> &'static [Box<dyn Algorithm>] {
    static ALL: LazyLock<Vec<Box<dyn Algorithm>>> = LazyLock::new(|| {
        vec![
            Box::new(Concurrency),
            Box::new(FixedWindow::anchored()),
            Box::new(Gcra),
            Box::new(LeakyBucket::meter()),
            Box::new(SlidingLog),
            Box::new(SlidingWindow::new()),
            Box::new(TokenBucket::new()),
        ]
    });
    &ALL
}

/// How units come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replenishment {
    /// One by one, at the quota's rate.
    Evenly,
    /// In no way that a client could be told, but all of them by the reset.
    AtReset,
    /// When who holds them gives them back. The algorithm finds the holder of a charge after its last
    /// argument, as 32 digits, and returns a third function, `renew(key, units, arg)`, that keeps its units.
    OnRelease,
}
