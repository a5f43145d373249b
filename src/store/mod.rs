//! Where the counts are kept: [`MemoryStore`] in one process, `RedisStore` for all instances.

mod clock;
mod memory;
pub(crate) mod outage;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[expect(clippy::module_inception, reason = "the module's main trait")]
mod store;

pub(crate) use self::outage::LocalCounts;
#[cfg(feature = "redis")]
pub use self::redis::{ProbeReport, RedisStore, RedisStoreBuilder, Servers};
#[cfg(feature = "redis")]
use self::store::Counts;
pub use self::{
    clock::ManualClock,
    memory::MemoryStore,
    store::{Action, Extent, Store, StoredKeys},
};
use self::{
    clock::StoreClock,
    store::{PenaltyCharge, Spec, StateChange},
};
