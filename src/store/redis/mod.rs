//! Counts in Redis, shared by all instances.
//!
//! [`RedisStore`] first tries to decide without Redis (`shortcut`). For all other decisions it makes a job, which
//! `wire` encodes and `transport` sends. `wire` depends on neither `shortcut` nor `transport`; `shortcut` observes jobs
//! through a trait of `wire`.

mod address;
mod bans;
mod builder;
mod codes;
mod connect;
#[cfg(feature = "tls-rustls-no-provider")]
mod encrypted;
mod error;
mod explain;
mod gate;
mod hash;
mod instances;
mod keys;
mod manager;
mod opener;
#[cfg(feature = "sentinel")]
mod primary;
mod probe;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
mod servers;
mod shortcut;
mod store;
mod tls;
mod transport;
mod wire;

pub use self::{
    builder::RedisStoreBuilder,
    hash::RedisHash,
    keys::StoredKeys,
    probe::{FindingKind, ProbeFinding, ProbeReport},
    servers::Servers,
    shortcut::LeaseStatus,
    store::RedisStore,
};
