use std::time::Duration;

/// The most that [leases](crate::Policy::leased) can withhold: how many unused units of a key one instance holds, and
/// for how long. See [`Policy::leased`](crate::Policy::leased) for an example.
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

    /// How long a running instance holds units that it does not spend: 1.5 seconds. If Redis is unreachable, as long as
    /// [after a crash](Self::after_a_crash).
    #[must_use]
    pub const fn while_running(&self) -> Duration {
        Duration::from_millis(1_500)
    }

    /// How long the units of an instance stay charged that crashed, lost its connection to Redis, or
    /// shut down without [returning its leases](crate::RedisStore::return_leases). A window counts them until it ends. A
    /// bucket counts them as charged within a second after the crash.
    #[must_use]
    pub const fn after_a_crash(&self) -> Duration {
        self.after_a_crash
    }
}
