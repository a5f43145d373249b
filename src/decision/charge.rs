use std::{
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{algorithm::twin::Receipt, key::Key, policy::Policy, util::random::random};

/// What a store is asked for: that `key` be charged `cost` units under `policy`.
///
/// A decision is over one charge or several, all or nothing.
///
/// # Example
///
/// ```
/// use tower_ratelimit::{Charge, Key, Limiter, MemoryStore, Policy, Quota};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_ratelimit::Error> {
/// let limiter = Limiter::new(MemoryStore::new());
/// let uploads = Policy::new("uploads", Quota::per_hour(100));
/// let charge = Charge::new(&uploads, &Key::new("alice"), 60);
/// assert!(limiter.check_all(&[charge.clone()]).await?.is_allowed());
/// assert!(!limiter.check_all(&[charge]).await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Charge {
    policy: Policy,
    key: Key,
    cost: u64,
    tie: Tie,
}

/// Charges are equal if they ask for the same. The holder of a [permit](crate::algorithm::Concurrency) does not count.
impl PartialEq for Charge {
    fn eq(&self, other: &Self) -> bool {
        self.cost == other.cost && self.key == other.key && self.policy == other.policy
    }
}

impl Eq for Charge {}

/// What a charge is tied to, beside its key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tie {
    None,
    /// The holder of its permit, where its units are in use until they are released.
    Holder([u64; 2]),
    /// The charge that was made, for a refund of it.
    Made(Receipt),
}

impl Charge {
    /// Charges `key` `cost` units under `policy`. A cost of 0 is always admitted and charges nothing; one above the
    /// policy's capacity is always denied.
    #[must_use]
    pub fn new(policy: &Policy, key: &Key, cost: u64) -> Self {
        Self::of(policy.clone(), key.clone(), cost)
    }

    pub(crate) fn of(policy: Policy, key: Key, cost: u64) -> Self {
        let tie = if policy.has_permits() { Tie::Holder(next_holder()) } else { Tie::None };
        Self { policy, key: key.stored(), cost, tie }
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The key that is charged.
    #[must_use]
    pub const fn key(&self) -> &Key {
        &self.key
    }

    /// The cost in units.
    #[must_use]
    pub const fn cost(&self) -> u64 {
        self.cost
    }

    /// The same charge of `cost` units: for the same holder, or a refund of the same charge.
    pub(crate) fn with_cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The same charge once it was made, for a refund to find it. A permit is found by its holder.
    pub(super) const fn made(mut self, receipt: Receipt) -> Self {
        if matches!(self.tie, Tie::None) {
            self.tie = Tie::Made(receipt);
        }
        self
    }

    /// Which charge is refunded; `None` for an administrator's refund, of the latest units.
    pub(crate) const fn refund_of(&self) -> Option<Receipt> {
        match self.tie {
            Tie::Made(receipt) => Some(receipt),
            _ => None,
        }
    }

    /// The same charge for a holder of its own: what is charged twice holds two permits.
    pub(crate) fn anew(&self) -> Self {
        Self::new(&self.policy, &self.key, self.cost)
    }

    /// Whether its units are in use until they are released.
    pub(crate) fn needs_permit(&self) -> bool {
        self.policy.has_permits()
    }

    pub(crate) const fn holder(&self) -> u128 {
        match self.tie {
            Tie::Holder([high, low]) => (high as u128) << 64 | low as u128,
            _ => 0,
        }
    }

    /// The cost as the algorithms take it. One unit above the capacity says all that a larger cost
    /// does, and keeps the arithmetic small.
    pub(crate) fn bounded_cost(&self) -> u64 {
        self.cost.min(self.policy.capacity().saturating_add(1))
    }
}

/// A number that no other process gives out either: a random half, and a counted one with the time in it. A machine
/// that was cloned while it ran has the same random half and the same count in each clone, and another time.
fn next_holder() -> [u64; 2] {
    static PROCESS: LazyLock<u64> = LazyLock::new(random);
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u32;
    let count = NEXT.fetch_add(1, Ordering::Relaxed) as u32;
    [*PROCESS, u64::from(nanos) << 32 | u64::from(count)]
}
