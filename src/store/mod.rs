//! Where the counts are kept: [`MemoryStore`] in one process, `RedisStore` for all instances.

mod clock;
mod memory;
mod penalty_charge;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[expect(clippy::module_inception, reason = "the module's main trait")]
mod store;

#[cfg(feature = "redis")]
use self::penalty_charge::Counts;
#[cfg(feature = "redis")]
pub use self::redis::{ProbeReport, RedisStore, RedisStoreBuilder, Servers};
pub(crate) use self::store::{LocalCounts, Owed, Owing};
pub use self::{
    clock::ManualClock,
    memory::MemoryStore,
    store::{Action, Store},
};
use self::{
    penalty_charge::PenaltyCharge,
    store::{Spec, StateChange},
};
