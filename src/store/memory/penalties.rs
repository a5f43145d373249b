use std::{convert::Infallible, time::Duration};

use super::shard::{Guards, Location};
use crate::{
    algorithm::{penalty::Strikes, state::State},
    decision::Outcome,
    store::Companion,
};

/// The penalties of a decision's charges.
pub(super) struct Penalties<'a> {
    /// Each with the place of its key.
    companions: Vec<(&'a Companion, &'a Location<'a>)>,
    now: u64,
}

impl<'a> Penalties<'a> {
    pub(super) fn new(companions: &'a [Companion], locations: &'a [Location<'a>], now: u64) -> Self {
        Self { companions: companions.iter().zip(locations).collect(), now }
    }

    /// The microseconds until the ban of each key ends; 0 if it is not banned.
    pub(super) fn rests(&self, guards: &mut Guards<'_>) -> Vec<u64> {
        let rest = |(companion, location): &(&Companion, &Location<'_>)| {
            strikes(companion).rest(guards.shard(location).state(location, self.now), self.now)
        };
        self.companions.iter().map(rest).collect()
    }

    /// Bans each key for as many microseconds as its cost.
    pub(super) fn ban(&self, guards: &mut Guards<'_>) {
        self.change(guards, |companion, state| {
            Some(strikes(companion).ban(state, self.now, companion.charge.cost()))
        });
    }

    /// Counts a denial of each charge that `is_denied`, by its place. No key may be banned.
    pub(super) fn strike(&self, guards: &mut Guards<'_>, is_denied: impl Fn(usize) -> bool) {
        self.change(guards, |companion, state| {
            is_denied(companion.place).then(|| strikes(companion).strike(state, self.now)).flatten()
        });
    }

    /// Rewrites states that the clock made stale.
    pub(super) fn repair(&self, guards: &mut Guards<'_>) {
        self.change(guards, |companion, state| {
            let strikes = strikes(companion);
            strikes.is_stale(state.as_ref(), self.now).then(|| strikes.repair(state, self.now))
        });
    }

    /// Marks the outcomes of keys that are banned now.
    pub(super) fn mark(&self, guards: &mut Guards<'_>, outcomes: &mut [Outcome]) {
        for ((companion, _), rest) in self.companions.iter().zip(self.rests(guards)) {
            if let Some(outcome) = outcomes.get_mut(companion.place).filter(|_| rest > 0) {
                *outcome = outcome.clone().banning(Duration::from_micros(rest));
            }
        }
    }

    fn change(
        &self,
        guards: &mut Guards<'_>,
        mut change: impl FnMut(&Companion, &mut Option<State>) -> Option<u64>,
    ) {
        for (companion, location) in &self.companions {
            let changed = guards
                .shard(location)
                .change(location, self.now, |state| Ok::<_, Infallible>(change(companion, state)));
            let Ok(()) = changed;
        }
    }
}

fn strikes(companion: &Companion) -> Strikes {
    Strikes::of(companion.charge.policy().arguments())
}
