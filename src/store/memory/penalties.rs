use std::{convert::Infallible, time::Duration};

use super::shard::{Guards, Location};
use crate::{
    algorithm::{penalty::Strikes, state::State},
    decision::Outcome,
    store::PenaltyCharge,
};

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

    /// Counts a denial of each charge that `is_denied`, by its place. No key may be banned.
    pub(super) fn strike(&self, guards: &mut Guards<'_>, is_denied: impl Fn(usize) -> bool) {
        self.change(guards, |penalty, state| {
            is_denied(penalty.place).then(|| strikes(penalty).strike(state, self.now)).flatten()
        });
    }

    /// Rewrites states that the clock made stale.
    pub(super) fn repair(&self, guards: &mut Guards<'_>) {
        self.change(guards, |penalty, state| {
            let strikes = strikes(penalty);
            strikes.is_stale(state.as_ref(), self.now).then(|| strikes.repair(state, self.now))
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
            let changed = guards
                .shard(location)
                .change(location, self.now, |state| Ok::<_, Infallible>(change(penalty, state)));
            let Ok(()) = changed;
        }
    }
}

fn strikes(penalty: &PenaltyCharge) -> Strikes {
    Strikes::of(penalty.charge.policy().arguments())
}
