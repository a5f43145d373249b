//! The phases of a decision over any charges, as in `lua/decide_in_full/phases.lua`.

use super::{
    counting::Counting,
    shard::{Guards, Location},
};
use crate::{
    algorithm::{
        Receipt,
        counter::{Change, Plan},
        penalty::Strikes,
        state::State,
        twin::Admission,
    },
    base::Error,
    decision::Charge,
    store::{Action, PenaltyCharge, Spec, StateChange},
};

/// The phases of a decision over any charges, as in `lua/decide_in_full/phases.lua`.
pub(super) struct Phases<'a> {
    pub(super) spec: Spec,
    leaves_headroom: bool,
    /// The charges without the stamp.
    pub(super) items: Vec<Item<'a>>,
    /// The stamp of a settlement, which is the last charge.
    stamp: Option<Item<'a>>,
    /// The charges against penalties, and the places of their states.
    penalties: Vec<(&'a PenaltyCharge, &'a Location<'a>)>,
}

/// A charge, and the place of its state.
pub(super) struct Item<'a> {
    pub(super) charge: &'a Charge,
    counting: Counting<'a>,
    location: &'a Location<'a>,
}

/// The plan for a charge.
pub(super) struct Planned {
    /// Those that are charged; of a denial, those that do not fit.
    pub(super) units: u64,
    pub(super) plan: Plan,
}

impl<'a> Phases<'a> {
    /// `locations` has a place for each of `charges`, and then for each of `penalties`.
    pub(super) fn new(
        action: Action,
        charges: &'a [Charge],
        penalties: &'a [PenaltyCharge],
        locations: &'a [Location<'a>],
    ) -> Result<Self, Error> {
        let item = |(charge, location)| Ok(Item { charge, counting: Counting::of(charge)?, location });
        let mut items = charges.iter().zip(locations).map(item).collect::<Result<Vec<_>, Error>>()?;
        let stamp = items.pop_if(|item| item.charge.stamp().is_some());
        let penalties = penalties.iter().zip(&locations[charges.len()..]).collect();
        let (spec, leaves_headroom) = (action.spec(), action.leaves_headroom());
        Ok(Self { spec, leaves_headroom, items, stamp, penalties })
    }

    /// Plans the stamp, which does not fit if its token was settled before or has expired. `None` without a
    /// stamp.
    pub(super) fn plan_stamp(&self, guards: &mut Guards<'_>) -> Result<Option<Planned>, Error> {
        let Some(stamp) = &self.stamp else { return Ok(None) };
        let mut planned = stamp.plan(guards, 1)?;
        if planned.is_admitted() && stamp.charge.stamp().is_some_and(|expires| guards.now >= expires) {
            planned.plan.admission = Admission::Never;
        }
        Ok(Some(planned))
    }

    /// Charges the stamp.
    pub(super) fn write_stamp(&self, guards: &mut Guards<'_>) -> Result<(), Error> {
        let Some(stamp) = &self.stamp else { return Ok(()) };
        stamp.change(guards, Change::Charge(1, stamp.charge.holder()), 1)
    }

    /// The stamp and its plan.
    pub(super) fn stamp<'b>(&'b self, planned: &'b Option<Planned>) -> Option<(&'b Item<'a>, &'b Planned)> {
        self.stamp.as_ref().zip(planned.as_ref())
    }

    /// The first phase: refunds or renews the charges, or bans their keys for as many microseconds as their
    /// costs.
    pub(super) fn change(&self, guards: &mut Guards<'_>) -> Result<(), Error> {
        if self.spec.change == Some(StateChange::Ban) {
            self.change_penalties(guards, |penalty, state, now| {
                Some(strikes(penalty).ban(state, now, penalty.charge.cost()))
            });
        }
        // What the guarantee in the pool before may get.
        let mut returned = 0;
        for (at, item) in self.items.iter().enumerate() {
            let most = if item.charge.policy().pool().is_some() { returned } else { u64::MAX };
            let (units, holder) = (item.charge.cost().min(most), item.charge.holder());
            returned = 0;
            if units == 0 {
                continue;
            }
            let change = match (self.spec.change, item.charge.receipt()) {
                // The charge is from before the last reset of its key.
                (Some(StateChange::Refund), Some(receipt))
                    if guards.reset_at(item.location).is_some_and(|reset| receipt.made <= reset) =>
                {
                    continue;
                }
                (Some(StateChange::Refund), Some(receipt)) => {
                    if self.items.get(at + 1).is_some_and(|next| next.is_guarantee_in(item)) {
                        returned = item.returned(guards, units, receipt);
                    }
                    Change::RefundOf(units, receipt)
                }
                (Some(StateChange::Refund), None) => Change::Refund(units, holder),
                (Some(StateChange::Renew), _) => Change::Renew(units, holder),
                (Some(StateChange::Ban) | None, _) => continue,
            };
            item.change(guards, change, units)?;
        }
        Ok(())
    }

    /// The second phase: plans each charge.
    pub(super) fn plan(&self, guards: &mut Guards<'_>) -> Result<Vec<Planned>, Error> {
        let mut plans: Vec<Planned> = Vec::with_capacity(self.items.len());
        for item in &self.items {
            plans.push(match self.spec.change {
                Some(_) => item.plan(guards, 0)?,
                None => self.plan_one(guards, item, &plans)?,
            });
        }
        Ok(plans)
    }

    /// Plans a charge after those before it.
    fn plan_one(
        &self,
        guards: &mut Guards<'_>,
        item: &Item<'_>,
        before: &[Planned],
    ) -> Result<Planned, Error> {
        let guarantee = before.last().zip(before.len().checked_sub(1).and_then(|at| self.items.get(at)));
        let is_guaranteed = guarantee.is_some_and(|(planned, guarantee)| {
            guarantee.is_guarantee_in(item) && planned.is_admitted() && planned.units >= item.charge.cost()
        });
        let leaves_headroom = self.leaves_headroom && !is_guaranteed;
        let headroom = if leaves_headroom { item.charge.bounded_headroom() } else { 0 };
        let planned = item.plan_beside(guards, item.charge.bounded_cost(), headroom)?;
        match self.spec.least {
            Some(least) if !planned.is_admitted() => {
                item.plan(guards, planned.plan.before.remaining.max(least))
            }
            _ => Ok(planned),
        }
    }

    /// Whether all charges are admitted, except those that never deny.
    pub(super) fn admits(&self, plans: &[Planned]) -> bool {
        let mut items = self.items.iter().zip(plans);
        items.all(|(item, planned)| planned.is_admitted() || item.charge.never_denies())
    }

    /// The third phase: charges the units of each charge for which `is_charged` is true, and rewrites the
    /// states that the clock made stale.
    pub(super) fn charge(
        &self,
        guards: &mut Guards<'_>,
        plans: &[Planned],
        is_charged: bool,
    ) -> Result<(), Error> {
        let items =
            self.items.iter().zip(plans).filter(|(_, planned)| self.spec.charges && planned.units > 0);
        for (item, planned) in items {
            // A shadow may not fit.
            let (units, fits) = (planned.units, planned.is_admitted());
            if is_charged && fits {
                item.change(guards, Change::Charge(units, item.charge.holder()), units)?;
            } else if planned.plan.stale {
                item.change(guards, Change::Repair, if fits { 0 } else { units })?;
            }
        }
        Ok(())
    }

    /// Counts a denial for the penalty of each charge for whose place `counts` is true, and rewrites the
    /// other states that the clock made stale. A denial counts only if no key is banned.
    pub(super) fn strike(&self, guards: &mut Guards<'_>, counts: impl Fn(usize) -> bool) {
        self.change_penalties(guards, |penalty, state, now| {
            let strikes = strikes(penalty);
            let struck = if counts(penalty.place) { strikes.strike(state, now) } else { None };
            let is_stale = struck.is_none() && strikes.is_stale(state.as_ref(), now);
            if is_stale { Some(strikes.repair(state, now)) } else { struck }
        });
    }

    /// For each charge with a penalty, its place and the microseconds until the ban of its key ends, 0
    /// without a ban.
    pub(super) fn bans(&self, guards: &mut Guards<'_>) -> Vec<(usize, u64)> {
        let now = guards.now;
        let rest = |(penalty, location): &(&PenaltyCharge, &Location<'_>)| {
            (penalty.place, strikes(penalty).rest(guards.state(location), now))
        };
        self.penalties.iter().map(rest).collect()
    }

    fn change_penalties(
        &self,
        guards: &mut Guards<'_>,
        mut change: impl FnMut(&PenaltyCharge, &mut Option<State>, u64) -> Option<u64>,
    ) {
        let now = guards.now;
        for (penalty, location) in &self.penalties {
            guards.update(location, |state| ((), change(penalty, state, now)));
        }
    }
}

impl Item<'_> {
    fn change(&self, guards: &mut Guards<'_>, change: Change, units: u64) -> Result<(), Error> {
        let now = guards.now;
        let changed =
            guards.update(self.location, |state| match self.counting.change(state, now, change, units) {
                Ok(lifetime) => (Ok(()), lifetime),
                Err(mistake) => (Err(mistake), None),
            });
        changed.map_err(|mistake| self.counting.error(mistake))
    }

    /// Plans `units` units beside `headroom` units that must remain. A denial has planned both.
    fn plan_beside(&self, guards: &mut Guards<'_>, units: u64, headroom: u64) -> Result<Planned, Error> {
        let planned = self.plan(guards, units + headroom)?;
        if headroom > 0 && planned.is_admitted() { self.plan(guards, units) } else { Ok(planned) }
    }

    fn is_guarantee_in(&self, pool: &Item<'_>) -> bool {
        self.charge.is_guarantee_in(pool.charge)
    }

    /// How many units a guarantee in this pool may get if `units` are refunded. All if there is no state, because then it is full.
    fn returned(&self, guards: &mut Guards<'_>, units: u64, receipt: Receipt) -> u64 {
        let now = guards.now;
        guards.state(self.location).map_or(units, |state| self.counting.returned(state, now, units, receipt))
    }

    /// Whether this denial is only for the sake of the headroom.
    pub(super) fn is_shed(&self, planned: &Planned) -> bool {
        self.charge.headroom() > 0 && planned.plan.before.remaining >= self.charge.cost()
    }

    fn plan(&self, guards: &mut Guards<'_>, units: u64) -> Result<Planned, Error> {
        let now = guards.now;
        let plan = self.counting.plan(guards.state(self.location), now, units);
        Ok(Planned { units, plan: plan.map_err(|mistake| self.counting.error(mistake))? })
    }
}

impl Planned {
    pub(super) const fn is_admitted(&self) -> bool {
        self.plan.admission.is_admitted()
    }
}

fn strikes(penalty: &PenaltyCharge) -> Strikes {
    Strikes::of(penalty.charge.policy().arguments())
}
