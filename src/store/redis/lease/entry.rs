//! A key that may have a lease: how many units to lease, and when to return them. Both only affect
//! efficiency.

use crate::{
    algorithm::twin::Receipt,
    base::{Guard, UnderWay},
    decision::Charge,
    store::redis::job::LeaseReturn,
};

/// A key that was charged recently.
pub(super) struct Entry {
    /// A charge of no units on the key.
    pub(super) charge: Charge,
    pub(super) lease: Option<Lease>,
    /// How many units to lease next: the faster the last lease was used up, the more. 0 for a key that is not
    /// hot.
    pub(super) target: u64,
    /// When Redis was last asked to charge this key.
    pub(super) last_request: Option<u64>,
    /// Whether a lease is being fetched. A key has at most one such call.
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
    /// How often the clock had been set back when the request was sent.
    pub(super) set_back: u64,
    /// When the lease ends.
    pub(super) ends_at: u64,
    pub(super) last_spent: u64,
    /// The units that remained in Redis beside the lease, and the microseconds until the quota is fully
    /// replenished.
    pub(super) remaining: u64,
    pub(super) reset: u64,
    /// The receipt of the units, for refunds of spent ones.
    pub(super) receipt: Receipt,
}

/// Units of a lease that are being returned. `resets` is how often keys with this hash had been reset when
/// the units left the table.
#[derive(Clone)]
pub(super) struct Returned {
    /// A charge of no units on the key.
    pub(super) charge: Charge,
    pub(super) lease: LeaseReturn,
    pub(super) hash: u64,
    pub(super) resets: u32,
    /// The report of spent units, which is under way until the job has ended.
    pub(super) _report: Guard,
}

/// Microseconds between two requests to Redis for one key. Below `HOT_INTERVAL`, the next lease is larger;
/// above `COLD_INTERVAL`, it is smaller. Returning the leases of colder keys would cost more than they save.
pub(super) const HOT_INTERVAL: u64 = 10_000;
const COLD_INTERVAL: u64 = 50_000;
/// A smaller lease saves little over charging its units one by one.
const MIN_LEASE: u64 = 8;
/// Microseconds. A lease is returned when nothing was spent from it for `MAX_IDLE`, or when it is older than
/// `MAX_AGE`.
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

    /// Takes the lease if it is to be returned, because it is hardly used or ends soon. The next lease is
    /// smaller.
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
    /// Whether units may be spent. They may not after the clock was set back, because what Redis has charged
    /// is then unknown.
    pub(super) const fn is_active(&self, now: u64, set_back: u64) -> bool {
        self.requested_at <= now && now < self.ends_at && self.set_back == set_back
    }

    /// Returns the lease: all unspent units, and the number of spent ones.
    pub(super) const fn returned(&self) -> LeaseReturn {
        let made = self.receipt.made;
        LeaseReturn { name: self.name, units: self.left + self.spent, spent: self.spent, made }
    }
}
