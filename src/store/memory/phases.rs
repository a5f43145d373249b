use std::time::Duration;

use super::{
    counting::Counting,
    shard::{Guards, Location},
};
use crate::{
    algorithm::{
        counter::{Change, Plan},
        penalty::Strikes,
        state::State,
    },
    base::Error,
    decision::{Charge, Outcome},
    store::{PenaltyCharge, Spec, StateChange},
};

/// The phases of a decision over any charges, as in `lua/decide_in_full/phases.lua`.
pub(super) struct Phases<'a> {
    pub(super) spec: Spec,
    pub(super) items: Vec<Item<'a>>,
}

/// A charge, and where it is counted.
pub(super) struct Item<'a> {
    pub(super) charge: &'a Charge,
    counting: Counting<'a>,
    location: &'a Location<'a>,
}

/// What a charge would do.
pub(super) struct Planned {
    pub(super) units: u64,
    pub(super) plan: Plan,
}

impl<'a> Phases<'a> {
    pub(super) fn new(
        spec: Spec,
        charges: &'a [Charge],
        locations: &'a [Location<'a>],
    ) -> Result<Self, Error> {
        let item = |(charge, location)| Ok(Item { charge, counting: Counting::of(charge)?, location });
        let items = charges.iter().zip(locations).map(item).collect::<Result<_, Error>>()?;
        Ok(Self { spec, items })
    }

    /// The first phase: refunds or renews the charges. Bans change the states of penalties instead.
    pub(super) fn change(&self, guards: &mut Guards<'_>, now: u64) -> Result<(), Error> {
        for item in self.items.iter().filter(|item| item.charge.cost() > 0) {
            let (units, holder) = (item.charge.cost(), item.charge.holder());
            let change = match (self.spec.change, item.charge.receipt()) {
                (Some(StateChange::Refund), Some(receipt)) => Change::RefundOf(units, receipt),
                (Some(StateChange::Refund), None) => Change::Refund(units, holder),
                (Some(StateChange::Renew), _) => Change::Renew(units, holder),
                (Some(StateChange::Ban) | None, _) => continue,
            };
            item.change(guards, now, change, units)?;
        }
        Ok(())
    }

    /// The second phase: plans each charge.
    pub(super) fn plan(&self, guards: &mut Guards<'_>, now: u64) -> Result<Vec<Planned>, Error> {
        let planned = |item: &Item<'_>| {
            let units = if self.spec.change.is_some() { 0 } else { item.charge.bounded_cost() };
            let planned = item.plan(guards, now, units)?;
            match self.spec.least {
                Some(least) if !planned.is_admitted() => {
                    item.plan(guards, now, planned.plan.before.remaining.max(least))
                }
                _ => Ok(planned),
            }
        };
        self.items.iter().map(planned).collect()
    }

    /// Whether all charges are admitted, except those that are shadows.
    pub(super) fn admits(&self, plans: &[Planned]) -> bool {
        let mut items = self.items.iter().zip(plans);
        items.all(|(item, planned)| planned.is_admitted() || item.charge.is_shadow())
    }

    /// The third phase: charges what `is_charged`, and rewrites the states that are stale.
    pub(super) fn charge(
        &self,
        guards: &mut Guards<'_>,
        now: u64,
        plans: &[Planned],
        is_charged: bool,
    ) -> Result<(), Error> {
        let items =
            self.items.iter().zip(plans).filter(|(_, planned)| self.spec.charges && planned.units > 0);
        for (item, planned) in items {
            // A shadow may not fit.
            let (units, fits) = (planned.units, planned.is_admitted());
            if is_charged && fits {
                item.change(guards, now, Change::Charge(units, item.charge.holder()), units)?;
            } else if planned.plan.stale {
                item.change(guards, now, Change::Repair, if fits { 0 } else { units })?;
            }
        }
        Ok(())
    }
}

impl Item<'_> {
    fn change(&self, guards: &mut Guards<'_>, now: u64, change: Change, units: u64) -> Result<(), Error> {
        let changed = guards.shard(self.location).update(self.location, now, |state| {
            match self.counting.change(state, now, change, units) {
                Ok(lifetime) => (Ok(()), lifetime),
                Err(mistake) => (Err(mistake), None),
            }
        });
        changed.map_err(|mistake| self.counting.error(mistake))
    }

    fn plan(&self, guards: &mut Guards<'_>, now: u64, units: u64) -> Result<Planned, Error> {
        let state = guards.shard(self.location).state(self.location, now);
        let plan = self.counting.plan(state, now, units).map_err(|mistake| self.counting.error(mistake))?;
        Ok(Planned { units, plan })
    }
}

impl Planned {
    pub(super) const fn is_admitted(&self) -> bool {
        self.plan.admission.is_admitted()
    }
}

/// The penalties of a decision's charges.
pub(super) struct Penalties<'a> {
    /// Each with the place of its key.
    charges: Vec<(&'a PenaltyCharge, &'a Location<'a>)>,
    now: u64,
}

impl<'a> Penalties<'a> {
    pub(super) fn new(charges: &'a [PenaltyCharge], locations: &'a [Location<'a>], now: u64) -> Self {
        Self { charges: charges.iter().zip(locations).collect(), now }
    }

    /// The microseconds until the ban of each key ends; 0 if it is not banned.
    pub(super) fn rests(&self, guards: &mut Guards<'_>) -> Vec<u64> {
        let rest = |(penalty, location): &(&PenaltyCharge, &Location<'_>)| {
            strikes(penalty).rest(guards.shard(location).state(location, self.now), self.now)
        };
        self.charges.iter().map(rest).collect()
    }

    /// Bans each key for as many microseconds as its cost.
    pub(super) fn ban(&self, guards: &mut Guards<'_>) {
        self.change(guards, |penalty, state| {
            Some(strikes(penalty).ban(state, self.now, penalty.charge.cost()))
        });
    }

    /// Counts each denial that `counts`, by the place of its charge, and rewrites the other states that the clock made stale.
    /// A denial counts only if no key is banned.
    pub(super) fn strike(&self, guards: &mut Guards<'_>, counts: impl Fn(usize) -> bool) {
        self.change(guards, |penalty, state| {
            let strikes = strikes(penalty);
            let struck = if counts(penalty.place) { strikes.strike(state, self.now) } else { None };
            let is_stale = struck.is_none() && strikes.is_stale(state.as_ref(), self.now);
            if is_stale { Some(strikes.repair(state, self.now)) } else { struck }
        });
    }

    /// Marks the outcomes of keys that are banned now.
    pub(super) fn mark(&self, guards: &mut Guards<'_>, outcomes: &mut [Outcome]) {
        for ((penalty, _), rest) in self.charges.iter().zip(self.rests(guards)) {
            if let Some(outcome) = outcomes.get_mut(penalty.place).filter(|_| rest > 0) {
                *outcome = outcome.clone().banning(Duration::from_micros(rest));
            }
        }
    }

    fn change(
        &self,
        guards: &mut Guards<'_>,
        mut change: impl FnMut(&PenaltyCharge, &mut Option<State>) -> Option<u64>,
    ) {
        for (penalty, location) in &self.charges {
            guards.shard(location).update(location, self.now, |state| ((), change(penalty, state)));
        }
    }
}

fn strikes(penalty: &PenaltyCharge) -> Strikes {
    Strikes::of(penalty.charge.policy().arguments())
}
