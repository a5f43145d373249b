//! Where the counts are kept: [`MemoryStore`] in one process, `RedisStore` for all instances.

mod clock;
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[expect(clippy::module_inception, reason = "the module's main trait")]
mod store;

#[cfg(feature = "redis")]
pub use self::redis::{ProbeReport, RedisStore, RedisStoreBuilder, Servers};
#[cfg(feature = "redis")]
use self::store::Counts;
pub(crate) use self::store::{LocalCounts, Owed, Owing};
pub use self::{
    clock::ManualClock,
    memory::MemoryStore,
    store::{Action, Extent, Store, StoredKeys},
};
use self::{
    clock::StoreClock,
    store::{PenaltyCharge, Spec, StateChange},
};
