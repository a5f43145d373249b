//! Where the counts are kept: [`MemoryStore`] in one process, `RedisStore` for all instances.

mod action;
mod clock;
mod identity;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod outage;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod reported;
mod store;
mod watchers;

#[cfg(feature = "redis")]
use self::action::Counts;
#[cfg(feature = "redis")]
pub(crate) use self::clock::ServerClock;
#[cfg(feature = "redis")]
pub use self::redis::{
    Credentials, CredentialsProvider, HashContent, LeaseStatus, ProbeReport, RedisHash, RedisStoreBuilder,
    Servers,
};
pub use self::{
    action::Action,
    clock::ManualClock,
    list::{BanList, StoredKeys},
    store::Store,
};
use self::{
    action::{PenaltyCharge, Spec, StateChange},
    clock::StoreClock,
    store::BackendRef,
};
pub(crate) use self::{
    identity::{PolicyKeys, StoreIdentity},
    memory::MemoryStore,
    outage::LocalCounts,
    store::{Backend, DecideOne},
};
