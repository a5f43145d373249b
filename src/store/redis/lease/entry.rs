//! A key that may have a lease: how many units to lease, and when to return them. All of that only affects efficiency.

use crate::{
    algorithm::twin::Receipt,
    base::{Guard, UnderWay},
    decision::Charge,
    store::redis::job::LeaseReturn,
};

/// A key that was charged lately.
pub(super) struct Entry {
    /// Of no units.
    pub(super) charge: Charge,
    pub(super) lease: Option<Lease>,
    /// How many units to lease next: the more, the faster the last ones were used up; 0 for a key that is not hot.
    pub(super) target: u64,
    /// When Redis was last asked to charge this key.
    pub(super) last_request: Option<u64>,
    /// Whether a lease is being fetched. One at a time.
    pub(super) fetching: bool,
    /// The jobs that report spent units.
    pub(super) reports: UnderWay,
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

/// Units of a lease that are being returned, and how often the keys of its hash had been reset when they left the table.
#[derive(Clone)]
pub(super) struct Returned {
    /// Of no units.
    pub(super) charge: Charge,
    pub(super) lease: LeaseReturn,
    pub(super) hash: u64,
    pub(super) resets: u32,
    /// Until the job has ended.
    #[expect(dead_code, reason = "only dropped")]
    pub(super) report: Guard,
}

/// Microseconds between two requests to Redis for one key. Below the first, the next lease is larger; above the second,
/// smaller. Returning the leases of colder keys would cost more than they save.
pub(super) const HOT_INTERVAL: u64 = 10_000;
const COLD_INTERVAL: u64 = 50_000;
/// A smaller lease saves little over charging its units one by one.
const MIN_LEASE: u64 = 8;
/// Microseconds. A lease is returned when nothing was spent from it for the first, or when it is older than the second.
const MAX_IDLE: u64 = 250_000;
const MAX_AGE: u64 = 1_000_000;
/// A lease that ends within this many microseconds is returned while that is possible.
const RETURN_MARGIN: u64 = 150_000;

impl Entry {
    pub(super) fn is_of(&self, charge: &Charge) -> bool {
        self.charge.key() == charge.key() && self.charge.policy().counts_as(charge.policy())
    }

    pub(super) fn is_idle(&self) -> bool {
        self.lease.is_none() && !self.fetching && self.reports.count() == 0
    }

    /// How many units the key should have on lease, at most `most`, if Redis is called at the time `now`.
    pub(super) fn wanted(&mut self, now: u64, most: u64) -> u64 {
        match self.last_request.replace(now).map(|before| now.saturating_sub(before)) {
            Some(since) if since < HOT_INTERVAL => {
                self.target = (self.target * 2).clamp(MIN_LEASE.min(most), most);
            }
            Some(since) if since > COLD_INTERVAL => self.target /= 2,
            _ => {}
        }
        self.target.min(most)
    }

    /// Takes the lease if it is to be returned. It was too large.
    pub(super) fn take_unused(&mut self, now: u64, set_back: u64) -> Option<Lease> {
        let is_fetching = self.fetching;
        let is_unused = |lease: &mut Lease| {
            !lease.is_active(now, set_back)
                || now.saturating_sub(lease.last_spent) >= MAX_IDLE
                || now - lease.requested_at >= MAX_AGE
                || lease.ends_at - now <= RETURN_MARGIN && !is_fetching
        };
        let lease = self.lease.take_if(is_unused)?;
        self.target /= 2;
        Some(lease)
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
