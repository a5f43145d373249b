use crate::{
    algorithm::twin::Receipt, decision::Charge, key::Key, policy::Policy, store::redis::wire::LeaseReturn,
};

/// A key that was asked for lately.
pub(super) struct Entry {
    pub(super) policy: Policy,
    pub(super) key: Key,
    pub(super) lease: Option<Lease>,
    /// How many units to ask for next: so many as were used up quickly, and none for a key that is not hot.
    pub(super) want: u64,
    /// When Redis was last asked for this key.
    pub(super) asked: Option<u64>,
    /// Whether a lease is on its way. One at a time.
    pub(super) fetching: bool,
}

/// Units that Redis has granted to this instance.
pub(super) struct Lease {
    /// What Redis calls it.
    pub(super) name: u64,
    pub(super) left: u64,
    /// Spent, and not reported yet.
    pub(super) spent: u64,
    /// More is asked for when fewer are left.
    pub(super) low: u64,
    /// Before the call that brought it was sent.
    pub(super) from: u64,
    /// How often the clock had been set back by then.
    pub(super) set_back: u64,
    /// By then it is over.
    pub(super) end: u64,
    pub(super) used: u64,
    /// What Redis said remained beside it, and when all would be as good as new.
    pub(super) remaining: u64,
    pub(super) reset: u64,
    /// Of its units, for refunds of what is spent of them.
    pub(super) receipt: Receipt,
}

/// What is returned of a lease, and when it was taken out of the table.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Returned {
    pub(super) lease: LeaseReturn,
    pub(super) resets: Resets,
}

/// How often a key was reset by some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resets {
    pub(super) place: u32,
    pub(super) times: u32,
}

impl Entry {
    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.key == *charge.key() && self.policy.counts_as(charge.policy())
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.lease.is_none() && !self.fetching
    }
}

impl Lease {
    /// Whether its units may be spent. Who sets the clock back does not know what Redis saw meanwhile.
    pub(super) const fn is_on(&self, now: u64, set_back: u64) -> bool {
        self.from <= now && now < self.end && self.set_back == set_back
    }

    /// All that is left of it, and what was spent, as it is returned.
    pub(super) const fn returned(&self, resets: Resets) -> Returned {
        let lease = LeaseReturn { name: self.name, units: self.left + self.spent, spent: self.spent };
        Returned { lease, resets }
    }
}
