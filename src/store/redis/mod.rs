//! Counts in Redis, shared by all instances.
//!
//! [`RedisStore`] first tries to decide without Redis: from a `lease`, or by the `deny_cache`. For all other
//! decisions it makes a job, which `wire` encodes and `transport` sends. Both observe the jobs, and depend on no connection;
//! `lease` does so through a trait of `job`, because it sends jobs too.

mod address;
mod builder;
mod codes;
mod connect;
mod decide;
mod deny_cache;
mod error;
mod instances;
mod job;
mod lease;
mod listing;
mod manager;
mod opener;
#[cfg(feature = "sentinel")]
mod primary;
mod probe;
mod probe_report;
mod safe_text;
mod script;
mod servers;
mod store;
mod tls;
#[cfg(feature = "tls-rustls-no-provider")]
mod tls_stream;
mod transport;
mod wire;

pub use self::{
    builder::RedisStoreBuilder, lease::LeaseStatus, probe_report::ProbeReport, servers::Servers,
    store::RedisStore,
};
