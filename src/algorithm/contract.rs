//! The trait that every algorithm implements.

use std::fmt;

use super::twin::Twin;
use crate::{error::Error, quota::Quota};

/// A way to count units; see [`Policy::algorithm`](crate::Policy::algorithm).
///
/// An algorithm is a Lua file and the numbers it is called with. Your own algorithm implements [`name`](Self::name),
/// [`lua`](Self::lua) and [`arguments`](Self::arguments), and runs on [`RedisStore`](crate::RedisStore). It is decided
/// together with built-in algorithms in one atomic step. It does not run on [`MemoryStore`](crate::MemoryStore), which
/// needs a twin in Rust: building a layer with a `MemoryStore` and your own algorithm panics.
///
/// # The Lua file
///
/// The file is the body of a function. It returns the function `plan(key, cost, arg)` and, if units can be refunded,
/// the function `refund(key, units, arg, made, mark)`.
///
/// In both, `key` is the only key that the function may use, and `arg` is the index in `ARGV` of the first of the
/// [`arguments`](Self::arguments).
///
/// ## `plan`
///
/// `plan` reads `key`, **writes nothing**, and returns a table:
///
/// | field | content |
/// |---|---|
/// | `retry` | 0: `cost` can be charged now; above 0: the microseconds until it can; -1: never |
/// | `remaining` | the units that can be charged now, before the charge |
/// | `reset` | the microseconds until the quota is fully replenished, before the charge |
/// | `remaining_after`, `reset_after` | the same after the charge; required if `retry` is 0 |
/// | `delay` | nil, or the microseconds that the admitted request must wait |
/// | `mark` | nil, or an integer of at least 0 that identifies the charge for `refund`, together with its time |
/// | `charge` | a function that writes the charge, **with a TTL**; called only if every plan of the decision admits |
/// | `repair` | nil, or a function that rewrites stale state, with a TTL; called if the decision is denied |
///
/// All numbers are integers below 2^53. A cost of 0 must be admitted.
///
/// ## `refund`
///
/// `refund` refunds up to `units` units of the charge that was made at the time `made` with the mark `mark`. It must
/// not refund units that another charge owns. If `made` is nil, an administrator refunds the latest units of any
/// charge.
///
/// ## What the file can use
///
/// | name | value |
/// |---|---|
/// | `now` | the time in microseconds since 1970; the only clock |
/// | `muldiv(a, b, m)` | the quotient and the remainder of `a * b / m`, exactly; arguments up to 2^45 |
/// | `muldiv_up(a, b, m)` | `a * b / m`, rounded up |
/// | `integer(number)` | the number as text; do not use `..` or `tostring`, which print 14 digits |
/// | `ttl(microseconds)` | a lifetime as the text that `PX` and `PEXPIRE` take |
/// | `read_count(key)` | the time and the count that `write_count` wrote; nil if there is no key |
/// | `write_count(key, at, count, lifetime)` | writes a time and a count, with a TTL for `lifetime` microseconds |
///
/// Everything else in the repository's `lua/include` may change. `lua/README.md` in the repository describes how the
/// built-in algorithms and the script work.
///
/// # Errors
///
/// The errors below are [`StoreFailed`](crate::ErrorKind::StoreFailed) errors of the decision, with a text that says
/// what is wrong. [`RedisStore::try_out`](crate::RedisStore::try_out) finds them when the service starts.
///
/// * The file does not compile, or uses a global variable.
/// * The plan lacks a field or has one of another type.
/// * In debug builds: the file wrote a key without a TTL.
///
/// # Example
///
/// A limit per hour of the clock. `examples/custom_algorithm.rs` in the repository is a complete program.
///
/// ```
/// use tower_ratelimit::{Error, Policy, Quota, algorithm::Algorithm};
///
/// /// Counts the units of each hour of the clock.
/// #[derive(Debug)]
/// struct Hourly;
///
/// impl Algorithm for Hourly {
///     fn name(&self) -> &str {
///         "hourly"
///     }
///
///     fn lua(&self) -> &str {
///         r"
///         return function(key, cost, arg)
///           local limit, started = tonumber(ARGV[arg]), now - now % 3600000000
///           local at, used = read_count(key)
///           if at ~= started then
///             used = 0
///           end
///           local left, free = started + 3600000000 - now, math.max(0, limit - used)
///           local retry = cost <= free and 0 or left
///           if cost > limit then
///             retry = -1
///           end
///           return {
///             retry = retry,
///             remaining = free,
///             reset = used > 0 and left or 0,
///             remaining_after = free - cost,
///             reset_after = used + cost > 0 and left or 0,
///             charge = function()
///               write_count(key, started, used + cost, left)
///             end,
///           }
///         end"
///     }
///
///     fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
///         Ok(vec![quota.limit()])
///     }
/// }
///
/// let reports = Policy::new("reports", Quota::per_hour(5)).algorithm(Hourly);
/// assert_eq!(reports.capacity(), 5);
/// ```
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// Returns the algorithm's name: 1 to 32 characters of `a` to `z`, `0` to `9` and `-`. Must not be the name of a
    /// built-in algorithm.
    ///
    /// The name is a part of each key in Redis. Use another name when the format of the state changes.
    fn name(&self) -> &str;

    /// Returns the Lua source; see [above](Self#the-lua-file).
    fn lua(&self) -> &str;

    /// Returns the integers that the Lua file finds in `ARGV` from `ARGV[arg]` on: what it needs of `quota` and of the
    /// algorithm's options. They must be below 2^53, because Lua numbers are exact up to there.
    ///
    /// # Errors
    ///
    /// If the algorithm does not support the quota. [`Policy::try_algorithm`](crate::Policy::try_algorithm) returns
    /// the error; [`Policy::algorithm`](crate::Policy::algorithm) panics with it.
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error>;

    /// Returns the most units that one request can be charged, from 1 to 2^44. A higher cost is denied without a retry
    /// time. Defaults to the quota's [`capacity`](Quota::capacity).
    fn capacity(&self, quota: &Quota) -> u64 {
        quota.capacity()
    }

    /// Returns how charged units become available again, for the response headers. Defaults to
    /// [`AtReset`](Replenishment::AtReset).
    fn replenishment(&self) -> Replenishment {
        Replenishment::AtReset
    }

    /// Returns the same algorithm in Rust, for [`MemoryStore`](crate::MemoryStore). Only this crate has twins.
    #[doc(hidden)]
    fn twin(&self) -> Option<&dyn Twin> {
        None
    }
}

/// How charged units become available again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Replenishment {
    /// One by one, at the quota's rate.
    Evenly,
    /// At times that response headers cannot express; all of them by the reset.
    AtReset,
    /// When their holder releases them.
    ///
    /// The driver passes the holder of a charge after the algorithm's last argument, as 32 hexadecimal digits. The Lua
    /// file returns a third function, `renew(key, units, arg)`, which renews the holder's units.
    OnRelease,
}
