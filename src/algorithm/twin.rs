//! What an in-process twin of a Lua file is. See `lua/decide.lua` for the same in Lua.

use super::state::State;

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
        let Plan { admission, before, after, stale, mark } = self.plan(arguments, state.as_ref(), now, cost);
        let (gauge, change) = if admission.is_admitted() {
            (after, Some(Change::Charge(cost, holder)))
        } else {
            (before, stale.then_some(Change::Repair))
        };
        let change = change.filter(|_| cost > 0);
        let lifetime = change.map(|change| self.change(arguments, state, now, change));
        Taken { admission, gauge, mark, lifetime }
    }

    /// About how many microseconds of Redis one decision takes, at worst, on a machine of today: measured with full
    /// batches. So that what is asked for in one call is bounded.
    fn redis_micros(&self, arguments: &[u64], refund: bool) -> u64 {
        let _ = (arguments, refund);
        8
    }

    /// The mark of a charge of `cost` units that were on a lease with the mark `leased`.
    fn mark_of_leased(&self, arguments: &[u64], leased: u64, cost: u64) -> u64 {
        let _ = (arguments, cost);
        leased
    }

    /// Returns to the key what of `units` units of a charge still counts. For how many more microseconds the state
    /// matters then, where that changed. Where the charge counts no more, nothing is changed.
    fn refund(
        &self,
        arguments: &[u64],
        state: &mut Option<State>,
        now: u64,
        units: u64,
        charge: Receipt,
    ) -> Option<u64> {
        let _ = (arguments, state, now, units, charge);
        None
    }

    /// [`apply`](Self::apply), in place. For how much longer the state matters.
    fn change(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> u64 {
        let kept = self.apply(arguments, state.take(), now, change);
        let lifetime = kept.as_ref().map_or(0, |kept| kept.lifetime);
        *state = kept.map(|kept| kept.state);
        lifetime
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A charge that was planned and admitted, and its holder.
    Charge(u64, u128),
    /// What a refusal writes down where the clock or the quota made the state stale.
    Repair,
    /// The latest units returned to the key, or those of a holder.
    Refund(u64, u128),
    /// A holder that lives on.
    Renew(u128),
}

/// Which charge it was, for a refund: a charge counts for some time only, and other charges count beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// When it was made, in microseconds of the store's clock.
    pub made: u64,
    /// What else the algorithm needs to find it, see the Lua file.
    pub mark: u64,
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
    /// The charge's, see [`Receipt`].
    pub mark: u64,
}

/// What was said to a charge, and how the key stands after it.
#[derive(Clone, Copy, Debug)]
pub struct Taken {
    pub admission: Admission,
    pub gauge: Gauge,
    /// The charge's, see [`Receipt`].
    pub mark: u64,
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
        Self { admission, before, after, stale, mark: 0 }
    }

    /// The same with a mark.
    pub const fn marked(mut self, mark: u64) -> Self {
        self.mark = mark;
        self
    }
}

impl Admission {
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::After(_))
    }
}
