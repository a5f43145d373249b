//! What an in-process twin of a Lua file is. See `lua/decide.lua` for the same in Lua.

use super::{concurrency::Unit, sliding_log::Log};

/// The twin of a Lua file: the same arguments, the same state, the same arithmetic. All times are
/// microseconds since 1970.
pub trait Twin: Send + Sync {
    /// What would happen to `state` now. Changes nothing.
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan;

    /// For how many microseconds `units` units of a lease that nobody gives back may be missed; `None` where
    /// units cannot be leased without admitting more than the limit at some time.
    fn missed(&self, arguments: &[u64], units: u64) -> Option<u64> {
        let _ = (arguments, units);
        None
    }

    /// `state` after `change`, and for how much longer it matters; `None` where nothing is left of it.
    fn apply(&self, arguments: &[u64], state: Option<State>, now: u64, change: Change) -> Option<Kept>;

    /// What a decision over one charge does: plans it, and carries it out or, where it is refused, writes
    /// stale state down anew.
    fn take(&self, arguments: &[u64], state: &mut Option<State>, now: u64, cost: u64, holder: u128) -> Taken {
        let Plan { admission, before, after, stale } = self.plan(arguments, state.as_ref(), now, cost);
        let (gauge, change) = if admission.is_admitted() {
            (after, Some(Change::Charge(cost, holder)))
        } else {
            (before, stale.then_some(Change::Repair))
        };
        let change = change.filter(|_| cost > 0);
        let lifetime = change.map(|change| self.change(arguments, state, now, change));
        Taken { admission, gauge, lifetime }
    }

    /// [`apply`](Self::apply), in place. For how much longer the state matters.
    fn change(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> u64 {
        let kept = self.apply(arguments, state.take(), now, change);
        let lifetime = kept.as_ref().map_or(0, |kept| kept.lifetime);
        *state = kept.map(|kept| kept.state);
        lifetime
    }
}

/// What an algorithm remembers of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Count(Count),
    // In a box, so that the most common state, a count, does not take up the room of the largest.
    Log(Box<Log>),
    Cells(Box<Cells>),
    /// The units in use, sorted by when they expire.
    Holders(Vec<Unit>),
}

/// A time and a number of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub at: u64,
    pub count: u64,
}

/// The counts of equal spans of time, the latest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    pub began: u64,
    pub width: u64,
    pub counts: Box<[u64]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A charge that was planned and admitted, and its holder.
    Charge(u64, u128),
    /// What a refusal writes down where the clock or the quota made the state stale.
    Repair,
    /// Units given back, and who held them.
    Refund(u64, u128),
    /// A holder that lives on.
    Renew(u128),
}

/// State, and for how many more microseconds it matters.
#[derive(Debug)]
pub struct Kept {
    pub state: State,
    pub lifetime: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub admission: Admission,
    pub before: Gauge,
    /// As it is once the charge is carried out; as `before` where it is not admitted.
    pub after: Gauge,
    /// Whether a refusal has something to write down.
    pub stale: bool,
}

/// What was said to a charge, and how the key stands after it.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub admission: Admission,
    pub gauge: Gauge,
    /// For how many more microseconds the state matters, where it was written.
    pub lifetime: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Now, to be carried out after so many microseconds.
    After(u64),
    /// Not now, but in so many microseconds.
    Retry(u64),
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    pub remaining: u64,
    /// Microseconds until the state is as good as new.
    pub reset: u64,
}

impl Plan {
    /// The plan of an algorithm that makes nobody wait: `cost` of the `remaining` units, or a refusal with
    /// the wait that `retry` computes.
    pub fn of(
        cost: u64,
        capacity: u64,
        before: Gauge,
        reset_after: u64,
        stale: bool,
        retry: impl FnOnce() -> u64,
    ) -> Self {
        let admission = if cost > capacity {
            Admission::Never
        } else if cost > before.remaining {
            Admission::Retry(retry())
        } else {
            Admission::After(0)
        };
        let after = match admission {
            Admission::After(_) => Gauge { remaining: before.remaining - cost, reset: reset_after },
            Admission::Retry(_) | Admission::Never => before,
        };
        Self { admission, before, after, stale }
    }
}

impl Admission {
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::After(_))
    }
}
