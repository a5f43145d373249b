//! The form of a built-in algorithm for [`MemoryStore`](crate::MemoryStore): the twin of its Lua file.
//!
//! `lua/README.md` specifies the same functions in Lua. Unlike the twin of a custom algorithm, it changes a
//! state in place, keeps it in its own form, and is not checked.

pub(crate) use super::calendar::Calendar;
#[cfg(feature = "redis")]
pub(crate) use super::calendar::Windows;
use super::{
    state::State,
    twin::{Admission, Gauge, Receipt},
};
use crate::base::{Error, Quota};

/// The twin of a built-in Lua file, with the same arguments, state and arithmetic. All times are microseconds
/// since 1970.
pub trait Counter: Send + Sync {
    /// Evaluates `cost` against `state`. Changes nothing.
    fn plan(&self, arguments: &[u64], state: Option<&State>, now: u64, cost: u64) -> Plan;

    /// Returns the microseconds after which `units` leased units are available again if their instance never
    /// returns them. `None` if units cannot be leased without admitting more than the limit at some time.
    fn lease_recovery(&self, _arguments: &[u64], _units: u64) -> Option<u64> {
        None
    }

    /// Carries `change` out. Returns for how many more microseconds the state matters, if that changed.
    fn apply(&self, arguments: &[u64], state: &mut Option<State>, now: u64, change: Change) -> Option<u64>;

    /// Makes a decision with one charge: plans it, then carries it out, or repairs stale state if it is
    /// denied.
    fn charge(
        &self,
        arguments: &[u64],
        state: &mut Option<State>,
        now: u64,
        cost: u64,
        holder: u128,
    ) -> Charged {
        let Plan { admission, before, after, stale, mark } = self.plan(arguments, state.as_ref(), now, cost);
        let (gauge, change) = if admission.is_admitted() {
            (after, Some(Change::Charge(cost, holder)))
        } else {
            (before, stale.then_some(Change::Repair))
        };
        let change = change.filter(|_| cost > 0);
        let lifetime = change.and_then(|change| self.apply(arguments, state, now, change));
        Charged { admission, gauge, mark, lifetime }
    }

    /// Returns the most units that it admits within one period of `quota`, wherever it begins. `None` if that
    /// is not known: it replenishes in steps, does not start full or counts permits.
    fn most_within_period(&self, _arguments: &[u64], _quota: &Quota) -> Option<u64> {
        None
    }

    /// Returns whether it queues requests: admits them after a delay.
    fn queues(&self, _arguments: &[u64]) -> bool {
        false
    }

    /// Returns how many whole units a guarantee in the pool of this state may get if `units` of the charge with this receipt are
    /// refunded: those that the refund returns, or all if the pool is full then.
    fn returned(&self, _arguments: &[u64], _state: &State, _now: u64, _units: u64, _charge: Receipt) -> u64 {
        0
    }

    /// Returns the numbers by which `lua/usual.lua` makes the usual decisions: one of [`usual`], and those
    /// that it names. `None` if that script makes no decisions of this policy.
    fn usual(&self, _arguments: &[u64]) -> Option<Vec<u64>> {
        None
    }

    /// Returns the largest limit and burst that it counts exactly.
    fn most_units(&self) -> u64 {
        1_000_000_000_000
    }

    /// Returns whether it counts quotas per month, quarter or year.
    fn counts_calendar_periods(&self) -> bool {
        false
    }

    /// Returns the calendar that has the windows, because the scripts know no dates, and how many further windows a debt
    /// reaches.
    fn calendar(&self, _arguments: &[u64]) -> Option<(Calendar, u64)> {
        None
    }

    /// Returns when the window of a charge ends, if that is not when the quota is fully replenished: the next
    /// windows pay for a debt.
    fn window_ends(&self, _arguments: &[u64], _charge: Receipt) -> Option<u64> {
        None
    }

    /// Returns about how many microseconds one charge, or one refund, takes in Redis at worst. Measured with
    /// full batches. Bounds how long one batch blocks Redis.
    fn redis_micros(&self, _arguments: &[u64], _refund: bool) -> u64 {
        8
    }

    /// Returns the mark of a charge of `cost` units that were spent from a lease with the mark `leased`.
    fn mark_of_leased(&self, _arguments: &[u64], leased: u64, _cost: u64) -> u64 {
        leased
    }

    /// Returns whether a debt ends with the period in which it was made, and no later units pay for it.
    fn forgets_debt(&self) -> bool {
        false
    }

    /// The arguments of a policy with `max_debt`, and those that its debits count by: the same with so much
    /// more room. An error if the algorithm does not allow the debt. Defaults to more room in the first
    /// argument, the limit.
    fn with_debt(&self, arguments: &[u64], debt: u64) -> Result<[Vec<u64>; 2], Error> {
        let mut debits = arguments.to_vec();
        debits.iter_mut().take(1).for_each(|limit| *limit += debt);
        Ok([arguments.to_vec(), debits])
    }
}

/// Of an algorithm without debts.
pub(crate) const NO_DEBT: &str = "this algorithm allows no debt: leave out `max_debt`, or use another built-in \
                                  algorithm than `Concurrency`";

/// The first of the numbers of [`Counter::usual`].
pub(crate) mod usual {
    /// Then the period, the units that drain in it, and the burst.
    pub(crate) const BUCKET: u64 = 1;
    /// Then the limit, the period, and the offset; the period again for anchored windows.
    pub(crate) const WINDOW: u64 = 2;
    /// Then the limit, the number of cells, and their width. The last kind with three numbers.
    pub(crate) const SLIDING_WINDOW: u64 = 3;
    /// The numbers of a bucket, and the debt.
    pub(crate) const DEBT: u64 = 4;
    /// Then the denials that ban a key, and the window in which they count; a 0; and the other arguments.
    pub(crate) const PENALTY: u64 = 5;
    /// Then the limit, and when the window of the call ends and starts; then when the window before it starts
    /// and the one after it ends. All but the limit are of the call.
    pub(crate) const CALENDAR: u64 = 6;
    pub(crate) const GUARANTEE: u64 = 7;
    /// Added to the number of a charge with a headroom of more than two bytes, which comes last.
    #[cfg(feature = "redis")]
    pub(crate) const WITH_HEADROOM: u64 = 64;
}

/// A change of the state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Charges units, which a plan admitted, to a holder.
    Charge(u64, u128),
    /// Rewrites state that the clock or a changed quota made stale. Follows a denial.
    Repair,
    /// Refunds the latest units; under `Concurrency`, releases the permits of a holder.
    Refund(u64, u128),
    /// Refunds up to this many units of a charge: as many as still count.
    RefundOf(u64, Receipt),
    /// Renews the units of a holder, or adds it again.
    Renew(u64, u128),
}

/// The result of evaluating a charge without carrying it out.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub admission: Admission,
    pub before: Gauge,
    /// The gauge after the charge; equal to `before` if the charge is not admitted.
    pub after: Gauge,
    /// Whether the clock or a changed quota made the state stale, so that a denial must write it.
    pub stale: bool,
    /// See [`Receipt::mark`].
    pub mark: u64,
}

/// The result of a decision with one charge.
#[derive(Clone, Copy, Debug)]
pub struct Charged {
    pub admission: Admission,
    /// The gauge after the decision.
    pub gauge: Gauge,
    /// See [`Receipt::mark`].
    pub mark: u64,
    /// For how many more microseconds the state matters, if it was written.
    pub lifetime: Option<u64>,
}

impl Plan {
    /// Plans `cost` for an algorithm without delays. `retry` computes the retry time of a denial.
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

    /// Sets the mark.
    pub const fn marked(mut self, mark: u64) -> Self {
        self.mark = mark;
        self
    }
}

/// The arguments of an algorithm that makes `N` of them.
pub(super) fn exactly<const N: usize>(arguments: &[u64]) -> [u64; N] {
    let Ok(arguments) = arguments.try_into() else {
        unreachable!("an algorithm receives the arguments that it made");
    };
    arguments
}
