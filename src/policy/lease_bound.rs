use std::time::Duration;

/// What [leases](crate::Policy::leased) may withhold: how many units of a key are held by an instance that does not
/// need them, and for how long. From [`Policy::lease_bound`](crate::Policy::lease_bound), where there is an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseBound {
    pub(super) units: u64,
    pub(super) after_a_crash: Duration,
}

impl LeaseBound {
    /// The most units of one key that one instance holds.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.units
    }

    /// How long an instance that runs holds units that it does not spend: 1.5 seconds. Longer where Redis
    /// cannot be reached, as [after a crash](Self::after_a_crash) then.
    #[must_use]
    pub const fn while_running(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    /// How long the units may be missed that an instance held when it was killed or could no longer reach Redis, or
    /// shut down without [giving them back](crate::RedisStore::return_leases). They count as spent then: in a
    /// window until it ends, in a bucket, within a second, as if they had been taken that late.
    #[must_use]
    pub const fn after_a_crash(&self) -> Duration {
        self.after_a_crash
    }
}
