/// The units on lease in an instance, from [`RedisStore::lease_status`](crate::RedisStore::lease_status).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseStatus {
    pub(super) keys: usize,
    pub(super) units: u64,
    pub(super) calls: usize,
}

impl LeaseStatus {
    /// The number of keys with units on lease here, under all policies.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.keys
    }

    /// The number of units on lease that are not spent yet.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// The number of script calls under way that lease units ahead of requests or return them.
    #[must_use]
    pub const fn calls(&self) -> usize {
        self.calls
    }
}
