//! Counts in Redis, shared by all instances.
//!
//! [`RedisStore`] first tries to decide without Redis: from a `lease`, or by the `deny_cache`. For all other
//! decisions it makes a job, which `wire` encodes and `transport` sends. The leases and the deny cache
//! observe the jobs, and depend on no connection; leases do so through a trait of `job`, because they send
//! jobs too.

mod codes;
mod connect;
mod credentials;
mod decide;
mod deny_cache;
mod error;
mod hash;
mod instances;
mod job;
mod lease;
mod listing;
mod safe_text;
mod script;
mod store;
mod transport;
mod wire;

pub use self::{
    connect::{ProbeReport, RedisStoreBuilder, Servers},
    credentials::{Credentials, CredentialsProvider},
    hash::{HashContent, RedisHash},
    lease::LeaseStatus,
    store::RedisStore,
};
