//! What an algorithm is.

use std::fmt;

use super::twin::Twin;
use crate::{error::Error, quota::Quota};

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
/// [`StoreFailed`](crate::ErrorKind::StoreFailed) errors that say so;
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
