use super::store::{Action, Spec, StateChange};
use crate::decision::Charge;

/// A charge against the [penalty](crate::Policy::penalty) of a policy. It reports whether the key is banned, and counts
/// its denials.
#[derive(Clone, Debug)]
pub(crate) struct PenaltyCharge {
    /// The place of the charge that it belongs to.
    pub(crate) place: usize,
    pub(crate) charge: Charge,
    #[cfg(feature = "redis")]
    pub(crate) counts: Counts,
}

/// Which denials a call counts for a penalty.
#[cfg(feature = "redis")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cluster"), expect(dead_code, reason = "only a Cluster decides in several calls"))]
pub(crate) enum Counts {
    /// The denial of its charge.
    #[default]
    Own,
    /// None: a later call counts it.
    Later,
    /// One, which was decided in an earlier call.
    Earlier,
}

impl PenaltyCharge {
    /// The penalties of `charges`, in their order. A preflight has the bans of its client. Their keys have the same
    /// hash tag, so they are in the same slot of a Cluster.
    pub(crate) fn of(action: Action, charges: &[Charge]) -> Vec<Self> {
        if charges.iter().all(Charge::is_plain) {
            return Vec::new();
        }
        let Spec { change, denies, .. } = action.spec();
        let cost = |charge: &Charge| match change {
            Some(StateChange::Ban) => Some(charge.cost()),
            _ => (denies && charge.cost() > 0 && !charge.is_shadow()).then_some(1),
        };
        let penalty = |(place, charge): (usize, &Charge)| {
            let bans = charge.policy().bans()?;
            let client = charge.key().client();
            let key = client.as_ref().unwrap_or_else(|| charge.key());
            let charge = Charge::new(bans, key, cost(charge)?);
            Some(Self {
                place,
                charge,
                #[cfg(feature = "redis")]
                counts: Counts::default(),
            })
        };
        charges.iter().enumerate().filter_map(penalty).collect()
    }
}
