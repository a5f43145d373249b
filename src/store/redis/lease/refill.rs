//! How many units to lease, and when to return them. All of it only affects efficiency.

use super::entry::{Entry, Lease};

/// Microseconds between two requests to Redis for one key. Below the first, the next lease is larger; above the second,
/// smaller. Returning the leases of colder keys would cost more than they save.
const HOT_INTERVAL: u64 = 10_000;
const COLD_INTERVAL: u64 = 50_000;
/// A smaller lease saves little over charging its units one by one.
const MIN_LEASE: u64 = 8;
/// Microseconds. A lease is returned when nothing was spent from it for the first, or when it is older than the second.
const MAX_IDLE: u64 = 250_000;
const MAX_AGE: u64 = 1_000_000;
/// A lease that ends within this many microseconds is returned while that is possible.
const RETURN_MARGIN: u64 = 150_000;

impl Entry {
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
    /// Whether more units should be fetched before the lease is used up.
    pub(super) const fn is_low(&self) -> bool {
        self.left < self.refill_below
    }

    /// Fetches more when half of what is left now is spent.
    pub(super) const fn refill(&mut self) {
        self.refill_below = self.left / 2;
    }

    /// Does not fetch ahead again: the limit has few units left.
    pub(super) const fn do_not_refill(&mut self) {
        self.refill_below = 0;
    }
}
