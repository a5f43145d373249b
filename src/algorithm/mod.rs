//! How units are counted.
//!
//! | algorithm | promises | at the edge | state | pick it for |
//! |---|---|---|---|---|
//! | [`Gcra`] (default) | the quota's rate, with bursts up to its capacity | none: quota comes back evenly | one number | APIs, logins, nearly everything |
//! | [`FixedWindow`] | at most the limit in each window | twice the limit within a moment, half before the edge and half after | one number | quotas people count by: per calendar day, per month's plan |
//!
//! Each exists twice: as a Lua file under `lua/`, which Redis runs, and as Rust, which
//! [`MemoryStore`](crate::MemoryStore) runs. A differential test holds the two, and a naive model,
//! equal to the microsecond.
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

mod fixed_window;
mod gcra;

use std::fmt;

pub use self::{fixed_window::FixedWindow, gcra::Gcra};

/// A way to count: [`Gcra`] or [`FixedWindow`], handed to [`Policy::algorithm`](crate::Policy::algorithm).
///
/// The trait is sealed for now: its other half, the contract with the Lua files, is not settled enough
/// to be built upon from outside.
pub trait Algorithm: rules::Rules + fmt::Debug + Send + Sync + 'static {}

#[expect(unnameable_types, reason = "this is what seals `Algorithm`")]
pub(crate) mod rules {
    use crate::{Error, Quota};

    /// What an algorithm is to a policy and to the stores. Times are microseconds since 1970.
    pub trait Rules {
        /// Short, stable, and part of the key its state is kept under: another state format takes
        /// another name. Also the name the Lua file registers.
        fn name(&self) -> &'static str;

        /// The Lua file.
        fn lua(&self) -> &'static str;

        /// `quota` and the algorithm's options as the numbers that both twins plan with, or why the
        /// quota is not for this algorithm.
        fn parameters(&self, quota: &Quota) -> Result<Vec<u64>, Error>;

        /// How quota comes back, for the fields that tell a client.
        fn replenishment(&self) -> Replenishment;

        /// The in-process twin of the Lua file.
        fn plan(&self, parameters: &[u64], state: Option<Count>, now: u64, cost: u64) -> Plan;
    }

    /// How quota comes back.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Replenishment {
        /// Unit by unit, evenly.
        Evenly,
        /// All of it, at the reset.
        AtReset,
    }

    /// State of one time and one count.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Count {
        pub at: u64,
        pub count: u64,
    }

    /// What would happen if the charge were carried out, and if not. See `lua/decide.lua`.
    #[derive(Clone, Copy, Debug)]
    pub struct Plan {
        pub admission: Admission,
        pub before: Gauge,
        pub after: Gauge,
        pub charged: Count,
        /// What a refusal has to write down, where the clock or the quota made the state stale.
        pub repaired: Option<Count>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Admission {
        Now,
        /// In so many microseconds.
        Later(u64),
        Never,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Gauge {
        pub remaining: u64,
        /// Microseconds until the state is as good as new.
        pub reset: u64,
    }
}
