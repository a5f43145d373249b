//! What a store does with charges, and the charges that it adds for penalties.

use crate::decision::{Charge, OneOrMany};

/// What a store does with charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Charge all of them, or none if one is denied.
    Charge,
    /// Charge as many units as remain, up to the cost. For one charge at a time.
    ChargeUpTo,
    /// Charge each as many units as remain, up to its cost. Always admitted, even if nothing remains.
    Debit,
    /// Decide as [`Charge`](Self::Charge) would now, and change nothing.
    Peek,
    /// Refund the units that were charged and still count, up to the costs. For a policy with permits,
    /// release the permit of the same charge.
    Refund,
    /// Renew the permits of the same charges, so they do not expire. Permits that the store has lost are in
    /// use again, even above the limit.
    Renew,
    /// Ban the keys for `cost` microseconds from now, under policies with a
    /// [penalty](crate::Policy::penalty). A cost of 0 ends the ban, and forgets earlier denials and bans.
    /// Charges nothing.
    ///
    /// The outcome is [banned](crate::decision::Outcome::banned_for) if the key is banned then. A store
    /// without bans returns another one.
    Ban,
}

/// What an action does. Each decision has three phases: the states are changed, the charges are planned, and
/// they are charged. Calls of Redis have these fields as numbers, see `lua/README.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spec {
    /// Changes each state before the charges are planned. An action with a change plans no units.
    pub(crate) change: Option<StateChange>,
    /// Whether a penalty or a denial denies all charges, except those that are shadows.
    pub(crate) denies: bool,
    /// Whether admitted units are charged.
    pub(crate) charges: bool,
    /// The minimum to charge if fewer units than the cost remain. `None` if nothing is charged in that case.
    pub(crate) least: Option<u64>,
}

/// A change of a state that is not a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateChange {
    Refund = 1,
    Renew = 2,
    Ban = 3,
}

impl Action {
    pub(crate) const fn spec(self) -> Spec {
        let (change, denies, charges, least) = match self {
            Self::Charge => (None, true, true, None),
            // If nothing remains, one unit is planned, for its retry time.
            Self::ChargeUpTo => (None, true, true, Some(1)),
            Self::Debit => (None, false, true, Some(0)),
            Self::Peek => (None, true, false, None),
            Self::Refund => (Some(StateChange::Refund), false, false, None),
            Self::Renew => (Some(StateChange::Renew), false, false, None),
            Self::Ban => (Some(StateChange::Ban), false, false, None),
        };
        Spec { change, denies, charges, least }
    }

    /// Whether less critical charges leave headroom: not where as much as remains is charged, and not in a debit.
    pub(crate) const fn leaves_headroom(self) -> bool {
        matches!(self, Self::Charge | Self::Peek)
    }

    /// `charges` as the stores make them, one after the other: a guarantee comes right before the charge on its pool, which leaves
    /// headroom unless the guarantee fits; where units are refunded right after it, because it gets at most what the pool gets. `None`
    /// without guarantees.
    #[inline]
    pub(crate) fn ordered(self, charges: &[Charge]) -> Option<Vec<Charge>> {
        charges.iter().any(Charge::is_guarantee).then(|| self.beside_pools(charges))
    }

    #[cold]
    fn beside_pools(self, charges: &[Charge]) -> Vec<Charge> {
        let is_refund = self == Self::Refund;
        let (mut guarantees, others): (Vec<_>, Vec<_>) =
            charges.iter().cloned().partition(Charge::is_guarantee);
        let mut ordered = Vec::with_capacity(charges.len());
        for charge in others {
            let guarantee = guarantees.iter().position(|one| one.is_guarantee_in(&charge));
            let guarantee = guarantee.map(|at| guarantees.remove(at));
            ordered.push(charge);
            if let Some(guarantee) = guarantee {
                ordered.insert(ordered.len() - usize::from(!is_refund), guarantee);
            }
        }
        // Nothing is refunded to the pools of these.
        ordered.extend(guarantees.into_iter().map(|one| if is_refund { one.with_cost(0) } else { one }));
        ordered
    }

    /// The name in a span.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Charge => "charge",
            Self::ChargeUpTo => "charge_up_to",
            Self::Debit => "debit",
            Self::Peek => "peek",
            Self::Refund => "refund",
            Self::Renew => "renew",
            Self::Ban => "ban",
        }
    }

    /// Whether an admitted decision charges units.
    pub(crate) const fn charges_units(self) -> bool {
        self.spec().charges
    }
}

/// A charge against the [penalty](crate::Policy::penalty) of a policy. It reports whether the key is banned,
/// and counts the denials of the key.
#[derive(Clone, Debug)]
pub(crate) struct PenaltyCharge {
    /// The place of the charge whose policy has the penalty.
    pub(crate) place: usize,
    pub(crate) charge: Charge,
}

impl PenaltyCharge {
    /// The penalties of `charges`, in their order. A preflight is banned with its client. Both keys have the
    /// same hash tag, so they are in the same slot of a Cluster.
    pub(crate) fn of(action: Action, charges: &[Charge]) -> OneOrMany<Self> {
        let Spec { change, denies, .. } = action.spec();
        let cost = |charge: &Charge| match change {
            Some(StateChange::Ban) => Some(charge.cost()),
            _ => (denies && charge.cost() > 0 && !charge.never_denies()).then_some(1),
        };
        let penalty = |(place, charge): (usize, &Charge)| {
            let (bans, cost) = (charge.policy().bans()?.clone(), cost(charge)?);
            let key = charge.key().client().unwrap_or_else(|| charge.key().clone());
            Some(Self { place, charge: Charge::of(bans, key, cost) })
        };
        match charges {
            [charge] => penalty((0, charge)).map_or_else(OneOrMany::none, OneOrMany::One),
            many => OneOrMany::Many(many.iter().enumerate().filter_map(penalty).collect()),
        }
    }
}

/// Which denials a call counts for the penalties of its charges.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a Cluster decides in several calls"))]
pub(crate) enum Counts {
    /// The denials of these charges.
    #[default]
    Own,
    /// No denial: a later call counts them.
    Later,
    /// One denial for each penalty, which was decided in an earlier call.
    Earlier,
}
