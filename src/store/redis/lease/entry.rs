use crate::{
    algorithm::twin::Receipt, decision::Charge, key::Key, policy::Policy, store::redis::job::LeaseReturn,
};

/// A key that was charged lately.
pub(super) struct Entry {
    pub(super) policy: Policy,
    pub(super) key: Key,
    pub(super) lease: Option<Lease>,
    /// How many units to lease next: the more, the faster the last ones were used up; 0 for a key that is not hot.
    pub(super) target: u64,
    /// When Redis was last asked to charge this key.
    pub(super) last_request: Option<u64>,
    /// Whether a lease is being fetched. One at a time.
    pub(super) fetching: bool,
}

/// Units that Redis leased to this instance.
pub(super) struct Lease {
    /// The name of the lease in Redis.
    pub(super) name: u64,
    pub(super) left: u64,
    /// Units that were spent and are not reported to Redis yet.
    pub(super) spent: u64,
    /// More units are fetched when fewer than this are left.
    pub(super) refill_below: u64,
    /// When the request for the lease was sent.
    pub(super) requested_at: u64,
    /// How often the clock had been set back by then.
    pub(super) set_back: u64,
    /// When the lease ends.
    pub(super) ends_at: u64,
    pub(super) last_spent: u64,
    /// What remained in Redis beside the lease, and the microseconds until the quota is fully replenished.
    pub(super) remaining: u64,
    pub(super) reset: u64,
    /// The receipt of its units, for refunds of what is spent.
    pub(super) receipt: Receipt,
}

/// Units of a lease that are being returned, and the reset count when they left the table.
pub(super) struct Returned {
    pub(super) policy: Policy,
    pub(super) key: Key,
    pub(super) lease: LeaseReturn,
    pub(super) resets: ResetCount,
}

/// How often a key had been reset at some moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ResetCount {
    pub(super) cell: u32,
    pub(super) count: u32,
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
    /// Whether units may be spent. After the clock was set back, it is unknown what Redis has charged.
    pub(super) const fn is_active(&self, now: u64, set_back: u64) -> bool {
        self.requested_at <= now && now < self.ends_at && self.set_back == set_back
    }

    /// Returns the lease: all unspent units, and the number of spent ones.
    pub(super) const fn returned(&self) -> LeaseReturn {
        LeaseReturn { name: self.name, units: self.left + self.spent, spent: self.spent }
    }
}
