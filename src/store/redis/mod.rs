//! Counts in Redis, shared by all instances.
//!
//! [`RedisStore`] first tries to decide without Redis: from a `lease`, or by the deny cache (`shortcut`). For all other
//! decisions it makes a job, which `wire` encodes and `transport` sends. Both observe the jobs, and depend on no connection;
//! `lease` does so through a trait of `job`, because it sends jobs too.

mod address;
mod bans;
mod builder;
mod codes;
mod connect;
mod decide;
mod error;
mod explain;
mod hash;
mod instances;
mod job;
mod keys;
mod lease;
mod manager;
mod opener;
#[cfg(feature = "sentinel")]
mod primary;
mod probe;
mod script;
mod servers;
mod shortcut;
mod store;
mod tls;
mod transport;
mod wire;

pub use self::{
    builder::RedisStoreBuilder, hash::RedisHash, keys::StoredKeys, lease::LeaseStatus, probe::ProbeReport,
    servers::Servers, store::RedisStore,
};
