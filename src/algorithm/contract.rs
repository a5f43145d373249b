//! The trait that every algorithm implements.

use std::fmt;

use super::{counter::Counter, twin::Twin};
use crate::base::{Error, Quota};

/// A way to count units; see [`Policy::algorithm`](crate::Policy::algorithm).
///
/// An algorithm is a Lua file and the numbers it is called with. Your own algorithm implements
/// [`name`](Self::name), [`lua`](Self::lua) and [`arguments`](Self::arguments), and runs on
/// [`RedisStore`](crate::RedisStore). It is decided together with built-in algorithms in one atomic step. To
/// run it on [`MemoryStore`](crate::MemoryStore) too, implement [`twin`](Self::twin): the same in Rust.
/// Without it, building a layer with a `MemoryStore` panics.
///
/// # The Lua file
///
/// The file is the body of a function that returns a table of functions. They are pure: they receive the
/// state of one key and return the new one, and the store reads and writes it. They cannot reach Redis.
///
/// The state of a key is three values:
///
/// | value | content |
/// |---|---|
/// | `time` | a time in microseconds since 1970; `false` for a key that does not exist |
/// | `count` | a count |
/// | `text` | nil, or a text with more state, in a format of the algorithm |
///
/// All numbers are integers from 0 to 2^53 - 1. All times are microseconds.
///
/// ## `decide(policy, cost, time, count, text, holder)`
///
/// Evaluates `cost`, which is at most one above the [`capacity`](Self::capacity). Returns, in this order:
///
/// | value | content |
/// |---|---|
/// | `retry` | 0: admitted; above 0: denied, and admitted at the earliest after this time; `NEVER`: denied, and waiting does not help |
/// | `remaining` | the units that can be charged, after the charge if it is admitted |
/// | `reset` | the time until the quota is fully replenished, after the charge if it is admitted |
/// | `delay` | nil, or the time that the admitted request must wait |
/// | `mark` | nil, or an integer that identifies the charge for `refund`, together with its time |
/// | `lifetime` | nil: the state stays as it is; or the time for which the new state matters, at least 1 |
/// | `time`, `count`, `text` | the new state, if there is a lifetime |
///
/// * A cost of 0 must be admitted. Its new state is not written.
/// * A cost above 0 that is admitted needs a lifetime. If another policy denies the request, the state is not
///   written.
/// * A denied cost needs none, and must not be charged. It may rewrite state that the clock or a changed
///   quota made stale, so that the retry time stays true.
///
/// `policy` is a list of the [`arguments`](Self::arguments), or what the file's function `policy` returns.
/// `holder` is nil except with [`OnRelease`](Replenishment::OnRelease).
///
/// ## `refund(policy, units, made, mark, time, count, text, holder)`
///
/// Optional. Refunds up to `units` units of the charge that was made at the time `made` with the mark `mark`:
/// as many as still count, and none that another charge owns. If `made` is nil, an operator refunds the
/// latest units of any charge. Returns `lifetime, time, count, text`, or nil if nothing changes. In place of
/// the lifetime, `KEEP_TTL` keeps the key's TTL, and `REMOVE` removes the key. A file without `refund`
/// refunds nothing.
///
/// ## `renew(policy, units, time, count, text, holder)`
///
/// Required with [`OnRelease`](Replenishment::OnRelease). Renews the units of the holder, and adds them again
/// if the key was lost. Returns the same as `refund`.
///
/// ## `policy(...)`
///
/// Optional. Receives the arguments and returns the value that the other functions receive as `policy`.
///
/// ## What the file can use
///
/// | name | value |
/// |---|---|
/// | `now` | the time in microseconds since 1970; the only clock |
/// | `muldiv(a, b, m)` | the quotient and the remainder of `a * b / m`, exactly; arguments up to 2^45 |
/// | `muldiv_up(a, b, m)` | `a * b / m`, rounded up |
/// | `floor`, `format` | `math.floor` and `string.format`. To write a number use `format('%d', n)`: `..` and `tostring` print 14 digits |
/// | `NEVER`, `REMOVE`, `KEEP_TTL` | see above |
///
/// and Lua's standard functions. `redis`, `KEYS` and `ARGV` are nil, and there are no global variables.
/// Everything else in the repository's `lua/include` may change.
///
/// Of an error that the file raises, only the text that follows `RATELIMIT-ALGORITHM ` is shown, because the
/// rest may contain an identity: `error('RATELIMIT-ALGORITHM the limit by day is 0', 0)`.
///
/// # Errors
///
/// A mistake in the file is a [`StoreFailed`](crate::ErrorKind::StoreFailed) error of the decision, which
/// then changes nothing. [`RedisStore::probe_policy`](crate::RedisStore::probe_policy) finds most of them
/// when the service starts:
///
/// * The file does not compile, raises an error, uses a global variable or calls Redis.
/// * It does not return a table with the function `decide`, or lacks `renew` where it is called.
/// * A value is missing, of another type, a fraction or out of range. The error names the value.
/// * A cost of 0 is denied, or a cost above 0 is admitted without a lifetime.
/// * `KEEP_TTL` is returned for a key that does not exist.
///
/// # Example
///
/// A limit per hour of the clock, with its twin. `examples/custom_algorithm.rs` in the repository is a
/// complete program.
///
/// ```
/// use std::time::Duration;
/// use tower_ratelimit::{
///     Error, Key, Limiter, MemoryStore, Policy, Quota,
///     algorithm::{Algorithm, Evaluation, Input, KeyState, Twin}, store::ManualClock,
/// };
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
///         local HOUR = 3600000000
///
///         local function decide(policy, cost, time, count)
///           local limit, started = policy[1], now - now % HOUR
///           local left = started + HOUR - now
///           local used = time == started and count or 0
///           local free = math.max(0, limit - used)
///           if cost > free then
///             return cost > limit and NEVER or left, free, used > 0 and left or 0
///           end
///           used = used + cost
///           return 0, free - cost, used > 0 and left or 0, nil, nil, left, started, used
///         end
///
///         return { decide = decide }"
///     }
///
///     fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error> {
///         Ok(vec![quota.limit()])
///     }
///
///     fn twin(&self) -> Option<&dyn Twin> {
///         Some(self)
///     }
/// }
///
/// impl Twin for Hourly {
///     fn decide(&self, input: &Input<'_>, cost: u64) -> Evaluation {
///         const HOUR: u64 = 3_600_000_000;
///         let (limit, started) = (input.arguments[0], input.now - input.now % HOUR);
///         let left = started + HOUR - input.now;
///         let used = input.state.filter(|state| state.time == started).map_or(0, |state| state.count);
///         let free = limit.saturating_sub(used);
///         let reset = |used| if used > 0 { left } else { 0 };
///         if cost > free {
///             let retry = (cost <= limit).then_some(left);
///             return Evaluation::deny(retry, free, reset(used));
///         }
///         let used = used + cost;
///         Evaluation::admit(free - cost, reset(used)).write(KeyState::new(started, used), left)
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// let clock = ManualClock::new(); // midnight
/// let limiter = Limiter::new(MemoryStore::with_clock(clock.clone()));
/// let reports = Policy::new("reports", Quota::per_hour(5)).algorithm(Hourly);
/// let tenant = Key::new("acme");
///
/// clock.advance(Duration::from_secs(600));
/// assert_eq!(limiter.check(&reports, &tenant, 5).await?.remaining(), Some(0));
/// let denied = limiter.check(&reports, &tenant, 1).await?;
/// assert_eq!(denied.retry_after(), Some(Duration::from_secs(3_000)));
/// # Ok(())
/// # }
/// ```
pub trait Algorithm: fmt::Debug + Send + Sync + 'static {
    /// Returns the algorithm's name: 1 to 32 characters of `a` to `z`, `0` to `9` and `-`. Must not be the
    /// name of a built-in algorithm.
    ///
    /// The name is a part of each key in Redis. Use another name when the format of the state changes.
    fn name(&self) -> &str;

    /// Returns the Lua source; see [above](Self#the-lua-file).
    fn lua(&self) -> &str;

    /// Returns the integers that the Lua file and its twin receive: what they need of `quota` and of the
    /// algorithm's options. They must be below 2^53, because Lua numbers are exact up to there.
    ///
    /// # Errors
    ///
    /// If the algorithm does not support the quota. [`Policy::try_algorithm`](crate::Policy::try_algorithm)
    /// returns the error; [`Policy::algorithm`](crate::Policy::algorithm) panics with it.
    fn arguments(&self, quota: &Quota) -> Result<Vec<u64>, Error>;

    /// Returns the most units that one request can be charged, from 1 to 2^44. A higher cost is denied
    /// without a retry time. Defaults to the quota's [`capacity`](Quota::capacity).
    fn capacity(&self, quota: &Quota) -> u64 {
        quota.capacity()
    }

    /// Returns how charged units become available again, for the response headers. Defaults to
    /// [`AtReset`](Replenishment::AtReset).
    fn replenishment(&self, _quota: &Quota) -> Replenishment {
        Replenishment::AtReset
    }

    /// Returns the same algorithm in Rust, for [`MemoryStore`](crate::MemoryStore). Defaults to `None`. Not
    /// used for the built-in algorithms.
    fn twin(&self) -> Option<&dyn Twin> {
        None
    }

    /// Returns the Rust form of a built-in algorithm. Hidden, because only this crate can make a `Counter`.
    #[doc(hidden)]
    fn counter(&self) -> Option<&dyn Counter> {
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
    /// All together when a window ends, which is the reset. Headers state it as it is.
    InWindows,
    /// When their holder releases them.
    ///
    /// The functions of the algorithm receive the holder of the units as 32 hexadecimal digits. A refund
    /// names the holder, not the time and the mark of the charge, and must release its units. `renew` must
    /// keep them from expiring, and add them again if the key was lost.
    OnRelease,
}
